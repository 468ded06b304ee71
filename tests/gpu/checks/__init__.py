"""All checks, in the order in which they run: what looks first, then what trains, then faults, then figures."""

from __future__ import annotations

from tests.gpu.session import Check

from . import faults, figures, folders, frameworks, looking, smdistributed, training

DIGITS = ("numpy", "sklearn")  # the embedded images come with scikit-learn
MODELS = ("numpy", "transformers", "tokenizers", "safetensors")  # of Hugging Face folders

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
    Check("recorder", "a hang's verdict names the call that the GPU is in", faults.recorder, 120, 1),
    Check("index", "an index out of range on the device", faults.index, 60),
    Check("restart", "two restarts while most of the memory is taken", faults.restart, 150),
    Check("stop", "stop, resume, stop again", training.stop_and_resume, 180, modules=DIGITS),
    Check("step", "ddp's step beside a bare loop", figures.step, 240, modules=("numpy",)),
    Check("gpt", "tokens per second of a GPT in bf16", figures.gpt, 240, modules=("numpy",)),
    Check("memory", "memory of a GPT against the plan", figures.memory, 180, modules=("numpy",)),
    Check("figures-of-gpu", "the hosts' figures have the GPU at work", figures.hosts, 90, 1),
    Check("activities", "a rank's times are those of its GPU", figures.activities, 60, 1),
    Check("activities-cost", "the times of activities cost little", figures.cost, 120, 1),
    Check("measure", "`measure` has each GPU's product", figures.measured, 90),
    Check("saves", "a save's copies are faster than tensor by tensor", figures.saves, 90, 1),
    Check("folder", "ddp trains a Llama of a folder in bf16", folders.folder, 180, modules=MODELS),
    Check(
        "folder-synchronisation",
        "no step of a folder's Llama waits for the GPU",
        folders.synchronisation,
        120,
        1,
        MODELS,
    ),
    Check("folder-compile", "the same with --compile", folders.compiled, 240, modules=MODELS),
    Check("folder-shard", "FSDP2 on one rank gives its losses", folders.sharded, 180, modules=MODELS),
    Check("folder-shard-2", "ddp --shard all on two ranks gives them", folders.sharded_over_two, 240, 2, MODELS),
    Check("folder-lora", "--lora trains and writes an adapter", folders.lora, 120, modules=(*MODELS, "peft")),
    Check("folder-image", "ddp trains a ViT of a folder on JPEG files", folders.images, 150, modules=(*MODELS, "PIL")),
    Check("smp", "smdistributed.modelparallel trains as a plain model does", smdistributed.modelparallel, 120),
    Check("smddp", "smdistributed.dataparallel with DDP and FSDP", smdistributed.dataparallel, 90),
    Check("jax", "JAX finds the rank and its device", frameworks.jax, 90, modules=("jax",)),
    Check("accelerate", "Accelerate finds the rank and its device", frameworks.accelerate, 90, modules=("accelerate",)),
    Check("lightning", "Lightning finds the rank and its device", frameworks.lightning, 90, modules=("lightning",)),
)
