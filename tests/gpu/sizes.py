"""How much each check does. A GPU gets models that fill it; the CPU gets what shows that the harness itself works."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Images:
    """A vision transformer and the steps that are timed. `batch` is per rank; a round has `steps` steps."""

    side: int
    patch: int
    width: int
    depth: int
    heads: int
    batch: int
    steps: int
    rounds: int

    def argv(self) -> list[str]:
        pairs = {
            "--side": self.side,
            "--patch-size": self.patch,
            "--width": self.width,
            "--depth": self.depth,
            "--heads": self.heads,
            "--batch-size": self.batch,
            "--steps": self.steps,
            "--rounds": self.rounds,
        }
        return [word for name, value in pairs.items() for word in (name, str(value))]


@dataclass(frozen=True, slots=True)
class Gpt:
    """A GPT of the pipeline entrypoint. `context` in tokens (bytes of text), `batch` in sequences.

    `text_bytes`: how much text it trains on; 0 for the embedded 2 MiB.
    """

    width: int
    depth: int
    heads: int
    context: int
    batch: int
    log_interval: int = 5
    text_bytes: int = 0

    def model_argv(self) -> list[str]:
        pairs = {"--width": self.width, "--depth": self.depth, "--heads": self.heads, "--context": self.context}
        return [word for name, value in pairs.items() for word in (name, str(value))]

    def argv(self) -> list[str]:
        return [*self.model_argv(), "--batch-size", str(self.batch), "--log-interval", str(self.log_interval)]

    @property
    def weights(self) -> int:
        """Of the blocks, which hold nearly all: 12 x width^2 each."""
        return 12 * self.width**2 * self.depth


@dataclass(frozen=True, slots=True)
class Llama:
    """A Llama of a Hugging Face folder, tied. `context` in tokens, `batch` in sequences per rank; `steps` of one job."""

    width: int
    inner: int
    depth: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    batch: int
    steps: int
    log_interval: int
    rate: float

    def argv(self) -> list[str]:
        pairs = {
            "--width": self.width,
            "--inner": self.inner,
            "--depth": self.depth,
            "--heads": self.heads,
            "--kv-heads": self.kv_heads,
            "--vocabulary": self.vocabulary,
            "--context": self.context,
            "--batch": self.batch,
            "--steps": self.steps,
        }
        return [word for name, value in pairs.items() for word in (name, str(value))]


@dataclass(frozen=True, slots=True)
class Vit:
    """A ViT of a Hugging Face folder, and the JPEG files that it trains on, in two epochs."""

    width: int
    inner: int
    depth: int
    heads: int
    side: int
    patch: int
    images: int
    held_out: int
    batch: int
    rate: float

    def argv(self) -> list[str]:
        pairs = {
            "--width": self.width,
            "--inner": self.inner,
            "--depth": self.depth,
            "--heads": self.heads,
            "--side": self.side,
            "--patch": self.patch,
            "--images": self.images,
            "--held-out": self.held_out,
        }
        return [word for name, value in pairs.items() for word in (name, str(value))]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds, counts and models of all checks."""

    epochs: int  # of the plain ddp job
    run_s: float  # how long a job trains until it is stopped
    replay_s: float  # how long a captured graph is replayed
    hang_s: int  # ALGORUN_HANG_S meanwhile
    collective_s: int  # the process group's timeout
    share_taken: float  # of the free memory
    most_taken: int  # bytes
    images: Images
    gpt: Gpt
    large: Gpt  # a model whose memory is compared with the plan
    llama: Llama  # of a Hugging Face folder, as is the next
    vit: Vit
    busy_s: float  # how long a GPU is kept busy for the figures of its host


GPU = Sizes(
    epochs=5,
    run_s=25.0,
    replay_s=60.0,
    hang_s=20,
    collective_s=15,
    share_taken=0.9,
    most_taken=1 << 50,
    images=Images(side=224, patch=16, width=384, depth=12, heads=6, batch=128, steps=50, rounds=7),
    gpt=Gpt(width=1024, depth=24, heads=16, context=1024, batch=16),
    large=Gpt(width=2048, depth=20, heads=16, context=1024, batch=8),
    # 321 M weights: five of the sixteen layers of Llama 3.2 1B, and fewer words. A job that saves weights and moments
    # writes 5 GB.
    llama=Llama(
        width=2048,
        inner=8192,
        depth=5,
        heads=32,
        kv_heads=8,
        vocabulary=8192,
        context=1024,
        batch=16,
        steps=40,
        log_interval=5,
        rate=0.0003,
    ),
    vit=Vit(
        width=384, inner=1536, depth=12, heads=6, side=224, patch=16, images=512, held_out=64, batch=32, rate=0.0003
    ),
    busy_s=8.0,
)
CPU = Sizes(
    epochs=1,
    run_s=0.2,
    replay_s=1.0,
    hang_s=20,
    collective_s=3,
    share_taken=0.01,
    most_taken=64 * 2**20,
    images=Images(side=8, patch=2, width=16, depth=1, heads=2, batch=4, steps=2, rounds=1),
    gpt=Gpt(width=16, depth=2, heads=2, context=32, batch=8, log_interval=2, text_bytes=4096),
    large=Gpt(width=16, depth=2, heads=2, context=32, batch=8, log_interval=2, text_bytes=4096),
    llama=Llama(
        width=32,
        inner=48,
        depth=1,
        heads=4,
        kv_heads=2,
        vocabulary=300,
        context=32,
        batch=4,
        steps=20,
        log_interval=2,
        rate=0.01,
    ),
    vit=Vit(width=16, inner=32, depth=1, heads=2, side=16, patch=8, images=64, held_out=16, batch=8, rate=0.01),
    busy_s=5.0,
)
