# algorun: one image for Amazon SageMaker training jobs, for CUDA (default) or CPU. ./build.sh builds it.
# Layers from seldom to often changed: base | apt | EFA | CUDA libraries | torch | other packages | our code.
#
# BASE_IMAGE: Ubuntu 24.04 (Python 3.12) or Debian 12 (3.11). `-base` because the wheels bring cuBLAS, cuDNN and
# NCCL: `-runtime` has them a second time, 4 GB. Named by its digest (of the index of all platforms): a tag may get
# another content.
ARG BASE_IMAGE=nvidia/cuda:12.8.1-base-ubuntu24.04@sha256:133c78a0575303be34164d0b90137a042172bdf60696af01a3c424ab402d86e2
# VARIANT: cuda or cpu.
ARG VARIANT=cuda
# An image whose root holds *.whl files, for machines that cannot reach torch's CPU index.
ARG WHEELHOUSE_IMAGE=scratch

FROM ${WHEELHOUSE_IMAGE} AS wheelhouse

# ---- system: what comes from the distribution ------------------------------------------------------------------
FROM ${BASE_IMAGE} AS system
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Downloads run through fetch.sh: it applies the building machine's package settings, which are build secrets.
# Further packages of the distribution, such as "git" or "gcc libc6-dev python3-dev" for torch.compile.
ARG EXTRA_PACKAGES=""
# sshd is for the MPI drivers of the SageMaker SDK v3. Its host keys go at once: a key in an image is a shared key.
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=secret,id=apt_sources,target=/mnt/apt_sources,mode=0444 \
    --mount=type=secret,id=apt_conf,target=/mnt/apt_conf,mode=0444 \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    /mnt/fetch.sh apt-get update \
    && /mnt/fetch.sh apt-get install -y --no-install-recommends \
        ca-certificates \
        openmpi-bin \
        openssh-client \
        openssh-server \
        python3 \
        python3-venv \
        tini \
        ${EXTRA_PACKAGES} \
    && rm -rf /etc/ssh/ssh_host_*_key* /var/lib/apt/lists/* /var/cache/apt/*.bin \
        /var/cache/apt/archives/*.deb /var/log/apt /var/log/*.log \
    && mkdir -p /run/sshd \
    && python3 -m venv /opt/venv
# OMPI_*: containers run as root. LANG: Python's and the shell's text is UTF-8 on every base.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

# ---- wheels: made where a compiler is, shipped without it ---------------------------------------------------------
FROM system AS wheels
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=secret,id=apt_sources,target=/mnt/apt_sources,mode=0444 \
    --mount=type=secret,id=apt_conf,target=/mnt/apt_conf,mode=0444 \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    /mnt/fetch.sh apt-get update \
    && /mnt/fetch.sh apt-get install -y --no-install-recommends gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=bind,source=docker/requirements-build.lock,target=/mnt/build.lock \
    --mount=type=bind,source=docker/requirements-sdist.lock,target=/mnt/sdist.lock \
    --mount=type=secret,id=pip_conf,target=/mnt/pip_conf \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    /mnt/fetch.sh pip install --no-deps --require-hashes -r /mnt/build.lock \
    && /mnt/fetch.sh pip wheel --no-deps --no-build-isolation --use-pep517 --require-hashes \
        -r /mnt/sdist.lock -w /wheels

FROM wheels AS code
COPY LICENSE /src/
COPY launcher /src/launcher
COPY train /src/train
COPY client /src/client
COPY compat /src/compat
RUN pip wheel --no-deps --no-build-isolation --no-index -w /code /src/launcher /src/train /src/client /src/compat

# ---- EFA: optional, off by default ------------------------------------------------------------------------------
FROM system AS network
ARG EFA_INSTALLER_VERSION=""
ARG EFA_INSTALLER_SHA256=""
ARG EFA_INSTALLER_URL=""
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=bind,source=docker/install-efa.sh,target=/mnt/install-efa.sh \
    --mount=type=secret,id=apt_sources,target=/mnt/apt_sources,mode=0444 \
    --mount=type=secret,id=apt_conf,target=/mnt/apt_conf,mode=0444 \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    /mnt/fetch.sh /mnt/install-efa.sh

# ---- torch with CUDA ----------------------------------------------------------------------------------------------
FROM network AS torch-cuda
# What nvidia/cuda's images set, for bases that are not one: the container runtime then mounts the driver.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Removed in the same layer, nothing in torch opens them: static libraries, nvrtc's second copy, multi-GPU cuSOLVER.
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=bind,source=docker/requirements-cuda.lock,target=/mnt/cuda.lock \
    --mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse \
    --mount=type=secret,id=pip_conf,target=/mnt/pip_conf \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    /mnt/fetch.sh pip install --no-deps --require-hashes --find-links /mnt/wheelhouse -r /mnt/cuda.lock \
    && find /opt/venv/lib/python3*/site-packages/nvidia \
        \( -name '*.a' -o -name '*.alt.so*' -o -name 'libcusolverMg.so*' \) -delete
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=bind,source=docker/requirements-torch.lock,target=/mnt/torch.lock \
    --mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse \
    --mount=type=secret,id=pip_conf,target=/mnt/pip_conf \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    /mnt/fetch.sh pip install --no-deps --require-hashes --find-links /mnt/wheelhouse -r /mnt/torch.lock

