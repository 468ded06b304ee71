"""Four steps with batches of which some microbatches are padded, beside the same model without the library.

Arguments: the model, where padding comes (later, first), and `bfloat16` to train under that autocast and evaluate without.
"""

import contextlib
import copy
import sys

import torch
from torch import nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp
from tests.compat.smp_runs import say
from tests.train.parallel import model_zoo

BATCH, LENGTH, MICROBATCHES, STEPS = 8, 16, 2, 4


class Own(nn.Module):
    """Looks at a mask of flags before its layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 16), nn.Linear(16, 2)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(4))

    def forward(self, input_ids, attention_mask):
        hidden = self.embed(input_ids)
        ignored = None if attention_mask.all() else ~attention_mask.bool()
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=ignored)
        return {"logits": self.head(hidden)}


MAKE = {
    "own": Own,
    "bert": lambda: model_zoo.bert()[0],
    "bert-tokens": lambda: model_zoo.bert("ForMaskedLM", "eager")[0],
    "gpt2": lambda: model_zoo.gpt2()[0],
    "llama": lambda: model_zoo.llama()[0],
}
name, where, *words = sys.argv[1:]
smp.init()
torch.manual_seed(0)
plain = MAKE[name]()
for module in plain.modules():
    if isinstance(module, nn.Dropout):
        module.p = 0.0  # every rank would draw its own
model = smp.DistributedModel(copy.deepcopy(plain))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
others = {"use_cache": False} if name in ("gpt2", "llama") else {}


def precision():
    return torch.autocast("cpu", torch.bfloat16) if "bfloat16" in words else contextlib.nullcontext()


def called(model, ids, mask):
    return model(input_ids=ids, attention_mask=mask, **others)["logits"].float()


def loss_of(logits, labels):
    if logits.dim() == 3:
        labels = labels[:, None].expand(logits.shape[:2])
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


@smp.step
def train_step(model, ids, mask, labels):
    with precision():
        logits = called(model, ids, mask)
    loss = loss_of(logits, labels)
    model.backward(loss)
    return loss


@smp.step
def test_step(model, ids, mask):
    return called(model, ids, mask)


def batch(rows, padded):
    """One half of the rows has padding, if any, the other has none."""
    half = rows // 2
    mask = torch.ones(rows, LENGTH, dtype=torch.int64)
    if padded:
        lengths = torch.randint(3, LENGTH, (half, 1), generator=generator)
        mask[half if where == "later" else 0 :][:half] = (torch.arange(LENGTH) < lengths).long()
    ids, labels = (
        torch.randint(0, most, shape, generator=generator) for most, shape in ((60, mask.shape), (2, (rows,)))
    )
    return ids, mask.bool() if name == "own" else mask, labels


generator = torch.Generator().manual_seed(1)
found = {"losses": 0.0, "evaluation": 0.0}
for number in range(STEPS):
    ids, mask, labels = batch(BATCH // 2 if number == STEPS - 1 else BATCH, number != 1)
    optimizer.zero_grad()
    reference.zero_grad()
    loss = train_step(model, ids, mask, labels)
    means = []
    for part in zip(*(each.chunk(MICROBATCHES) for each in (ids, mask, labels)), strict=True):
        with precision():
            logits = called(plain, *part[:2])
        means.append(loss_of(logits, part[2]))
        (means[-1] / MICROBATCHES).backward()
    optimizer.step()
    reference.step()
    found["losses"] = max(found["losses"], abs(loss.reduce_mean().item() - torch.stack(means).mean().item()))
    model.eval()
    plain.eval()
    for rows, padded in ((BATCH, True), (BATCH * 2, True), (BATCH - 2, True), (BATCH, False)):
        ids, mask, _ = batch(rows, padded)
        with torch.no_grad():
            outputs = test_step(model, ids, mask).concat()
            expected = torch.cat([called(plain, *part) for part in zip(ids.chunk(2), mask.chunk(2), strict=True)])
        found["evaluation"] = max(found["evaluation"], (outputs - expected).abs().max().item())
    model.train()
    plain.train()
state = model.state_dict()
found["weights"] = max((state[key] - value).abs().max().item() for key, value in plain.named_parameters())
held, every = len(list(model.local_parameters())), len(list(plain.parameters()))
say(found | {"share": held / every})
