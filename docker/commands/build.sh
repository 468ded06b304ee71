# shellcheck shell=bash
# The commands `build` and `base` of build.sh.

readonly local_base=algorun-base:bookworm         # what `base` makes by default and `build` prefers
# Its digest is that of the index of all platforms, of August 2026. docs/image.md says how to renew it.
readonly cpu_base=ubuntu:24.04@sha256:33ceb71981b602c1a7443a53469e4dba065f7503eab3078a2d7a57a2ab987517
readonly wheelhouse_tag=algorun-wheelhouse:build-$$ # of this process: two builds at once must not share it

base_image='' network='' host_settings=yes suite=bookworm
build_args=()
# The package settings that the build gets: NAME=PATH. The Dockerfile knows these names, except wheelhouse.
declare -A setting=([ca]='' [pip_conf]='' [apt_conf]='' [apt_sources]='' [wheelhouse]='')

# build_option OPTION [VALUE ..]: takes an option of `build` or `base`. The status is 1 if it is none.
build_option() {
    local name
    case $1 in
        --base-image) need_value "$@"; base_image=$2 ;;
        --suite)
            need_value "$@"
            case $2 in
                bookworm | trixie) suite=$2 ;;
                *) fail "--suite '$2'" 'allowed: bookworm (Debian 12), trixie (Debian 13)' 'Choose one of them' ;;
            esac ;;
        --build-arg)
            need_value "$@"
            [[ $2 == ?*=* ]] || fail "--build-arg '$2'" 'allowed: NAME=VALUE' 'Write for example --build-arg EXTRA_PACKAGES=git'
            build_args+=(--build-arg "$2") ;;
        --ca | --pip-conf | --apt-conf | --apt-sources)
            need_value "$@"
            [[ -r $2 ]] || fail "$1 '$2'" 'no such file, or not readable' 'Give the path of a file'
            name=${1#--}
            setting[${name//-/_}]=$2 ;;
        --wheelhouse)
            need_value "$@"
            [[ -d $2 ]] || fail "$1 '$2'" 'no such folder' 'Give a folder with *.whl files'
            setting[wheelhouse]=$2 ;;
        --network) need_value "$@"; network=$2 ;;
        --no-host-settings) host_settings='' ;;
        *) return 1 ;;
    esac
}

# Adds the package settings of this machine to `setting`. A setting from an option stays.
look_for_settings() {
    [[ -n $host_settings ]] && command -v python3 >/dev/null || return 0
    local folder=$root/.build/host-settings found name value
    # The address of a mirror can hold a password, so the folder is removed at the end.
    trap 'rm -rf "$root/.build/host-settings"' EXIT
    show python3 "$root/docker/host_settings.py" "$folder"
    found=$(python3 "$root/docker/host_settings.py" ${dry_run:+--dry-run} "$folder")
    while IFS=$'\t' read -r name value; do
        [[ -z $name || -n ${setting[$name]} ]] || setting[$name]=$value
    done <<<"$found"
}

choose_base() {
    if [[ -n $base_image ]]; then
        [[ $base_image == *@sha256:* || $base_image == "$local_base" ]] || complain "--base-image '$base_image'" \
            'warning: a name without a digest, which may get another content' \
            "For the same base each time: --base-image $base_image@sha256:.., as docker buildx imagetools inspect $base_image prints it"
    elif "$docker" image inspect "$local_base" >/dev/null 2>&1; then
        base_image=$local_base
    elif [[ $variant == cpu ]]; then
        base_image=$cpu_base
    fi # for cuda the Dockerfile has a default of its own
}

build_image() {
    local options=(--build-arg "VARIANT=$variant") name revision wheels=''
    look_for_settings
    choose_base
    [[ -z $base_image ]] || options+=(--build-arg "BASE_IMAGE=$base_image")
    [[ -z $network ]] || options+=(--network "$network")
    for name in ca pip_conf apt_conf apt_sources; do
        [[ -z ${setting[$name]} ]] || options+=(--secret "id=$name,src=${setting[$name]}")
    done
    # PyPI has torch with CUDA, and lacks only torch for the CPU.
    [[ $variant != cpu ]] || wheels=${setting[wheelhouse]}
    if [[ -n $wheels ]]; then
        run bash -c "$(printf 'tar --directory %q --sort=name --create . | %q import - %q' \
            "$wheels" "$docker" "$wheelhouse_tag")"
        options+=(--build-arg "WHEELHOUSE_IMAGE=$wheelhouse_tag")
    fi
    if revision=$(git -C "$root" rev-parse HEAD 2>/dev/null); then
        options+=(--label "org.opencontainers.image.revision=$revision")
    fi
    # An attestation makes the image an OCI index, and SageMaker endpoints take none.
    run env DOCKER_BUILDKIT=1 BUILDX_NO_DEFAULT_ATTESTATIONS=1 \
        "$docker" build "${options[@]}" "${build_args[@]}" --tag "$tag" "$root"
    [[ -z $wheels ]] || run "$docker" image rm "$wheelhouse_tag"
    run "$docker" image inspect --format "$tag: {{.Size}} bytes, {{len .RootFS.Layers}} layers, \
on {{index .Config.Labels \"org.opencontainers.image.base.name\"}}" "$tag"
}

make_base() {
    local env=()
    command -v mmdebstrap >/dev/null || [[ -n $dry_run ]] || fail 'mmdebstrap' 'not installed' \
        'Install it (apt-get install mmdebstrap), or use a base image of a registry with build --base-image'
    look_for_settings
    [[ -z ${setting[apt_conf]} ]] || env+=("APT_CONF=${setting[apt_conf]}")
    [[ -z ${setting[apt_sources]} ]] || env+=("APT_SOURCES=${setting[apt_sources]}")
    run mkdir -p "$root/.build"
    run env "${env[@]}" bash -c "$(printf '%q %q > %q' "$root/docker/base.sh" "$suite" "$root/.build/base.tar")"
    run "$docker" import \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'CMD ["/bin/bash"]' \
        "$root/.build/base.tar" "algorun-base:$suite"
    run rm "$root/.build/base.tar"
}
