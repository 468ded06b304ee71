"""Weights that transformers itself must load, all at once: .bin files, and tensors that it converts."""

import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from algorun_train.common.errors import UserError

from .folder_classes import make_config, model_class, skeleton
from .folder_config import ModelFolder
from .folder_files import refused
from .folder_weights import TensorPlan, refuse_not_finite

# What programs put before the names of weights: DDP, torch.compile, peft, FSDP.
WRAPPERS = ("module.", "_orig_mod.", "base_model.model.", "_fsdp_wrapped_module.")


def load_whole(
    folder: ModelFolder, classes: Sequence[str] | None, head: Collection[str], keep_head: bool
) -> tuple[TensorPlan, dict[str, torch.Tensor]]:
    """All tensors of the folder's files, by the names of the model, and what starts anew as for `plan_tensors`. Raises UserError
    if the files cannot be read, do not fit config.json, or lack a weight outside the head."""
    where = f"{folder.source}: {folder.path}"
    try:
        with refused(f"{where}: {folder.weights} cannot be read", (pickle.UnpicklingError,)):
            model, report = model_class(folder).from_pretrained(
                folder.path,
                config=make_config(folder, classes),
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
                weights_only=True,
                dtype=torch.float32,
            )
    except pickle.UnpicklingError:  # its text advises to run the file
        raise UserError(
            f"{where}: {folder.weights} holds other objects than tensors, and nothing in it is executed; allowed: tensors by "
            "their names; fix: save the model with save_pretrained, which writes safetensors"
        ) from None
    absent, other = set(report["missing_keys"]), {row[0]: row for row in report["mismatched_keys"]}
    wrong = [f"{name} is missing" for name in sorted(absent - set(head))]
    wrong += [f"{name} is {list(there)}, config.json asks for {list(here)}"
              for name, there, here in (other[name] for name in sorted(other.keys() - set(head)))]  # fmt: skip
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(
            f"{where}: {folder.weights} does not fit config.json: {'; '.join(wrong[:3])}{more}; allowed: the weights of "
            f"{folder.architecture} with this config, save for its head; fix: {_fix(folder, classes, report)}"
        )
    fresh = sorted(head) if set(head) & (absent | other.keys()) or not keep_head else []
    own = {name: tensor for name, tensor in model.state_dict().items() if name not in fresh}
    for name, tensor in own.items():
        refuse_not_finite(f"{where}: {folder.weights}: {name}", tensor)
    return TensorPlan({name: ("", name) for name in own}, tuple(fresh), tuple(sorted(report["unexpected_keys"]))), own


def _fix(folder: ModelFolder, classes: Sequence[str] | None, report: Mapping[str, Any]) -> str:
    """What helps when weights are missing. Any: transformers has no type for its report."""
    unknown = report["unexpected_keys"]
    for prefix in WRAPPERS:
        if unknown and all(name.startswith(prefix) for name in unknown):
            return f"remove the prefix {prefix!r} from the names, which a wrapper around the model has put there"
    ties = set(getattr(skeleton(folder, classes), "_tied_weights_keys", None) or ())
    if report["missing_keys"] and set(report["missing_keys"]) <= ties:
        return "set tie_word_embeddings to true in config.json if both were one matrix in training; else save both"
    return "save both together with save_pretrained"
