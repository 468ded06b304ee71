"""The jobs that run on the strict device, and where each of them may wait for the GPU in a step. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DDP, PIPELINE = "algorun_train.jobs.ddp", "algorun_train.jobs.pipeline"
SMP = "tests/gpu/programs/smp_beside_plain.py"
FIRST_STEPS = 2  # DDP lays its buckets out anew, and FSDP2 its groups
IMAGES = (
    "--width",
    "16",
    "--depth",
    "1",
    "--epochs",
    "2",
    "--batch-size",
    "192",
    "--image-size",
    "8",
    "--augment",
    "shift+flip",
)
TEXT = ("--epochs", "2", "--batch-size", "8", "--train", "{made}/text")
RESUMED = ("--epochs", "3")


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `args` may name `{made}`, the folder of made data. `again`: run once more with these values changed, which resumes.

    `waits`: what a rank may wait for in a step, and how often per step; anything else is a failure.
    """

    program: str
    args: tuple[str, ...]
    ranks: int = 1
    again: tuple[str, ...] = ()
    waits: Mapping[str, float] = field(default_factory=dict)


JOBS: Mapping[str, Job] = {
    "images": Job(DDP, (*IMAGES, "--dropout", "0.1", "--clip-norm", "1"), ranks=2, again=RESUMED),
    "images-bf16": Job(DDP, (*IMAGES, "--precision", "bf16", "--accumulation", "2", "--optimizer", "sgd")),
    "image-folder": Job(DDP, ("--model", "{made}/vit", "--epochs", "2", "--batch-size", "16", "--train", "{made}/images")),
    "llama": Job(DDP, (*TEXT, "--model", "{made}/llama", "--precision", "bf16", "--clip-norm", "1", "--recompute", "True"), ranks=2),
    "lora": Job(DDP, (*TEXT, "--model", "{made}/llama", "--lora", "2")),
    "shard": Job(DDP, (*IMAGES, "--shard", "all", "--clip-norm", "1", "--precision", "bf16"), ranks=2, again=RESUMED),
    "llama-shard-2x2": Job(DDP, ("--train", "{made}/text", "--epochs", "5", "--batch-size", "8", "--model", "{made}/llama", "--shard", "2", "--clip-norm", "1"), ranks=4),
    "llama-tp-2x2": Job(DDP, ("--train", "{made}/text", "--epochs", "5", "--batch-size", "8", "--model", "{made}/llama", "--tp", "2", "--shard", "2", "--clip-norm", "1"), ranks=4),
    "tp-dropout": Job(DDP, (*TEXT, "--model", "{made}/dropping", "--tp", "2", "--clip-norm", "1", "--recompute", "True"), ranks=2),
    "lora-shard": Job(DDP, (*TEXT, "--model", "{made}/llama", "--lora", "2", "--shard", "all"), ranks=2),
    "pipeline": Job(PIPELINE, (*TEXT, "--model", "{made}/llama", "--pp", "2", "--microbatches", "2", "--clip-norm", "1"), ranks=2, again=RESUMED),
    "pipeline-bf16": Job(PIPELINE, (*TEXT, "--width", "16", "--depth", "4", "--heads", "2", "--context", "32", "--pp", "2", "--microbatches", "2", "--precision", "bf16"), ranks=2),
    "pipeline-shard": Job(PIPELINE, (*TEXT, "--model", "{made}/llama", "--pp", "2", "--microbatches", "2", "--shard", "2", "--clip-norm", "1"), ranks=4),
    "pipeline-tp": Job(PIPELINE, ("--train", "{made}/text", "--epochs", "5", "--batch-size", "8", "--model", "{made}/dropping", "--pp", "2", "--tp", "2", "--microbatches", "2", "--clip-norm", "1"), ranks=4, again=("--epochs", "6")),
    "smp-bf16": Job(SMP, ("bfloat16",)),
    "smp-fp16": Job(SMP, ("float16",)),
}  # fmt: skip

# What a save may wait for, and how often: once for the last of its copies, and once for the answer whether all is finite.
IN_A_SAVE = {
    "Stream.synchronize at host_copies.py:wait": 1,
    "torch.cuda.synchronize at finite_state.py:first_broken": 1,
}

# Where a job may wait outside of its steps and saves: when it loads, reports, evaluates, and writes its model. A place, or
# what waits at a place.
OUTSIDE = frozenset({
    "artifact.py:<dictcomp>", "collect.py:on_leader", "data_parallel_steps.py:_wrap", "ddp_job.py:_lay_out",
    "ddp_job.py:send_weights", "folder_model.py:<dictcomp>", "folder_model.py:load_into",
    "image_data.py:embedded", "images.py:open_images", "lora.py:<dictcomp>", "meter.py:fold",
    "optimizer_state.py:load_named_state", "pipeline.py:<dictcomp>", "profiling.py:<genexpr>", "profiling.py:<listcomp>",
    "profiling.py:_alone", "profiling.py:_entry", "profiling.py:_now", "shard_reader.py:load",
    "copy from the device at sharded_model.py:gathered", "sharded_model.py:own_share", "sharded_model.py:set_own", "sharded_model.py:shard",
    "tensor_check.py:<genexpr>", "tensor_check.py:<listcomp>", "tensor_check.py:_distances", "tensor_check.py:_gradients",
    "copy from the device at training_loop.py:_evaluate", "user_pipeline.py:with_target",
})  # fmt: skip


def unexpected(job: Job, result: Mapping[str, Any]) -> list[str]:
    """What a rank waited for and should not have, by its result of `driver`; names with their numbers."""
    in_steps = [
        f"{name}: {count} per step" for name, count in result["in_steps"].items() if count > job.waits.get(name, 0)
    ]
    in_saves = [
        f"{name}: {count} per save" for name, count in result["in_saves"].items() if count > IN_A_SAVE.get(name, 0)
    ]
    # A program's own lines may wait; the library's may not.
    allowed = OUTSIDE | ({"elsewhere"} if job.program.endswith(".py") else set())
    return (
        in_steps + in_saves + [name for name in result["elsewhere"] if not {name, name.rpartition(" at ")[2]} & allowed]
    )
