"""What the launcher finds on this machine, and which GPUs ranks get."""

from __future__ import annotations

import json

from algorun.machine import nvidia
from tests.gpu.session import Outcome, Seen, Session, Wrong

ON_CPU = "the simulated hosts compute on the CPU"


def doctor(session: Session) -> Seen:
    """No finding is a failure."""
    done = session.run("doctor", "--json", base=session.base())
    report = json.loads(done.text[done.text.index("{") :])
    failed = [
        f"{row['topic']}: {row['value']}; fix: {row['fix']}" for row in report["findings"] if row["state"] == "fail"
    ]
    if failed:
        raise Wrong(" | ".join(failed))
    warned = [f"{row['topic']}: {row['value']}" for row in report["findings"] if row["state"] == "warn"]
    return Seen(f"{len(report['findings'])} findings; warnings: {' | '.join(warned) or 'none'}")


def plan(session: Session) -> Seen:
    """Without --slots there is a rank per GPU."""
    done = session.run("plan", "--json", "ddp", base=session.base()).must()
    made = json.loads(done.text[done.text.index("{") :])
    have = session.machine.count
    if made["world_size"] != have:
        raise Wrong(f"a plan of {made['world_size']} ranks for {have} GPUs")
    return Seen(f"{have} rank{'s' if have > 1 else ''}")


def too_few_gpus(session: Session) -> Seen:
    """Four simulated ranks on one GPU: the CPU, one line, and an end with 0."""
    done = _simulate(session, session.gpu(0)).must()
    said = done.find(rf"^algorun: ({ON_CPU}: .*)$")[1]
    done.find(r"fp32 on cpu$")
    return Seen(f'"{said}"')


def shares(session: Session) -> Seen:
    """Four simulated ranks on four GPUs train on them, by NCCL."""
    names = ",".join(session.gpu(number) for number in range(4))
    done = _simulate(session, names).must()
    done.find(r"fp32 on cuda$")
    if ON_CPU in done.text:
        raise Wrong("four ranks compute on the CPU beside four GPUs")
    return Seen(done.text.strip().splitlines()[-1])


def _simulate(session: Session, gpus: str) -> Outcome:
    """ddp on 2 x 2 simulated ranks of a machine that has these GPUs."""
    base = session.base()
    words = ["simulate", "-j", "2x2", "--out", str(base / "hosts"), "ddp", "--epochs", "1"]
    return session.run(*words, base=base, CUDA_VISIBLE_DEVICES=gpus)


def absent_gpu(session: Session) -> Seen:
    """An error before training starts, which names the variable; no training on the CPU in silence."""
    absent = str(max(7, nvidia.look({}).devices))
    done = session.run("run", "--slots", "1", "ddp", "--epochs", "1", base=session.base(), CUDA_VISIBLE_DEVICES=absent)
    if done.code == 0:
        raise Wrong(f"CUDA_VISIBLE_DEVICES={absent} trained and ended with 0")
    if "train_loss" in done.text:
        raise Wrong("training started")
    first = (done.failure or done.text).strip().splitlines()[0]
    if "CUDA_VISIBLE_DEVICES" not in done.failure + done.text:
        raise Wrong(f"the error does not name CUDA_VISIBLE_DEVICES: {first}")
    return Seen(f'CUDA_VISIBLE_DEVICES={absent} ends with {done.code}: "{first}"')
