# shellcheck shell=bash
# What `push` asks Amazon ECR, through the AWS CLI, and what ECR's errors mean.
# It reads the options of push.sh, and `dry_run`.

readonly answer_limit_s=60 # for one answer of AWS or of a registry, with its retries

timed=(timeout --foreground --kill-after 5) # before SECONDS and a command
work=''                                     # push's own folder: the last error, docker's configuration
aws=()                                      # the AWS CLI up to `ecr`, with its options
account_option=()                           # for calls that can name another account

# What `ask` and `find_repository` find out.
answer=''
ecr_uri=''    # HOST/NAME of the repository, as ECR names it
mutability='' # whether a tag of the repository can move: MUTABLE, IMMUTABLE, IMMUTABLE_WITH_EXCLUSION, ..

prepare_aws() {
    aws=("${timed[@]}" "$answer_limit_s" aws --output text --cli-connect-timeout 10 --cli-read-timeout 30)
    [[ -z $region ]] || aws+=(--region "$region")
    [[ -z $endpoint_url ]] || aws+=(--endpoint-url "$endpoint_url")
    aws+=(ecr)
    [[ -z $account ]] || account_option=(--registry-id "$account")
}

# ask WORD..: runs `aws ecr WORD..`. The answer is in `answer`, the error in $work/error; the status is the CLI's.
ask() {
    show "${aws[@]}" "$@"
    [[ -n $dry_run ]] || answer=$("${aws[@]}" "$@" 2>"$work/error")
}

ask_digest() {
    ask describe-images "${account_option[@]}" --repository-name "$repository" --image-ids "imageTag=$remote_tag" \
        --query 'imageDetails[0].imageDigest'
}

# Prints the last line of the last error. The AWS CLI puts blank lines around its errors.
last_words() { sed '/^[[:space:]]*$/d' "$work/error" | tail -n 1; }

# aws_failed STATUS: ends with the reason why the last call of the AWS CLI failed, and with what helps.
aws_failed() {
    local said what="ECR${region:+ in $region}"
    said=$(last_words)
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

tag_is_there() {
    refused "tag '$remote_tag'" "repository '$repository' has it already, and its tags are immutable" \
        "Choose another one: --repository $repository:NEW-TAG"
}

# Finds the repository, or creates it with --create: sets `ecr_uri` and `mutability`.
find_repository() {
    local fields='[repositoryUri,imageTagMutability,imageScanningConfiguration.scanOnPush]' status=0 scans
    ask describe-repositories "${account_option[@]}" --repository-names "$repository" \
        --query "repositories[0].$fields" || status=$?
    if [[ -n $dry_run ]]; then
        [[ -n $create ]] || return 0
        echo '# only where the repository is absent:'
        create_repository "$fields"
        return
    fi
    if [[ $status -ne 0 ]]; then
        grep -q RepositoryNotFound "$work/error" || aws_failed "$status"
        [[ -n $create ]] || refused "--repository '$repository'" "ECR${region:+ in $region} has no such repository" \
            'Add --create, or give the name of one that exists'
        create_repository "$fields"
    fi
    read -r ecr_uri mutability scans <<<"$answer"
    check_repository "$scans"
}

# create_repository FIELDS
create_repository() {
    local options=()
    [[ -z $scan ]] || options+=(--image-scanning-configuration scanOnPush=true)
    [[ -z $immutable ]] || options+=(--image-tag-mutability IMMUTABLE)
    ask create-repository "${account_option[@]}" --repository-name "$repository" "${options[@]}" \
        --query "repository.$1" || aws_failed $?
}

# check_repository SCANS: a repository that exists keeps its settings, so they must be those that were asked for.
check_repository() {
    local change="Leave the option out, or change it: aws ecr"
    [[ $ecr_uri == ?*/"$repository" ]] ||
        refused "--repository '$repository'" "ECR calls it '$ecr_uri'" 'Look at --endpoint-url'
    [[ -z $immutable || $mutability == IMMUTABLE* ]] ||
        refused "--immutable-tags" "repository '$repository' exists, and its tags are $mutability" \
            "$change put-image-tag-mutability --repository-name $repository --image-tag-mutability IMMUTABLE"
    [[ -z $scan || $1 == [Tt]rue ]] ||
        refused "--scan-on-push" "repository '$repository' exists, and does not scan" \
            "$change put-image-scanning-configuration --repository-name $repository --image-scanning-configuration scanOnPush=true"
}

# Ends if the tag exists and cannot move. ECR itself would refuse only after the whole upload.
need_free_tag() {
    local status=0
    if [[ -n $dry_run ]]; then
        echo '# only where tags are immutable:'
    elif [[ $mutability != IMMUTABLE ]]; then
        return 0
    fi
    ask_digest || status=$?
    if [[ -n $dry_run ]]; then return; fi
    [[ $status -ne 0 ]] || tag_is_there
    grep -q ImageNotFound "$work/error" || aws_failed "$status"
}
