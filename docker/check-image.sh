#!/usr/bin/env bash
# Runs inside an image (`./build.sh test`): is everything there that a job needs, and nothing that must not be?
# VARIANT: cuda or cpu. Every check is printed; the exit status is the number of failed ones.
# shellcheck disable=SC2317  # `check` calls the functions
set -uo pipefail

failed=0
# check WHAT COMMAND..: the command must succeed; its output is shown where it does not.
check() {
    local what=$1 output
    shift
    if output=$("$@" 2>&1); then
        printf 'ok    %s\n' "$what${output:+: $(head -n 1 <<<"$output")}"
    else
        printf 'FAIL  %s\n%s\n' "$what" "$output"
        failed=$((failed + 1))
    fi
}
absent() {
    local found
    found=$("$@" 2>/dev/null)
    [[ -z $found ]] || { echo "$found"; return 1; }
}
imports() {
    python3 -I - "$@" <<'PYTHON'
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
import torch
torch.ones(2, 2) @ torch.ones(2, 2)
print("torch", torch.__version__, "python", sys.version.split()[0])
PYTHON
}

modules=(torch numpy mpi4py.MPI boto3 sagemaker_training.environment sklearn.datasets PIL.Image tensorboard paramiko)
case $VARIANT in
    cuda) modules+=(torchvision triton) ; version='2.10.0+cu128' ;;
    cpu) version='2.13.0+cpu' ;;
    *) echo "VARIANT='$VARIANT': allowed: cuda, cpu"; exit 64 ;;
esac

# First, because importing torch leaves a folder there.
check 'nothing of the build left in /mnt, /tmp' absent find /mnt /tmp -mindepth 1
check 'python packages import' imports "${modules[@]}"
check "torch is $version" python3 -I -c 'import sys, torch; sys.exit(torch.__version__ != sys.argv[1])' "$version"
check 'package versions agree' pip check
check 'no package that a script of a user could mean' python3 -I -c \
    'import importlib.util as u, sys; sys.exit(", ".join(n for n in ("train", "launcher", "client", "report") if u.find_spec(n)) or 0)'
check 'two MPI ranks' mpirun -np 2 python3 -I -c 'from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2'
check 'mpirun on PATH passes on' bash -c 'mpirun --version | grep "Open MPI"'
check 'torchrun' torchrun --help
check 'algorun' algorun --help
check 'algorun doctor' algorun doctor
check 'train on PATH is ours' grep -q 'algorun train' "$(command -v train)"
check 'UTF-8' python3 -c 'import sys; assert sys.getfilesystemencoding() == "utf-8"'
check 'image id' grep -E '^[0-9a-f-]{36}$' /etc/algorun-image
check 'root' test "$(id -u)" = 0
check 'no PYTHONPATH, no PYTHONSAFEPATH' test -z "${PYTHONPATH:-}${PYTHONSAFEPATH:-}"
check 'no compiler' absent bash -c 'command -v gcc cc g++ clang ld as'
check 'no ssh keys' absent find /etc/ssh /root \( -name '*key*' -o -name 'id_*' \) -type f
check 'sshd makes its keys when it starts' bash -c '/usr/sbin/sshd -t && ls /etc/ssh/ssh_host_*_key /root/.ssh/id_ed25519'
check 'no package lists or archives' absent find /var/lib/apt/lists /var/cache/apt/archives -name '*.deb' -o -name '*Packages*'
check 'no settings of the building machine' absent find /etc /root \
    -name pip.conf -o -name .netrc -o -name auth.conf -o -name 99mmdebstrap -path '*apt*'
exit "$failed"
