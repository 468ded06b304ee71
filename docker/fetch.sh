#!/bin/sh
# fetch.sh COMMAND..: runs a command that downloads packages, with the settings of the building machine where it
# handed some over (docs/image.md). They are build secrets in a tmpfs under /mnt: no layer holds anything of them.
set -eu

: > /mnt/apt.conf
if [ -s /mnt/apt_conf ]; then
    cat /mnt/apt_conf > /mnt/apt.conf
fi
if [ -s /mnt/apt_sources ]; then
    mkdir -p /mnt/sources
    # apt tells the two formats apart by the file's name.
    if grep -q '^Types:' /mnt/apt_sources; then name=host.sources; else name=host.list; fi
    cp /mnt/apt_sources "/mnt/sources/$name"
    echo 'Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "/mnt/sources";' >> /mnt/apt.conf
fi
if [ -s /mnt/pip_conf ]; then
    export PIP_CONFIG_FILE=/mnt/pip_conf
fi
if [ -s /mnt/ca ]; then
    echo 'Acquire::https::CaInfo "/mnt/ca";' >> /mnt/apt.conf
    export PIP_CERT=/mnt/ca SSL_CERT_FILE=/mnt/ca
fi
export APT_CONFIG=/mnt/apt.conf DEBIAN_FRONTEND=noninteractive
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
exec "$@"
