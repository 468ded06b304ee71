"""The checks of `make test PART=gpu`, each with what a good and a bad GPU would make the jobs print."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gpu.checks import ALL, faults, figures, folders, frameworks, looking, training
from tests.gpu.machine import Machine
from tests.gpu.session import Outcome, Session, Skip, Wrong
from tests.gpu.sizes import CPU, GIB, GPU

H100 = Machine(
    kind="cuda", names=("NVIDIA H100 80GB HBM3",), memory_bytes=79 * GIB, free_bytes=78 * GIB, driver="580.159.04",
    torch="2.11.0+cu130", cuda="13.0", nccl="2.28.9", transformers="5.17.0", python="3.12.3", linux="6.18",
    algorun="0.1.0",
)  # fmt: skip


class Scripted(Session):
    """A session whose jobs end as the test says, one after the other; `asked` holds their words and variables."""

    def __init__(self, folder: Path, *outcomes: tuple[int, str], machine: Machine = H100, failure: str = "") -> None:
        super().__init__(machine, GPU if machine.on_gpu else CPU, Path("python"), folder)
        self.check = "check"
        self._outcomes, self._failure = list(outcomes), failure
        self.asked: list[tuple[tuple[str, ...], dict[str, str]]] = []

    def python_program(self, *words, base, stop=None, **environ):
        self.asked.append((words, environ))
        code, text = self._outcomes.pop(0)
        if self._failure:
            (base / "output").mkdir(exist_ok=True)
            (base / "output" / "failure").write_text(self._failure)
        return Outcome(code, text, 20.0, base)


def report(folder: Path, file: str, text: str) -> None:
    path = folder / "check" / "job" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def refused(check, session, text):
    with pytest.raises(Wrong) as wrong:
        check(session)
    assert text in str(wrong.value)


def test_names_are_unique_and_every_check_says_what_it_shows():
    assert len({check.name for check in ALL}) == len(ALL)
    assert all(check.title and check.limit_s > 0 for check in ALL)


def test_doctor_fails_with_the_findings_words(tmp_path):
    rows = [
        {"topic": "GPUs", "value": "1", "state": "ok", "fix": ""},
        {"topic": "memlock", "value": "8 MiB", "state": "warn", "fix": ""},
    ]
    good = Scripted(tmp_path, (0, json.dumps({"ok": True, "findings": rows})))
    assert looking.doctor(good).note == "2 findings; warnings: memlock: 8 MiB"
    rows.append({"topic": "nvidia-smi", "value": "does not answer", "state": "fail", "fix": "install the driver"})
    bad = Scripted(tmp_path, (69, json.dumps({"ok": False, "findings": rows})))
    refused(looking.doctor, bad, "nvidia-smi: does not answer; fix: install the driver")


def test_a_plan_has_a_rank_per_gpu(tmp_path):
    assert looking.plan(Scripted(tmp_path, (0, '{"world_size": 1}'))).note == "1 rank"
    refused(looking.plan, Scripted(tmp_path, (0, '{"world_size": 2}')), "a plan of 2 ranks for 1 GPUs")


def test_ddp_has_to_train_on_the_gpu_and_learn(tmp_path):
    log = "[0 algo-1] model: vit, 1 weights, fp32 on cuda\n"
    report(tmp_path, "output/data/summary.json", '{"accuracy": 0.93}')
    assert training.ddp(Scripted(tmp_path, (0, log))).note == "5 epochs in 20.0 s, accuracy 0.930"
    refused(training.ddp, Scripted(tmp_path, (0, log.replace("cuda", "cpu"))), "on cuda")
    refused(training.ddp, Scripted(tmp_path, (1, "Traceback ..")), "exit code 1, not 0: Traceback ..")
    report(tmp_path, "output/data/summary.json", '{"accuracy": 0.1}')
    refused(training.ddp, Scripted(tmp_path, (0, log)), "accuracy 0.100 after 5 epochs")


def test_a_synchronisation_in_a_step_is_named(tmp_path):
    def said(**found):
        return (
            0,
            f"[0 algo-1] synchronisations: {json.dumps({'steps': 90, 'places': [], 'copies': 4, 'pageable': 0, **found})}\n",
        )

    good = Scripted(tmp_path, said(in_steps=0, elsewhere=12))
    assert training.synchronisation(good).note == "none in 90 steps; 12 where the loop reports and evaluates"
    bad = Scripted(tmp_path, said(in_steps=88, elsewhere=12, places=["augment.py:40 (88 times)"]))
    refused(training.synchronisation, bad, "88 in 90 steps: augment.py:40 (88 times)")
    refused(training.synchronisation, Scripted(tmp_path, said(in_steps=0, elsewhere=0)), "no synchronisation at all")
    copies = Scripted(tmp_path, said(in_steps=0, elsewhere=12, pageable=4))
    refused(training.synchronisation, copies, "4 copies from pageable memory in two steps")
    blind = Scripted(tmp_path, said(in_steps=0, elsewhere=12, copies=0))
    refused(training.synchronisation, blind, "the profiler saw no copy in two steps")
    where = ["transformers/masking_utils.py:761 (88 times)"]
    of_folder = llama(tmp_path, said(in_steps=88, elsewhere=12, places=where))
    refused(folders.synchronisation, of_folder, f"88 in 90 steps: {where[0]}")


STUCK = "hang: rank 0 on algo-1, exit 67, attempt 1, step 5: no step for 10 s: its only rank waits for its GPU; rank 0 has made "


def test_a_verdict_has_to_name_the_call_that_the_gpu_is_in(tmp_path):
    def judged(number, code=67):
        said = (
            f"{STUCK}all_reduce [8] Float at stuck.py:33 (call {number} of the default group), which has not completed"
        )
        return faults.recorder(Scripted(tmp_path, (code, "[0 algo-1] waits in call 6\n"), failure=said))

    assert "left with 67" in judged(6).note
    with pytest.raises(Wrong, match="the verdict does not name call 6: hang: rank 0"):
        judged(305)
    with pytest.raises(Wrong, match="exit code 0, not 67"):
        judged(6, code=0)


def test_a_saves_copies_have_to_be_faster_than_tensor_by_tensor(tmp_path):
    def measured(ours):
        found = {"bytes": 4 * GIB, "first_s": 2.0, "ours_s": [ours] * 5, "pageable_s": [1.0] * 5}
        return figures.saves(Scripted(tmp_path, (0, f"measured: {json.dumps(found)}\n")))

    assert [figure.value for figure in measured(0.1).figures] == [
        "0.100 s, 42.9 GB/s",
        "2.000 s",
        "1.000 s, 4.3 GB/s",
        "10.00",
    ]
    with pytest.raises(Wrong, match=r"1.200 s for 4.00 GiB, 1.000 s tensor by tensor"):
        measured(1.2)


def test_the_times_of_activities_have_to_be_the_gpus_and_the_trace_whole(tmp_path):
    def seen(backward_s=2.0, of="GPU", steps=range(10, 20)):
        report(
            tmp_path,
            "output/data/result.json",
            json.dumps({"times": {"activities_of": of, "activities": {"backward": backward_s}}}),
        )
        events = [{"ph": "X", "name": f"step {n}"} for n in steps] + [{"ph": "X", "name": "backward"}]
        report(tmp_path, "output/data/trace_steps-attempt-1-algo-1.json", json.dumps({"traceEvents": events}))
        session = Scripted(tmp_path, (0, 'measured: {"backward_s": 2.0, "queued_s": 0.1}\n'))
        found = figures.activities(session)
        assert session.asked[0][1] == {"ALGORUN_TRACE_STEPS": "10-19"}
        return found

    assert seen().figures[0].value == "1.000"
    for wrong, text in (
        ({"backward_s": 0.1}, "0.100 s in backward; the program's own events say 2.000 s"),
        ({"of": "CPU"}, "the activities are those of the CPU"),
        ({"steps": range(10, 19)}, "the trace has step 10"),
    ):
        with pytest.raises(Wrong, match=text):
            seen(**wrong)


def test_a_gpus_product_has_to_be_near_its_peak(tmp_path):
    def seen(product):
        rank = {"rank": 0, "product": product}
        report(tmp_path, "output/data/measure.json", json.dumps({"ranks": [rank, {"rank": 1, "product": 800e12}]}))
        return figures.measured(Scripted(tmp_path, (0, "")))

    assert seen(700e12).note == "700.0 Tflop/s, 71% of the dense bf16 peak"
    with pytest.raises(Wrong, match="90 Tflop/s, 9% of the dense bf16 peak"):
        seen(90e12)


def test_the_times_of_activities_have_to_be_cheap(tmp_path):
    def measured(microseconds):
        found = {"noted_s": 0.004 + 4e-6 * microseconds, "alone_s": 0.004, "more": 4}
        return figures.cost(Scripted(tmp_path, (0, f"measured: {json.dumps(found)}\n")))

    assert [figure.value for figure in measured(5).figures] == ["5 us", "0.080%"]
    with pytest.raises(Wrong, match=r"15 us for a begin or end: 0.24% of a step of 50 ms, more than 0.2%"):
        measured(15)


def test_deterministic_runs_have_to_leave_equal_weights(tmp_path):
    log = (0, "fp32 on cuda\n")
    for name, weights in (("first", b"1"), ("second", b"1")):
        (tmp_path / "check" / name / "model").mkdir(parents=True)
        (tmp_path / "check" / name / "model" / "model.pt").write_bytes(weights)
    assert "6b86b273ff34" in training.deterministic(Scripted(tmp_path, log, log)).note
    (tmp_path / "check" / "second" / "model" / "model.pt").write_bytes(b"2")
    refused(training.deterministic, Scripted(tmp_path, log, log), "the weights of two runs differ")


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path):
    first = "fp32 on cuda\n[0 algo-1] stopped on request after step 120; the same command goes on from there\n"
    second = "fp32 on cuda\n[0 algo-1] resumed: x, epoch 3, 0 samples of it done, step {}\nstopped on request after step {}; ..\n"
    good = Scripted(tmp_path, (0, first), (0, second.format(120, 260)))
    assert training.stop_and_resume(good).note == "stopped after step 120, resumed there, stopped after step 260"
    other = Scripted(tmp_path, (0, first), (0, second.format(100, 260)))
    refused(training.stop_and_resume, other, "stopped after step 120, resumed at step 100")
    stuck = Scripted(tmp_path, (0, first), (0, second.format(120, 120)))
    refused(training.stop_and_resume, stuck, "and stopped after step 120")


def test_too_few_gpus_are_said_and_the_cpu_computes(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-abc,1")
    line = "algorun: the simulated hosts compute on the CPU: 2 hosts x 2 ranks need 4 GPUs, but there is 1 (/dev/nvidia*)\n"
    session = Scripted(tmp_path, (0, line + "[0 algo-1] model: vit, 1 weights, fp32 on cpu\n"))
    assert "need 4 GPUs" in looking.too_few_gpus(session).note
    assert session.asked[0][1]["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    refused(looking.too_few_gpus, Scripted(tmp_path, (0, "fp32 on cpu\n")), "nothing printed matches")
    refused(looking.shares, replaced(tmp_path, (0, line + "fp32 on cuda\n"), monkeypatch), "beside four GPUs")


def replaced(folder, outcome, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    return Scripted(folder, outcome, machine=replace(H100, names=H100.names * 4))


def test_an_absent_gpu_has_to_be_an_error_that_names_the_variable(tmp_path):
    text = "preflight: algo-1, exit 69: CUDA_VISIBLE_DEVICES: '7' names no GPU of this machine, which has 1\n"
    assert "ends with 69" in looking.absent_gpu(Scripted(tmp_path, (69, ""), failure=text)).note
    refused(looking.absent_gpu, Scripted(tmp_path, (0, "train_loss: 1.0\n")), "trained and ended with 0")
    refused(looking.absent_gpu, Scripted(tmp_path, (1, "train_loss: 1.0\n")), "training started")
    refused(looking.absent_gpu, Scripted(tmp_path / "b", (1, "ValueError: no device\n")), "does not name CUDA_VISIBLE")


def test_a_replayed_graph_must_outlive_the_hang_limit(tmp_path):
    session = Scripted(tmp_path, (0, "[0 algo-1] replayed 5000 steps, loss 0.1\n"))
    assert faults.graph(session).note == "5000 replays in 60 s with ALGORUN_HANG_S=20"
    assert session.asked[0][1]["ALGORUN_HANG_S"] == "20"
    hang = "hang: rank 0 on algo-1, exit 67, attempt 1, step 3: .."
    refused(faults.graph, Scripted(tmp_path, (67, ""), failure=hang), f"exit code 67, not 0: {hang}")


def test_a_collective_that_times_out_is_quoted_with_code_and_seconds(tmp_path):
    said = "signal: rank 0 on algo-1, exit 134 (SIGABRT), attempt 1: Watchdog caught collective operation timeout\n.."
    ready = "[0 algo-1] ready, device cuda:0\n"
    assert faults.collective(Scripted(tmp_path, (134, ready), failure=said)).note == (
        f'timeout 15 s, left with 134 after 20.0 s from the start: "{said.splitlines()[0]}"'
    )
    refused(
        faults.collective,
        Scripted(tmp_path, (1, f"{ready}init_process_group(.., timeout=..)\n"), failure="exception: ValueError"),
        "nothing says that a collective",
    )
    early = "exception: RuntimeError: timeout in init_process_group"
    refused(faults.collective, Scripted(tmp_path, (1, ""), failure=early), "0 of 1 ranks came as far as")
    wrong = said.replace("timeout", "timeout while rank 1 slept")
    refused(faults.collective_of_two, Scripted(tmp_path, (134, 2 * ready), failure=wrong), "does not name rank 1")
    named = said.replace("rank 0", "rank 1")
    assert "rank 1" in faults.collective_of_two(Scripted(tmp_path, (67, 2 * ready), failure=named)).note
    with pytest.raises(Skip, match="the collective of one rank ended by itself"):
        faults.collective(Scripted(tmp_path / "one", (0, "[0 algo-1] the collective ended\n")))


def test_an_index_out_of_range_has_to_say_so_with_a_hint(tmp_path):
    said = "exception: rank 0 on algo-1, exit 1: RuntimeError: CUDA error: device-side assert triggered\n"
    good = Scripted(tmp_path, (1, ""), failure=f"{said}hint: an index is out of range\n")
    assert faults.index(good).note.endswith('triggered"; hint: an index is out of range')
    refused(faults.index, Scripted(tmp_path, (1, ""), failure=said), "has no hint")
    refused(
        faults.index, Scripted(tmp_path, (1, ""), failure="exception: unknown"), "does not say 'device-side assert'"
    )
    refused(faults.index, Scripted(tmp_path / "none", (0, "rows 0")), "the job ended with 0 and this failure: none")


def test_no_attempt_may_meet_the_memory_of_the_last_one(tmp_path):
    count = int(78 * GIB * 0.9)
    text = "".join(f"[0 algo-1] attempt {n} holds {count} bytes of value {n + 1}\n" for n in range(3))
    assert "70.2 GiB taken in each of 3 attempts" in faults.restart(Scripted(tmp_path, (0, text))).note
    refused(
        faults.restart, Scripted(tmp_path, (1, "torch.OutOfMemoryError: CUDA out of memory.\n")), "CUDA out of memory"
    )
    refused(faults.restart, Scripted(tmp_path, (0, text[: text.index("attempt 2")])), "attempt 2 holds")


def test_the_step_beside_a_bare_loop_is_a_ratio_of_medians(tmp_path):
    found = {"ranks": 1, "batch": 128, "operations": 3.956e12, "bare": [0.009, 0.01, 0.03], "ours": [0.02, 0.01, 0.01]}
    seen = figures.step(Scripted(tmp_path, (0, f"[0 algo-1] measured: {json.dumps(found)}\n")))
    values = {figure.name: figure.value for figure in seen.figures}
    assert values == {
        "ddp, images/s": "12,800",
        "ddp, step": "10.00 ms",
        "a bare DDP loop, step": "10.00 ms",
        "ddp's throughput over the bare loop's": "1.000",
        "ddp, MFU": "40.0%",
    }
    unknown = Scripted(
        tmp_path, (0, f"measured: {json.dumps(found)}\n"), machine=replace(H100, names=("NVIDIA RTX 4090",))
    )
    assert figures.step(unknown).figures[-1].value == "-"
    assert "--batch-size 128" in " ".join(unknown.asked[0][0])
    small = Scripted(tmp_path, (0, f"measured: {json.dumps(found)}\n"), machine=replace(H100, memory_bytes=16 * GIB))
    figures.step(small)
    assert "--batch-size 32" in " ".join(small.asked[0][0])


def test_tokens_per_second_leave_the_first_report_out(tmp_path):
    lines = [{"kind": "step", "sequences_per_s": speed} for speed in (1.0, 9.0, 10.0, 11.0)]
    report(tmp_path, "output/data/metrics.jsonl", "\n".join(map(json.dumps, [*lines, {"kind": "epoch"}])))
    outcomes = ((0, "bf16 on cuda\n"), (0, 'counted: {"operations": 4.945e13, "weights": 1}\n'))
    seen = figures.gpt(Scripted(tmp_path, *outcomes))
    assert [figure.value for figure in seen.figures] == ["10,240", "50.0%"]
    report(tmp_path, "output/data/metrics.jsonl", json.dumps(lines[0]))
    refused(figures.gpt, Scripted(tmp_path, *outcomes), "0 progress reports after the first one, 3 are needed")


def test_memory_is_read_from_the_table_of_explain(tmp_path):
    text = (
        "[0 algo-1] model: gpt, 1 weights, bf16 on cuda\n[0 algo-1] memory: planned against measured (the device's peak)\n"
        "[0 algo-1] rank  planned MiB  measured MiB  measured / planned\n[0 algo-1]    0      20480.0       18432.0                0.90\n"
    )
    seen = figures.memory(Scripted(tmp_path, (0, text)))
    assert [figure.value for figure in seen.figures] == ["20.00 GiB", "18.00 GiB", "0.900"]
    assert "GPT of 1,007 M weights" in seen.figures[0].how
    with pytest.raises(Skip, match="needs 22 GiB free; this machine has 20"):
        figures.memory(Scripted(tmp_path, machine=replace(H100, free_bytes=20 * GIB)))


def test_memory_ends_its_job_once_the_table_is_there_and_needs_no_disk(tmp_path):
    session = Scripted(
        tmp_path, (137, "bf16 on cuda\n[0 algo-1]    0      20480.0       18432.0                0.90\n")
    )
    assert "20.00 GiB planned" in figures.memory(session).note
    words, environ = session.asked[0]
    assert "--explain" in words
    assert environ == {"ALGORUN_GRACE_S": "1"}
    refused(figures.memory, Scripted(tmp_path, (1, "bf16 on cuda\nValueError: x\n")), "the last lines: bf16 on cuda")


GPU_AT_WORK = {
    "utilization": 0.98, "memory_bytes": 11 * GIB, "memory_size_bytes": 80 * GIB, "power_w": 512.5, "temperature_c": 54,
    "throttled": ["power cap"],
}  # fmt: skip


def of_hosts(folder, *gpus):
    lines = [{"format": 1, "cpu": 0.5}, *({"format": 1, "cpu": 0.5, "gpus": [gpu]} for gpu in gpus)]
    report(folder, "output/data/host_figures-algo-1.jsonl", "\n".join(map(json.dumps, lines)))
    return Scripted(folder, (0, "multiplied\n"))


def test_the_figures_of_a_host_have_the_gpu_at_work(tmp_path):
    idle = GPU_AT_WORK | {"utilization": 0.0, "memory_bytes": 0}
    seen = figures.hosts(of_hosts(tmp_path, idle, GPU_AT_WORK))
    assert seen.note == "2 readings of GPUs in 3 lines"
    assert [figure.value for figure in seen.figures] == ["98%", "11.00 GiB", "54 C", "512 W"]
    refused(figures.hosts, Scripted(tmp_path / "none", (0, "")), "no file host_figures-HOST.jsonl")
    refused(figures.hosts, of_hosts(tmp_path), "1 lines, none with a GPU")
    refused(figures.hosts, of_hosts(tmp_path, idle), "utilization is 0 at most, not 0.5 to 1")
    little = GPU_AT_WORK | {"memory_bytes": GIB}
    refused(figures.hosts, of_hosts(tmp_path, little), "memory_bytes is")
    refused(figures.hosts, of_hosts(tmp_path, GPU_AT_WORK | {"temperature_c": 3000}), "temperature_c is 3000 at most")
    blind = {key: value for key, value in GPU_AT_WORK.items() if key != "power_w"}
    refused(figures.hosts, of_hosts(tmp_path, blind), "has no power_w")


# Models of folders

FALLING = (9.0, 6.0, 4.0, 3.0, 2.5)
TRAINED = "[0 algo-1] model: x, 1 weights, bf16 on cuda\n[0 algo-1] epoch: 1/1 train_loss: 4.0 val_loss : 2.4000\n"
CLOSING = "  trained 195.3 samples/s, 200000.4 tokens/s, MFU 41.2%\n"
MADE = {"weights": 300_000_000, "kept_bytes": 12 * GIB}


def llama(folder, *outcomes, losses=FALLING, peak_mib=16384.0, job="whole", machine=H100):
    """A session whose folder is made already, and whose job `job` has reported these losses."""
    made = folder / "made" / "llama"
    made.mkdir(parents=True, exist_ok=True)
    (made / "made.json").write_text(json.dumps(MADE))
    base = folder / "check" / job
    reports = [
        {"kind": "step", "sequences_per_s": 190.0 + number, "train_loss": loss, "peak_memory_mib": peak_mib}
        for number, loss in enumerate(losses)
    ]
    for name, text in (
        ("output/data/metrics.jsonl", "\n".join(map(json.dumps, reports))),
        ("model/model.safetensors", ""),
    ):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    return Scripted(folder, *outcomes, machine=machine)


def test_a_folder_trains_with_the_mfu_that_the_job_states_and_a_peak_near_the_formula(tmp_path):
    session = llama(tmp_path, (0, TRAINED + CLOSING))
    seen = folders.folder(session)
    assert {figure.name: figure.value for figure in seen.figures} == {
        "Llama folder, tokens/s": "197,120",  # the median of 191 to 194 sequences
        "Llama folder, tokens/s of the closing table": "200,000",
        "Llama folder, MFU of the closing table": "41.2%",
        "Llama folder, peak memory": "16.00 GiB",
        "Llama folder, 4 W + A": "16.47 GiB",
        "Llama folder, peak over 4 W + A": "0.971",
    }
    assert "--batch-size 16" in " ".join(session.asked[0][0])
    refused(
        folders.folder, llama(tmp_path, (0, TRAINED + CLOSING), peak_mib=32768.0), "a peak of 32.00 GiB, 1.94 of 4 W"
    )
    refused(
        folders.folder,
        llama(tmp_path, (0, TRAINED + CLOSING.replace("200000.4", "476000.4"))),
        "the closing table has 476,000 tokens/s, the reports' median is 197,120",
    )
    refused(folders.folder, llama(tmp_path, (0, TRAINED + CLOSING.replace(", MFU 41.2%", ""))), "has no MFU")
    refused(folders.folder, llama(tmp_path, (0, TRAINED.replace("cuda", "cpu") + CLOSING)), "on cuda")
    refused(folders.folder, llama(tmp_path, (0, TRAINED + CLOSING), losses=(9.0,) * 5), "has to fall below 0.9")
    refused(folders.folder, llama(tmp_path, (1, "Traceback ..")), "exit code 1, not 0")
    unknown = replace(H100, names=("NVIDIA GeForce RTX 4090",), memory_bytes=24 * GIB)
    small = llama(tmp_path, (0, TRAINED + CLOSING.replace(", MFU 41.2%", "")), machine=unknown)
    assert folders.folder(small).figures[2].value == "-"
    assert "--batch-size 4" in " ".join(small.asked[0][0])


@pytest.fixture
def a_compiler(tmp_path, monkeypatch):
    """What `torch.compile` needs, as far as the checks ask for it: no job runs here."""
    path = tmp_path / "bin" / "c++"
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(path.parent))


@pytest.mark.parametrize("check", [folders.compiled, training.compiled])
def test_no_compiler_is_said_before_a_job_starts(check, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Skip, match=r"needs a C\+\+ compiler on PATH"):
        check(llama(tmp_path))


@pytest.mark.usefixtures("a_compiler")
def test_a_compiled_folder_is_compared_with_the_plain_one_and_may_be_killed_after_its_epoch(tmp_path):
    session = llama(tmp_path, (0, TRAINED + CLOSING), (137, TRAINED), job="compiled")
    llama(tmp_path)
    folders.folder(session)
    seen = folders.compiled(session)
    assert [figure.value for figure in seen.figures] == ["197,120", "1.000"]
    assert session.asked[1][1] == {"ALGORUN_GRACE_S": "1"}
    other = llama(tmp_path, (137, TRAINED), losses=(9.0, 6.5, 4.0, 3.0, 2.5), job="compiled")
    other.found = session.found
    refused(folders.compiled, other, "losses are up to 8.3% from those of the whole model, more than 5%")


@pytest.mark.usefixtures("a_compiler")
def test_a_folder_that_no_earlier_check_has_trained_is_trained_first(tmp_path):
    session = llama(tmp_path, (137, TRAINED), (137, TRAINED), job="compiled")
    llama(tmp_path)
    folders.compiled(session)
    assert ["--compile" in words for words, _ in session.asked] == [False, True]


def test_a_sharded_model_has_the_losses_of_the_whole_one(tmp_path):
    def said(**changes):
        found = {"backend": "nccl", "device": "cuda", "whole": {"losses": [9.0, 3.0], "collectives": 0}}
        found["sharded"] = {"losses": [9.0, 3.03], "collectives": 4}
        return (0, f"[0 algo-1] measured: {json.dumps(found | changes)}\n")

    note = folders.sharded(llama(tmp_path, said())).note
    assert note.startswith("2 steps over nccl, loss 9.0000 to 3.0300, whole 3.0000, at most 1.00% apart")
    refused(folders.sharded, llama(tmp_path, said(backend="gloo")), "gloo on cuda, not nccl on cuda")
    far = {"losses": [9.0, 4.0], "collectives": 4}
    refused(folders.sharded, llama(tmp_path, said(sharded=far)), "up to 33.3% from those of the whole model")
    still = {"losses": [9.0, 9.0], "collectives": 4}
    refused(folders.sharded, llama(tmp_path, said(sharded=still)), "the loss went from 9.0000 to 9.0000")
    wild = {"losses": [9.0, float("nan")], "collectives": 4}
    refused(folders.sharded, llama(tmp_path, said(sharded=wild)), "the loss went from 9.0000 to nan")


def test_an_artifact_of_lora_is_the_adapter_alone(tmp_path):
    text = TRAINED + "[0 algo-1] 12 of 24 weights train (LoRA of rank 8 on q_proj, v_proj)\n"
    session = llama(tmp_path, (0, text), job="lora")
    refused(folders.lora, session, "the artifact has the whole model: model.safetensors")
    model = tmp_path / "check" / "lora" / "model"
    (model / "model.safetensors").unlink()
    (model / "adapter_config.json").write_text('{"r": 8}')
    (model / "adapter_model.safetensors").write_bytes(bytes(2**20))
    assert folders.lora(Scripted(tmp_path, (0, text))).note == "loss 9.0000 to 2.5000, an adapter of 1.0 MiB"


def test_a_vit_has_to_tell_the_colours_apart(tmp_path):
    (tmp_path / "made" / "vit").mkdir(parents=True)
    (tmp_path / "made" / "vit" / "made.json").write_text('{"weights": 21700000}')
    report(tmp_path, "model/preprocessor_config.json", "{}")
    summary = {"accuracy": 1.0, "steps": 32, "images_per_s": 2345.6}
    report(tmp_path, "output/data/summary.json", json.dumps(summary))
    seen = folders.images(Scripted(tmp_path, (0, TRAINED)))
    assert seen.figures[0].value == "2,346"
    report(tmp_path, "output/data/summary.json", json.dumps(summary | {"accuracy": 0.25}))
    refused(folders.images, Scripted(tmp_path, (0, TRAINED)), "accuracy 0.250 after 32 steps")


# Other frameworks


def test_frameworks_have_to_compute_on_the_gpu(tmp_path):
    line = "[0 algo-1] jax 0.10.2 on gpu: product 1073741824, sum 1.0 of 1 processes, 1 devices\n"
    assert frameworks.jax(Scripted(tmp_path, (0, line))).note.startswith("jax 0.10.2 on gpu")
    refused(frameworks.jax, Scripted(tmp_path, (0, line.replace("on gpu", "on cpu"))), "JAX computed on cpu")
    refused(frameworks.jax, Scripted(tmp_path, (0, line.replace("1073741824", "1073740000"))), "wrong results")
    for name, check in (("accelerate", frameworks.accelerate), ("lightning", frameworks.lightning)):
        line = f"[0 algo-1] {name} 1.0 on cuda: ddp, 1 processes, loss 4.000000 to 0.000100\n"
        assert check(Scripted(tmp_path, (0, line))).note.startswith(f"{name} 1.0 on cuda")
        refused(check, Scripted(tmp_path, (0, line.replace("cuda", "cpu"))), "it computed on cpu, not on cuda")
        refused(check, Scripted(tmp_path, (0, line.replace("0.000100", "3.900000"))), "the loss has to fall below")
