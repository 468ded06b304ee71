"""Figures: how fast training is beside a bare loop, what share of the device's peak it reaches, what memory it needs, and
what the host says of the device."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

from algorun.machine.gpu_peaks import peak
from tests.gpu.session import Figure, Outcome, Seen, Session, Skip, Stop, Wrong, program
from tests.gpu.sizes import GIB, Gpt

ROOMY = 40 * GIB  # bytes of a GPU: below it the batch of images is a quarter
LEAST_READINGS = 3  # progress reports after the first one
BYTES_PER_WEIGHT = 16  # weight, gradient and two moments in fp32
ACTIVATIONS = 1.5  # room beside them, as a factor
MIB = 2**20
PEAKS = "launcher/algorun/machine/gpu_peaks.py"
MEASURED_S = 0.5  # from the heading of --explain's table of memory until its row is there
EVERY_S = 2.0  # an interval of the hosts' figures (docs/time.md)
HELD_SHARE = 8  # of the free memory, the program of `figures-of-gpu` holds one in so many
NVML_SIZE = 1.15  # a GPU's size by NVML is at most this much more than torch's
EVENTS_AGREE = 0.9  # the launcher's time of an activity over the program's own, at least
TRACED = (10, 19)  # steps of the program of `activities`
SAVED_GIB = 4
LEAST_OF_PEAK = 0.5
COST_STEPS = 300
COST_STEP_S, COST_SHARE = 0.05, 0.002
IN_A_STEP = 8  # begins and ends: data, forward, backward, optimizer
TABLE_ROW = (
    r"^\[0 [^\]]*\] +0 +([\d.]+) +([\d.]+) +[\d.]+$"  # rank 0 of "planned MiB, measured MiB, measured / planned"
)


def step(session: Session) -> Seen:
    """The same model in our loop and in a bare one, rounds in turn, on all GPUs."""
    machine, sizes = session.machine, session.sizes.images
    if machine.on_gpu and machine.memory_bytes < ROOMY:
        sizes = replace(sizes, batch=sizes.batch // 4)
    words = ["run", *session.every_gpu, program("step_beside_bare.py"), *sizes.argv()]
    done = session.run(*words, base=session.base()).must()
    found = json.loads(done.find(r"measured: (\{.*\})$")[1])
    bare_s, ours_s = statistics.median(found["bare"]), statistics.median(found["ours"])
    images_per_s = found["batch"] / ours_s
    model = f"ViT of width {sizes.width}, depth {sizes.depth}, {sizes.side} px, patch {sizes.patch}"
    how = f"{model}, bf16, {sizes.batch} per rank x {found['ranks']} ranks, median of {sizes.rounds} rounds of {sizes.steps} steps"
    figures = [
        Figure("ddp, images/s", f"{images_per_s:,.0f}", how),
        Figure("ddp, step", f"{ours_s * 1e3:.2f} ms", "the same; data, learning rate, reports and agreement included"),
        Figure("a bare DDP loop, step", f"{bare_s * 1e3:.2f} ms", "the same model; batches ready made on the device"),
        Figure(
            "ddp's throughput over the bare loop's", f"{bare_s / ours_s:.3f}", "ratio of the medians, rounds in turn"
        ),
        _utilisation("ddp", session, found["operations"], ours_s),
    ]
    return Seen(f"{ours_s * 1e3:.2f} ms, a bare loop {bare_s * 1e3:.2f} ms", tuple(figures))


def gpt(session: Session) -> Seen:
    """One pipeline of one stage on one GPU."""
    sizes = session.sizes.gpt
    done = _pipeline(session, sizes)
    speeds = _speeds(done)
    per_s = statistics.median(speeds)
    counted = session.python_program(
        "-m", "tests.gpu.programs.gpt_operations", *sizes.model_argv(), base=session.base("c")
    )
    operations = json.loads(counted.must().find(r"counted: (\{.*\})$")[1])["operations"]
    how = f"{_model(sizes)}, bf16, one rank, batch {sizes.batch}, median of {len(speeds)} reports"
    figures = (
        Figure("GPT, tokens/s", f"{per_s * sizes.context:,.0f}", how),
        _utilisation("GPT", session, operations, 1 / per_s),
    )
    return Seen(f"{per_s * sizes.context:,.0f} tokens/s", figures)


def memory(session: Session) -> Seen:
    """The plan's bytes against the device's own peak."""
    sizes = session.sizes.large
    need = sizes.weights * BYTES_PER_WEIGHT * ACTIVATIONS
    if session.machine.free_bytes < need:
        raise Skip(f"needs {need / GIB:.0f} GiB free; this machine has {session.machine.free_bytes / GIB:.0f}")
    base = session.base()
    # One stage needs no plan, unless a partition is asked for. The job has measured after five steps. Its checkpoint of 12
    # GB would take longer than all else, so it is killed there.
    words = ("--explain", "--partition", str(base / "partition.json"))
    done = _pipeline(session, sizes, *words, stop=Stop("measured / planned", MEASURED_S))
    row = done.find(TABLE_ROW)
    planned, measured = float(row[1]) * MIB, float(row[2]) * MIB
    if not planned or not measured:
        raise Wrong(f"planned {planned:.0f} bytes, measured {measured:.0f}")
    how = f"{_model(sizes)}, bf16, one rank, batch {sizes.batch}; {'the peak of the allocator' if session.machine.on_gpu else 'counted'} in one step"
    figures = (
        Figure("memory, planned", _bytes(planned), how),
        Figure("memory, measured", _bytes(measured), "the same"),
        Figure("memory, measured over planned", f"{measured / planned:.3f}", "the same"),
    )
    return Seen(f"{_bytes(planned)} planned, {_bytes(measured)} measured, after {done.seconds:.0f} s", figures)


def hosts(session: Session) -> Seen:
    """What NVML says of the GPU at work, in the file that each host keeps."""
    machine, sizes = session.machine, session.sizes
    held = machine.free_bytes // HELD_SHARE
    done = session.run(
        *("run", "--slots", "1", program("busy.py"), str(sizes.busy_s), str(held)), base=session.base()
    ).must()
    files = sorted((done.base / "output" / "data").glob("host_figures-*.jsonl"))
    if not files:
        raise Wrong("no file host_figures-HOST.jsonl")
    lines = [json.loads(line) for line in files[0].read_text(encoding="utf-8").splitlines()]
    if not (readings := [gpu for line in lines for gpu in line.get("gpus", ())]):
        raise Wrong(f"{files[0].name} has {len(lines)} lines, none with a GPU")
    most = {}
    for key, least, limit in _plausible(machine.memory_bytes, held):
        values = [reading[key] for reading in readings if key in reading]
        if not values:
            raise Wrong(f"{files[0].name} has no {key}: {readings[-1]}")
        most[key] = max(values)
        if not least <= most[key] <= limit:
            raise Wrong(f"{key} is {most[key]:g} at most, not {least:g} to {limit:g}: {readings[-1]}")
    how = f"largest of {len(lines)} intervals of {EVERY_S:g} s; matrix products for {sizes.busy_s:g} s, {_bytes(held)} held"
    figures = (
        Figure("NVML, utilisation", f"{most['utilization']:.0%}", how),
        Figure("NVML, memory in use", _bytes(most["memory_bytes"]), f"of {_bytes(most['memory_size_bytes'])}"),
        Figure("NVML, temperature", f"{most['temperature_c']:.0f} C", "the same"),
        Figure("NVML, power", f"{most['power_w']:.0f} W", "the same"),
    )
    return Seen(f"{len(readings)} readings of GPUs in {len(lines)} lines", figures)


def activities(session: Session) -> Seen:
    """What the launcher says that the device spends in backward, beside the program's own events; and a trace of some steps."""
    done = session.run(
        *("run", "--slots", "1", program("queued.py")),
        base=session.base(),
        ALGORUN_TRACE_STEPS="-".join(map(str, TRACED)),
    ).must()
    traced = _traced_steps(done)
    own = json.loads(done.find(r"measured: (\{.*\})$")[1])
    times = json.loads((done.base / "output" / "data" / "result.json").read_text(encoding="utf-8"))["times"]
    if times["activities_of"] != "GPU":
        raise Wrong(f"the activities are those of the {times['activities_of']}")
    seen_s = times["activities"]["backward"]
    ratio = seen_s / own["backward_s"]
    if not EVENTS_AGREE <= ratio <= 1 / EVENTS_AGREE:
        raise Wrong(f"{seen_s:.3f} s in backward; the program's own events say {own['backward_s']:.3f} s")
    how = f"its own events say {own['backward_s']:.3f} s, and the host has queued it in {own['queued_s']:.3f} s"
    return Seen(
        f"{seen_s:.3f} s in backward, {how}; a trace of {traced} steps",
        (Figure("activities, backward over own events", f"{ratio:.3f}", how),),
    )


