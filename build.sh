#!/usr/bin/env bash
# Builds, runs, tests and pushes the algorun image. `./build.sh -h` explains; every command is printed before it runs.
# This file reads the command line. docker/commands/ does the work.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly root

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
  --base-image IMAGE     Ubuntu 24.04, Debian 12 or 13, best as NAME:TAG@sha256:.. (default: algorun-base:bookworm if
                         `base` made it, otherwise nvidia/cuda:..-base-ubuntu24.04 for cuda, ubuntu:24.04 for cpu,
                         both by digest)
  --suite NAME           base: bookworm (Debian 12, the default) or trixie (Debian 13), which makes algorun-base:trixie
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
  --account ID           the account that owns the repository (default: the account of the credentials)
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

# shellcheck source=docker/commands/common.sh
source "$root/docker/commands/common.sh"
# shellcheck source=docker/commands/build.sh
source "$root/docker/commands/build.sh"
# shellcheck source=docker/commands/run.sh
source "$root/docker/commands/run.sh"
# shellcheck source=docker/commands/ecr.sh
source "$root/docker/commands/ecr.sh"
# shellcheck source=docker/commands/push.sh
source "$root/docker/commands/push.sh"

[[ $# -gt 0 ]] || { usage >&2; exit "$bad_usage"; }
command=$1
shift
case $command in
    build | run | test | push | base) ;;
    -h | --help) usage; exit 0 ;;
    *) fail "command '$command'" 'allowed: build, run, test, push, base' 'See ./build.sh -h' ;;
esac

variant=cuda tag='' dry_run=''
while [[ $# -gt 0 ]]; do
    used=1 # words of the command line that this option uses
    case $1 in
        --variant) need_value "$@"; variant=$2 ;;
        --tag) need_value "$@"; tag=$2 ;;
        --dry-run) dry_run=yes ;;
        -h | --help) usage; exit 0 ;;
        --) shift; words=("$@"); break ;;
        *)
            build_option "$@" || run_option "$@" || push_option "$@" ||
                fail "option '$1'" "not an option of '$command'" 'See ./build.sh -h' ;;
    esac
    shift "$used"
done
case $variant in
    cuda | cpu) ;;
    *) fail "--variant '$variant'" 'allowed: cuda, cpu' 'Choose one of them' ;;
esac
tag=${tag:-algorun:$variant}
[[ $command != push ]] || check_push_options

docker=$(find_docker)
case $command in
    base) make_base ;;
    build) build_image ;;
    run) run_image ;;
    test) test_image ;;
    push) push_image ;;
esac
