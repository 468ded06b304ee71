# shellcheck shell=bash
# The commands `run` and `test` of build.sh: they use an image that is on this machine.

opt_ml=''
words=(train) # what the container runs

# run_option OPTION [VALUE ..]: takes an option of `run`. The status is 1 if it is none.
run_option() {
    case $1 in
        --opt-ml) need_value "$@"; opt_ml=$2 ;;
        *) return 1 ;;
    esac
}

run_image() {
    local options=()
    need_image
    if [[ -z $opt_ml ]]; then
        # hosts.py runs inside the image: this machine may have no Python, and /opt/ml belongs to root as on SageMaker.
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
