# shellcheck shell=bash
# What every command of build.sh uses: errors, printed commands, the docker client.
# It reads `command`, `tag`, `variant`, `dry_run` and `docker`, which build.sh sets.

readonly bad_usage=64

# fail OPTION-AND-VALUE ALLOWED FIX: ends with 64. The caller can correct the command line.
fail() {
    complain "$@"
    exit "$bad_usage"
}

# refused WHAT-AND-VALUE REASON FIX: ends with 1. AWS, a registry or Docker said no.
refused() {
    complain "$@"
    exit 1
}

complain() { printf 'build.sh: %s: %s. %s\n' "$1" "$2" "$3" >&2; }

# need_value OPTION [VALUE ..]: the option has a value, so it uses two words of the command line.
need_value() {
    [[ $# -ge 2 ]] || fail "$1" 'it takes a value' "Write $1 VALUE"
    # shellcheck disable=SC2034 # build.sh shifts by it
    used=2
}

# show WORD..: prints a command so that it can be pasted into a shell, with quotes only where they are needed.
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

# run WORD..: prints a command and runs it, or only prints it in a dry run.
run() {
    show "$@"
    [[ -n $dry_run ]] || "$@"
}

# Prints the first docker client that can build with BuildKit: one with buildx, or one of version 19 to 22, which has
# BuildKit inside. `push` takes the first client of all: every client can push.
find_docker() {
    local client version
    while read -r client; do
        if [[ $command == push ]] || "$client" buildx version >/dev/null 2>&1; then
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

# Ends unless the image `tag` is on this machine.
need_image() {
    if [[ -n $dry_run ]] || "$docker" image inspect "$tag" >/dev/null 2>&1; then return; fi
    "$docker" info >/dev/null 2>&1 || refused "docker client '$docker'" 'no Docker engine answers' 'Start Docker'
    fail "image '$tag'" 'not on this machine' "Build it: ./build.sh build --variant $variant --tag $tag"
}
