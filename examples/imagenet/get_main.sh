#!/bin/sh
# Fetches the training script of pytorch/examples, unchanged, into this folder.
set -eu
cd "$(dirname "$0")"
commit=77f55b912142e11fcfdf5b530231fb9c52f181e8
sha256=f67ca2cd730bf91afe0504694abf07b88cbd03ac8c8a0426023620d29175c158
curl --fail --silent --show-error --location --output main.py.part \
  "https://raw.githubusercontent.com/pytorch/examples/$commit/imagenet/main.py"
echo "$sha256  main.py.part" | sha256sum --check --quiet
mv main.py.part main.py
