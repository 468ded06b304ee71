# shellcheck shell=bash
# The command `push` of build.sh: an image of this machine goes to Amazon ECR. ecr.sh asks ECR.

repository=algorun create='' scan='' immutable='' account='' registry='' endpoint_url=''
region=${AWS_REGION:-} platform=linux/amd64 limit=7200
remote_tag='' # the tag in ECR
private=()    # before docker: its configuration for this push only

# push_option OPTION [VALUE ..]: takes an option of `push`. The status is 1 if it is none.
push_option() {
    case $1 in
        --repository) need_value "$@"; repository=$2 ;;
        --create) create=yes ;;
        --scan-on-push) scan=yes ;;
        --immutable-tags) immutable=yes ;;
        --region) need_value "$@"; region=$2 ;;
        --account) need_value "$@"; account=$2 ;;
        --registry) need_value "$@"; registry=$2 ;;
        --endpoint-url) need_value "$@"; endpoint_url=$2 ;;
        --platform) need_value "$@"; platform=$2 ;;
        --limit) need_value "$@"; limit=$2 ;;
        *) return 1 ;;
    esac
    [[ $command == push ]] || fail "option '$1'" "not an option of '$command'" 'It belongs to ./build.sh push'
}

# Sets `remote_tag`. The patterns are those of ECR's API (CreateRepository, PutImage), except that ECR allows a host
# in a name and we do not.
check_push_options() {
    local LC_ALL=C image_name=${tag##*/} name='[a-z0-9]+([._-]+[a-z0-9]+)*'
    image_name=${image_name%%@*}
    if [[ $repository == *:* ]]; then
        remote_tag=${repository##*:} repository=${repository%:*}
    elif [[ $image_name == *:* ]]; then
        remote_tag=${image_name##*:}
    else
        remote_tag=latest
    fi
    [[ $repository =~ ^$name(/$name)*$ && $repository != *.amazonaws.com* && ${#repository} -ge 2 &&
        ${#repository} -le 256 ]] ||
        fail "--repository '$repository'" 'allowed: 2 to 256 of a-z 0-9 . _ - /' 'Leave the host out, ECR names it'
    [[ $remote_tag =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$ ]] ||
        fail "tag '$remote_tag'" 'allowed: up to 128 of A-Z a-z 0-9 _ . -' 'Write --repository NAME:TAG'
    [[ -n $create || -z $scan$immutable ]] ||
        fail "${scan:+--scan-on-push}${immutable:+ --immutable-tags}" 'only with --create' 'Add --create'
    [[ $account =~ ^([0-9]{12})?$ ]] || fail "--account '$account'" 'allowed: 12 digits' 'Leave it out for your own'
    [[ $region =~ ^([a-z0-9-]+)?$ ]] || fail "--region '$region'" 'allowed: a name such as eu-west-1' 'Correct it'
    [[ $registry =~ ^([A-Za-z0-9.-]+(:[0-9]+)?)?$ ]] ||
        fail "--registry '$registry'" 'allowed: HOST or HOST:PORT' 'Leave out https:// and the path'
    [[ $endpoint_url =~ ^(https?://[^/]+.*)?$ ]] ||
        fail "--endpoint-url '$endpoint_url'" 'allowed: http://.. or https://..' 'Write the whole URL'
    [[ $platform =~ ^[a-z0-9]+/[a-z0-9]+$ ]] ||
        fail "--platform '$platform'" 'allowed: OS/ARCH' 'Write linux/amd64 or linux/arm64'
    [[ $limit =~ ^[1-9][0-9]{0,5}$ ]] || fail "--limit '$limit'" 'allowed: 1 to 999999 seconds' 'Write whole seconds'
}

push_image() {
    local uri
    need_image
    [[ -n $dry_run ]] || check_machine
    prepare_aws
    work=$root/.build/push.$$
    trap 'rm -rf "$work"' EXIT
    run mkdir -p "$root/.build"
    run mkdir -m 700 "$work"

    find_repository
    need_free_tag
    registry=${registry:-${ecr_uri%"/$repository"}}
    registry=${registry:-REGISTRY} # a dry run asks nobody
    uri=$registry/$repository
    log_in
    run "$docker" tag "$tag" "$uri:$remote_tag"
    upload "$uri:$remote_tag"
    [[ -n $dry_run ]] || print_uris "$uri"
}

# Ends unless the programs are here and the image is made for `platform`.
check_machine() {
    local made_for
    command -v aws >/dev/null || refused 'aws' 'not installed' 'Install the AWS CLI, version 2 or 1.17.10 and later'
    command -v timeout >/dev/null || refused 'timeout' 'not installed' 'Install GNU coreutils'
    made_for=$("$docker" image inspect --format '{{.Os}}/{{.Architecture}}' "$tag")
    [[ $made_for == "$platform" ]] || fail "image '$tag'" "made for $made_for, --platform is $platform" \
        "Build it with DOCKER_DEFAULT_PLATFORM=$platform, or say --platform $made_for"
}

# Logs in with a configuration in `work`: ~/.docker stays as it is, and no credential store keeps the password.
log_in() {
    local config=${DOCKER_CONFIG:-${HOME:-}/.docker} context='' ends=(0 0) login
    # Of the user's own configuration only the choice of the engine is used.
    if [[ -z ${DOCKER_HOST:-}${DOCKER_CONTEXT:-} ]]; then
        context=$("$docker" context inspect --format '{{.Name}}' 2>/dev/null) || context=''
    fi
    private=(env "DOCKER_CONFIG=$work")
    [[ -z $context || $context == default ]] || private+=("DOCKER_CONTEXT=$context")
    [[ ! -d $config/contexts ]] || run ln -s "$(realpath "$config/contexts")" "$work/contexts"
    # With an entry, even an empty one, docker chooses no credential store by itself.
    run bash -c "$(printf 'echo {\\"auths\\": {\\"%s\\": {}}} > %q' "$registry" "$work/config.json")"
    login=("${private[@]}" "${timed[@]}" "$answer_limit_s" "$docker" login --username AWS --password-stdin "$registry")
    printf '%s |' "$(show "${aws[@]}" get-login-password)"
    show "${login[@]}" | cut -c 2-
    if [[ -n $dry_run ]]; then return; fi
    "${aws[@]}" get-login-password 2>"$work/error" | "${login[@]}" >/dev/null 2>"$work/login" || ends=("${PIPESTATUS[@]}")
    [[ ${ends[0]} -eq 0 ]] || aws_failed "${ends[0]}"
    mv "$work/login" "$work/error"
    [[ ${ends[1]} -eq 0 ]] || registry_failed "${ends[1]}" "$answer_limit_s"
}

# upload HOST/NAME:TAG
upload() {
    local push=("${private[@]}" "${timed[@]}" "$limit" "$docker" push "$1") status=0
    show "${push[@]}"
    [[ -n $dry_run ]] || "${push[@]}" 2>"$work/error" || status=$?
    [[ $status -eq 0 ]] || registry_failed "$status" "$limit"
}

# registry_failed STATUS SECONDS: ends with the reason why docker login or docker push failed, and with what helps.
registry_failed() {
    local said what="registry '$registry'"
    said=$(last_words)
    case $1:$said in
        *immutable*) tag_is_there ;;
        *denied* | *'not authorized'*)
            refused "$what" "access denied ($said)" 'Ask for the rights to push, or take other credentials (AWS_PROFILE)' ;;
        *'401 Unauthorized'* | *'status: 401'* | *nauthorized* | *'no basic auth'* | *'incorrect username or password'*)
            refused "$what" "it does not take ECR's password ($said)" 'Look at --account, --region and --registry' ;;
        124:* | 137:*)
            refused "$what" "not done after $2 s" 'Look at the network of the Docker engine, or give push --limit SECONDS' ;;
        *'no such host'* | *'onnection refused'* | *imeout* | *eadline* | *unreachable* | *'no route'* | *EOF*)
            refused "$what" "not reachable ($said)" "Look at --registry, and at the Docker engine's network and proxy" ;;
        *) refused "$what" "${said:-docker left with $1}" 'The lines above say what was done' ;;
    esac
}

# print_uris HOST/NAME: the last two lines of a push.
print_uris() {
    local digest
    digest=$("$docker" image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$1:$remote_tag" |
        sed -n "s|^$1@||p")
    # Docker knows several digests if another engine pushed the image too, and some engines know none: then ask ECR.
    if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
        ask_digest || aws_failed $?
        digest=$answer
    fi
    printf 'image_uri: %s\nby digest: %s\n' "$1:$remote_tag" "$1@$digest"
}
