"""NVIDIA's driver, the image's libcuda, EFA and NCCL's plugin on machines that are folders of the test's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from algorun.commands import doctor
from algorun.common.fast_dataclasses import replace
from algorun.job.values import Sourced
from algorun.machine import cuda_driver, efa, libraries, nvidia, probe
from algorun.machine.finding import Finding
from algorun.machine.nvidia import COMPAT, Nvidia
from algorun.plan import rank_env
from tests.conftest import machine

INFORMATION = """Model: \t\t {model}
IRQ:   \t\t 33
GPU UUID: \t {uuid}
Video BIOS: \t 92.00.36.00.01
Bus Type: \t PCIe
DMA Size: \t 47 bits
DMA Mask: \t 0x7fffffffffff
Bus Location: \t 0000:00:{minor}e.0
Device Minor: \t {minor}
GPU Excluded:\t No
"""
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc 11\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-B17-02-5)  "
    "Tue Sep 23 09:55:41 UTC 2025\nGCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04.2)\n"
)
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"


def put(root: Path, path: str, text: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def root(tmp_path):
    """A host with two A10G of four in this container, driver 535, and an image of CUDA 12.8."""
    put(tmp_path, "proc/driver/nvidia/version", CLOSED)
    for minor in range(4):
        text = INFORMATION.format(
            model="NVIDIA A10G", uuid=f"GPU-0000000{minor}-9366-8e15-5d6a-369da852f85b", minor=minor
        )
        put(tmp_path, f"proc/driver/nvidia/gpus/0000:00:{minor}e.0/information", text)
    for name in ("nvidia1", "nvidia3", "nvidiactl", "nvidia-uvm"):
        put(tmp_path, f"dev/{name}")
    put(tmp_path, LIBRARY)
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.570.124.06", "libnvidia-ptxjitcompiler.so.1"):
        put(tmp_path, f"usr/local/cuda/compat/{name}")
    return tmp_path


def test_driver_and_gpus_are_read_of_proc_and_dev(root):
    assert nvidia.look({}, str(root)) == Nvidia(
        devices=2,
        driver="535.183.01",
        models=("NVIDIA A10G", "NVIDIA A10G"),
        uuids=("GPU-00000001-9366-8e15-5d6a-369da852f85b", "GPU-00000003-9366-8e15-5d6a-369da852f85b"),
        slices=(0, 0),
        library=LIBRARY,
        compat="570.124.06",
    )


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "535.183.01"), (OPEN, "580.95.05"), ("", "")])
def test_the_kernel_names_its_driver_in_two_ways(text, version, root):
    put(root, "proc/driver/nvidia/version", text)
    assert nvidia.look({}, str(root)).driver == version


def test_a_gpu_that_sleeps_has_no_uuid_yet(root):
    text = INFORMATION.format(model="NVIDIA A10G", uuid="GPU-????????-????-????-????-????????????", minor=1)
    put(root, "proc/driver/nvidia/gpus/0000:00:1e.0/information", text)
    assert nvidia.look({}, str(root)).uuids == ()


def test_mig_slices_are_counted(root):
    for path in ("gpu1/mig/gi1/ci0", "gpu1/mig/gi2/ci0", "gpu1/mig/gi2/ci1", "gpu0/mig/gi1/ci0", "mig/config"):
        put(root, f"proc/driver/nvidia/capabilities/{path}/access")
    assert nvidia.look({}, str(root)).slices == (3, 0)  # of nvidia1 and nvidia3


def test_a_machine_without_gpus_may_have_a_driver(root):
    for name in ("nvidia1", "nvidia3"):
        (root / "dev" / name).unlink()
    assert nvidia.look({}, str(root)) == Nvidia(driver="535.183.01")


def test_the_loader_s_places_for_libraries(root):
    name = "libnccl-net.so"
    assert libraries.find(name, {}, str(root)) == ""
    put(root, "etc/ld.so.cache")
    cache = (
        b"glibc-ld.so.cache1.1\0\0\0libnccl-net.so\0/usr/lib32/libnccl-net.so\0libnccl-net.so\0/opt/x/libnccl-net.so\0"
    )
    (root / "etc/ld.so.cache").write_bytes(cache)
    put(root, "usr/lib32/libnccl-net.so")
    assert libraries.find(name, {}, str(root)) == "", "the cache may name a file that has gone"
    put(root, "opt/x/libnccl-net.so")
    assert libraries.find(name, {}, str(root)) == "/opt/x/libnccl-net.so"
    put(root, "mine/libnccl-net.so")
    assert libraries.find(name, {"LD_LIBRARY_PATH": "/none:/mine/"}, str(root)) == "/mine/libnccl-net.so"
    assert libraries.find("/mine/libnccl-net.so", {}, str(root)) == "/mine/libnccl-net.so"


def rank_environment(found: Nvidia, cuda: str, **environ: str) -> dict[str, str]:
    here = replace(machine(gpus=found.devices), nvidia=found, torch_cuda=cuda)
    return {v.name: v.value for v in rank_env.defaults(Sourced("eth0", "default route"), here, 1, environ)}


A10G = Nvidia(1, "470.256.02", ("NVIDIA A10G",), library=LIBRARY, compat="570.124.06")


@pytest.mark.parametrize(
    ("found", "cuda", "before", "after"),
    [
        (A10G, "12.8", "", COMPAT),
        (A10G, "12.8", "/usr/local/nvidia/lib:/usr/local/nvidia/lib64", f"{COMPAT}:/usr/local/nvidia/lib:/usr/local/nvidia/lib64"),
        (A10G, "12.8", f"/x:{COMPAT}", None),  # the user's own order
        (replace(A10G, driver="525.60.13"), "12.8", "", None),  # minor version compatibility: the host's own works
        (replace(A10G, driver="535.183.01"), "12.8", "", None),
        (replace(A10G, driver="535.183.01", compat="580.65.06"), "13.0", "", COMPAT),
        (replace(A10G, driver="535.183.01"), "none", "", None),
        (replace(A10G, driver="535.183.01"), "", "", COMPAT),  # the program's CUDA is not known
        (replace(A10G, driver="570.86.15"), "", "", None),  # the same branch
        (replace(A10G, driver="580.95.05"), "", "", None),  # newer: error 803 with the image's
        (replace(A10G, driver="580.95.05"), "14.1", "", None),
        (replace(A10G, compat=""), "12.8", "", None),
        (replace(A10G, driver=""), "12.8", "", None),
        (replace(A10G, devices=0), "12.8", "", None),
        (replace(A10G, models=("NVIDIA A10G", "NVIDIA GeForce RTX 3090")), "12.8", "", None),  # error 804
        (replace(A10G, models=()), "12.8", "", None),  # perhaps error 804
        (replace(A10G, devices=2), "12.8", "", None),  # one of two is known
    ],
)  # fmt: skip
def test_the_image_s_libcuda_goes_first_only_where_the_driver_is_too_old(found, cuda, before, after):
    environ = {"LD_LIBRARY_PATH": before} if before else {}
    assert rank_environment(found, cuda, **environ).get("LD_LIBRARY_PATH") == after


def test_hidden_gpus_need_no_libcuda(root):
    found = probe.look({"CUDA_VISIBLE_DEVICES": ""}, str(root))
    names = [v.name for v in rank_env.defaults(Sourced("eth0", "default route"), found, 1, {})]
    assert "LD_LIBRARY_PATH" not in names


@pytest.mark.parametrize(
    ("driver", "compat", "cuda", "old"),
    [
        ("535.183.01", "", "12.8", False),  # minor version compatibility
        ("525.60.13", "", "12.8", False),
        ("470.256.02", "", "12.8", True),
        ("470.256.02", "570.124.06", "12.8", False),
        ("570.124.06", "", "13.0", True),
        ("570.124.06", "580.65.06", "13.0", False),
        ("580.95.05", "", "13.0", False),
        ("470.256.02", "", "", False),
        ("470.256.02", "", "none", False),
        ("", "", "12.8", False),
    ],
)
def test_which_driver_a_torch_needs(driver, compat, cuda, old):
    assert cuda_driver.too_old(replace(A10G, driver=driver, compat=compat), cuda) is old


def infiniband(root: Path, **vendors: str) -> str:
    """Devices that programs can open: each has its node below /dev."""
    for number, (name, vendor) in enumerate(vendors.items()):
        put(root, f"sys/class/infiniband/{name}/device/vendor", f"{vendor}\n")
        put(root, f"sys/class/infiniband/{name}/device/infiniband_verbs/uverbs{number}/dev")
        put(root, f"dev/infiniband/uverbs{number}")
    return str(root)


def test_efa_devices_are_known_by_their_vendor(tmp_path):
    root = infiniband(tmp_path, rdmap79s0="0x1d0f", rdmap80s0="0x1d0f", ibp3s0="0x15b3", efa_9="0x15b3")
    assert efa.devices(root) == ("rdmap79s0", "rdmap80s0")
    found = probe.look({}, root)
    assert found.efa_devices == ("rdmap79s0", "rdmap80s0")
    chosen = {v.name: v.source for v in rank_env.defaults(Sourced("eth0", "default route"), found, 1, {})}
    assert chosen["FI_PROVIDER"] == chosen["RDMAV_FORK_SAFE"] == "EFA device rdmap79s0"


def test_an_efa_device_without_its_node_cannot_be_opened(tmp_path):
    """`docker run --gpus all` alone: /sys shows the host's devices, and /dev has none of them."""
    root = infiniband(tmp_path, rdmap79s0="0x1d0f", rdmap80s0="0x1d0f")
    (tmp_path / "dev/infiniband/uverbs0").unlink()
    assert efa.devices(root) == ("rdmap80s0",)
    (tmp_path / "dev/infiniband/uverbs1").unlink()
    found = probe.look({}, root)
    assert found.efa_devices == ()
    assert "FI_PROVIDER" not in [v.name for v in rank_env.defaults(Sourced("eth0", "default route"), found, 1, {})]


