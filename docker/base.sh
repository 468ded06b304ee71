#!/usr/bin/env bash
# base.sh [SUITE]: writes a small Debian root file system (python3, ca-certificates) to standard output as a tar,
# from Debian's packages alone: the base image for machines that reach no registry (`build.sh base` imports it).
# APT_SOURCES, APT_CONF: files of apt to use instead of deb.debian.org's; they leave nothing in the result.
set -euo pipefail

suite=${1:-bookworm}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the image's apt will use, whatever this machine used.
cat > "$work/debian.sources" <<EOF
Types: deb
URIs: http://deb.debian.org/debian
Suites: $suite $suite-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: $suite-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF

options=()
if [[ -n ${APT_CONF:-} ]]; then
    # mmdebstrap does not read the machine's apt.conf. It keeps these lines in 99mmdebstrap, removed below.
    options+=("--aptopt=$APT_CONF")
fi

# shellcheck disable=SC2016  # the shell that mmdebstrap starts expands $1, the new root
mmdebstrap --quiet --variant=apt --include=python3,ca-certificates \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    "${options[@]}" \
    --customize-hook='rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/apt/sources.list" "$1"/etc/apt/sources.list.d/*' \
    --customize-hook="upload '$work/debian.sources' /etc/apt/sources.list.d/debian.sources" \
    --customize-hook='cd "$1" && rm -rf var/log/apt var/log/*.log var/lib/apt/lists/* var/cache/apt/*.bin' \
    --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf"' \
    "$suite" - "${APT_SOURCES:-$work/debian.sources}"
