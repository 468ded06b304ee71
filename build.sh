#!/usr/bin/env bash
# Builds, tries and pushes the algorun image. `./build.sh -h` explains; every command it runs is printed first.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly root
readonly local_base=algorun-base:bookworm
readonly wheelhouse_tag=algorun-wheelhouse:build-$$ # two builds at once must not share it
readonly bad_usage=64
readonly answer_limit_s=60 # for one answer of AWS or of a registry, its retries included

usage() {
    cat <<'TEXT'
usage: ./build.sh COMMAND [options]

commands
  build   build the image, algorun:cuda or algorun:cpu
  run     run it as SageMaker does: `docker run IMAGE train` with a folder as /opt/ml (`-- WORDS` replace `train`)
  test    check what is inside a built image
  push    push it to Amazon ECR and print its image_uri, also by digest (needs the AWS CLI)
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

push
  --repository NAME[:TAG] the repository in ECR, and the tag there (default: algorun, with the tag of the image)
  --create               create the repository if it is absent
  --scan-on-push         with --create: ECR looks for vulnerabilities in what is pushed
  --immutable-tags       with --create: a tag, once pushed, keeps its image
  --region NAME          AWS region (default: the AWS CLI's own)
  --account ID           whose ECR (default: that of the credentials)
  --registry HOST[:PORT] push to this host, not to the one ECR names: a FIPS, dual-stack or VPC endpoint, a proxy
  --endpoint-url URL     where ECR's API answers (default: the AWS CLI's own; newer ones know AWS_ENDPOINT_URL_ECR)
  --platform OS/ARCH     what the image must be made for (default: linux/amd64)
  --limit SECONDS        how long the upload may take (default: 7200)

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

# fail OPTION-AND-VALUE ALLOWED FIX: what the caller can change on the command line
fail() {
    printf 'build.sh: %s: %s. %s\n' "$1" "$2" "$3" >&2
    exit "$bad_usage"
}
# refused WHAT-AND-VALUE REASON FIX: what AWS, a registry or Docker said no to
refused() {
    printf 'build.sh: %s: %s. %s\n' "$1" "$2" "$3" >&2
    exit 1
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
    build | run | test | push | base) ;;
    -h | --help) usage; exit 0 ;;
    *) fail "command '$command'" 'allowed: build, run, test, push, base' 'See ./build.sh -h' ;;
esac

variant=cuda tag='' base_image='' opt_ml='' host_settings=yes network=''
repository=algorun create='' scan='' immutable='' region=${AWS_REGION:-} account='' registry='' endpoint_url=''
platform=linux/amd64 limit=7200
declare -A setting=([ca]='' [pip_conf]='' [apt_conf]='' [apt_sources]='' [wheelhouse]='')
build_args=() words=(train)
while [[ $# -gt 0 ]]; do
    case $1 in
        --variant | --tag | --base-image | --build-arg | --opt-ml | --ca | --pip-conf | --apt-conf | --apt-sources | \
            --wheelhouse | --network | --repository | --region | --account | --registry | --endpoint-url | --platform | --limit)
            [[ $# -ge 2 ]] || fail "$1" 'it takes a value' "Write $1 VALUE"
            ;;
    esac
    case $1 in
        --repository | --create | --scan-on-push | --immutable-tags | --region | --account | --registry | \
            --endpoint-url | --platform | --limit)
            [[ $command == push ]] || fail "option '$1'" "not an option of '$command'" 'It belongs to ./build.sh push'
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
        --repository) repository=$2; shift ;;
        --create) create=yes ;;
        --scan-on-push) scan=yes ;;
        --immutable-tags) immutable=yes ;;
        --region) region=$2; shift ;;
        --account) account=$2; shift ;;
        --registry) registry=$2; shift ;;
        --endpoint-url) endpoint_url=$2; shift ;;
        --platform) platform=$2; shift ;;
        --limit) limit=$2; shift ;;
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

# The patterns are ECR's own (CreateRepository, PutImage), except that a host is no part of a name here.
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
[[ $command != push ]] || check_push_options

# ---- docker -------------------------------------------------------------------------------------------------------
# The first client that can build with BuildKit: one with buildx, or one older than 23, which has it inside. Any can
# push.
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
    # An attestation makes the image an index, which SageMaker does not take everywhere.
    run env DOCKER_BUILDKIT=1 BUILDX_NO_DEFAULT_ATTESTATIONS=1 "$docker" build "${options[@]}" "${build_args[@]}" --tag "$tag" "$root"
    if [[ ${options[*]} == *"WHEELHOUSE_IMAGE=$wheelhouse_tag"* ]]; then
        run "$docker" image rm "$wheelhouse_tag"
    fi
    run "$docker" image inspect --format "$tag: {{.Size}} bytes, {{len .RootFS.Layers}} layers" "$tag"
}

