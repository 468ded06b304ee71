"""Language models of transformers with their default tied head, in stages beside the same model whole."""

import argparse
import contextlib
import hashlib
import json
import os
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_ as one_ranks  # torch's own, since smp is not imported yet

import smdistributed.modelparallel.torch as smp  # isort: skip

from tests.compat.programs.smp_both import equal  # isort: skip
from tests.compat.smp_runs import say  # isort: skip
from tests.train.parallel import model_zoo  # isort: skip

torch.set_num_threads(1)
ROWS, LENGTH, WORDS = 8, 16, 60


def gpt2():
    transformers = model_zoo.library("transformers")
    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=4, n_head=4, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.2)  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama():
    return model_zoo.llama(tied=True)[0]


def bert():
    transformers = model_zoo.library("transformers")
    config = transformers.BertConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        initializer_range=0.2)  # fmt: skip
    return transformers.BertForMaskedLM(config)


def batch(number, replica):
    length = LENGTH - 4 if options.lengths and number % 2 else LENGTH
    return torch.randint(0, WORDS, (ROWS, length), generator=torch.Generator().manual_seed(10 * number + replica))


def arguments(ids):
    given = {"input_ids": ids} | ({} if options.model == "bert" else {"use_cache": False})
    if options.masked:
        given["attention_mask"] = torch.ones_like(ids)
        given["attention_mask"][::2, -3:] = 0
    return given


def loss_of(logits, ids):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


@smp.step
def train_step(model, ids):
    output = model(**arguments(ids) | ({"labels": ids} if options.labels else {}))
    loss = output["loss"] if options.labels else loss_of(output["logits"], ids)
    model.backward(loss)
    return loss


def made(seed):
    torch.manual_seed(seed)
    return {"gpt2": gpt2, "llama": llama, "bert": bert}[options.model]()


def optimized(parameters):
    if options.adam:
        return torch.optim.AdamW(parameters, lr=0.01)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)  # Adam makes whole steps of rounding (of a key's bias)


