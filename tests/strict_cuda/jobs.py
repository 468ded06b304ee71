"""The jobs that run on the strict device, and where each of them may wait for the GPU in a step. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DDP, PIPELINE = "algorun_train.jobs.ddp", "algorun_train.jobs.pipeline"
SMP = "tests/gpu/programs/smp_beside_plain.py"
FIRST_STEPS = 2  # DDP lays its buckets out anew, and FSDP2 its groups
IMAGES = ("--width", "16", "--depth", "1", "--epochs", "2", "--batch-size", "192", "--image-size", "8", "--augment", "shift+flip")
TEXT = ("--epochs", "2", "--batch-size", "8", "--train", "{made}/text")
GPT = ("--width", "16", "--depth", "4", "--heads", "2", "--context", "32", "--train", "{made}/text", "--model-tokenizer-free", "")
RESUMED = ("--epochs", "3")


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `args` may name `{made}`, the folder of made data. `again`: run once more with these arguments behind, which resumes.

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
    "llama-shard-2x2": Job(DDP, (*TEXT, "--model", "{made}/llama", "--shard", "2", "--clip-norm", "1"), ranks=4),
    "lora-shard": Job(DDP, (*TEXT, "--model", "{made}/llama", "--lora", "2", "--shard", "all"), ranks=2),
    "pipeline": Job(PIPELINE, (*TEXT, "--model", "{made}/llama", "--pp", "2", "--microbatches", "2", "--clip-norm", "1"), ranks=2, again=RESUMED),
    "pipeline-interleaved": Job(PIPELINE, (*TEXT, "--width", "16", "--depth", "4", "--heads", "2", "--context", "32", "--pp", "2", "--microbatches", "2", "--precision", "bf16"), ranks=2),
    "pipeline-shard": Job(PIPELINE, (*TEXT, "--model", "{made}/llama", "--pp", "2", "--microbatches", "2", "--shard", "2", "--clip-norm", "1"), ranks=4),
    "smp-bf16": Job(SMP, ("bfloat16",)),
    "smp-fp16": Job(SMP, ("float16",)),
}  # fmt: skip
