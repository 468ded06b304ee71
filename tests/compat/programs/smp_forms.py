"""A script that calls its model with other lengths, arguments and batch sizes from step to step, beside the same
model without the library.

Arguments: words of `evaluate first` (without gradients, in another form, before any training), `own` (every replica has
lengths of its own), `many` (more forms than are kept).
"""

import sys

import torch
from torch import nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp
from tests.compat.smp_runs import say, staged_model

BATCH, MICROBATCHES = 8, 2
WORDS = set(sys.argv[1:])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.query = nn.LayerNorm(8), nn.Linear(8, 24)
        self.statistics, self.out = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        query, key, value = self.query(self.norm(x)).chunk(3, dim=-1)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(self.statistics(found.transpose(1, 2)).transpose(1, 2))


class Net(nn.Module):
    """Of any length; with labels it returns its loss as well, and a scale is computed before the last layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(11, 8), nn.ModuleList(Block() for _ in range(4))
        self.register_buffer("seen", torch.zeros(()))
        self.head = nn.Linear(8, 11)

    def forward(self, tokens, labels=None, scale=1.0):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + positions[:, None] * 0.01
        for block in self.blocks:
            x = block(x)
        logits = self.head(x) * scale
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


smp.init()
torch.manual_seed(0)
plain = Net()
torch.manual_seed(0)
model = smp.DistributedModel(Net())
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)


@smp.step
def train_step(model, tokens, labels, scale):
    loss = model(tokens, labels=labels, scale=scale)["loss"]
    model.backward(loss)
    return loss


@smp.step
def test_step(model, tokens):
    return model(tokens)["logits"]


def batch(number, replica, length, rows):
    generator = torch.Generator().manual_seed(100 * number + replica)
    return torch.randint(0, 11, (2, rows, length), generator=generator)


def evaluated(number, length, rows):
    """The difference of the outputs from those of the plain model, which has no statistics of the other replicas'."""
    model.eval()
    plain.eval()
    tokens = batch(number, smp.dp_rank(), length, rows)[0]
    with torch.no_grad():
        outputs = test_step(model, tokens).concat()
        difference = (outputs - plain(tokens)["logits"]).abs().max().item()
    model.train()
    plain.train()
    return difference


def length_of(number, replica):
    if "many" in WORDS:
        return 4 + number % 11
    return (9, 6, 9, 13, 6)[(number + (replica if "own" in WORDS else 0)) % 5]


losses, outputs, buffers = [], [], {}
if "evaluate first" in WORDS:
    outputs.append(evaluated(50, 5, BATCH))
steps = 14 if "many" in WORDS else 6
for number in range(steps):
    rows = {4: BATCH // 2, 5: BATCH * 2}.get(number, BATCH)  # BatchNorm would see rows that fill a batch up
    scale = 0.5 if number == 3 else 1.0
    mine = batch(number, smp.dp_rank(), length_of(number, smp.dp_rank()), rows)
    optimizer.zero_grad(set_to_none=True)
    loss = train_step(model, mine[0], mine[1], scale).reduce_mean()
    optimizer.step()
    reference.zero_grad(set_to_none=True)
    wanted = []
    for replica in range(smp.dp_size()):
        # A replica's buffers are those of the first one when a step begins, and its own until the next one.
        buffers[replica] = {name: buffer.clone() for name, buffer in plain.named_buffers()}
    before = {name: buffer.clone() for name, buffer in plain.named_buffers()}
    for replica in range(smp.dp_size()):
        for name, buffer in plain.named_buffers():
            buffer.copy_(before[name])
        tokens, labels = batch(number, replica, length_of(number, replica), rows)
        for some, answers in zip(tokens.chunk(MICROBATCHES), labels.chunk(MICROBATCHES), strict=True):
            part = plain(some, labels=answers, scale=scale)["loss"]
            (part / MICROBATCHES / smp.dp_size()).backward()
            wanted.append((replica, part.item()))
        buffers[replica] = {name: buffer.clone() for name, buffer in plain.named_buffers()}
    for name, buffer in plain.named_buffers():
        buffer.copy_(buffers[0][name])
    reference.step()
    own = [value for replica, value in wanted if replica == smp.dp_rank()]
    losses.append(abs(loss.item() - sum(own) / len(own)))
    if number in (1, 3) and smp.dp_size() == 1:
        outputs.append(evaluated(60 + number, 7 if number == 1 else 9, BATCH * 2))
state, expected = model.state_dict(), plain.state_dict()
differences = {
    name: (state[name].double() - tensor.double()).abs().max().item()
    for name, tensor in expected.items()
    if smp.dp_rank() == 0 or name in dict(plain.named_parameters())
}
say(
    {
        "losses": max(losses),
        "outputs": max(outputs, default=0.0),
        "parameters": max(differences.values()),
        "worst": max(differences, key=differences.get),
        "forms": staged_model(model).signatures.total,
    }
)
smp.barrier()
