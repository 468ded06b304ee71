"""Which layouts of a job fit on which hosts, and what the cheapest costs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from algorun_client.common import instance_units

# Of a GPU's memory: the rest is for CUDA's context, NCCL's buffers and the gaps between an allocator's blocks.
USABLE = 0.9


@dataclass(frozen=True, slots=True)
class RankLayout:
    """How a job is laid out: each replica is sharded over `shards` ranks, or groups of `tensor` ranks that compute each layer
    together, or lies in `stages`, one on each rank of a pipeline. How many replicas there are changes no rank's bytes, but where one
    such group or pipeline is `alone`."""

    shards: int
    precision: str
    recompute: bool
    tensor: int = 1
    stages: int = 1
    alone: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a job that is laid out so."""
        tensor = ("--tp", str(self.tensor)) if self.tensor > 1 else ()
        shard = ("--shard", str(self.shards)) if self.shards > 1 else ()
        stages = ("--pp", str(self.stages)) if self.stages > 1 else ()
        precision = ("--precision", self.precision) if self.precision != "fp32" else ()
        return (*stages, *tensor, *shard, *precision, *(("--recompute", "True") if self.recompute else ()))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a rank's tensors at the peak of a step. `gathered`: whole weights of the layers that compute, of a model that is
    sharded. `activations`: with all that is no other of these."""

    weights: int
    moments: int
    gradients: int
    gathered: int
    activations: int

    @property
    def peak(self) -> int:
        """All of it."""
        return self.weights + self.moments + self.gradients + self.gathered + self.activations


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user has decided; None: what is best. `hosts`: at most so many of one type. `in_stages`: of the job `pipeline`, with
    `stages` of each pipeline; else of `ddp`, with groups of `tensor` ranks."""

    instances: tuple[str, ...]
    hosts: int
    shards: str | None = None
    precision: str | None = None
    recompute: bool | None = None
    tensor: int | None = None
    in_stages: bool = False
    stages: int | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """Hosts of one type with the best layout there. `fits`: it needs at most USABLE of a GPU's memory, `gpu` bytes. `price`: of all
    hosts for one hour; None: not known."""

    instance: str
    hosts: int
    layout: RankLayout
    memory: Memory
    gpu: int
    price: float | None

    @property
    def share(self) -> float:
        """Of the GPU's memory."""
        return self.memory.peak / self.gpu

    @property
    def fits(self) -> bool:
        """Whether it is at most what a job can use."""
        return self.share <= USABLE


def layouts(asked: Asked) -> list[RankLayout]:
    """All layouts to compute, each once: those with the fewest bytes on a rank come last. Tensor groups that the user has not asked for
    are not among them, see `with_tensor_groups`."""
    found = {
        layout
        for instance in asked.instances
        for hosts in _host_counts(asked.hosts)
        for layout in _layouts(asked, instance, hosts, asked.tensor or 1)
    }
    return _sorted(found)


def with_tensor_groups(asked: Asked, memories: Mapping[RankLayout, Memory]) -> list[RankLayout]:
    """Further layouts to compute, with tensor groups that share all weights: of hosts on which no other layout fits. [] if the user
    has decided.

    `memories`: of `layouts(asked)`."""
    if asked.tensor or asked.in_stages:
        return []
    found: set[RankLayout] = set()
    sharing = replace(asked, shards=asked.shards or "all")
    for instance in asked.instances:
        usable = USABLE * (instance_units.gpu_bytes(instance) or 0)
        for hosts in _host_counts(asked.hosts):
            if any(memories[each].peak <= usable for each in _layouts(asked, instance, hosts, 1)):
                break  # nobody pays for more of them
            for tensor in _groups(instance):
                found.update(_layouts(sharing, instance, hosts, tensor))
    return _sorted(found)


def _sorted(found: Iterable[RankLayout]) -> list[RankLayout]:
    return sorted(
        found, key=lambda each: (each.stages, each.tensor, each.shards, each.precision, each.recompute, each.alone)
    )