def said_of_efa(root: str) -> Finding:
    return next(each for each in doctor.network(probe.look({}, root)) if each.topic == "EFA devices")


def test_doctor_names_the_nodes_of_efa_that_a_container_lacks(tmp_path):
    assert said_of_efa(str(tmp_path)) == Finding("EFA devices", "none: NCCL uses TCP between hosts")
    root = infiniband(tmp_path, rdmap79s0="0x1d0f", rdmap80s0="0x1d0f", ibp3s0="0x15b3")
    for node in (0, 2):
        (tmp_path / f"dev/infiniband/uverbs{node}").unlink()
    one = "docker run --device=/dev/infiniband/uverbs0"
    assert said_of_efa(root) == Finding(
        "EFA devices", "rdmap80s0; not in this container: /dev/infiniband/uverbs0", "ok", one
    )
    (tmp_path / "dev/infiniband/uverbs1").unlink()
    assert said_of_efa(root) == Finding(
        "EFA devices",
        "none can be opened; not in this container: /dev/infiniband/uverbs0, uverbs1; NCCL uses TCP between hosts",
        "warn",
        f"{one} --device=/dev/infiniband/uverbs1",
    )


def test_a_machine_with_many_efa_devices_gets_all_of_their_folder(tmp_path):
    root = infiniband(tmp_path, **{f"rdmap{number}s0": "0x1d0f" for number in range(5)})
    shutil.rmtree(tmp_path / "dev/infiniband")
    found = said_of_efa(root)
    assert "/dev/infiniband/uverbs0, uverbs1, uverbs2, uverbs3, uverbs4;" in found.value
    assert found.fix == "docker run --device=/dev/infiniband"


