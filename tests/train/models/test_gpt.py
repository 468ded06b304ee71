"""The GPT: what goes in and out, that it sees no future, its weights at the start, sizes that do not fit."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from algorun_train.common.errors import UserError
from algorun_train.models.gpt import BYTES, GptSpec, build

SPEC = GptSpec(context=16, width=32, depth=3, heads=4)


def tokens(count=2, length=16, seed=0):
    return torch.randint(BYTES, (count, length), generator=torch.Generator().manual_seed(seed))


def test_every_token_gets_logits_and_samples_do_not_mix():
    model = build(SPEC, seed=0).eval()
    logits = model(tokens())
    assert logits.shape == (2, 16, BYTES)
    assert torch.allclose(model(tokens()[1:]), logits[1:], atol=1e-5)
    assert torch.allclose(model(tokens()[:, :5]), logits[:, :5], atol=1e-5)  # shorter than the context


@pytest.mark.parametrize("place", [0, 7, 15])
def test_a_token_changes_nothing_before_it_and_something_from_it_on(place):
    model = build(SPEC, seed=0).eval()
    given = tokens(1)
    other = given.clone()
    other[0, place] = (other[0, place] + 1) % BYTES
    one, two = model(given), model(other)
    assert torch.equal(one[:, :place], two[:, :place])
    assert not torch.allclose(one[:, place:], two[:, place:])


def test_positions_count():
    model = build(SPEC, seed=0).eval()
    same = torch.zeros(1, 16, dtype=torch.int64)
    logits = model(same)[0]
    assert not torch.allclose(logits[3], logits[4])


def test_it_begins_without_a_preference_and_with_gpt_2_s_spread():
    model = build(GptSpec(context=64, width=128, depth=8, heads=4), seed=0)
    given = tokens(4, 64)
    loss = functional.cross_entropy(model(given).flatten(0, 1), given.flatten())
    assert loss.item() == pytest.approx(math.log(BYTES), abs=0.15)
    spread = {name: p.std().item() for name, p in model.named_parameters() if p.dim() > 1}
    assert spread.pop("blocks.7.mlp.2.weight") == pytest.approx(0.02 / 4, rel=0.1)
    assert spread.pop("blocks.0.attention.out.weight") == pytest.approx(0.02 / 4, rel=0.1)
    assert all(s == pytest.approx(0.02, rel=0.1) for n, s in spread.items() if "out" not in n and "mlp.2" not in n)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))


def test_it_learns_a_line_by_heart():
    model = build(SPEC, seed=0)
    given = torch.tensor([list(b"a quick brown fox")])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = functional.cross_entropy(model(given[:, :-1]).flatten(0, 1), given[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_equal_seeds_give_equal_weights():
    one, two, other = (build(SPEC, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_the_head_shares_weights_only_where_that_is_asked_for():
    plain, tied = build(SPEC, 0), build(replace(SPEC, tied=True), 0)
    assert plain.head.weight is not plain.embed.tokens.weight
    assert tied.head.weight is tied.embed.tokens.weight
    count = [sum(p.numel() for p in model.parameters()) for model in (plain, tied)]
    assert count[0] - count[1] == BYTES * SPEC.width


def test_units_are_named_as_users_know_them():
    names = [name for name, _ in build(SPEC, 0).named_children()]
    assert names == ["embed", "blocks", "norm", "head"]
    assert [name for name, _ in build(SPEC, 0).blocks.named_children()] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"heads": 5}, r"--heads: 5 does not divide the width 128; allowed: 1, 2, 4, .* 128; fix"),
        ({"width": 0}, r"--width: 0; allowed: at least 1"),
        ({"context": -1}, r"--context: -1; allowed"),
        ({"depth": 0}, r"--depth: 0; allowed"),
        ({"dropout": 1.0}, r"--dropout: 1; allowed: at least 0 and below 1"),
    ],
)
def test_sizes_must_fit(sizes, text):
    with pytest.raises(UserError, match=text):
        GptSpec(**sizes)


def test_a_spec_says_what_it_is():
    described = SPEC.as_dict()
    assert described.pop("model") == "gpt"
    assert GptSpec(**described) == SPEC