# ---- run, test ----------------------------------------------------------------------------------------------------
need_image() {
    if [[ -n $dry_run ]] || "$docker" image inspect "$tag" >/dev/null 2>&1; then return; fi
    "$docker" info >/dev/null 2>&1 || refused "docker client '$docker'" 'no Docker engine answers' 'Start Docker'
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

# ---- push ---------------------------------------------------------------------------------------------------------
# Runs `aws ecr WORDS`: the answer is in `answer`, the error in $work/error, the exit status is the CLI's.
ask() {
    show "${aws[@]}" "$@"
    [[ -n $dry_run ]] || answer=$("${aws[@]}" "$@" 2>"$work/error")
}

# The last line of an error, without the blank lines that the AWS CLI puts around it.
last_words() { sed '/^[[:space:]]*$/d' "$1" | tail -n 1; }

# aws_failed STATUS: says why the last call of AWS failed, and what helps.
aws_failed() {
    local said what="ECR${region:+ in $region}"
    said=$(last_words "$work/error")
    case $1:$said in
        *'nable to locate credentials'*)
            refused 'AWS credentials' 'none found' "Set AWS_PROFILE or AWS_ACCESS_KEY_ID, or run 'aws configure'" ;;
        *xpired* | *'rror loading SSO'* | *'Token for'*'does not exist'*)
            refused 'AWS credentials' "expired ($said)" "Get new ones, for example by 'aws sso login'" ;;
        *UnrecognizedClient* | *InvalidClientToken* | *InvalidSignature* | *SignatureDoesNotMatch* | *IncompleteSignature*)
            refused 'AWS credentials' "not valid ($said)" 'Correct the access key, the secret and the session token' ;;
        *AccessDenied* | *'not authorized'*)
            refused "$what" "access denied ($said)" 'Ask for this right, or take other credentials (AWS_PROFILE)' ;;
        *'specify a region'*) fail '--region' 'no region is set' 'Write --region NAME, or set AWS_REGION' ;;
        124:* | 137:* | *'onnect to the endpoint'* | *'onnect timeout'* | *'ead timeout'*)
            refused "$what${endpoint_url:+ at $endpoint_url}" "no answer (${said:-after $answer_limit_s s})" \
                'Look at the region, --endpoint-url, the network and HTTPS_PROXY' ;;
        *) refused "$what" "${said:-the AWS CLI left with $1}" "See 'aws ecr help'" ;;
    esac
}

