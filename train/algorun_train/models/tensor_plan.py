"""Splits the layers of a folder's model between the ranks of a tensor group, by the plan that transformers has for the model.

transformers' parallel styles compute (transformers/distributed/tensor_parallel.py); its plan gives each module one of them. Four
things are done here:
- Linear modules compute on plain tensors, with the same sums over the ranks (`split_linear`).
- A rank's part of a weight is a plain tensor, which any other module sees as torch's DTensor only while it computes. So
  DistributedDataParallel, FSDP2, optimizers and checkpoints work as on whole weights.
- Tied weights stay one.
- Gradients that are sums over the ranks are added up once a step (`TensorParts.partial`). The style's own hook
  (ReplicatedWithGradAllReduce, 5.24) does so after each backward pass, on what has accumulated: with --accumulation 2 it counts
  the first pass once for each rank.

Of experts each rank has a part of the width, by the tensor plan. Where that plan has none, or it cannot be done, experts stay
whole, by transformers' expert plan: each rank has some of them, and tokens travel.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement

from algorun_train.common.errors import UserError
from algorun_train.parallel.shard.sharded_model import TensorAxis
from algorun_train.parallel.shard.split import Split, TensorParts
from algorun_train.parallel.shard.split_linear import by_columns, by_rows

from . import split_dropout
from .folder_classes import skeleton
from .folder_config import ModelFolder

PARTIAL = "replicated_with_grad_allreduce"  # the style of a module that sees some of the heads with whole weights
NEEDS_CONFIG = "mla_kv_a_proj"  # a style that reads the model's config
SPLIT, GATHERED = "colwise", "colwise_gather_output"
EACH = "*"  # stands in a plan for the number of a layer
HEADS = ("num_attention_heads", "num_key_value_heads")
OF_HEADS = re.compile(r"attn|attention")
PACKED = "packed"  # begins the styles of two matrices side by side
SPLIT_EXPERTS, WHOLE_EXPERTS = "moe_tp_experts", "ep_dispatch_experts"  # of the module of all experts of a layer
PLAIN = {"colwise": by_columns, "rowwise": by_rows}  # the styles that are computed here, for linear modules
# By style: the dimension of a weight of which the next layer, or the softmax, needs equal parts. What is gathered again need not.
INNER = {"colwise": -2, "rowwise": -1, "packed_colwise": -2, "packed_rowwise": -1}
BY_NUMBER = {"grouped_gemm": 0}  # the same of whole experts: which of them a rank has
SIZES, NUMBERS = re.compile(r"size|dim|inner|width"), re.compile(r"experts$")
# What peft puts into names: around the model, and around the modules that it adapts.
OF_PEFT = re.compile(r"^base_model\.model(?:\.|$)|\.(?:base_layer|original_module)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class _Use:
    """A weight as one module has it. `placements` has what the plan says of it, if it says something."""

    name: str
    module: nn.Module
    key: str
    weight: nn.Parameter
    placements: tuple[Placement, ...]


def plain_name(name: str) -> str:
    """The name that a module or a weight has in transformers' model, of one in peft's."""
    return OF_PEFT.sub("", name)


def plans_of(folder: ModelFolder, classes: Sequence[str] | None, ranks: int) -> list[dict[str, str]]:
    """transformers' plans for the folder's model, the one to prefer first: the style of each module or weight, by its name with `*`
    for numbers. Raises UserError if it has none, or `ranks` do not divide what they would share."""
    where = f"option --tp: {ranks}: {folder.path}: {folder.architecture}"
    try:
        from transformers.distributed import tensor_parallel  # noqa: F401
    except ImportError:
        from transformers import __version__

        raise UserError(
            f"{where}: transformers {__version__} splits layers in another way; allowed: 5.24 or later; "
            "fix: pip install 'transformers>=5.24,<6', or --shard instead of --tp"
        ) from None
    model = skeleton(folder, classes)
    split: dict[str, str] = getattr(model, "tp_plan", None) or {}
    whole = _with_whole_experts(model, split)
    if not split and not whole:
        raise UserError(
            f"{where} has no tensor parallel plan in transformers; allowed: models with one, such as Llama, Mistral, Qwen; "
            "fix: --shard instead of --tp"
        )
    plans = (split, whole) if SPLIT_EXPERTS in split.values() else (whole, split)
    sizes = [(plan, _shared_sizes(model, plan)) for plan in plans if any(f".{EACH}." in name for name in plan)]
    if not sizes:
        raise UserError(
            f"{where}: its plan in transformers splits no layer; allowed: models whose layers are split, such as Llama, Mistral, "
            "Qwen; fix: --shard instead of --tp"
        )
    largest = [math.gcd(*shared.values()) for _, shared in sizes]
    if even := [plan for (plan, _), most in zip(sizes, largest, strict=True) if most % ranks == 0]:
        return even
    uneven = {name: size for _, shared in sizes for name, size in shared.items() if size % ranks}
    fits = [str(number) for number in range(1, max(largest) + 1) if any(each % number == 0 for each in largest)]
    raise UserError(
        f"{where}: {' and '.join(f'{name} is {size}' for name, size in uneven.items())}, which {ranks} ranks cannot share; "
        f"allowed: {', '.join(fits)}; fix: one of them, and --shard for the rest of the ranks"
    )


def _with_whole_experts(model: Any, plan: Mapping[str, str]) -> dict[str, str]:
    """The plan with transformers' expert plan in place of what it says of experts, as transformers joins them; empty if the model
    has no expert plan. Any: a model of transformers."""
    experts: dict[str, str] = getattr(model, "ep_plan", None) or {}
    if WHOLE_EXPERTS not in experts.values():
        return {}
    inside = tuple(f"{name}." for name in experts)
    return {name: style for name, style in plan.items() if not f"{name}.".startswith(inside)} | experts


def _shared_sizes(model: Any, plan: Mapping[str, str]) -> dict[str, int]:
    """What the ranks of a group must divide, by names of config.json where it has them: heads, inner sizes of layers, the number of
    whole experts. Any: as above."""
    config, styles = model.config.get_text_config(), _styles(model, plan)
    sizes: dict[str, int] = {}
    if any(style == "colwise" and OF_HEADS.search(name) for name, style in plan.items()):
        for key in HEADS:
            heads = getattr(config, key, None)
            named = (
                {f"{key}[{layer}]": each for layer, each in enumerate(heads)}
                if isinstance(heads, list)
                else {key: heads}
            )
            sizes |= {name: each for name, each in named.items() if isinstance(each, int)}
    values = config.to_dict()
    for name, module in model.named_modules():
        for key, weight in module.named_parameters(recurse=False):
            style = styles.get(f"{name}.{key}", styles.get(name, ""))
            for dims, words, what in ((INNER, SIZES, "inner size"), (BY_NUMBER, NUMBERS, "number")):
                if style in dims and weight.dim() > 1:
                    size = weight.shape[dims[style]] // (2 if style.startswith(PACKED) else 1)
                    known = [word for word, value in values.items() if value == size and words.search(word)]
                    sizes[known[0] if known else f"the {what} of {name}"] = size
    return sizes


def experts_line(model: Any, plan: Mapping[str, str], ranks: int) -> str | None:
    """A line for the log about a model's experts; None if it has none that are shared. Any: as above."""
    styles = _styles(model, plan).values()
    if WHOLE_EXPERTS in styles:
        return f"experts: each rank of a tensor group has 1 / {ranks} of them, whole"
    if SPLIT_EXPERTS in styles:
        return f"experts: each rank of a tensor group has 1 / {ranks} of the width of each"
    return None


