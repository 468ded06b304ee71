"""LoRA (Hu et al. 2022) by peft: a folder's weights stay as they are, and small matrices beside some of them are trained."""

import contextlib
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.shard.sharded_model import Splits, local, piece_of, set_own, taken

from .folder_config import ModelFolder
from .folder_files import refused
from .folder_model import FolderModule, new_files
from .tensor_plan import plain_name

ADAPTER = "adapter_model.safetensors"
# peft's names in a model: weights of its own, a head that trains, and what the folder's model calls a weight without these.
OF_ADAPTER = re.compile(r"\.lora_\w+\.default\.")
TRAINED_HEAD, FOLDERS_HEAD = ".modules_to_save.default.", ".original_module."


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """What the options ask for: the adapters' output counts `alpha` / `rank` times. `targets` are names or ends of names of
    modules; None: those that peft has for the model's type."""

    rank: int
    alpha: float
    targets: tuple[str, ...] | None


def prepare_peft() -> None:
    """Raises UserError if peft cannot be imported."""
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"option --lora: needs the package peft: {error}; allowed: peft 0.17 or later; fix: pip install 'peft>=0.17'"
        ) from None


def choose_targets(model: nn.Module, folder: ModelFolder, spec: LoraSpec, head: Collection[str]) -> tuple[str, ...]:
    """The modules to adapt, of those that multiply with a matrix. Raises UserError if a target is none of them."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN
    from transformers.pytorch_utils import Conv1D

    heads = head_modules(head)
    users: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    possible = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and name not in heads and users[id(module.weight)] == 1
    ]
    kind = str(folder.config.get("model_type"))
    targets = spec.targets or KNOWN.get(kind)
    ends = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in possible))
    if targets is None:
        raise UserError(
            f"option --lora-targets: not given, and peft has no default for {folder.architecture} (model_type {kind!r}); "
            f"allowed: {ends}; fix: name some of them, separated by commas"
        )
    for target in targets:
        if not any(_matches(name, target) for name in possible):
            raise UserError(
                f"option --lora-targets: {target!r} is no module of {folder.architecture} that can be adapted; allowed: "
                f"{ends}, or longer names such as {possible[0] if possible else '-'}; fix: name some of them, separated by "
                "commas; tied weights and a classifier's head cannot be adapted"
            )
    return tuple(sorted(targets))


def add_adapters(
    module: FolderModule,
    folder: ModelFolder,
    spec: LoraSpec,
    targets: Collection[str],
    head: Collection[str],
    seed: int,
) -> dict[str, torch.Tensor]:
    """Puts adapters into a model. From now on only they and `head` (names of weights) train, and `module.state_dict()` holds
    nothing else. Returns the adapters' first values, on the CPU, by name: drawn from `seed`, the same bits on every rank.

    If the model has no memory (torch's meta device), the adapters and the head get none either. Give the weights their values
    with `base_weights`, then `start_trained`. Raises UserError.
    """
    import peft
    from transformers.pytorch_utils import Conv1D

    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in module.modules()):
        raise UserError(
            f"option --lora: {folder.architecture} has batch normalisation, whose statistics change while its weights do "
            "not; allowed: models without it; fix: train all weights, without --lora"
        )
    torch.manual_seed(seed)
    inner: Any = module.model
    used = {name.rpartition(".")[0] for name, parameter in inner.named_parameters() if parameter.requires_grad}
    transposed = any(
        isinstance(each, Conv1D) and any(_matches(name, target) for target in targets)
        for name, each in inner.named_modules()
    )
    config = peft.LoraConfig(
        task_type="CAUSAL_LM" if folder.tokens else None,
        r=spec.rank,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]  # peft only divides it by the rank
        target_modules=list(targets),
        fan_in_fan_out=transposed,
        modules_to_save=sorted(head_modules(head)) or None,
    )
    with (
        refused(f"option --lora: peft cannot adapt {folder.architecture}"),
        warnings.catch_warnings(),
        _on_cpu_without_memory(module),
    ):
        warnings.filterwarnings("ignore", category=FutureWarning)  # peft 0.21 reads an old name of transformers 5.23
        module.model = peft.get_peft_model(inner, config)
        drawn = {name: p.detach().clone() for name, p in module.named_parameters() if OF_ADAPTER.search(name)}
    for name, parameter in module.named_parameters():
        if _adapted(name) not in used:  # no result depends on it: DDP would wait for its gradient
            parameter.requires_grad_(False)
    hooked: Any = module  # torch gives the method no types
    hooked.register_state_dict_post_hook(_keep_trained)
    return drawn


def base_weights(module: FolderModule, names: Collection[str]) -> dict[str, torch.Tensor]:
    """The weights and saved buffers of an adapted model that are the folder's, by the `names` that they had before. Raises
    RuntimeError if they are others: a weight that nobody fills would be undefined."""
    model: Any = module.model
    found = {
        plain_name(name): tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if not OF_ADAPTER.search(name) and TRAINED_HEAD not in name
    }
    if found.keys() != set(names):
        raise RuntimeError(f"peft calls some weights by unknown names: {sorted(found.keys() ^ set(names))[:3]}")
    return found


def start_trained(module: FolderModule, drawn: Mapping[str, torch.Tensor], splits: Splits | None = None) -> None:
    """Gives what trains its first values, of a sharded model to this rank's shares: adapters those that `add_adapters` returned,
    a head those of the folder's head, which the model must have already. `splits` by the names of `module`."""
    for name, parameter in module.named_parameters():
        if name in drawn:
            set_own(parameter.data, taken(drawn[name], piece_of(name, parameter.data, splits)))
        elif TRAINED_HEAD in name:
            set_own(parameter.data, local(module.get_parameter(name.replace(TRAINED_HEAD, FOLDERS_HEAD)).data))


@contextlib.contextmanager
def _on_cpu_without_memory(module: nn.Module) -> Iterator[None]:
    """Within the block, weights on the meta device are zeros on the CPU that share one number. Afterwards all weights are on the
    meta device, also new ones.

    peft moves an adapter to the device of the layer that it adapts: on the meta device the values drawn for it would be lost.
    """
    olds = dict.fromkeys(parameter for parameter in module.parameters() if parameter.is_meta)
    if not olds:
        yield
        return
    news = {old: nn.Parameter(torch.zeros((), dtype=old.dtype).expand(old.shape), old.requires_grad) for old in olds}
    _replace(module, news)
    yield
    back: dict[nn.Parameter, nn.Parameter] = {}
    for old, new in news.items():
        old.requires_grad_(new.requires_grad)
        back[new] = old
    for parameter in module.parameters():
        if parameter not in back:
            back[parameter] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    _replace(module, back)


def _replace(module: nn.Module, news: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Exchanges parameters; tied ones stay tied."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter in news:
                setattr(part, name, news[parameter])


def head_modules(head: Collection[str]) -> set[str]:
    """The modules of these weights."""
    return {name.rpartition(".")[0] for name in head}


def write_adapters(module: FolderModule, folder: ModelFolder, state: Mapping[str, torch.Tensor], target: Path) -> Path:
    """Writes adapters (and head) to `target` as PeftModel.from_pretrained reads them; returns `target`. `state` is the
    module's. Raises OSError."""
    import peft
    from safetensors.torch import save_file

    model: Any = module.model
    own = {name.removeprefix("model."): tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    named = peft.get_peft_model_state_dict(model, state_dict=own, save_embedding_layers=False)
    config = model.peft_config["default"]
    config.base_model_name_or_path = folder.path
    config.inference_mode = True  # as save_pretrained of peft: whoever loads them goes on with frozen adapters
    with new_files(folder, target) as aside:
        save_file(named, aside / ADAPTER, metadata={"format": "pt"})
        config.save_pretrained(aside)
    return target


def merged_state(module: FolderModule, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with the adapters of `state` added, by the names that the model has without adapters. `module` is an adapted
    model on the CPU; it is used up."""
    module.load_state_dict({name: tensor.cpu() for name, tensor in state.items()}, strict=False)
    model: Any = module.model
    module.model = model.merge_and_unload()
    return {f"model.{name}": tensor for name, tensor in module.model.state_dict().items()}


def _adapted(name: str) -> str:
    """The module of transformers' model that a weight of peft's model belongs to."""
    return re.split(r"\.(?:lora_\w+|modules_to_save|original_module)\.", name.removeprefix("model.base_model.model."))[
        0
    ]


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith("." + target)  # as peft matches a list of names


def _keep_trained(module: nn.Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
    trained = {prefix + name for name, parameter in module.named_parameters() if parameter.requires_grad}
    for name in state.keys() - trained:
        del state[name]
