"""What speaks against a job on GPUs, on machines that nobody has; and what `algorun doctor` says of them."""

from __future__ import annotations

import sys

import pytest

from algorun.commands import doctor_gpus
from algorun.common.fast_dataclasses import replace
from algorun.job.values import Sourced
from algorun.machine import preflight_gpus, program_output
from algorun.machine.efa import Plugin
from algorun.machine.nvidia import Nvidia
from algorun.machine.program_output import ProgramAnswer
from algorun.machine.visible_gpus import visible
from tests.conftest import machine

ON_CPU = "CUDA_VISIBLE_DEVICES= (empty) for a job on the CPU"
CARDS = Nvidia(2, "570.124.06", ("NVIDIA H100 80GB HBM3",) * 2, library="/usr/lib/libcuda.so.1")
GOOD = replace(machine(gpus=2), nvidia=CARDS, visible=visible(None, 2, ()), torch_cuda="12.8")
P5 = replace(GOOD, efa_devices=("rdmap79s0", "rdmap80s0", "rdmap81s0"))


def chosen(value):
    """The machine with CUDA_VISIBLE_DEVICES."""
    seen = visible(value, 2, ())
    return replace(GOOD, visible=seen, gpus=Sourced(seen.count, "CUDA_VISIBLE_DEVICES"))


def examine(found, slots=2, hosts=1):
    return [(each.state, str(each)) for each in preflight_gpus.examine(found, Sourced(slots, "--slots"), hosts)]


def test_a_good_machine_has_nothing_to_say():
    assert examine(GOOD) == []
    assert examine(P5) == []  # one host uses no network
    assert examine(replace(P5, nccl_plugin=Plugin("/opt/amazon/ofi-nccl/lib/libnccl-net.so")), hosts=2) == []
    assert examine(replace(P5, nccl_plugin=Plugin(asked="none")), hosts=2) == []
    assert (
        examine(replace(P5, nccl_plugin=Plugin("", "/opt/x/libnccl-net-ofi.so")), hosts=2) == []
    )  # ranks are told of it
    assert examine(chosen(""), slots=8, hosts=2) == []  # the CPU by choice
    assert examine(replace(machine(), torch_cuda="none"), slots=8) == []


@pytest.mark.parametrize(
    ("found", "hosts", "expected"),
    [
        (
            chosen("7"), 1,
            ("fail", "CUDA_VISIBLE_DEVICES: '7' names no GPU of this machine, which has 2; fix: 0 to 1, or UUIDs of nvidia-smi -L; "
             f"unset it for all GPUs; {ON_CPU}"),
        ),
        (
            chosen("0,0"), 1,
            ("fail", "CUDA_VISIBLE_DEVICES: '0,0' names a GPU twice, so CUDA shows no GPU at all; fix: 0 to 1, or UUIDs of "
             f"nvidia-smi -L; unset it for all GPUs; {ON_CPU}"),
        ),
        (
            replace(GOOD, nvidia=replace(CARDS, library="")), 1,
            ("warn", "NVIDIA driver: 2 GPUs (/dev/nvidia*), but programs find no libcuda.so.1; fix: docker run --gpus "
             f"all with NVIDIA's container toolkit, or the driver's libraries; {ON_CPU}"),
        ),
        (
            replace(GOOD, nvidia=replace(CARDS, driver="470.256.02")), 1,
            ("warn", "NVIDIA driver: 470.256.02 is too old for torch with CUDA 12.8, which needs 525 or newer; fix: a newer driver "
             f"on the host, or (data-center GPUs only) an image with the package cuda-compat; {ON_CPU}"),
        ),
        (
            replace(GOOD, torch_cuda="none", packages={"torch": "2.13.0+cpu"}), 1,
            ("warn", "torch: 2.13.0+cpu is built without CUDA, on a machine with 2 GPUs; fix: the image of ./build.sh build "
             f"--variant cuda, or {ON_CPU}"),
        ),
        (
            replace(GOOD, nvidia=replace(CARDS, slices=(0, 7))), 1,
            ("warn", "GPUs: 1 GPU in 7 MIG slices: a process sees only one slice; fix: one rank per host, or GPUs without MIG "
             "(nvidia-smi -mig 0)"),
        ),
        (
            P5, 2,
            ("warn", "EFA: rdmap79s0, rdmap80s0 .. can be opened, but NCCL finds no network plugin: between hosts it uses TCP, "
             "at a fraction of the bandwidth; fix: build the image with EFA_INSTALLER_VERSION (docs/image.md)"),
        ),
        (
            replace(P5, nccl_plugin=Plugin("", "/opt/x/libnccl-net-ofi.so", "aws-ofi")), 2,
            ("warn", "EFA: rdmap79s0, rdmap80s0 .. can be opened, but NCCL finds no network plugin for NCCL_NET_PLUGIN=aws-ofi: "
             "between hosts it uses TCP, at a fraction of the bandwidth; fix: NCCL_NET_PLUGIN=/opt/x/libnccl-net-ofi.so, "
             "a file of this image"),
        ),
    ],
)  # fmt: skip
def test_one_fault_one_finding(found, hosts, expected):
    assert examine(found, hosts=hosts) == [expected]