def split_model(model: Any, plan: Mapping[str, str], axis: TensorAxis) -> TensorParts:
    """Leaves this rank its part of each weight that the plan splits; from now on the modules compute with all ranks of the group.
    Call it on all ranks. The weights have no memory yet (torch's meta device). Any: a model of transformers or peft, which have
    no types.

    Raises UserError if a weight with two names would be split in two ways.
    """
    from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES as STYLES

    styles = _styles(model, plan)
    uses: dict[int, list[_Use]] = {}
    for name, module in model.named_modules():
        for key, weight in list(module.named_parameters(recurse=False)):
            full = f"{name}.{key}" if name else key
            use = _Use(full, module, key, weight, _placements(module, key, styles.get(full, styles.get(name)), axis))
            uses.setdefault(id(weight), []).append(use)
    splits = _take_parts(uses, axis)
    plain = _plain_linear(model, styles)
    views: dict[int, dict[str, _Use]] = {}
    for use in (use for each in uses.values() for use in each if use.placements and id(use.module) not in plain):
        views.setdefault(id(use.module), {})[use.key] = use
    partial: set[str] = set()
    for name, module in model.named_modules():
        style = styles.get(name)
        if split := plain.get(id(module)):
            split(module, axis)
        elif style == PARTIAL:
            partial |= {f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)}
        elif style is not None:
            if style == NEEDS_CONFIG:
                module.config = model.config.get_text_config()
            # Not "auto", which computes without gradients in another way: then an evaluation would round otherwise.
            tokens = {"tp_mesh": axis.mesh, "ep_implementation": "all_to_all"} if style == WHOLE_EXPERTS else {}
            STYLES[style].install_forward(module, axis.mesh, **tokens)
        if id(module) in views:
            module.forward = functools.partial(_with_views, module, module.forward, views[id(module)], axis)
    if split_dropout.drops(model.config.get_text_config()):
        split_dropout.install(*_outermost(model, plan), axis.index)
    return TensorParts(splits, frozenset(partial), _words(model, plan, axis.ranks))


