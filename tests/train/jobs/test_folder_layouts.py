"""The first step of models of Hugging Face folders: losses and gradients of every layout, up to eight ranks, are those of one process."""

import functools
from pathlib import Path

import pytest
import torch

from tests.train.model_folders import write_language_model, write_vit
from tests.train.training_runs import TRANSFORMERS, Ranks, load_once

load_once(
    *TRANSFORMERS, "transformers.models.qwen2.modeling_qwen2", "transformers.models.vit.modeling_vit", "tokenizers"
)
PROGRAM = str(Path(__file__).parents[1] / "programs" / "folder_step.py")
NO_DROPOUT = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
# ranks: names of layouts, with the ranks of a pipeline (0: no pipeline) and the ranks, or pipelines, that share weights
LAYOUTS = {
    "1": {"alone": "0,1"},
    "2": {"dp2": "0,1", "shard2": "0,2", "pp2": "2,1"},
    "4": {"dp4": "0,1", "shard4": "0,4", "shard2xdp2": "0,2", "pp2xdp2": "2,1", "pp4": "4,1", "pp2xshard2": "2,2"},
    "8": {"pp2xshard2xdp2": "2,2", "pp4xshard2": "4,2"},
}
KINDS = ("llama", "qwen2", "gpt2", "vit")
# The cut is the kind's, and what moves between ranks is the layout's: each kind, each layout.
CASES = [("gpt2", "2"), ("qwen2", "2"), ("gpt2", "4"), ("vit", "4"), ("llama", "8")]
LIMIT_S = 600  # a run has up to 12 steps
# The largest distance of a gradient from one process in the same precision, as a share of its norm. In bf16 units of sharding
# round other values than autocast does.
NEAR = {"float64": 1e-10, "float32": 1e-5, "bf16": 0.1}
NOTHING = 1e-6  # of the largest gradient's norm: below it a gradient is 0 but for rounding, as that of a bias of attention's keys


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """What ranks of a kind of model found: {words: {"loss", "gradients"}}."""

    @functools.cache
    def folder(kind):
        path = tmp_path_factory.mktemp(kind) / kind
        return (
            write_vit(path)
            if kind == "vit"
            else write_language_model(path, kind, **(NO_DROPOUT if kind == "gpt2" else {}))
        )

    @functools.cache
    def run(kind, group):
        base, world = tmp_path_factory.mktemp(f"{kind}-{group}"), int(group[0])
        layouts = LAYOUTS[group].values()
        words = [f"{layout},{precision}" for precision in precisions(kind, group) for layout in layouts]
        ranks = Ranks(base, 1, world, [str(folder(kind)), str(base / "found.pt"), *words], program=PROGRAM)
        try:
            assert ranks.codes(LIMIT_S) == [0] * world, "\n".join(map(ranks.text, range(world)))
        finally:
            ranks.kill()
        return torch.load(base / "found.pt", weights_only=True)

    return run


def precisions(kind, group):
    """float64 tells a wrong sum from rounding. What a layout does in the others is shown with one kind, up to four ranks."""
    if group == "1":
        return list(NEAR)
    return ["float64", "bf16"] if kind == "gpt2" and group in "24" else ["float64"]


def distances(step, reference):
    """Of each gradient, as a share of its norm in the reference."""
    one, other = reference["gradients"], step["gradients"]
    assert one.keys() == other.keys()
    largest = max(float(gradient.norm()) for gradient in one.values())
    return {
        name: float((other[name].double() - gradient.double()).norm()) / float(gradient.norm())
        for name, gradient in one.items()
        if float(gradient.norm()) > NOTHING * largest
    }


# `make test` takes one step of three kinds of models in test_ddp_tensor.py.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "group"), CASES)
def test_a_layout_computes_the_loss_and_the_gradients_of_one_process(steps, kind, group):
    alone, found = steps(kind, "1"), steps(kind, group)
    for name, layout in LAYOUTS[group].items():
        for precision in precisions(kind, group):
            case, near = f"{name} in {precision}", NEAR[precision]
            one, other = alone[f"0,1,{precision}"], found[f"{layout},{precision}"]
            far = distances(other, one)
            worst = max(far, key=far.__getitem__)
            print(f"{kind} {case}: {far[worst]:.1e} {worst}, loss {abs(other['loss'] / one['loss'] - 1):.1e}")
            assert far[worst] < near, (case, worst)
            assert other["loss"] == pytest.approx(one["loss"], rel=1e-12 if precision == "float64" else near), case


@pytest.mark.slow(but=["gpt2"])
@pytest.mark.parametrize("kind", KINDS)
def test_bf16_changes_gradients_and_not_much(steps, kind):
    alone = steps(kind, "1")
    worst = max(distances(alone["0,1,bf16"], alone["0,1,float32"]).values())
    print(f"{kind} bf16: {worst:.1e}")
    assert 1e-4 < worst < 0.1
