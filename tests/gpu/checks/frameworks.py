"""Other frameworks on one GPU, started as docs/frameworks.md says."""

from __future__ import annotations

from tests.gpu.session import Outcome, Seen, Session, Wrong, program

SIDE = 1024  # of with_jax.py's matrices of ones
FITTED = 0.01  # what is left of the first loss
JAX_S_WORD = {"cuda": "gpu", "cpu": "cpu"}  # JAX's names of devices; older versions say cuda as well


def jax(session: Session) -> Seen:
    """`jax.distributed.initialize` with a rank's numbers, a matrix product on the device, a sum over the processes."""
    done = _rank(session, "with_jax.py", **({} if session.machine.on_gpu else {"JAX_PLATFORMS": "cpu"}))
    found = done.find(r"\] (jax \S+ on (\w+): product (\d+), sum (\S+) of 1 processes, (\d+) devices)$")
    if found[2] not in (JAX_S_WORD[session.machine.kind], session.machine.kind):
        raise Wrong(f"JAX computed on {found[2]}: {found[1]}")
    if int(found[3]) != SIDE**3 or float(found[4]) != float(found[5]):  # each device adds 1.0
        raise Wrong(f"wrong results: {found[1]}")
    return Seen(found[1])


def accelerate(session: Session) -> Seen:
    """`Accelerator()` finds the rank and its device, and a line is fitted."""
    done = _rank(session, "with_accelerate.py", **({} if session.machine.on_gpu else {"ACCELERATE_USE_CPU": "true"}))
    return _fitted(session, done, "accelerate")


def lightning(session: Session) -> Seen:
    """A Trainer with the numbers of the job and `strategy="ddp"`."""
    return _fitted(session, _rank(session, "with_lightning.py"), "lightning")


def _rank(session: Session, name: str, **environ: str) -> Outcome:
    return session.run("run", "--slots", "1", program(name), base=session.base(), **environ).must()


def _fitted(session: Session, done: Outcome, name: str) -> Seen:
    found = done.find(rf"\] ({name} \S+ on (\w+): .*, 1 processes, loss (\S+) to (\S+))$")
    if found[2] != session.machine.kind:
        raise Wrong(f"it computed on {found[2]}, not on {session.machine.kind}: {found[1]}")
    if not float(found[4]) < float(found[3]) * FITTED:
        raise Wrong(f"the loss has to fall below {FITTED:g} of the first: {found[1]}")
    return Seen(found[1])