OFI = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so"


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ([], {}, efa.Plugin()),
        (["/usr/lib/libnccl-net.so"], {}, efa.Plugin("/usr/lib/libnccl-net.so")),
        ([OFI], {}, efa.Plugin("", OFI)),  # neither the loader's folder nor the name that NCCL takes
        ([OFI], {"LD_LIBRARY_PATH": str(Path(OFI).parent)}, efa.Plugin("", OFI)),
        ([OFI], {"LD_LIBRARY_PATH": str(Path(OFI).parent), "NCCL_NET_PLUGIN": "ofi"}, efa.Plugin(OFI, "", "ofi")),
        ([OFI], {"NCCL_NET_PLUGIN": OFI}, efa.Plugin(OFI, "", OFI)),
        (["/lib64/libnccl-net-x.so"], {"NCCL_NET_PLUGIN": "aws-ofi,x"}, efa.Plugin("/lib64/libnccl-net-x.so", "", "aws-ofi,x")),
        (["/lib64/libnccl-net.so"], {"NCCL_NET_PLUGIN": "aws-ofi"}, efa.Plugin("", "", "aws-ofi")),
        ([OFI], {"NCCL_NET_PLUGIN": "none"}, efa.Plugin("", OFI, "none")),
    ],
)  # fmt: skip
def test_nccl_s_network_plugin_is_looked_for_as_nccl_does(files, environ, expected, tmp_path):
    for path in files:
        put(tmp_path, path)
    assert efa.plugin(environ, str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("__version__ = '2.13.0+cpu'\ndebug = False\ncuda: Optional[str] = None\n", "none"),
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n", "13.0"),
        ("__version__ = '2.10.0'\ncuda = '12.8'\n", "12.8"),
        ("", ""),
    ],
)
def test_torch_s_cuda_shows_without_its_import(text, cuda, tmp_path):
    put(tmp_path, "torch/version.py", text)
    assert probe.torch_cuda(["", "/nowhere", str(tmp_path)]) == cuda