def _traced_steps(done: Outcome) -> int:
    """How many steps the trace has. Raises Wrong unless they are those that were asked for."""
    file = done.base / "output" / "data" / "trace_steps-attempt-1-algo-1.json"
    try:
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    except (OSError, ValueError, KeyError) as error:
        raise Wrong(f"no trace in {file.name}: {error}") from None
    steps = {event["name"] for event in events if event.get("ph") == "X" and event["name"].startswith("step ")}
    first, last = TRACED
    if steps != (wanted := {f"step {n}" for n in range(first, last + 1)}):
        raise Wrong(f"the trace has {', '.join(sorted(steps)) or 'no steps'}, not {', '.join(sorted(wanted))}")
    return len(steps)


def cost(session: Session) -> Seen:
    """What noting a step's activities costs the host: steps whose activities are noted beside steps that are one activity."""
    done = session.run("run", "--slots", "1", program("queueing.py"), str(COST_STEPS), base=session.base()).must()
    found = json.loads(done.find(r"measured: (\{.*\})$")[1])
    each_s = (found["noted_s"] - found["alone_s"]) / found["more"]
    share = IN_A_STEP * each_s / COST_STEP_S
    if share > COST_SHARE:
        raise Wrong(
            f"{each_s * 1e6:.0f} us for a begin or end: {share:.2%} of a step of 50 ms, more than {COST_SHARE:.1%}"
        )
    how = (
        f"{COST_STEPS} steps of some 50 ms, queued in {found['noted_s'] * 1e3:.1f} ms; means without the slowest tenth"
    )
    figures = (
        Figure("activities, cost of a begin or end", f"{each_s * 1e6:.0f} us", how),
        Figure("activities, share of a step of 50 ms", f"{share:.3%}", f"{IN_A_STEP} begins and ends"),
    )
    return Seen(f"{each_s * 1e6:.0f} us for a begin or end of an activity", figures)


