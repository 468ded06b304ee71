#!/usr/bin/env bash
# Writes docker/requirements-*.lock from docker/requirements*.in: every package with its version and hashes, one
# set of versions for Python 3.11 (Debian 12) and later. And dev.lock: the versions that `make` installs into a clone's
# environments. Run it to update; the result is committed.
# Needs uv on PATH (`pip install uv`) and a package index; uv takes the index from its own settings, none is written.
set -euo pipefail
cd "$(dirname "$0")"

readonly note='# Made by docker/lock.sh; do not edit.'
whole=$(mktemp)
trap 'rm -f "$whole"' EXIT

# fewest: one version for all Pythons instead of the newest for each. Two packages exist as source only.
compile() {
    uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --upgrade \
        --only-binary :all: --no-binary sagemaker-training --no-binary inotify-simple \
        --no-header --no-annotate --no-emit-index-url "$1" -o "$whole"
}

rm -f requirements-*.lock
compile requirements-build.in
{ echo "$note"; cat "$whole"; } > requirements-build.lock

# One file for each layer of the image, so that a new boto3 does not move 4 GB of CUDA libraries.
compile requirements.in
awk -v note="$note" '
    /^[a-zA-Z0-9]/ {
        name = $1; sub(/==.*/, "", name)
        if (name ~ /^(nvidia-|cuda-)/)                               file = "cuda"
        else if (name ~ /^(torch|torchvision|triton)$/)              file = "torch"
        else if (name ~ /^(sagemaker-training|inotify-simple)$/)     file = "sdist"
        else                                                         file = "deps"
        file = "requirements-" file ".lock"
        if (!(file in seen)) { seen[file] = 1; print note > file }
    }
    { print > file }
' "$whole"
for file in requirements-*.lock; do
    printf '%s: %s packages\n' "$file" "$(grep -c '==' "$file")"
done

# As constraints: each target of make takes what it needs. torch and what it brings depend on the machine: make's TORCH.
cd ..
uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-header --no-annotate --no-emit-index-url \
    {launcher,train,client,compat}/pyproject.toml --group test --group models --group oracle --group fuzz --group lint \
    --group bench -o "$whole"
{ echo "$note"; grep -Ev '^(torch|triton|setuptools|(nvidia|cuda)-[^=]*)==' "$whole"; } > dev.lock
printf 'dev.lock: %s packages\n' "$(grep -c '==' dev.lock)"
