"""Whether a folder's model is a causal language model whose loss is the one that a job computes, tried on a small copy of it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from algorun_train.common.errors import UserError

from .folder_classes import make_config, model_class
from .folder_config import ModelFolder
from .small_copy import WORDS, small_models

TOKENS, KEPT = 10, 5  # of the example; the first KEPT stay the same. Odd: blocks of 2, 4 and 8 tokens cross the border
# Of the logits' spread. Over all classes of transformers 5.24 that are causal a later token changes less than 2e-6 of it
# (rounding: experts compute other groups of tokens), in the others more than 8e-4.
CHANGE = 3e-5
LOSS_DIFFERS = 1e-4  # relative
# Keys of a config that let a model see later tokens, with the value with which it does not.
SEES_LATER = {"is_decoder": True, "causal": True, "is_causal": True, "use_bidirectional_attention": False}
# Keys that add something to the loss, with the value with which they do not.
ADDS_LOSS = {"output_router_logits": False, "z_loss_coefficient": 0, "disable_ngram_loss": True}


def check_language_model(folder: ModelFolder, weights: int) -> str | None:
    """Tries the model, which has `weights` weights, on a few tokens, on rank 0; a line for the log if it could not be tried.

    Raises UserError if a later token changes an earlier logit, if there is not one row of logits for each token, or if
    transformers' own loss, given labels, is not the mean cross-entropy that a job computes.
    """
    where = f"{folder.source}: {folder.path}: {folder.architecture}"
    failure = "it is large, and no small copy of it can be built"
    config = make_config(folder, None)
    for model in small_models(model_class(folder), config, weights):
        first, other = _tokens(model.config)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                logits, changed = (model.eval()(input_ids=each, use_cache=False).logits for each in (first, other))
        except Exception as error:  # a copy that can be built and not run: the next one keeps more of the sizes
            failure = f"a copy of it fails: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
            continue
        _refuse_shape(where, logits)
        _refuse_sight(where, logits, changed, model.config.to_dict())
        _refuse_loss(where, model, first)
        return None
    return f"{where}: not checked whether it sees later tokens: {failure}"


def _tokens(config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of tokens that begin alike and end differently; none has a meaning of its own in the config."""
    special = {value for key, value in config.to_dict().items() if key.endswith(("_token_id", "_token_index"))
               and isinstance(value, int)}  # fmt: skip
    words = min(getattr(config.get_text_config(), "vocab_size", WORDS), WORDS)
    plain = [word for word in range(words) if word not in special]
    first = [plain[(3 * i + 1) % len(plain)] for i in range(TOKENS)]
    other = first[:KEPT] + [plain[(5 * i + 2) % len(plain)] for i in range(KEPT, TOKENS)]
    return torch.tensor([first]), torch.tensor([other])


def _refuse_shape(where: str, logits: torch.Tensor) -> None:
    if logits.dim() != 3 or logits.shape[:2] != (1, TOKENS):
        raise UserError(
            f"{where} gives logits {list(logits.shape)} for tokens {[1, TOKENS]}; allowed: [1, {TOKENS}, words], one row for "
            "each token; fix: give a language model on text"
        )


def _refuse_sight(where: str, logits: torch.Tensor, changed: torch.Tensor, config: Mapping[str, Any]) -> None:
    change = (logits - changed)[:, :KEPT].abs().max() / logits.std()
    if change < CHANGE:
        return
    keys = [(key, value) for key, value in SEES_LATER.items() if config.get(key, value) != value]
    fix = f"set {keys[0][0]} to {str(keys[0][1]).lower()} in config.json if it was trained so; else " if keys else ""
    raise UserError(
        f"{where} sees the tokens that it shall predict: a later token changes earlier logits; allowed: causal language models; "
        f"fix: {fix}give a causal model, such as LlamaForCausalLM"
    )


def _refuse_loss(where: str, model: Any, tokens: torch.Tensor) -> None:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            result = model.train()(input_ids=tokens, labels=tokens, use_cache=False)
        except Exception:  # not every class takes labels, and none has to: the job computes its loss from the logits
            return
    if result.loss is None:
        return
    logits, theirs = result.logits[0].float(), float(result.loss)
    # Decoders of translation models leave the shift to whoever gives them labels.
    ours = [float(cross_entropy(logits[:-1], tokens[0, 1:])), float(cross_entropy(logits, tokens[0]))]
    if min(abs(theirs - each) for each in ours) <= LOSS_DIFFERS * max(1, abs(theirs)):
        return
    own = model.config.to_dict()
    key = next((key for key, value in ADDS_LOSS.items() if key in own and own[key] != value), None)
    said = "" if key is None else f", by {key} {own[key]!r} in config.json"
    fix = "give another model" if key is None else f"set {key} to {str(ADDS_LOSS[key]).lower()} in config.json"
    raise UserError(
        f"{where}: its loss in transformers is not the cross-entropy of the next token ({theirs:.4f}, not {ours[0]:.4f})"
        f"{said}; allowed: models that train on cross-entropy alone; fix: {fix}"
    )