def test_a_choice_that_leaves_some_gpus_is_a_warning():
    (found,) = examine(chosen("1,9"), slots=1)
    assert found[0] == "warn"
    assert found[1].startswith(
        "CUDA_VISIBLE_DEVICES: '9' in '1,9' is not a GPU of this machine, which has 2; CUDA ignores '9'; fix: 0"
    )


@pytest.mark.parametrize(
    ("value", "warned"),
    [
        ("0", False),
        ("GPU-aa", False),
        ("1", True),
        ("0,1", True),
        ("GPU-bb", True),
        ("MIG-66a8a9ac", True),
        ("0,9,1", False),  # CUDA ignores 9 and what follows
    ],
)
def test_slices_of_gpus_that_are_not_visible_do_not_count(value, warned):
    cards = replace(CARDS, slices=(0, 7), uuids=("GPU-aa11", "GPU-bb22"))
    found = replace(GOOD, nvidia=cards, visible=visible(value, 2, cards.uuids))
    assert [text for _, text in examine(found) if "MIG" in text] == (
        ["GPUs: 1 GPU in 7 MIG slices: a process sees only one slice; fix: one rank per host, or GPUs without MIG (nvidia-smi -mig 0)"]
        if warned else []
    )  # fmt: skip


def test_more_ranks_than_visible_gpus():
    (found,) = examine(chosen("1"), slots=2)
    assert found == ("warn", f"GPUs: 2 ranks (--slots) on 1 GPUs (CUDA_VISIBLE_DEVICES); fix: 1 slots, or {ON_CPU}")


H100 = "0, NVIDIA H100 80GB HBM3, 81559, {used}, {mode}, {mig}"


@pytest.mark.parametrize(
    ("row", "state", "words"),
    [
        (H100.format(used=4, mode="Default", mig="Disabled"), "ok", "NVIDIA H100 80GB HBM3, 4 of 81559 MiB in use"),
        (
            H100.format(used=70012, mode="Default", mig="Disabled"),
            "warn",
            "70012 of 81559 MiB in use by other processes",
        ),
        (H100.format(used=4, mode="Exclusive_Process", mig="[N/A]"), "warn", "compute mode Exclusive_Process"),
        (H100.format(used=4, mode="Prohibited", mig="[N/A]"), "fail", "compute mode Prohibited"),
        (
            H100.format(used=4, mode="Default", mig="Enabled"),
            "warn",
            "divided into MIG slices: a process sees only one",
        ),
        ("0, Tesla T4, [N/A], [N/A], Default, [N/A]", "ok", "Tesla T4, [N/A] of [N/A] MiB in use"),
    ],
)
def test_what_nvidia_smi_says_of_a_gpu(row, state, words):
    (found,) = doctor_gpus.cards([row, "No devices were found"])
    assert (found.topic, found.state) == ("GPU 0", state)
    assert found.value.endswith(words)


@pytest.fixture
def tools(monkeypatch):
    """What nvidia-smi and torch answer."""
    answers = {
        "nvidia-smi": [H100.format(used=4, mode="Default", mig="Disabled")],
        "torch": ProgramAnswer(("2",)),
        "environ": {},
    }

    def ask(*argv, environ=None):
        answers["environ"] = environ or {}
        return answers["torch"]

    monkeypatch.setattr(program_output, "lines", lambda *argv: answers["nvidia-smi"])
    monkeypatch.setattr(program_output, "ask", ask)
    return answers


def doctor(found):
    return [(each.state, each.topic, each.value) for each in doctor_gpus.examine(found, 2)]