def _plain_linear(model: Any, styles: Mapping[str, str]) -> dict[int, Callable[[nn.Linear, TensorAxis], None]]:
    """What splits each of the modules that compute on plain tensors, by their ids. Modules split by rows that have a bias are none
    of them: transformers' style adds a part of it on each rank, before the sum. Any: as in `split_model`."""
    return {
        id(module): PLAIN[style]
        for name, module in model.named_modules()
        if (style := styles.get(name)) in PLAIN
        and type(module) is nn.Linear
        and not (style == "rowwise" and module.bias is not None)
    }


def _outermost(model: Any, plan: Mapping[str, str]) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The modules, and the styles of the plan, by names in transformers' model: of one that peft has wrapped the wrapper, whose
    output has its adapters in it. Any: as in `split_model`."""
    from transformers.integrations.tensor_parallel import replace_layer_number_by_wildcard

    modules: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        modules.setdefault(plain_name(name), module)
    styles = {name: plan.get(replace_layer_number_by_wildcard(name), "") for name in modules}
    return modules, styles


def with_split_logits(model: Any, plan: Mapping[str, str]) -> dict[str, str] | None:
    """The plan with a head that leaves each rank the logits of its own words; None if the head is not split and gathered. Whether
    what the model makes of its logits is the same for a part of them, nobody knows before it is tried. Any: as above."""
    name = _head(model)
    return {**plan, name: SPLIT} if name and plan.get(name) == GATHERED else None


def _head(model: Any) -> str | None:
    """The name in transformers' model of the module that computes the logits."""
    head = model.get_output_embeddings()
    return next((plain_name(name) for name, module in model.named_modules() if module is head), None)


def _words(model: Any, plan: Mapping[str, str], ranks: int) -> Split | None:
    """Which words of the logits a rank has by this plan; None: all."""
    name = _head(model)
    if name is None or plan.get(name) != SPLIT:
        return None
    return Split((int(model.get_output_embeddings().out_features),), 0, ranks)


