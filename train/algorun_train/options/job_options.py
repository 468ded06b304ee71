# ruff: noqa: RUF009 (option() is dataclasses.field)
"""The options of the training entrypoints `ddp` and `pipeline`, one frozen dataclass each. To add an option, add a field,
and say what becomes of a job that resumes with another value (`OnResume`).

`option_parser.read_options` fills them from a command line and a TOML file. This module imports no torch: a wrong option is
reported before any rank starts.
"""

from dataclasses import dataclass
from pathlib import Path

from algorun_train.common.errors import UserError

from .option_rules import OnResume, option

FREE, COMPARED, BATCH, IDENTITY, ARTIFACT = OnResume


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The options of every training job. Times are in seconds, sizes in MiB, batches in samples."""

    epochs: int = option(20, "passes over the training data", FREE, at_least=1)
    seed: int = option(0, "seed of weights, sample order and augmentation", IDENTITY, at_least=0, at_most=2**32 - 1)
    batch_size: int = option(32, "samples per rank and step", BATCH, at_least=1, aliases=("b",))
    accumulation: int = option(1, "batches per optimizer step; gradients are exchanged once", BATCH, at_least=1)
    optimizer: str = option("adamw", "optimizer", IDENTITY, choices=("adamw", "sgd"))
    lr: float = option(0.003, "learning rate", COMPARED, above=0)
    momentum: float = option(0.9, "momentum of sgd", COMPARED, only_with=("optimizer", "sgd"), at_least=0, at_most=1)
    weight_decay: float = option(0.05, "weight decay of weights with two or more dimensions", COMPARED, at_least=0)
    gamma: float = option(0.9, "factor on the learning rate after every epoch", COMPARED, above=0, at_most=1)
    warmup_epochs: float = option(1.0, "epochs over which the learning rate rises linearly", COMPARED, at_least=0)
    scale_lr: bool = option(False, "multiply lr by global batch / reference batch (Goyal et al. 2017)", COMPARED)
    reference_batch: int = option(
        256,
        "the global batch that lr is meant for, with --scale-lr",
        COMPARED,
        only_with=("scale_lr", True),
        at_least=1,
    )
    clip_norm: float = option(0.0, "largest norm of all gradients together; 0 leaves them alone", COMPARED, at_least=0)
    precision: str = option(
        "fp32", "bf16 computes in bfloat16 where it is safe (autocast)", COMPARED, choices=("fp32", "bf16")
    )
    matmul_precision: str | None = option(
        None,
        "fp32 matrix products on GPUs: high allows TF32, medium bfloat16; by default torch's own, highest",
        COMPARED,
        choices=("highest", "high", "medium"),
    )
    compile: bool = option(False, "compile the model with torch.compile", FREE)
    deterministic: bool = option(False, "refuse operations without a deterministic form (slower on GPUs)", FREE)
    log_interval: int = option(50, "optimizer steps between progress lines", FREE, at_least=1)
    resume: str = option(
        "auto", "auto resumes from the newest checkpoint, if there is one", FREE, choices=("auto", "never")
    )
    checkpoint_interval_s: float = option(
        300.0, "seconds between checkpoints; 0: at a stop or the end only", FREE, at_least=0
    )
    keep_checkpoints: int = option(2, "newest checkpoints to keep", FREE, at_least=1)
    checkpoint_dir: Path | None = option(None, "folder of checkpoints; else $SAGEMAKER_BASE_DIR/checkpoints", FREE)
    model_dir: Path | None = option(None, "folder of the model artifact; else SM_MODEL_DIR", FREE)
    output_dir: Path | None = option(None, "folder of metrics and summary; else SM_OUTPUT_DATA_DIR", FREE)
    train: Path | None = option(
        None, "training data; else SM_CHANNEL_TRAIN or SM_CHANNEL_TRAINING, else the embedded data", IDENTITY
    )
    validation: Path | None = option(
        None, "validation data; else SM_CHANNEL_VALIDATION or SM_CHANNEL_VAL", IDENTITY, aliases=("val",)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(TrainOptions):
    """Sizes of the bundled models, and images. None: the job decides from the data or the model, and prints the value."""

    image_size: int | None = option(
        None, "side in pixels that images are resized to; digits 8, folders 64", IDENTITY, at_least=4
    )
    patch_size: int | None = option(
        None, "side of a patch of the vit, a divisor of the image size", IDENTITY, at_least=1
    )
    width: int | None = option(None, "channels of the model; vit 64, convnet 32, gpt 128", IDENTITY, at_least=8)
    depth: int | None = option(None, "blocks of the model; vit 4, convnet 3, gpt 8", IDENTITY, at_least=1)
    heads: int = option(4, "attention heads, a divisor of the width", IDENTITY, at_least=1)
    dropout: float = option(0.0, "share of activations dropped while training", COMPARED, at_least=0, at_most=0.9)
    augment: str = option(
        "shift", "random changes to training images", COMPARED, choices=("none", "shift", "flip", "shift+flip")
    )
    workers: int | None = option(
        None, "processes per rank that decode images; by default from the CPU count", FREE, at_least=1
    )
    cache_mb: int = option(256, "decoded images of up to this many MiB stay in each rank's memory", FREE, at_least=0)
    skip_bad_samples: bool = option(
        False, "leave out images and documents that cannot be read; they are counted and named", COMPARED
    )

    def __post_init__(self) -> None:
        if self.warmup_epochs > self.epochs:
            raise UserError(
                f"option --warmup-epochs: {self.warmup_epochs:g} is more than --epochs {self.epochs}; "
                "fix: warm up for fewer epochs, or train longer"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpJobOptions(ModelOptions):
    """Options of `ddp`: an image classifier or a language model, trained with data parallelism."""

    model: str | None = option(
        None, "embedded model (vit or convnet), or a Hugging Face folder; else SM_CHANNEL_MODEL, else vit", IDENTITY
    )
    context: int | None = option(
        None,
        "tokens of text that a language model sees at once; 1024, or fewer if the model's limit is",
        IDENTITY,
        at_least=1,
    )
    init_from: Path | None = option(
        None, "weights for an embedded model to start from: a .pt file, or a folder with model.pt", COMPARED
    )
    shard: str = option(
        "1",
        "ranks over which a replica's weights, gradients and moments are sharded: a divisor of the ranks, or all",
        FREE,
    )
    tp: int = option(
        1,
        "ranks that compute each layer of a folder's model together, on the same batch: a divisor of the ranks and of the heads",
        FREE,
        at_least=1,
    )
    recompute: bool = option(False, "compute the activations of each layer again in the backward pass", FREE)
    lora: int = option(
        0,
        "train adapters of this rank beside a folder's weights, and a classifier's head; 0: all weights",
        IDENTITY,
        at_least=0,
    )
    lora_alpha: float | None = option(
        None, "the adapters' output counts lora-alpha / lora times; by default once", IDENTITY, above=0
    )
    lora_targets: str | None = option(
        None,
        "modules to adapt, by the ends of their names, separated by commas; by default peft's for the model",
        IDENTITY,
        many=True,
    )
    merge: bool = option(False, "with --lora: write the model with its adapters added, not the adapters", ARTIFACT)

    @property
    def embedded(self) -> tuple[str, ...]:
        """Models that need no folder."""
        return "vit", "convnet"

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)  # not super(): see PipelineJobOptions
        _check_model(self.model, self.embedded)
        _check_shard(self.shard, "ranks")
        for name in ("lora_alpha", "lora_targets", "merge"):
            if getattr(self, name) and not self.lora:
                raise UserError(
                    f"option --{name.replace('_', '-')}: {getattr(self, name)}, without --lora; allowed: with --lora; "
                    "fix: give --lora RANK, or leave it out"
                )
        for name in ("shard", "tp"):
            if self.compile and str(value := getattr(self, name)) != "1":
                raise UserError(
                    f"option --compile: with --{name} {value}; allowed: with --{name} 1; fix: leave one of them out"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJobOptions(ModelOptions):
    """Options of `pipeline`: a model in stages, with as many pipelines as the ranks allow. `batch_size` is per pipeline."""

    model: str | None = option(
        None,
        "embedded model (gpt on text, vit on images), or a Hugging Face folder; else SM_CHANNEL_MODEL, else gpt",
        IDENTITY,
    )
    context: int | None = option(
        None,
        "bytes of text that the gpt sees at once, 128; tokens that a folder's language model sees, 1024 or its limit",
        IDENTITY,
        at_least=1,
    )
    tied: bool = option(False, "the gpt's head has the weights of its embedding, as in GPT-2", IDENTITY)
    pp: int | None = option(
        None,
        "ranks, or tensor groups, per pipeline: a divisor of their number; by default the smallest divisor from 2",
        FREE,
        at_least=1,
        aliases=("partitions",),
    )
    chunks: int | None = option(
        None, "stages per rank; by default 1, or 2 if the schedule needs several", FREE, at_least=1
    )
    schedule: str = option(
        "1f1b",
        "order of forward and backward passes; the last three are experimental",
        FREE,
        choices=("1f1b", "gpipe", "simple", "interleaved", "zero-bubble", "zbv", "dualpipev"),
    )
    microbatches: int | None = option(
        None, "microbatches per batch, a divisor of --batch-size; by default up to 4 per rank", FREE, at_least=1
    )
    placement: str = option(
        "cluster", "ranks next to each other form a pipeline (cluster), or hold equal stages (spread)", FREE,
        choices=("cluster", "spread"),
    )  # fmt: skip
    optimize: str = option(
        "speed", "what the partition minimises: seconds per step, or memory", FREE, choices=("speed", "memory")
    )
    memory_limit_mb: float | None = option(
        None, "MiB that a rank may need; a partition over it is refused", FREE, above=0
    )
    partition: Path | None = option(None, "partition file to use; written if it does not exist", FREE)
    profile_only: bool = option(False, "profile, write the partition file and leave", FREE)
    recompute: bool = option(False, "compute activations again in the backward pass: less memory, more time", FREE)
    shard: str = option(
        "1",
        "pipelines over which a stage's weights, gradients and moments are sharded: a divisor of their number, or all",
        FREE,
    )
    tp: int = option(
        1,
        "ranks that compute each layer of a folder's model together: a divisor of the ranks and of the heads",
        FREE,
        at_least=1,
    )
    explain: bool = option(False, "show the planned schedule and memory, then measure both in early steps", FREE)
    mp_parameters: str | None = option(None, "options in the form of AWS's model parallel library, a JSON object", FREE)

    @property
    def embedded(self) -> tuple[str, ...]:
        """Models that need no folder."""
        return "gpt", "vit"

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)  # not super(): `slots=True` creates the class a second time, and super() fails
        for name, only, why in (
            ("accumulation", 1, "a pipeline accumulates over its microbatches; fix: a larger --batch-size"),
            ("compile", False, "not for stages of a pipeline; fix: --compile False, or the entrypoint ddp"),
        ):
            value = getattr(self, name)
            if value != only:
                raise UserError(f"option --{name}: {value}: {why}")
        _check_model(self.model, self.embedded)
        _check_shard(self.shard, "pipelines")
        if self.tied and self.model not in (None, "gpt"):
            raise UserError(f"option --tied: with --model {self.model}; allowed: with gpt; fix: leave it out")
        if self.microbatches and self.batch_size % self.microbatches:
            raise UserError(
                f"option --microbatches: {self.microbatches} does not divide --batch-size {self.batch_size}; "
                f"allowed: {divisors(self.batch_size)}; fix: use one of them, or another --batch-size"
            )


ModelJobOptions = DdpJobOptions | PipelineJobOptions


def _check_model(model: str | None, embedded: tuple[str, ...]) -> None:
    if model and model not in embedded and "/" not in model and not Path(model).is_dir():
        raise UserError(
            f"option --model: {model!r} is no model and no folder; allowed: {', '.join(embedded)}, or the path of a "
            "Hugging Face folder; fix: give one of them"
        )


def _check_shard(shard: str, of: str) -> None:
    if shard != "all" and not (shard.isascii() and shard.isdigit() and int(shard) > 0):
        raise UserError(
            f"option --shard: {shard!r}; allowed: a divisor of the number of {of}, or all; fix: --shard all"
        )


def divisors(number: int) -> str:
    """The divisors of `number` in words, for an error message."""
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