def test_doctor_says_which_driver_torch_needs_and_what_is_here(tools):
    assert doctor(GOOD) == [
        ("ok", "GPUs", "2 (/dev/nvidia*)"),
        ("ok", "NVIDIA driver", "570.124.06; torch with CUDA 12.8 needs 525 or newer"),
        ("ok", "GPU 0", "NVIDIA H100 80GB HBM3, 4 of 81559 MiB in use"),
        ("ok", "torch sees", "2 GPUs"),
    ]
    assert doctor(replace(machine(), torch_cuda="12.8"))[-1] == (
        "ok", "NVIDIA driver", "none; torch with CUDA 12.8 needs 525 or newer",
    )  # fmt: skip


def test_doctor_has_torch_s_words_where_it_sees_no_gpu(tools):
    words = "Unexpected error from cudaGetDeviceCount(). .. Error 802: system not yet initialized"
    tools["torch"] = ProgramAnswer((words,))
    assert doctor(GOOD)[-1] == ("fail", "torch sees", f"no GPU: {words}")


def test_doctor_names_a_torch_without_code_for_this_gpu(tools):
    """torch 2.11's wheels have none for a V100 (sm_70): torch counts the GPU, and fails at its first kernel."""
    tools["torch"] = ProgramAnswer(("CUDA error: no kernel image is available for execution on the device",))
    found = doctor_gpus.examine(GOOD, 2)[-1]
    assert (found.state, found.fix) == ("fail", doctor_gpus.OTHER_TORCH)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (ProgramAnswer(late=True), "no GPU: no answer within 20 s"),
        (ProgramAnswer(code=-11), "no GPU: its process was ended by signal 11"),
        (ProgramAnswer(("half",), code=134), "no GPU: its process exited with 134"),
        (ProgramAnswer(), "no GPU: its process printed nothing"),
        (ProgramAnswer(("0",)), "no GPU, and shows no error"),
        (ProgramAnswer(("libcudart.so.12: cannot open shared object file",)), "no GPU: libcudart.so.12: cannot open shared object file"),
    ],
)  # fmt: skip
def test_doctor_says_how_torch_failed(answer, value, tools):
    tools["torch"] = answer
    assert doctor(GOOD)[-1] == ("fail", "torch sees", value)


def test_a_torch_that_cannot_be_imported_says_why(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    found = program_output.ask(sys.executable, "-c", doctor_gpus.TORCH, environ={"PYTHONPATH": str(tmp_path)})
    assert found == ProgramAnswer(("libcudart.so.12: cannot open shared object file",))


def test_a_program_s_failure_is_told_from_its_silence(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(program_output, "TIMEOUT_S", 0.3)
        assert program_output.ask(sys.executable, "-c", "import time; time.sleep(60)") == ProgramAnswer(late=True)
    assert program_output.ask(sys.executable, "-c", "print(1); raise SystemExit(3)") == ProgramAnswer(("1",), code=3)
    assert program_output.ask("no-such-program") == ProgramAnswer(absent=True)
    assert program_output.lines(sys.executable, "-c", "print(1); raise SystemExit(3)") == []
    assert program_output.lines("no-such-program") == []


def test_doctor_asks_torch_in_the_environment_of_a_rank(tools, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/nvidia/lib")
    older = replace(CARDS, driver="470.256.02", compat="570.124.06")
    found = doctor(replace(GOOD, nvidia=older))
    assert found[1][2].endswith("; /usr/local/cuda/compat has 570.124.06 (ranks load it)")
    assert tools["environ"]["LD_LIBRARY_PATH"] == "/usr/local/cuda/compat:/usr/local/nvidia/lib"
    newer = doctor(replace(GOOD, nvidia=replace(older, driver="535.183.01")))
    assert newer[1][2].endswith(
        "has 570.124.06 (not used: the driver is new enough, or a GPU is a GeForce, a TITAN or of unknown model)"
    )


def test_doctor_on_a_container_that_was_given_no_gpu(tools):
    found = doctor(replace(machine(), nvidia=Nvidia(driver="570.124.06"), torch_cuda="12.8"))
    assert found[-1][:2] == ("warn", "NVIDIA driver")
    assert "570.124.06, but no GPU is visible (/dev/nvidia*)" in found[-1][2]


def test_doctor_leaves_hidden_gpus_alone(tools):
    assert doctor(chosen("-1"))[-1] == (
        "ok", "CUDA_VISIBLE_DEVICES", "'-1' hides all GPUs: jobs compute on the CPU",
    )  # fmt: skip