def measured(session: Session) -> Seen:
    """`measure` on this host: each GPU's product beside the peak of its kind, and bits that are the same each time."""
    done = session.run(
        "run", *session.every_gpu, "measure", "--seconds", "10", "--strict", "True", base=session.base()
    ).must()
    found = json.loads((done.base / "output" / "data" / "measure.json").read_text(encoding="utf-8"))
    slowest = min(found["ranks"], key=lambda each: each["product"])
    most = peak(session.machine.names[0]) if session.machine.on_gpu else None
    share = f"{slowest['product'] / most:.0%} of the dense bf16 peak" if most else "its peak is not known"
    if most and not LEAST_OF_PEAK < slowest["product"] / most < 1.1:
        raise Wrong(f"{slowest['product'] / 1e12:.0f} Tflop/s, {share}")
    how = f"the slowest of {len(found['ranks'])}; {share}"
    return Seen(
        f"{slowest['product'] / 1e12:.1f} Tflop/s, {share}",
        (Figure("measure, matrix product", f"{slowest['product'] / 1e12:.1f} Tflop/s", how),),
    )


def saves(session: Session) -> Seen:
    """The copies of a sharded save beside those that wait for each tensor: how long training stands still."""
    done = session.run("run", "--slots", "1", program("saves.py"), str(SAVED_GIB), base=session.base()).must()
    found = json.loads(done.find(r"measured: (\{.*\})$")[1])
    ours_s, pageable_s = statistics.median(found["ours_s"]), statistics.median(found["pageable_s"])
    if ours_s > pageable_s:
        raise Wrong(f"{ours_s:.3f} s for {_bytes(found['bytes'])}, {pageable_s:.3f} s tensor by tensor")
    how = f"{_bytes(found['bytes'])} in {len(found['ours_s'])} rounds in turn, medians"
    figures = (
        Figure(
            "copies of a save", f"{ours_s:.3f} s, {found['bytes'] / ours_s / 1e9:.1f} GB/s", f"{how}; pinned, one wait"
        ),
        Figure("the first save's, which pins memory", f"{found['first_s']:.3f} s", "once in a job"),
        Figure("tensor by tensor, pageable", f"{pageable_s:.3f} s, {found['bytes'] / pageable_s / 1e9:.1f} GB/s", how),
        Figure("copies of a save, times as fast", f"{pageable_s / ours_s:.2f}", "ratio of the medians"),
    )
    return Seen(f"{_bytes(found['bytes'])} in {ours_s:.3f} s, tensor by tensor {pageable_s:.3f} s", figures)


