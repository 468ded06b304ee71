"""What speaks against a job on a host, on machines that nobody has."""

from __future__ import annotations

import pytest

from algorun.common.fast_dataclasses import replace
from algorun.job.values import Sourced
from algorun.machine import preflight, probe
from algorun.machine.efa import Plugin
from algorun.machine.probe import Folder
from algorun.plan import agreement
from tests.conftest import job, machine

GIB, MIB = 1024**3, 1024**2
GOOD = machine()
EFA = replace(GOOD, efa_devices=("efa_0", "efa_1"), nccl_plugin=Plugin("/usr/lib/libnccl-net.so"))
MODEL = Folder("/opt/ml/model", True, 9 * GIB, 30 * GIB)
KEPT = replace(MODEL, path="/opt/ml/checkpoints")


def examine(found=GOOD, slots=1, written=(MODEL,), kept=KEPT, hosts=2):
    return [
        (each.topic, each.state)
        for each in preflight.examine(found, Sourced(slots, "--slots"), written, kept, hosts=hosts)
    ]


def test_a_good_machine_has_nothing_to_say():
    assert examine() == []
    assert examine(slots=8) == []
    assert examine(EFA) == []
    assert examine(machine(gpus=4), slots=4) == []


@pytest.mark.parametrize(
    ("wishes", "finding"),
    [
        ({"found": replace(EFA, memlock_bytes=65536)}, ("memlock", "fail")),
        ({"found": replace(EFA, memlock_bytes=65536), "hosts": 1}, ("memlock", "warn")),  # one host uses no EFA
        # NCCL goes over TCP.
        ({"found": replace(EFA, memlock_bytes=65536, nccl_plugin=Plugin())}, ("memlock", "warn")),
        ({"written": [replace(MODEL, writable=False)]}, ("/opt/ml/model", "fail")),
        ({"written": [replace(MODEL, free_bytes=0)]}, ("/opt/ml/model", "fail")),
        ({"kept": replace(KEPT, free_bytes=0)}, ("/opt/ml/checkpoints", "warn")),
        ({"kept": replace(KEPT, free_bytes=GIB)}, ("/opt/ml/checkpoints", "warn")),
        ({"kept": replace(KEPT, free_files=0)}, ("/opt/ml/checkpoints", "warn")),
        ({"found": replace(GOOD, shm_bytes=64 * MIB), "slots": 2}, ("shared memory", "warn")),
        ({"found": machine(gpus=4), "slots": 8}, ("GPUs", "warn")),
    ],
)
def test_one_fault_one_finding(wishes, finding):
    assert examine(**wishes) == [finding]


@pytest.mark.parametrize(
    "wishes",
    [
        {"found": replace(GOOD, memlock_bytes=65536)},  # no EFA
        {"found": replace(GOOD, shm_bytes=64 * MIB)},  # one rank
        {"written": [Folder("/x", True, 0, 0)], "kept": Folder("/y", True, 0, 0)},  # a file system that does not say
        {"kept": None},
        {"found": machine(gpus=8), "slots": 4},
    ],
)
def test_what_is_no_fault(wishes):
    assert examine(**wishes) == []


def test_a_finding_says_what_to_do():
    (finding,) = preflight.examine(machine(gpus=4), Sourced(8, "--slots"), [MODEL], KEPT, hosts=1)
    assert str(finding) == (
        "GPUs: 8 ranks (--slots) on 4 GPUs (/dev/nvidia*); fix: 4 slots, or CUDA_VISIBLE_DEVICES= (empty) for a job on the CPU"
    )


def test_a_machine_is_read_below_a_folder(tmp_path):
    (tmp_path / "sys/class/infiniband/efa_0/device/infiniband_verbs/uverbs0").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/efa_0/device/vendor").write_text("0x1d0f\n")
    (tmp_path / "dev/infiniband/uverbs0").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth7").mkdir(parents=True)
    (tmp_path / "dev/shm").mkdir(parents=True)
    for number in range(3):
        (tmp_path / f"dev/nvidia{number}").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/algorun-image").write_text("0123456789abcdef\n")
    found = probe.look({}, str(tmp_path))
    assert (found.efa_devices, found.interfaces, found.gpus.value) == (("efa_0",), ("eth7",), 3)
    assert found.image == "0123456789abcdef"
    assert found.memory_bytes == 0


def test_hosts_with_different_images_do_not_agree():
    config = job("mpi")
    inside = agreement.at_first(config, replace(GOOD, image="0123456789abcdef"))
    assert inside["image"] == "0123456789abcdef"
    assert "image" not in agreement.at_first(config, GOOD)
