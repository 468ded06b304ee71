"""GPT-2 of transformers as scripts have it (head tied to the embeddings, masks, batches padded to their longest text),
with clipping, a scheduler, evaluation without labels and checkpoints, beside the same model without the library.

Argument: a folder for checkpoints.
"""

import sys

import torch

import smdistributed.modelparallel.torch as smp
from tests.compat.smp_runs import say, staged_model
from tests.train.parallel.model_zoo import library

transformers = library("transformers")
FOLDER, BATCH, MICROBATCHES, WORDS = sys.argv[1], 8, 2, 97
clip_grad_norm_ = torch.nn.utils.clip_grad_norm_


def make():
    torch.manual_seed(0)
    shape = {"n_layer": 4, "n_embd": 32, "n_head": 4, "vocab_size": WORDS, "n_positions": 32}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **off, bos_token_id=0, eos_token_id=0)).train()


def batch(number, replica, rows=BATCH):
    generator = torch.Generator().manual_seed(1000 * number + replica)
    lengths = torch.randint(4, 17, (rows,), generator=generator)
    tokens = torch.randint(1, WORDS, (rows, int(lengths.max())), generator=generator)
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    return {"input_ids": tokens, "attention_mask": mask}, tokens.masked_fill(mask == 0, -100)


@smp.step
def train_step(model, inputs, labels):
    loss = model(**inputs, labels=labels)["loss"]
    model.backward(loss)
    return loss


@smp.step
def test_step(model, inputs):
    return model(**inputs)["logits"]


smp.init()
plain = make()
model = smp.DistributedModel(make())
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
reference = torch.optim.SGD(plain.parameters(), lr=0.1)
schedulers = [torch.optim.lr_scheduler.StepLR(each, 3, 0.5) for each in (optimizer, reference)]


def train(number):
    """The difference of the gradients' norms from the plain model's."""
    optimizer.zero_grad()
    train_step(model, *batch(number, smp.dp_rank()))
    norm = clip_grad_norm_(model.parameters(), 0.5)
    reference.zero_grad()
    for replica in range(smp.dp_size()):
        inputs, labels = batch(number, replica)
        for part, answers in enumerate(labels.chunk(MICROBATCHES)):
            some = {name: tensor.chunk(MICROBATCHES)[part] for name, tensor in inputs.items()}
            (plain(**some, labels=answers)["loss"] / MICROBATCHES / smp.dp_size()).backward()
    wanted = clip_grad_norm_(list(plain.parameters()), 0.5)
    for each in (optimizer, reference, *schedulers):
        each.step()
    return (norm - wanted).abs().item()


def apart():
    """The largest difference of the weights from the plain model's."""
    state, wanted = model.state_dict(), plain.state_dict()
    assert list(state) == list(wanted)
    return max((state[name] - tensor).abs().max().item() for name, tensor in wanted.items())


norms = [train(number) for number in range(3)]
model.eval()
with torch.no_grad():
    inputs, _ = batch(50, smp.dp_rank(), 12)
    evaluation = (test_step(model, inputs).concat() - plain.eval()(**inputs)["logits"]).abs().max().item()
model.train()
plain.train()
smp.save_checkpoint(FOLDER, tag="here", partial=True, model=model, optimizer=optimizer)
kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
norms += [train(number) for number in range(3, 5)]
found = {
    "norms": max(norms),
    "evaluation": evaluation,
    "weights": apart(),
    "forms": staged_model(model).signatures.total,
}
smp.resume_from_checkpoint(FOLDER, tag="here", partial=True)
back = model.state_dict()
say(found | {"back": all(torch.equal(back[name], tensor) for name, tensor in kept.items())})
smp.barrier()
