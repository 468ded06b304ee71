"""Which rank is to blame for a hang, from stacks as real runs show them."""

from __future__ import annotations

import pytest

from algorun.control.hang.hang import Stack, StackFrame, message, odd, of_one_rank
from algorun.host.measuring.step_counter import Steps, has_no_step

SITE = "/opt/venv/lib/python3.11/site-packages/torch"
CODE = "/opt/ml/code/train.py"
MAIN = StackFrame(CODE, 40, "<module>")

# Innermost first, from gloo runs of torch 2.13 in which the other rank slept.
BACKWARD = (
    StackFrame(f"{SITE}/autograd/graph.py", 979, "_engine_run_backward"),
    StackFrame(f"{SITE}/autograd/__init__.py", 395, "backward"),
    StackFrame(f"{SITE}/_tensor.py", 623, "backward"),
    StackFrame(CODE, 31, "step"),
    MAIN,
)
ALL_REDUCE = (
    StackFrame(f"{SITE}/distributed/distributed_c10d.py", 3252, "all_reduce"),
    StackFrame(f"{SITE}/distributed/c10d_logger.py", 83, "wrapper"),
    StackFrame(CODE, 33, "step"),
    MAIN,
)
ZERO = (
    StackFrame(f"{SITE}/distributed/optim/zero_redundancy_optimizer.py", 826, "<listcomp>"),
    StackFrame(f"{SITE}/distributed/optim/zero_redundancy_optimizer.py", 826, "_sync_params"),
    StackFrame(f"{SITE}/distributed/optim/zero_redundancy_optimizer.py", 1151, "step"),
    StackFrame(f"{SITE}/optim/optimizer.py", 530, "wrapper"),
    StackFrame(CODE, 35, "step"),
    MAIN,
)
FUNCTIONAL = (
    StackFrame(f"{SITE}/_ops.py", 1279, "__call__"),
    StackFrame(f"{SITE}/distributed/_functional_collectives.py", 142, "wait_tensor"),
    StackFrame(f"{SITE}/distributed/_functional_collectives.py", 1155, "__torch_dispatch__"),
    StackFrame(CODE, 36, "step"),
    MAIN,
)
# torch 2.13's GradScaler on a GPU: it reads whether a gradient was infinite, a value that the others' part is in.
SCALER = (
    StackFrame(f"{SITE}/amp/grad_scaler.py", 371, "<genexpr>"),
    StackFrame(f"{SITE}/amp/grad_scaler.py", 371, "_maybe_opt_step"),
    StackFrame(f"{SITE}/amp/grad_scaler.py", 478, "step"),
    StackFrame(CODE, 37, "step"),
    MAIN,
)
# `print(loss)` and `f"{loss:.3f}"`: torch 2.13 writes a tensor's value in Python.
PRINTS = (
    StackFrame(f"{SITE}/_tensor_str.py", 153, "__init__"),
    StackFrame(f"{SITE}/_tensor_str.py", 373, "_tensor_str"),
    StackFrame(f"{SITE}/_tensor_str.py", 724, "_str"),
    StackFrame(f"{SITE}/_tensor.py", 590, "__repr__"),
    StackFrame(CODE, 38, "step"),
    MAIN,
)
FORMATS = (StackFrame(f"{SITE}/_tensor.py", 1125, "__format__"), StackFrame(CODE, 39, "step"), MAIN)
SLEEPS = (StackFrame(CODE, 17, "load"), MAIN)
LOADER = (
    StackFrame("/usr/lib/python3.11/selectors.py", 415, "select"),
    StackFrame("/usr/lib/python3.11/multiprocessing/connection.py", 930, "wait"),
    StackFrame(f"{SITE}/utils/data/dataloader.py", 1243, "_try_get_data"),
    StackFrame(CODE, 20, "epoch"),
    MAIN,
)
# An FSDP module's forward runs below torch.distributed frames: its own layers are at work, not waiting.
FSDP_AT_WORK = (
    StackFrame(f"{SITE}/nn/modules/linear.py", 125, "forward"),
    StackFrame(f"{SITE}/distributed/fsdp/_fully_shard/_fsdp_state.py", 314, "_pre_forward"),
    StackFrame(CODE, 30, "step"),
    MAIN,
)


def ranks(*frames, steps=41, **changes):
    """One stack for each; `changes` maps rN to what differs at rank N."""
    out = []
    for number, stack in enumerate(frames):
        fields = {"steps": steps, "frames": stack} | changes.get(f"r{number}", {})
        out.append(Stack(number, f"algo-{number // 2 + 1}", **fields))
    return out