def _groups(instance: str) -> list[int]:
    """Sizes of tensor groups on a host of this type: powers of two that divide its GPUs."""
    gpus = instance_units.gpus(instance) or 0
    return [size for size in _powers_of_two(gpus) if gpus % size == 0]


def _powers_of_two(most: int) -> Iterator[int]:
    """From 2 on."""
    size = 2
    while size <= most:
        yield size
        size *= 2


def offers(asked: Asked, memories: Mapping[RankLayout, Memory], prices: Mapping[str, float]) -> list[Offer]:
    """For each type the fewest hosts on which a layout fits, or the one that comes nearest. The cheapest that fit come first, then
    those of unknown price, then those that do not fit. A type is left out if it has no layout: the user's shards divide no number
    of its GPUs.

    `memories`: of `layouts(asked)`, and of `with_tensor_groups` for it, but for those that cannot be. `prices`: of one host for one hour,
    by type.
    """
    found = (_offer(asked, instance, memories, prices.get(instance)) for instance in asked.instances)
    return sorted(filter(None, found), key=_order)


def _order(offer: Offer) -> tuple[bool, bool, float, int, float]:
    unknown = offer.price is None
    return (
        not offer.fits,
        unknown,
        offer.price or 0.0,
        offer.hosts * (instance_units.gpus(offer.instance) or 0),
        offer.share,
    )


def _offer(asked: Asked, instance: str, memories: Mapping[RankLayout, Memory], price: float | None) -> Offer | None:
    gpu = instance_units.gpu_bytes(instance) or 0
    closest: list[Offer] = []
    for hosts in _host_counts(asked.hosts):
        paid = None if price is None else hosts * price
        sizes = (asked.tensor,) if asked.tensor else (1, *_groups(instance))
        made = [
            Offer(instance, hosts, layout, memories[layout], gpu, paid)
            for tensor in sizes
            for layout in _layouts(asked, instance, hosts, tensor)
            if layout in memories
        ]
        fitting = [each for each in made if each.fits]
        if fitting:
            return min(fitting, key=lambda each: _effort(each.layout))
        closest += made
    return min(closest, key=lambda each: (each.memory.peak, each.hosts), default=None)


def _host_counts(most: int) -> Iterator[int]:
    """Powers of two, and `most`."""
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _effort(layout: RankLayout) -> tuple[int, bool, int, int]:
    """What a layout costs in time: messages within layers cost more than activations that are computed again."""
    return layout.tensor, layout.recompute, layout.shards, layout.stages


def _layouts(asked: Asked, instance: str, hosts: int, tensor: int) -> Iterator[RankLayout]:
    """Those that the user allows: sharded not at all, over one host, or over all ranks; in stages: as many as a power of two."""
    gpus = instance_units.gpus(instance) or 0
    precision = asked.precision or ("bf16" if instance_units.computes_bf16(instance) else "fp32")
    ranks = hosts * gpus
    for recompute in (False, True) if asked.recompute is None else (asked.recompute,):
        if asked.in_stages:
            for stages in (asked.stages,) if asked.stages else _powers_of_two(ranks):
                if ranks % stages == 0:
                    yield RankLayout(1, precision, recompute, stages=stages, alone=ranks == stages)
        else:
            for shards in _shards(asked.shards, gpus, ranks, tensor):
                yield RankLayout(shards, precision, recompute, tensor, alone=tensor > 1 and ranks == tensor)


def _shards(asked: str | None, gpus: int, ranks: int, tensor: int) -> Sequence[int]:
    """Of tensor groups of `tensor` ranks: each lies on one host, or its layers would wait for the network."""
    if gpus % tensor:
        return []
    groups = ranks // tensor
    if asked is None:
        return sorted({1, gpus // tensor, groups})
    shards = groups if asked == "all" else int(asked)
    return [] if groups % shards else [shards]
