"""All checks, in the order in which they run: what looks first, then what trains, then faults, then figures."""

from __future__ import annotations

from tests.gpu.session import Check

from . import faults, figures, looking, training

DIGITS = ("numpy", "sklearn")  # the embedded images come with scikit-learn

ALL = (
    Check("doctor", "`algorun doctor` finds nothing wrong", looking.doctor, 60),
    Check("plan", "`algorun plan` has one rank per GPU", looking.plan, 30, gpus=1),
    Check("ddp", "ddp trains and evaluates", training.ddp, 180, modules=DIGITS),
    Check("pipeline", "pipeline --pp 1 in bf16 with --explain", training.pipeline, 180, modules=("numpy",)),
    Check("synchronisation", "no step of ddp waits for the GPU", training.synchronisation, 120, 1, DIGITS),
    Check("deterministic", "--deterministic gives equal weights twice", training.deterministic, 180, modules=DIGITS),
    Check("bf16", "--precision bf16 trains", training.bf16, 120, modules=DIGITS),
    Check("compile", "--compile trains", training.compiled, 240, modules=DIGITS),
    Check("too-few", "simulate -j 2x2 on one GPU uses the CPU and says so", looking.too_few_gpus, 120, 1, DIGITS),
    Check("shares", "simulate -j 2x2 gives each rank a GPU", looking.shares, 120, 4, DIGITS),
    Check("absent-gpu", "CUDA_VISIBLE_DEVICES with a GPU that is not there", looking.absent_gpu, 60, 1, DIGITS),
    Check("graph", "a captured training step is no hang", faults.graph, 150, 1),
    Check("collective", "a collective that never ends, on one GPU", faults.collective, 120),
    Check("collective-2", "a collective that one of two ranks never enters", faults.collective_of_two, 120, 2),
    Check("index", "an index out of range on the device", faults.index, 60),
    Check("restart", "two restarts while most of the memory is taken", faults.restart, 150),
    Check("stop", "stop, resume, stop again", training.stop_and_resume, 180, modules=DIGITS),
    Check("step", "ddp's step beside a bare loop", figures.step, 240, modules=("numpy",)),
    Check("gpt", "tokens per second of a GPT in bf16", figures.gpt, 240, modules=("numpy",)),
    Check("memory", "memory of a GPT against the plan", figures.memory, 180, modules=("numpy",)),
)