def _plausible(size: int, held: int) -> list[tuple[str, float, float]]:
    """The least and the most that the largest reading of a busy GPU of `size` bytes may be, by key."""
    return [
        ("utilization", 0.5, 1.0),
        ("memory_bytes", held, size * NVML_SIZE),
        ("memory_size_bytes", size, size * NVML_SIZE),  # torch's size is without what the driver keeps
        ("temperature_c", 10.0, 110.0),
        ("power_w", 10.0, 1500.0),
    ]


def _bytes(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def _pipeline(session: Session, sizes: Gpt, *words: str, stop: Stop | None = None) -> Outcome:
    """One epoch of a GPT on one rank; with `stop` it may end as a job does that is killed a second after it."""
    options = ["--pp", "1", "--precision", "bf16", "--epochs", "1", "--warmup-epochs", "0"]
    options += [*sizes.argv(), *session.text(sizes.text_bytes), *words]
    environ = {"ALGORUN_GRACE_S": "1"} if stop else {}
    done = session.run("run", "--slots", "1", "pipeline", *options, base=session.base(), stop=stop, **environ)
    if stop is None:
        done.must()
    done.find(rf"bf16 on {session.machine.kind}$")
    return done


def _speeds(done: Outcome) -> list[float]:
    """Sequences per second of all progress reports but the first, which has the first steps in it."""
    lines = (done.base / "output" / "data" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    found = [report["sequences_per_s"] for report in reports if report["kind"] == "step"][1:]
    if len(found) < LEAST_READINGS:
        raise Wrong(f"{len(found)} progress reports after the first one, {LEAST_READINGS} are needed")
    return found


def _model(sizes: Gpt) -> str:
    return f"GPT of {sizes.weights / 1e6:,.0f} M weights (width {sizes.width}, depth {sizes.depth}), context {sizes.context}"


def _utilisation(what: str, session: Session, operations: float, seconds: float) -> Figure:
    """MFU of one GPU; a dash where its peak is not known."""
    name = session.machine.names[0] if session.machine.on_gpu else ""
    most = peak(name)
    done = f"{operations / seconds / 1e12:.1f} Tflop/s per GPU" if session.machine.on_gpu else "no GPU"
    if not most:
        return Figure(f"{what}, MFU", "-", f"{done}; the peak of {name or 'a CPU'} is not in {PEAKS}")
    return Figure(f"{what}, MFU", f"{operations / seconds / most:.1%}", f"{done}, of the dense bf16 peak in {PEAKS}")