@pytest.mark.parametrize(
    ("stack", "label"),
    [
        (BACKWARD, "backward (__init__.py:395)"),
        (ALL_REDUCE, "all_reduce (distributed_c10d.py:3252)"),
        (ZERO, "step (zero_redundancy_optimizer.py:1151)"),
        (FUNCTIONAL, "wait_tensor (_functional_collectives.py:142)"),
        (SCALER, "step (grad_scaler.py:478)"),
        (PRINTS, "__init__ (_tensor_str.py:153)"),
        (FORMATS, "__format__ (_tensor.py:1125)"),
        (SLEEPS, ""),
        (LOADER, ""),
        (FSDP_AT_WORK, ""),
    ],
)
def test_waiting_for_others_is_told_from_work(stack, label):
    assert ranks(stack)[0].wait == label


@pytest.mark.parametrize(
    ("source", "wait"),
    [
        ("comm.Allreduce(mine, total)", "Allreduce (train.py:17)"),
        ("comm.Barrier()", "Barrier (train.py:17)"),
        ("handle.wait()", "wait (train.py:17)"),
        ("total += loss.item()", "item (train.py:17)"),
        ("x = next(batches).to(device, non_blocking=True)", "to (train.py:17)"),
        ("seen.append(pred.argmax(1).cpu())", "cpu (train.py:17)"),
        ("x, y = x.cuda(), y.cuda()", "cuda (train.py:17)"),
        ("total += float(loss)", "float (train.py:17)"),
        ("losses.append(float(loss.detach().mean()))", "float (train.py:17)"),
        ("if torch.isnan(loss):", "isnan (train.py:17)"),
        ("if not bool(found[0]):", "bool (train.py:17)"),
        ("n = int(input())", ""),
        ("server.connect((host, int(port)))", ""),
        ("time.sleep(float(pause))", ""),
        ("x = torch.frombuffer(records.read(n), dtype=torch.uint8).to(device)", ""),
        ("point(3)", ""),
        ("print(loss)", ""),
        ("time.sleep(1e9)", ""),
        ("while True: pass", ""),
    ],
)
def test_compiled_calls_are_told_by_the_line_that_makes_them(source, wait):
    assert Stack(0, "algo-1", 1, SLEEPS, source=source).wait == wait


@pytest.mark.parametrize("wait", [BACKWARD, ALL_REDUCE, ZERO, FUNCTIONAL, SCALER])
@pytest.mark.parametrize("work", [SLEEPS, LOADER, FSDP_AT_WORK])
def test_the_one_that_works_while_others_wait(wait, work):
    assert odd(ranks(wait, wait, work, wait)).rank == 2


def test_one_that_does_not_answer_comes_first():
    stacks = ranks(BACKWARD, SLEEPS, (), BACKWARD, r2={"frozen": True}, r1={"steps": 3})
    assert odd(stacks).rank == 2
    text = message(odd(stacks), stacks, 600)
    assert text == (
        "no step for 600 s after step 41: the process does not answer (stopped, or held in the kernel) "
        "while 2 of 3 others wait in backward (__init__.py:395)"
    )


@pytest.mark.parametrize(
    ("frames", "source", "collective"),
    [(ALL_REDUCE, "", True), (ZERO, "", True), (FUNCTIONAL, "", True), (BACKWARD, "", False), (SCALER, "", False),
     (PRINTS, "", False), (SLEEPS, "x = loss.item()", False), (SLEEPS, "", False)],
)  # fmt: skip
def test_a_collective_is_told_from_a_wait_for_a_value(frames, source, collective):
    assert Stack(0, "algo-1", 1, frames, source=source).in_collective is collective


def test_fewer_steps_weigh_more_than_the_stack():
    assert odd(ranks(SLEEPS, LOADER, BACKWARD, r1={"steps": 40})).rank == 1
    assert odd(ranks(ALL_REDUCE, BACKWARD, BACKWARD, r2={"steps": 40})).rank == 2


def test_one_that_waits_is_not_to_blame_where_one_ahead_does_not():
    """The first rank has made its step and writes a checkpoint for ever; the others wait inside theirs."""
    assert odd(ranks(SLEEPS, ZERO, ZERO, r0={"steps": 42})).rank == 0


def test_the_rarest_place_then_the_lowest_rank():
    other = (StackFrame(CODE, 99, "evaluate"), MAIN)
    assert odd(ranks(SLEEPS, SLEEPS, other, SLEEPS)).rank == 2
    assert odd(ranks(ALL_REDUCE, BACKWARD, ALL_REDUCE)).rank == 1
    assert odd(ranks(BACKWARD, BACKWARD, BACKWARD)).rank == 0
    assert odd(ranks(SLEEPS, other)).rank == 0


def test_a_rank_that_cannot_be_asked_is_not_blamed_for_it():
    assert odd(ranks((), SLEEPS, BACKWARD)).rank == 1
    lone = ranks((), ())
    assert odd(lone).rank == 0
    assert "stack cannot be read" in message(lone[0], lone, 600)