# registry_failed STATUS SECONDS: says why docker login or docker push failed, and what helps.
registry_failed() {
    local said what="registry '$registry'"
    said=$(last_words "$work/error")
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

tag_is_there() {
    refused "tag '$remote_tag'" "repository '$repository' has it already, and its tags are immutable" \
        "Choose another one: --repository $repository:NEW-TAG"
}

# Finds or makes the repository: `uri` is HOST/NAME as ECR names it, `mutability` says whether a tag can move.
find_repository() {
    local fields='[repositoryUri,imageTagMutability,imageScanningConfiguration.scanOnPush]' status=0 options=() scans
    ask describe-repositories "${whose[@]}" --repository-names "$repository" --query "repositories[0].$fields" || status=$?
    if [[ -n $dry_run || $status -ne 0 ]]; then
        if [[ -z $dry_run ]]; then
            grep -q RepositoryNotFound "$work/error" || aws_failed "$status"
            [[ -n $create ]] || refused "--repository '$repository'" "ECR${region:+ in $region} has no such repository" \
                'Add --create, or give the name of one that exists'
        elif [[ -n $create ]]; then
            echo '# only where the repository is absent:'
        else
            return 0
        fi
        [[ -z $scan ]] || options+=(--image-scanning-configuration scanOnPush=true)
        [[ -z $immutable ]] || options+=(--image-tag-mutability IMMUTABLE)
        ask create-repository "${whose[@]}" --repository-name "$repository" "${options[@]}" --query "repository.$fields" ||
            aws_failed $?
    fi
    [[ -z $dry_run ]] || return 0
    read -r uri mutability scans <<<"$answer"
    [[ $uri == ?*/"$repository" ]] || refused "--repository '$repository'" "ECR calls it '$uri'" 'Look at --endpoint-url'
    [[ -z $immutable || $mutability == IMMUTABLE* ]] ||
        refused "--immutable-tags" "repository '$repository' exists, and its tags are $mutability" \
            "Leave the option out, or change it: aws ecr put-image-tag-mutability --repository-name $repository --image-tag-mutability IMMUTABLE"
    [[ -z $scan || $scans == [Tt]rue ]] ||
        refused "--scan-on-push" "repository '$repository' exists, and does not scan" \
            "Leave the option out, or change it: aws ecr put-image-scanning-configuration --repository-name $repository --image-scanning-configuration scanOnPush=true"
}

# ECR itself refuses such a push only after the whole upload.
need_free_tag() {
    local status=0
    [[ -z $dry_run ]] || echo '# only where tags are immutable:'
    ask describe-images "${whose[@]}" --repository-name "$repository" --image-ids "imageTag=$remote_tag" \
        --query 'imageDetails[0].imageDigest' || status=$?
    if [[ -n $dry_run ]]; then return; fi
    [[ $status -ne 0 ]] || tag_is_there
    grep -q ImageNotFound "$work/error" || aws_failed "$status"
}

# Logs in with a configuration of its own: ~/.docker stays as it is, and no credential store keeps the password.
log_in() {
    local config=${DOCKER_CONFIG:-${HOME:-}/.docker} context='' ends=(0 0) login
    # Of the user's configuration only the choice of the engine counts here.
    if [[ -z ${DOCKER_HOST:-}${DOCKER_CONTEXT:-} ]]; then
        context=$("$docker" context inspect --format '{{.Name}}' 2>/dev/null) || context=''
    fi
    private=(env "DOCKER_CONFIG=$work")
    [[ -z $context || $context == default ]] || private+=("DOCKER_CONTEXT=$context")
    [[ ! -d $config/contexts ]] || run ln -s "$(realpath "$config/contexts")" "$work/contexts"
    # An entry, even an empty one, keeps docker from choosing a credential store by itself.
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

push_image() {
    local work=$root/.build/push.$$ timed=(timeout --foreground --kill-after 5) whose=() aws private=() answer=''
    local uri='' mutability='' made_for digests status=0
    need_image
    if [[ -z $dry_run ]]; then
        command -v aws >/dev/null || refused 'aws' 'not installed' 'Install the AWS CLI, version 2 or 1.17.10 and later'
        command -v timeout >/dev/null || refused 'timeout' 'not installed' 'Install GNU coreutils'
        made_for=$("$docker" image inspect --format '{{.Os}}/{{.Architecture}}' "$tag")
        [[ $made_for == "$platform" ]] || fail "image '$tag'" "made for $made_for, --platform is $platform" \
            "Build it with DOCKER_DEFAULT_PLATFORM=$platform, or say --platform $made_for"
    fi
    aws=("${timed[@]}" "$answer_limit_s" aws --output text --cli-connect-timeout 10 --cli-read-timeout 30)
    [[ -z $region ]] || aws+=(--region "$region")
    [[ -z $endpoint_url ]] || aws+=(--endpoint-url "$endpoint_url")
    aws+=(ecr)
    [[ -z $account ]] || whose=(--registry-id "$account")
    # shellcheck disable=SC2064 # the folder's name is known now, and `work` is gone when the trap runs
    trap "$(printf 'rm -rf %q' "$work")" EXIT
    run mkdir -p "$root/.build"
    run mkdir -m 700 "$work"

    find_repository
    if [[ -n $dry_run || $mutability == IMMUTABLE ]]; then need_free_tag; fi
    if [[ -z $registry ]]; then registry=${uri%"/$repository"}; fi
    if [[ -z $registry ]]; then registry=REGISTRY; fi # a dry run asks nobody
    uri=$registry/$repository
    log_in
    run "$docker" tag "$tag" "$uri:$remote_tag"
    show "${private[@]}" "${timed[@]}" "$limit" "$docker" push "$uri:$remote_tag"
    if [[ -n $dry_run ]]; then return; fi
    "${private[@]}" "${timed[@]}" "$limit" "$docker" push "$uri:$remote_tag" 2>"$work/error" || status=$?
    [[ $status -eq 0 ]] || registry_failed "$status" "$limit"

    digests=$("$docker" image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$uri:$remote_tag" |
        sed -n "s|^$uri@||p")
    if [[ ! $digests =~ ^sha256:[0-9a-f]{64}$ ]]; then # none, or one more from a push by another engine
        ask describe-images "${whose[@]}" --repository-name "$repository" --image-ids "imageTag=$remote_tag" \
            --query 'imageDetails[0].imageDigest' || aws_failed $?
        digests=$answer
    fi
    printf 'image_uri: %s\nby digest: %s\n' "$uri:$remote_tag" "$uri@$digests"
}

case $command in
    base) make_base ;;
    build) build ;;
    run) run_image ;;
    test) test_image ;;
    push) push_image ;;
esac
