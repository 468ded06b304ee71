"""algorun.pipeline with language models and batches of which some microbatches are padded, beside the model itself.

`masks_script.py MODEL ATTENTION RANKS SCHEDULE EXAMPLE [layers]`, where the example that the model is cut with is full or
padded; each rank leaves one JSON line of largest differences.
"""

import copy
import json
import sys

import torch
from torch import nn
from torch.nn import functional

from algorun.pipeline import pipeline
from tests.train.parallel import model_zoo

ROWS, LENGTH, MICROBATCHES = 2, 16, 4
MAKE = {
    "bert": lambda attention: model_zoo.bert("ForSequenceClassification", attention),
    "bert-tokens": lambda attention: model_zoo.bert("ForMaskedLM", attention),
    "gpt2": lambda attention: model_zoo.gpt2(attention=attention),
    "llama": lambda attention: model_zoo.llama(attention=attention),
}
FULL = model_zoo.padded(ROWS, LENGTH, [])
LATER = torch.cat([FULL, model_zoo.padded(ROWS, LENGTH, [9]), FULL, model_zoo.padded(ROWS, LENGTH, [3, 11])])
EARLIER = LATER.flip(0)  # its last microbatch has no padding, its first one has
MASKS = (LATER, EARLIER, FULL.repeat(MICROBATCHES, 1), LATER)


def loss(output, labels):
    """The mean over samples, or over the tokens of samples that all have its label."""
    logits = output["logits"]
    if logits.dim() == 3:
        labels = labels[:, None].expand(logits.shape[:2])
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def largest(pairs):
    return max((one - other).abs().max().item() for one, other in pairs)


def parts():
    """The microbatches of the batch."""
    return zip(*(each.chunk(MICROBATCHES) for each in (ids, masks, labels)), strict=True)


name, attention, ranks, schedule, padding, *rest = sys.argv[1:]
torch.manual_seed(0)
model, given = MAKE[name](attention)
for module in model.modules():
    if isinstance(module, nn.Dropout):
        module.p = 0.0  # every rank would draw its own
whole = copy.deepcopy(model)
others = {key: value for key, value in given.items() if key != "input_ids"}
example = {"attention_mask": FULL if padding == "full" else LATER[2:4], "input_ids": given["input_ids"]} | others
pipe = pipeline(
    model, example, loss, pp=int(ranks), microbatches=MICROBATCHES, by_layers="layers" in rest, schedule=schedule
)
optimizer, reference = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (pipe, whole))
own = dict(whole.named_parameters())
told: dict[str, list[float]] = {"gradients": [], "weights": [], "evaluation": []}
for masks in MASKS:
    ids, labels = torch.randint(0, 60, masks.shape), torch.randint(0, 2, masks.shape[:1])
    batch = {"input_ids": ids, "attention_mask": masks} | others  # in another order than the example
    optimizer.zero_grad()
    reference.zero_grad()
    pipe.step(batch, labels)
    for part, mask, label in parts():
        (loss(whole(input_ids=part, attention_mask=mask, **others), label) / MICROBATCHES).backward()
    told["gradients"].append(
        largest((p.grad, own[key].grad) for key, p in pipe.named_parameters() if own[key].grad is not None)
    )
    optimizer.step()
    reference.step()
    told["weights"].append(largest((p, own[key]) for key, p in pipe.named_parameters()))
    pipe.eval()
    whole.eval()
    score = pipe.evaluate(batch, labels, loss)
    with torch.no_grad():
        expected = sum(loss(whole(input_ids=p, attention_mask=m, **others), each).item() for p, m, each in parts())
    told["evaluation"] += [] if score is None else [abs(score.item() - expected)]
    pipe.train()
    whole.train()
print(json.dumps(told))