def placed(model):
    """By hand: layers in order, the head where the last of them is."""
    last = smp.pp_size() - 1
    smp.set_partition(model.transformer, 0)
    for number, layer in enumerate(model.transformer.h):
        smp.set_partition(layer, number * smp.pp_size() // len(model.transformer.h))
    smp.set_partition(model.transformer.ln_f, last)
    smp.set_partition(model.lm_head, last)


class Whole:
    """The model without the library: all replicas' batches, microbatch after microbatch."""

    def __init__(self, microbatches):
        self.model, self._microbatches = made(0).train(), microbatches
        self.optimizer = optimized(self.model.parameters())

    def backward(self, number, replicas=None):
        replicas = replicas or smp.dp_size()
        for replica in range(replicas):
            for part in batch(number, replica).chunk(self._microbatches):
                loss = loss_of(self.model(**arguments(part))["logits"], part)
                (loss / self._microbatches / replicas).backward()

    def step(self):
        norm = one_ranks(self.model.parameters(), options.clip) if options.clip else torch.zeros(())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


parser = argparse.ArgumentParser()
parser.add_argument("what", choices=("train", "save", "resume"))
parser.add_argument("path", nargs="?")
parser.add_argument("--model", default="gpt2")
parser.add_argument("--adam", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--local", action="store_true", help="clip local_parameters()")
parser.add_argument("--every", type=int, default=1, help="backward_passes_per_step")
parser.add_argument("--adds-up", action="store_true", help="an optimizer step every second step, without saying so")
parser.add_argument("--by-hand", action="store_true")
parser.add_argument("--labels", action="store_true", help="the model computes its loss")
parser.add_argument("--lengths", action="store_true", help="every second batch is shorter: the model is cut again")
parser.add_argument("--masked", action="store_true", help="every second sequence is padded")
parser.add_argument("--whole", action="store_true", help="a full checkpoint")
options = parser.parse_args()

smp.init()


class Staged:
    def __init__(self, seed):
        module = made(seed).train()
        with torch.no_grad():  # what another stage than the first has of the tied weight counts for nothing
            module.get_input_embeddings().weight.mul_(1 + smp.pp_rank())
        if options.by_hand:
            placed(module)
        self.model = smp.DistributedModel(module, backward_passes_per_step=options.every)
        self.optimizer = smp.DistributedOptimizer(optimized(self.model.parameters()))
        self.collectives = []

    def backward(self, number):
        with counted() as found:
            loss = train_step(self.model, batch(number, smp.dp_rank()))
        self.collectives.append(len(found))
        return loss

    def step(self):
        norm = torch.zeros(())
        if options.clip:
            given = self.model.local_parameters() if options.local else self.model.parameters()
            norm = torch.nn.utils.clip_grad_norm_(given, options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


@contextlib.contextmanager
def counted():
    """The collectives over floating-point numbers that this rank takes part in: those of the step are of bytes."""
    found = []

    def counting(name, tensor_of):
        original = getattr(dist, name)

        def call(*args, **kwargs):
            if tensor_of(args).is_floating_point() and tensor_of(args).dim():
                found.append(name)
            return original(*args, **kwargs)

        return mock.patch.object(dist, name, call)

    with counting("all_reduce", lambda args: args[0]), counting("all_gather", lambda args: args[1]):
        yield found


def bits(model):
    """Weights of this rank by name, bit by bit."""
    return {
        name: hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()
        for name, tensor in model.local_named_parameters()
    }


def apart(held):
    """Names of weights that are not equal to the last bit on all ranks that have them."""
    found = {}
    for row in held:
        for name, value in row.items():
            found.setdefault(name, set()).add(value)
    return sorted(name for name, values in found.items() if len(values) > 1)


def furthest(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


def train():
    staged, whole = Staged(0 if smp.dp_rank() == 0 else 7), Whole(microbatches)  # all replicas get the first one's
    every = 2 if options.adds_up else options.every
    norms = []
    for number in range(4 * every):
        staged.backward(number)
        whole.backward(number)
        if (number + 1) % every == 0:
            norms.append(abs(staged.step() / whole.step() - 1).item() if options.clip else staged.step() + whole.step())
    model, named = staged.model, dict(whole.model.named_parameters())
    state = model.state_dict()
    fresh = made(3)
    fresh.load_state_dict(state)  # strictly
    embedding = fresh.get_input_embeddings().weight
    held = smp.allgather(bits(model), smp.WORLD)
    local = dict(model.local_named_parameters())
    tied = next(name for name, weight in named.items() if weight is whole.model.get_input_embeddings().weight)
    return {
        "difference": furthest(local, named),
        "whole": furthest(dict(fresh.named_parameters()), named),
        "names": list(state) == list(whole.model.state_dict()),
        "once": fresh.get_output_embeddings().weight is embedding
        and len({state[n].data_ptr() for n in same(state)}) == 1,
        "norm": max(float(norm) for norm in norms),
        "apart": apart(held),
        "holds": tied in local,
        "local": len(local) == len({id(weight) for weight in model.local_parameters()}),
        "collectives": staged.collectives,
        "state": sorted(staged.optimizer.state_dict()["state"]) == list(range(len(named))),
    }


def same(state):
    """The names of the tied weight."""
    embedding = state[next(name for name in state if "wte" in name or "embed_tokens" in name or "word_emb" in name)]
    return [
        name for name, tensor in state.items() if tensor.shape == embedding.shape and torch.equal(tensor, embedding)
    ]


def save():
    staged = Staged(0)
    for number in range(2):
        staged.backward(number)
        staged.step()
    smp.save_checkpoint(options.path, "2", partial=not options.whole, model=staged.model, optimizer=staged.optimizer)
    smp.barrier()
    return None


def resume():
    """Two steps more, from a checkpoint of any layout, beside a model that nothing has interrupted."""
    staged, whole = Staged(5), Whole(microbatches)
    for number in range(2):
        whole.backward(number, replicas=1)  # of the job that has saved
        whole.step()
    smp.resume_from_checkpoint(options.path, partial=not options.whole)
    for number in (2, 3):
        staged.backward(number)
        staged.step()
        whole.backward(number)
        whole.step()
    held = smp.allgather(bits(staged.model), smp.WORLD)
    return {
        "weights": equal(dict(staged.model.state_dict()), dict(whole.model.state_dict())),
        "optimizer": equal(staged.optimizer.state_dict()["state"], whole.optimizer.state_dict()["state"]),
        "apart": apart(held),
    }


microbatches = json.loads(os.environ["SM_HP_MP_PARAMETERS"])["microbatches"]
say(globals()[options.what]())
smp.barrier()