def test_the_message_names_the_user_s_line_and_where_the_others_wait():
    stacks = ranks(ALL_REDUCE, ALL_REDUCE, SLEEPS, ALL_REDUCE, r2={"source": "time.sleep(1e9)"})
    assert message(stacks[2], stacks, 600) == (
        "no step for 600 s after step 41: load at train.py:17: time.sleep(1e9) "
        "while 3 others wait in all_reduce (distributed_c10d.py:3252)"
    )
    stacks = ranks(LOADER, BACKWARD, r0={"steps": 40})
    assert message(stacks[0], stacks, 61.4) == (
        "no step for 61 s after step 40 (others: 41): _try_get_data (dataloader.py:1243), called at train.py:20 in epoch "
        "while 1 other waits in backward (__init__.py:395)"
    )


def test_a_lone_rank():
    stacks = ranks(SLEEPS)
    assert odd(stacks) is stacks[0]
    assert message(stacks[0], stacks, 600) == "no step for 600 s after step 41: load at train.py:17"


def test_thousands_of_ranks():
    stacks = ranks(*[BACKWARD] * 4095, SLEEPS)
    assert odd(stacks).rank == 4095
    assert "while 4095 others wait in backward" in message(stacks[-1], stacks, 600)


def test_a_program_of_a_package_has_its_own_frames_too():
    """The bundled entry points lie in site-packages."""
    own = StackFrame("/opt/venv/lib/python3.11/site-packages/algorun_train/loop/training_loop.py", 101, "_train_epoch")
    stacks = ranks((*BACKWARD[:3], own), (own,))
    assert odd(stacks).rank == 1
    assert "_train_epoch at training_loop.py:101" in message(stacks[1], stacks, 600)
    assert "called at training_loop.py:101 in _train_epoch" in message(stacks[0], stacks, 600)


@pytest.mark.parametrize("folder", ["/opt/venv/lib/python3.11/site-packages", "/home/me/algorun/launcher"])
def test_should_stop_waits_for_the_other_ranks(folder):
    """The code that calls it is the user's, the launcher's own is not."""
    waits = (
        StackFrame("/lib/python3.11/threading.py", 320, "wait"),
        StackFrame(f"{folder}/algorun/inside/peers.py", 50, "all_reduce"),
        StackFrame(f"{folder}/algorun/__init__.py", 52, "should_stop"),
        MAIN,
    )
    stack = ranks(waits)[0]
    assert stack.own == MAIN
    assert stack.wait == "all_reduce (peers.py:50)"
    assert stack.in_collective


def test_a_parent_speaks_for_a_rank_only_when_it_is_alone():
    parent = (
        StackFrame("/usr/lib/python3.11/multiprocessing/connection.py", 930, "wait"),
        StackFrame(f"{SITE}/multiprocessing/spawn.py", 170, "join"),
        MAIN,
    )
    assert of_one_rank(ranks(parent, BACKWARD, SLEEPS)).frames is SLEEPS
    assert of_one_rank(ranks(parent)).frames is parent


def test_the_worker_of_a_data_loader_that_loads_speaks_for_its_rank():
    """As in real dumps of torch 2.13 with forked workers, of which none can be asked, and with spawned ones."""
    poll = StackFrame("/usr/lib/python3.11/selectors.py", 415, "select")
    waits = (poll, StackFrame(f"{SITE}/torch/utils/data/dataloader.py", 1291, "_try_get_data"), MAIN)
    idle = (
        poll,
        StackFrame(f"{SITE}/torch/utils/data/_utils/worker.py", 334, "_worker_loop"),
        StackFrame("<string>", 1, "<module>"),
    )
    loads = (
        StackFrame("/opt/ml/code/train.py", 11, "__getitem__"),
        StackFrame(f"{SITE}/torch/utils/data/_utils/fetch.py", 54, "<listcomp>"),
        StackFrame(f"{SITE}/torch/utils/data/_utils/worker.py", 370, "_worker_loop"),
    )
    assert of_one_rank(ranks(idle, waits, idle, loads)).frames is loads
    assert of_one_rank(ranks(idle, waits, idle)).frames is waits
    assert of_one_rank(ranks(idle)).frames is idle


def test_a_missing_step_is_off_until_the_first_step_and_grows_with_the_longest():
    assert not has_no_step(Steps(), 1e9, 600)
    assert not has_no_step(Steps(1, 1000.0, 0.0), 1600.0, 600)
    assert has_no_step(Steps(1, 1000.0, 0.0), 1600.1, 600)
    assert not has_no_step(Steps(9, 1000.0, 100.0), 2000.0, 600)
    assert has_no_step(Steps(9, 1000.0, 100.0), 2000.1, 600)
