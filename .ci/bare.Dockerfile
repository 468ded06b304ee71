# A newcomer's machine: Python with venv, make and git, an ordinary user, and nothing else. newcomer.sh builds it.
ARG BASE_IMAGE=algorun-base:bookworm
FROM ${BASE_IMAGE}
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=secret,id=apt_conf,target=/mnt/apt_conf,mode=0444 \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    /mnt/fetch.sh apt-get update -qq \
    && /mnt/fetch.sh apt-get install -y -qq --no-install-recommends git make passwd python3 python3-venv > /dev/null \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home newcomer
USER newcomer
WORKDIR /home/newcomer