# ---- torch without CUDA -------------------------------------------------------------------------------------------
FROM network AS torch-cpu
# The +cpu builds are on torch's own index, not on PyPI: by version only, without hashes.
ARG TORCH_CPU=2.13.0+cpu
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse \
    --mount=type=secret,id=pip_conf,target=/mnt/pip_conf \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    if ls /mnt/wheelhouse/torch-*.whl > /dev/null 2>&1; \
    then /mnt/fetch.sh pip install --no-deps --no-index --find-links /mnt/wheelhouse "torch==$TORCH_CPU"; \
    else /mnt/fetch.sh pip install --no-deps --index-url "$TORCH_CPU_INDEX" "torch==$TORCH_CPU"; fi

# ---- the image ----------------------------------------------------------------------------------------------------
# hadolint ignore=DL3006
FROM torch-${VARIANT} AS image
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=docker/fetch.sh,target=/mnt/fetch.sh \
    --mount=type=bind,source=docker/requirements-deps.lock,target=/mnt/deps.lock \
    --mount=type=bind,from=wheels,source=/wheels,target=/mnt/wheels \
    --mount=type=secret,id=pip_conf,target=/mnt/pip_conf \
    --mount=type=secret,id=ca,target=/mnt/ca,mode=0444 \
    /mnt/fetch.sh pip install --no-deps --require-hashes -r /mnt/deps.lock \
    && /mnt/fetch.sh pip install --no-deps --no-index --find-links /mnt/wheels inotify-simple sagemaker-training \
    && pip check
COPY docker/openmpi-mca-params.conf /etc/openmpi/openmpi-mca-params.conf
# Over the `train` that sagemaker-training brings, which would start AWS's launcher.
COPY --chmod=755 docker/train /opt/venv/bin/train
# For the drivers of the SageMaker SDK v3, which bypass the entrypoint (docs/image.md).
COPY --chmod=755 docker/sdk-v3/mpirun /opt/venv/bin/mpirun
COPY --chmod=755 docker/sdk-v3/authorized_host.py docker/sdk-v3/driver_mpirun.py docker/sdk-v3/sshd /usr/local/lib/algorun/
COPY --chmod=644 docker/sdk-v3/ssh.conf /etc/ssh/ssh_config.d/algorun.conf
COPY --chmod=644 docker/sdk-v3/sshd.conf /etc/ssh/sshd_config.d/algorun.conf
# The second link is for `algorun shell`: a session of AWS Systems Manager has a PATH of its own.
RUN dpkg-divert --quiet --rename --divert /usr/lib/openssh/sshd.openssh --add /usr/sbin/sshd \
    && ln -s /usr/local/lib/algorun/sshd /usr/sbin/sshd \
    && ln -s /opt/venv/bin/algorun /usr/local/bin/algorun
# -I: the program must not import from the current folder, from PYTHONPATH or from the user's site-packages.
# The id, new whenever this layer is, is what the hosts of a job compare: no container can see its image's digest.
RUN --mount=type=bind,from=code,source=/code,target=/mnt \
    pip install --no-deps --no-index --no-cache-dir --find-links /mnt algorun algorun-train algorun-client algorun-smdistributed \
    && sed -i '1s/$/ -I/' /opt/venv/bin/algorun \
    && cat /proc/sys/kernel/random/uuid > /etc/algorun-image
ARG VARIANT
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="algorun" \
      org.opencontainers.image.description="Distributed training on Amazon SageMaker: native, torchrun and mpirun" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.algorun.variant="${VARIANT}" \
      org.algorun.request-format="3"
# tini: orphans are reaped and signals reach the launcher's whole process group.
ENTRYPOINT ["/usr/bin/tini", "-g", "--", "algorun"]
CMD ["train"]
