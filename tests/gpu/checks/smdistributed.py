"""Scripts for AWS's smdistributed libraries, on the device."""

from __future__ import annotations

from tests.gpu.session import ROOT, Seen, Session, Skip, Wrong, program

NEAR = {"float32": 1e-5, "bfloat16": 1e-3, "float16": 1e-3}  # largest distance of a weight after ten steps


def modelparallel(session: Session) -> Seen:
    """In float32, and under autocast, as the same model without the library."""
    told = []
    for name, most in NEAR.items():
        if name == "float16" and not session.machine.on_gpu:
            continue
        base = session.base(name)
        done = session.run("run", "--slots", "1", program("smp_beside_plain.py"), name, base=base).must()
        found = float(done.find(rf"distance (\S+) on {session.machine.kind}$")[1])
        if not found <= most:
            raise Wrong(
                f"a weight is {found:.1e} away from that of the plain model in {name}, at most {most:g} is expected"
            )
        told.append(f"{name} {found:.1e}")
    return Seen(f"largest distance of a weight: {', '.join(told)}")


def dataparallel(session: Session) -> Seen:
    """DistributedDataParallel and FSDP over the backend smddp."""
    if not session.machine.on_gpu:
        raise Skip("needs a GPU: the script names cuda")
    script = str(ROOT / "tests" / "compat" / "programs" / "smddp_gpu.py")
    done = session.run("run", "--slots", "1", script, base=session.base()).must()
    return Seen(done.find(r"(device \d+ grad .*)$")[1])
