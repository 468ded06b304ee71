#!/usr/bin/env bash
# Builds and tries the algorun image. `./build.sh -h` explains; every command it runs is printed first.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly root
readonly local_base=algorun-base:bookworm
readonly wheelhouse_tag=algorun-wheelhouse:build
readonly bad_usage=64

usage() {
    cat <<'TEXT'
usage: ./build.sh COMMAND [options]

commands
  build   build the image, algorun:cuda or algorun:cpu
  run     run it as SageMaker does: `docker run IMAGE train` with a folder as /opt/ml (`-- WORDS` replace `train`)
  test    check what is inside a built image
  base    make the base image algorun-base:bookworm from Debian's packages, for machines without a registry
          (needs mmdebstrap; later builds use it)

options
  --variant cuda|cpu     what to build for (default: cuda)
  --tag NAME[:TAG]       name of the image (default: algorun:VARIANT)
  --base-image IMAGE     Ubuntu 24.04 or Debian 12 (default: algorun-base:bookworm if `base` made it, otherwise
                         nvidia/cuda:..-base-ubuntu24.04 for cuda, ubuntu:24.04 for cpu)
  --build-arg NAME=VALUE a build argument of the Dockerfile, for example EFA_INSTALLER_VERSION (repeatable)
  --opt-ml FOLDER        run: the folder to mount as /opt/ml (default: a fresh one-host job in .build/run)
  --dry-run              print the commands, run none of them
  -h, --help             this text

package settings, handed to the build as secrets that leave nothing in the image
  --ca FILE              certificates to trust while downloading
  --pip-conf FILE        pip's settings
  --apt-conf FILE        apt's settings
  --apt-sources FILE     apt's sources instead of the base image's
  --wheelhouse FOLDER    wheels that no index has, such as torch's +cpu build
  --network NAME         network of the build steps, such as host
  --no-host-settings     do not look for such settings on this machine (docs/image.md says what is looked for)

DOCKER=PATH in the environment chooses the docker client.
TEXT
}

# fail OPTION-AND-VALUE ALLOWED FIX
fail() {
    printf 'build.sh: %s: %s. %s\n' "$1" "$2" "$3" >&2
    exit "$bad_usage"
}

dry_run=''
# The command line as one can paste it, quoted only where a shell needs it.
show() {
    local word
    printf '+'
    for word in "$@"; do
        if [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then
            printf ' %s' "$word"
        elif [[ $word != *[\'[:cntrl:]]* ]]; then
            printf " '%s'" "$word"
        else
            printf ' %q' "$word"
        fi
    done
    printf '\n'
}
run() {
    show "$@"
    [[ -n $dry_run ]] || "$@"
}

# ---- options ------------------------------------------------------------------------------------------------------
[[ $# -gt 0 ]] || { usage >&2; exit "$bad_usage"; }
command=$1
shift
case $command in
    build | run | test | base) ;;
    -h | --help) usage; exit 0 ;;
    *) fail "command '$command'" 'allowed: build, run, test, base' 'See ./build.sh -h' ;;
esac

variant=cuda tag='' base_image='' opt_ml='' host_settings=yes network=''
declare -A setting=([ca]='' [pip_conf]='' [apt_conf]='' [apt_sources]='' [wheelhouse]='')
build_args=() words=(train)
while [[ $# -gt 0 ]]; do
    case $1 in
        --variant | --tag | --base-image | --build-arg | --opt-ml | --ca | --pip-conf | --apt-conf | --apt-sources | \
            --wheelhouse | --network)
            [[ $# -ge 2 ]] || fail "$1" 'it takes a value' "Write $1 VALUE"
            ;;
    esac
    case $1 in
        --variant) variant=$2; shift ;;
        --tag) tag=$2; shift ;;
        --base-image) base_image=$2; shift ;;
        --build-arg)
            [[ $2 == ?*=* ]] || fail "--build-arg '$2'" 'it is NAME=VALUE' 'Add the sign and the value'
            build_args+=(--build-arg "$2"); shift ;;
        --opt-ml) opt_ml=$2; shift ;;
        --ca | --pip-conf | --apt-conf | --apt-sources | --wheelhouse)
            name=${1#--} name=${name//-/_}
            if [[ $name == wheelhouse ]]; then
                [[ -d $2 ]] || fail "$1 '$2'" 'no such folder' 'Give a folder with *.whl files'
            else
                [[ -r $2 ]] || fail "$1 '$2'" 'no such file, or not readable' 'Give the path of a file'
            fi
            setting[$name]=$2; shift ;;
        --network) network=$2; shift ;;
        --no-host-settings) host_settings='' ;;
        --dry-run) dry_run=yes ;;
        -h | --help) usage; exit 0 ;;
        --) shift; words=("$@"); break ;;
        *) fail "option '$1'" "not an option of '$command'" 'See ./build.sh -h' ;;
    esac
    shift
done
case $variant in
    cuda | cpu) ;;
    *) fail "--variant '$variant'" 'allowed: cuda, cpu' 'Choose one of them' ;;
esac
tag=${tag:-algorun:$variant}

