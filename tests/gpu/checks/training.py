"""The bundled entrypoints on the device."""

from __future__ import annotations

import hashlib
import json

from tests.gpu.session import Outcome, Seen, Session, Stop, Wrong, needs_a_compiler, program

ENDLESS = "1000000"  # epochs, of a job that is stopped
WAITS = "count_synchronisations.py"
BETTER_THAN_GUESSING = 0.3  # accuracy of ten classes after the few epochs of these checks


def ddp(session: Session) -> Seen:
    """All GPUs, from scratch to the artifact."""
    epochs = session.sizes.epochs
    done = session.run("run", "ddp", "--epochs", str(epochs), base=session.base()).must()
    _on_device(session, done)
    accuracy = done.summary["accuracy"]
    if accuracy < BETTER_THAN_GUESSING:
        raise Wrong(f"accuracy {accuracy:.3f} after {epochs} epochs")
    return Seen(f"{epochs} epochs in {done.seconds:.1f} s, accuracy {accuracy:.3f}")


def pipeline(session: Session) -> Seen:
    """One stage: the picture of its schedule is there."""
    words = ["pipeline", "--pp", "1", "--precision", "bf16", "--explain", "--epochs", "1"]
    words += [] if session.machine.on_gpu else [*session.sizes.gpt.argv(), *session.text(session.sizes.gpt.text_bytes)]
    done = session.run("run", "--slots", "1", *words, base=session.base()).must()
    done.find(rf"bf16 on {session.machine.kind}$")
    measured = done.find(r"schedule: measured step ([\d.]+) ms")[1]
    return Seen(f"a step of {measured} ms; {done.text.strip().splitlines()[-1]}")


def bf16(session: Session) -> Seen:
    return _option(session, "--precision", "bf16")


def compiled(session: Session) -> Seen:
    needs_a_compiler()
    return _option(session, "--compile")


def _option(session: Session, *words: str) -> Seen:
    done = session.run("run", "--slots", "1", "ddp", "--epochs", "1", *words, base=session.base()).must()
    _on_device(session, done)
    return Seen(f"validation loss {done.summary['loss']:.4f} after one epoch, {done.seconds:.1f} s")


def deterministic(session: Session) -> Seen:
    """Two runs leave the same bytes of weights."""
    found = []
    for name in ("first", "second"):
        base = session.base(name)
        done = session.run("run", "--slots", "1", "ddp", "--epochs", "1", "--deterministic", base=base).must()
        _on_device(session, done)
        found.append(hashlib.sha256((base / "model" / "model.pt").read_bytes()).hexdigest())
    if found[0] != found[1]:
        raise Wrong("the weights of two runs differ")
    return Seen(f"sha256 of the weights, both runs: {found[0][:12]}")


def synchronisation(session: Session) -> Seen:
    """torch warns of each operation that makes the CPU wait for the GPU; in a step of the loop there is none."""
    words = ["run", *session.every_gpu, program(WAITS), "--epochs", "4"]
    return without_waits(session.run(*words, base=session.base()).must())


def without_waits(done: Outcome) -> Seen:
    """What the program WAITS has counted. Raises Wrong where a step waits, or where nothing was counted at all."""
    found = json.loads(done.find(r"synchronisations: (\{.*\})")[1])
    if not found["elsewhere"]:
        raise Wrong(
            "torch warned of no synchronisation at all, not even where the loop reports: it cannot be relied on"
        )
    if found["in_steps"]:
        raise Wrong(f"{found['in_steps']} in {found['steps']} steps: {', '.join(found['places'])}")
    if not found["copies"]:  # each step sends at least the labels
        raise Wrong("the profiler saw no copy in two steps: it cannot be relied on (CUPTI may not be allowed here)")
    if found["pageable"]:
        raise Wrong(f"{found['pageable']} copies from pageable memory in two steps, for which the CPU may wait")
    return Seen(f"none in {found['steps']} steps; {found['elsewhere']} where the loop reports and evaluates")


def stop_and_resume(session: Session) -> Seen:
    """SIGTERM saves, the same command goes on from there, and can be stopped again."""
    words = ["run", "ddp", "--epochs", ENDLESS, "--log-interval", "10"]
    base = session.base()
    reached: list[int] = []
    for _ in range(2):
        done = session.run(*words, base=base, stop=Stop("train_loss", session.sizes.run_s)).must()
        _on_device(session, done)
        if reached and (at := int(done.find(r"resumed: .*step (\d+)$")[1])) != reached[0]:
            raise Wrong(f"stopped after step {reached[0]}, resumed at step {at}")
        reached.append(int(done.find(r"stopped on request after step (\d+)")[1]))
    if reached[1] <= reached[0]:
        raise Wrong(f"stopped after step {reached[0]}, resumed, and stopped after step {reached[1]}")
    return Seen(f"stopped after step {reached[0]}, resumed there, stopped after step {reached[1]}")


def _on_device(session: Session, done: Outcome) -> None:
    """Raises Wrong where the model was on another device."""
    done.find(rf"(fp32|bf16) on {session.machine.kind}$")
