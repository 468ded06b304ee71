#!/usr/bin/env bash
# newcomer.sh [TARGET..]: clones this repository's HEAD inside a container that has Python with venv, make and git, and
# runs make's targets there (demo and test), as the README tells a newcomer to.
#
# The container gets this machine's package settings, found as build.sh finds them: certificates, pip's settings, and a
# folder of wheels. It needs a Docker engine and the image of `./build.sh base`. NEWCOMER_BASE=algorun-base:trixie takes
# Debian 13 (`./build.sh base --suite trixie`).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[[ $# -gt 0 ]] || set -- demo test
base=${NEWCOMER_BASE:-algorun-base:bookworm}
image=algorun-newcomer:${base##*:} name=algorun-newcomer-$$ limit_s=${NEWCOMER_LIMIT_S:-3000}

settings=$(mktemp -d)
trap 'docker rm --force "$name" > /dev/null 2>&1 || true; rm -rf "$settings"' EXIT

secrets=() options=()
[[ -z ${PYTEST_ADDOPTS:-} ]] || options+=(--env PYTEST_ADDOPTS)
while IFS=$'\t' read -r kind path; do
    case $kind in
        ca)
            secrets+=(--secret "id=ca,src=$path")
            options+=(--volume "$path:/settings/ca:ro" --env PIP_CERT=/settings/ca --env SSL_CERT_FILE=/settings/ca) ;;
        apt_conf) secrets+=(--secret "id=apt_conf,src=$path") ;;
        pip_conf) options+=(--volume "$path:/settings/pip.conf:ro" --env PIP_CONFIG_FILE=/settings/pip.conf) ;;
        wheelhouse) options+=(--volume "$path:/settings/wheels:ro" --env PIP_FIND_LINKS=/settings/wheels) ;;
    esac
done < <(python3 "$root/docker/host_settings.py" "$settings/files")
git -C "$root" bundle create --quiet "$settings/clone" HEAD
# The newcomer inside is no root. On this machine the folder around these files keeps others away from them.
find "$settings" -type f -exec chmod a+r {} +

docker=docker # the engine's own client where the first one on PATH cannot use BuildKit
docker buildx version > /dev/null 2>&1 || docker=/usr/bin/docker
DOCKER_BUILDKIT=1 "$docker" build --quiet "${secrets[@]}" --build-arg "BASE_IMAGE=$base" --file "$root/.ci/bare.Dockerfile" --tag "$image" "$root"

# shellcheck disable=SC2016  # the container's shell expands it
timeout --foreground "$limit_s" docker run --rm --init --name "$name" --volume "$settings/clone:/clone:ro" \
    "${options[@]}" "$image" bash -euc '
        git clone --quiet /clone algorun
        cd algorun
        for target in "$@"; do
            began=$SECONDS
            make $target  # one word or two
            printf "==> make %s: %s s\n" "$target" "$((SECONDS - began))"
        done' newcomer "$@"