# ---- docker -------------------------------------------------------------------------------------------------------
# The first client that can build with BuildKit: one with buildx, or one older than 23, which has it inside.
find_docker() {
    local client version
    while read -r client; do
        if "$client" buildx version >/dev/null 2>&1; then
            echo "$client"
            return
        fi
        version=$("$client" --version 2>/dev/null) || continue
        if [[ $version =~ ^Docker\ version\ ([0-9]+)\. ]] && ((BASH_REMATCH[1] >= 19 && BASH_REMATCH[1] < 23)); then
            echo "$client"
            return
        fi
    done < <(if [[ -n ${DOCKER:-} ]]; then echo "$DOCKER"; else type -ap docker; fi)
    if [[ -n $dry_run ]]; then echo docker; return; fi
    fail "docker client '${DOCKER:-docker on PATH}'" 'none that can build with BuildKit' \
        'Install Docker 23 or later with its buildx plug-in, or set DOCKER to another client'
}
docker=$(find_docker)

# ---- base ---------------------------------------------------------------------------------------------------------
make_base() {
    command -v mmdebstrap >/dev/null || [[ -n $dry_run ]] || fail 'mmdebstrap' 'not installed' \
        'Install it (apt-get install mmdebstrap), or use a base image of a registry with build --base-image'
    look_for_settings
    local env=()
    [[ -z ${setting[apt_conf]} ]] || env+=("APT_CONF=${setting[apt_conf]}")
    [[ -z ${setting[apt_sources]} ]] || env+=("APT_SOURCES=${setting[apt_sources]}")
    run mkdir -p "$root/.build"
    run env "${env[@]}" bash -c "$(printf '%q > %q' "$root/docker/base.sh" "$root/.build/base.tar")"
    run "$docker" import \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'CMD ["/bin/bash"]' \
        "$root/.build/base.tar" "$local_base"
    run rm "$root/.build/base.tar"
}

# ---- build --------------------------------------------------------------------------------------------------------
# Fills `setting` with what this machine itself uses and no option gave.
look_for_settings() {
    [[ -n $host_settings ]] && command -v python3 >/dev/null || return 0
    local folder=$root/.build/host-settings found name value
    # Addresses of mirrors can hold a password: the folder goes when this script does.
    trap 'rm -rf "$root/.build/host-settings"' EXIT
    show python3 "$root/docker/host_settings.py" "$folder"
    found=$(python3 "$root/docker/host_settings.py" ${dry_run:+--dry-run} "$folder")
    while IFS=$'\t' read -r name value; do
        [[ -z $name || -n ${setting[$name]} ]] || setting[$name]=$value
    done <<<"$found"
}

choose_base() {
    if [[ -n $base_image ]]; then
        return
    elif "$docker" image inspect "$local_base" >/dev/null 2>&1; then
        base_image=$local_base
    elif [[ $variant == cpu ]]; then
        base_image=ubuntu:24.04
    fi # otherwise the Dockerfile's own default
}

build() {
    local options=(--build-arg "VARIANT=$variant") name revision
    look_for_settings
    choose_base
    [[ -z $base_image ]] || options+=(--build-arg "BASE_IMAGE=$base_image")
    [[ -z $network ]] || options+=(--network "$network")
    for name in ca pip_conf apt_conf apt_sources; do
        [[ -z ${setting[$name]} ]] || options+=(--secret "id=$name,src=${setting[$name]}")
    done
    # Only the CPU build of torch is missing from PyPI.
    if [[ -n ${setting[wheelhouse]} && $variant == cpu ]]; then
        run bash -c "$(printf 'tar --directory %q --sort=name --create . | %q import - %q' \
            "${setting[wheelhouse]}" "$docker" "$wheelhouse_tag")"
        options+=(--build-arg "WHEELHOUSE_IMAGE=$wheelhouse_tag")
    fi
    if revision=$(git -C "$root" rev-parse HEAD 2>/dev/null); then
        options+=(--label "org.opencontainers.image.revision=$revision")
    fi
    run env DOCKER_BUILDKIT=1 "$docker" build "${options[@]}" "${build_args[@]}" --tag "$tag" "$root"
    if [[ ${options[*]} == *"WHEELHOUSE_IMAGE=$wheelhouse_tag"* ]]; then
        run "$docker" image rm "$wheelhouse_tag"
    fi
    run "$docker" image inspect --format "$tag: {{.Size}} bytes, {{len .RootFS.Layers}} layers" "$tag"
}

# ---- run, test ----------------------------------------------------------------------------------------------------
need_image() {
    [[ -n $dry_run ]] || "$docker" image inspect "$tag" >/dev/null 2>&1 ||
        fail "image '$tag'" 'not on this machine' "Build it: ./build.sh build --variant $variant --tag $tag"
}

run_image() {
    need_image
    local options=()
    if [[ -z $opt_ml ]]; then
        # hosts.py runs inside the image: this machine may have no Python, and /opt/ml is root's on SageMaker too.
        run mkdir -p "$root/.build/run"
        run "$docker" run --rm --entrypoint python3 --volume "$root/docker/hosts.py:/hosts.py:ro" \
            --volume "$root/.build/run:/hosts" "$tag" -I /hosts.py /hosts --hosts algo-1
        opt_ml=$root/.build/run/algo-1
    fi
    if [[ $variant == cuda ]] && command -v nvidia-smi >/dev/null; then
        options+=(--gpus all)
    fi
    run "$docker" run --rm --hostname algo-1 "${options[@]}" --volume "$(realpath "$opt_ml"):/opt/ml" "$tag" "${words[@]}"
}

test_image() {
    need_image
    run "$docker" run --rm --network none --entrypoint bash --env "VARIANT=$variant" \
        --volume "$root/docker/check-image.sh:/check-image.sh:ro" "$tag" /check-image.sh
}

case $command in
    base) make_base ;;
    build) build ;;
    run) run_image ;;
    test) test_image ;;
esac
