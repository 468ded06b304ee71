#!/usr/bin/env bash
# install-efa.sh: AWS's EFA user space (libfabric and aws-ofi-nccl, NCCL's way onto EFA) at one pinned version.
# EFA_INSTALLER_VERSION empty: does nothing. Otherwise EFA_INSTALLER_SHA256 must be the sha256 of the download.
# EFA_INSTALLER_URL: where the tar.gz lies, if not at AWS's own place.
set -euo pipefail

if [[ -z ${EFA_INSTALLER_VERSION:-} ]]; then
    echo "no EFA: NCCL between hosts will use TCP (docs/image.md)"
    exit 0
fi
if [[ ! ${EFA_INSTALLER_SHA256:-} =~ ^[0-9a-f]{64}$ ]]; then
    echo "EFA_INSTALLER_SHA256='${EFA_INSTALLER_SHA256:-}': give the 64 hexadecimal digits of the sha256 of" \
        "aws-efa-installer-$EFA_INSTALLER_VERSION.tar.gz" >&2
    exit 64
fi
url=${EFA_INSTALLER_URL:-https://efa-installer.amazonaws.com/aws-efa-installer-$EFA_INSTALLER_VERSION.tar.gz}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])' "$url" "$work/efa.tgz"
echo "$EFA_INSTALLER_SHA256  $work/efa.tgz" | sha256sum --check --strict
tar -xzf "$work/efa.tgz" -C "$work"

apt-get update
cd "$work/aws-efa-installer"
# The kernel module and the limits are the host's; a container has no device to verify with at build time.
./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify
# The distribution's Open MPI stays the only one: its settings and mpi4py were tested together.
ldconfig
rm -rf /opt/amazon/openmpi /opt/amazon/openmpi5 /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/log/apt /var/log/*.log