def _styles(model: Any, plan: Mapping[str, str]) -> dict[str, str]:
    """The styles of modules and of weights, by their names in `model`."""
    from transformers.integrations.tensor_parallel import replace_layer_number_by_wildcard

    names = [name for name, _ in (*model.named_modules(), *model.named_parameters(remove_duplicate=False))]
    found = {name: plan.get(replace_layer_number_by_wildcard(plain_name(name))) for name in names}
    styles = {name: style for name, style in found.items() if style is not None}
    for name in [name for name, module in model.named_modules() if hasattr(module, "base_layer")]:
        if style := styles.pop(name, None):
            styles[f"{name}.{_adapter(plain_name(name), style)}.default"] = style
    return styles


def _adapter(name: str, style: str) -> str:
    """The one of LoRA's two matrices beside a split weight that is split in the same way, as peft does
    (peft/tuners/lora/model.py). Raises UserError for a style with which none may be."""
    for beginning, adapter in (("colwise", "lora_B"), ("rowwise", "lora_A")):
        if style.startswith(beginning):
            return adapter
    raise UserError(
        f"option --lora-targets: {name} has the style {style} in transformers' tensor parallel plan; allowed with --tp: modules "
        "that it splits by columns or rows, or not at all; fix: leave the target out, or --shard instead of --tp"
    )


def _placements(module: Any, key: str, style: str | None, axis: TensorAxis) -> tuple[Placement, ...]:
    """How the style lays out a weight of the module; () if it does not."""
    from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES as STYLES

    if style is None or style == PARTIAL:
        return ()
    whole = module._parameters[key]
    STYLES[style].shard_param(module, key, axis.mesh)
    laid_out, module._parameters[key] = module._parameters[key], whole
    return tuple(laid_out.placements) if isinstance(laid_out, DTensor) else ()


def _take_parts(uses: Mapping[int, list[_Use]], axis: TensorAxis) -> dict[str, Split]:
    """Gives each module this rank's part of its weights; returns how they are split, by all of their names."""
    splits: dict[str, Split] = {}
    for found in uses.values():
        ways = {use.name: _split(use.weight, use.placements, axis) for use in found}
        if len(set(ways.values())) > 1:
            one, other = found[0].name, next(use.name for use in found if ways[use.name] != ways[found[0].name])
            raise UserError(
                f"option --tp: {axis.ranks}: {one} and {other} are one matrix (tied weights), and transformers' plan splits them "
                "in two ways; allowed: models whose plan splits both alike; fix: --tp 1 with --shard"
            )
        split, whole = ways[found[0].name], found[0].weight
        if split is None:
            continue
        splits |= dict.fromkeys(ways, split)
        own = torch.empty(split.local_shape(axis.index), dtype=whole.dtype, device=whole.device)
        part = nn.Parameter(own, whole.requires_grad)
        for use in found:
            use.module._parameters[use.key] = part
    return splits


def _split(weight: torch.Tensor, placements: Sequence[Any], axis: TensorAxis) -> Split | None:
    """How the ranks share a weight; None if all hold it. Any: torch's placement of blocks has no public type."""
    placement = next((each for each in placements if not each.is_replicate()), None)
    if placement is None:
        return None
    blocks = getattr(placement, "split_factor", 1)  # of _StridedShard, torch 2.13
    return Split(tuple(weight.shape), placement.dim % weight.dim(), axis.ranks, blocks)


def _with_views(
    module: nn.Module, forward: Any, views: Mapping[str, _Use], axis: TensorAxis, *args: Any, **kwargs: Any
) -> object:
    """A call of the module that sees the rank's parts as DTensors. Any: whatever a module takes."""
    parts = {key: module.get_parameter(key) for key in views}  # FSDP2 exchanges them before each call
    for key, part in parts.items():
        view, whole = views[key], views[key].weight
        module._parameters[key] = DTensor.from_local(  # type: ignore[assignment]  # a view of the parameter is none itself
            part, axis.mesh, view.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
    try:
        return forward(*args, **kwargs)
    finally:
        module._parameters.update(parts)
