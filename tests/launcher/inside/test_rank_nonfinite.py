"""What a rank finds that is not finite, with torch's own optimizers, and what it leaves alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from algorun.inside import rank_nonfinite
from algorun.inside.rank_nonfinite import GRADIENT, LOSS, WEIGHT, Clip, NonFinite

NAN = math.nan


class Watched:
    """A model, its optimizer, and what is found while it trains."""

    def __init__(self, *, model: nn.Module | None = None, every: int = 1) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.found = []
        self.watch = NonFinite(lambda: -1, self.found.append)
        self.every = every
        self.optimizer = self.follow(torch.optim.Adam(self.model.parameters(), lr=1e-2))

    def follow(self, optimizer):
        hook = rank_nonfinite.step_hook(self.watch)

        def before(*arguments):
            self.watch._every = self.every  # however long a norm takes on this machine
            return hook(*arguments)

        optimizer.register_step_pre_hook(before)
        return optimizer

    def backward(self, factor=1.0):
        loss = self.model(torch.randn(3, 4)).square().mean() * factor
        self.watch.note_loss(loss)
        loss.backward()

    def step(self, factor=1.0):
        self.backward(factor)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def told(self):
        return [(each.step, each.of, each.value, each.names) for each in self.found]


def test_a_healthy_training_is_left_alone():
    watched = Watched()
    for _ in range(20):
        watched.step()
    assert watched.found == []


@pytest.mark.parametrize("every", [1, 1000])
def test_a_loss_is_found_in_its_step_however_rare_the_norms_are(every):
    watched = Watched(every=every)
    for step in range(1, 8):
        watched.step(NAN if step == 4 else 1.0)
    assert watched.told == [(4, LOSS, "nan", [])]
    assert watched.found[0].earliest == 4


@pytest.mark.parametrize(("value", "word"), [(NAN, "nan"), (math.inf, "inf"), (-math.inf, "inf")])
def test_a_gradient_is_named(value, word):
    watched = Watched()
    for step in range(1, 6):
        watched.backward()
        if step == 3:
            watched.model[2].weight.grad[0, 1] = value
        watched.optimizer.step()
        watched.optimizer.zero_grad()
    assert watched.told == [(3, GRADIENT, word, ["2.weight"])]


def test_between_norms_the_weight_that_a_gradient_has_broken_is_named_with_its_step():
    watched = Watched(every=1000)
    for step in range(1, 6):
        watched.backward()
        if step == 3:
            watched.model[2].weight.grad[0, 1] = NAN
        watched.optimizer.step()
        watched.optimizer.zero_grad()
    assert watched.told == [(3, WEIGHT, "nan", ["2.weight"])]
    assert watched.found[0].earliest == 3


@pytest.mark.parametrize("every", [1, 1000])
def test_the_state_of_the_optimizer_breaks_a_weight(every):
    watched = Watched(every=every)
    for step in range(1, 6):
        watched.backward()
        if step == 3:
            watched.optimizer.state[watched.model[0].bias]["exp_avg"][2] = NAN
        watched.optimizer.step()
        watched.optimizer.zero_grad()
    assert watched.told == [(3, WEIGHT, "nan", ["0.bias"])]


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize(
    ("broken", "told"),
    [("loss", (4, LOSS, "nan", [])), ("gradient", (4, GRADIENT, "nan", ["2.weight"])), ("state", (4, WEIGHT, "nan", ["2.weight"]))],
)  # fmt: skip
def test_what_a_closure_computes_belongs_to_the_step_that_calls_it(broken, told, by_name):
    """Lightning gives each step a closure, which computes loss and gradients."""
    watched = Watched()
    weight = watched.model[2].weight

    steps = []

    def closure():
        steps.append(broken if len(steps) == 3 else "")
        watched.optimizer.zero_grad()
        watched.backward(NAN if steps[-1] == "loss" else 1.0)
        if steps[-1] == "gradient":
            weight.grad[0] = NAN
        if steps[-1] == "state":
            watched.optimizer.state[weight]["exp_avg"][0] = NAN
        return torch.tensor(0.5)

    for _ in range(7):
        value = watched.optimizer.step(closure=closure) if by_name else watched.optimizer.step(closure)
        assert value == 0.5
    assert watched.told == [told]


def test_an_optimizer_that_tries_several_weights_in_one_step_may_try_bad_ones():
    watched = Watched()
    optimizer = watched.follow(torch.optim.LBFGS(watched.model.parameters(), max_iter=4))
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = watched.model(torch.ones(3, 4)).square().mean()
        watched.watch.note_loss(loss * (NAN if len(calls) == 3 else 1.0))
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert len(calls) > 3
    assert watched.found == []


def test_weights_that_are_broken_from_the_start_are_of_no_step():
    watched = Watched()
    with torch.no_grad():
        watched.model[0].weight[0] = NAN
    watched.step()
    assert watched.told == [(0, WEIGHT, "nan", ["0.weight"])]


def test_what_no_loss_tells_is_found_at_the_next_norms_between_two_steps():
    watched = Watched(every=4)
    for step in range(1, 12):
        watched.model(torch.randn(3, 4)).mean().backward()  # such as an inner stage of a pipeline: no loss is seen
        if step == 6:
            watched.model[0].weight.grad[0] = NAN
        watched.optimizer.step()
        watched.optimizer.zero_grad()
    ((step, of, _, _),) = watched.told
    assert of == WEIGHT
    assert watched.found[0].earliest <= 6 <= step


@pytest.fixture
def clip(monkeypatch):
    """torch's clip_grad_norm_ as a watched process sees it."""
    module = nn.utils.clip_grad
    original = module.clip_grad_norm_

    def watched_by(watch):
        Clip(watch).replace(module)
        return nn.utils.clip_grad_norm_

    monkeypatch.setattr(module, "clip_grad_norm_", original)
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", original)
    return watched_by


@pytest.mark.parametrize("foreach", [None, False])
def test_clipping_spreads_a_gradient_and_the_first_one_is_still_named_in_every_step(clip, foreach):
    watched = Watched(every=1000)
    clip_grad_norm = clip(watched.watch)
    for step in range(1, 6):
        watched.backward()
        if step == 4:
            watched.model[2].bias.grad[0] = NAN
        clip_grad_norm(watched.model.parameters(), 1.0, foreach=foreach)
        watched.optimizer.step()
        watched.optimizer.zero_grad()
    assert watched.told == [(4, GRADIENT, "nan", ["2.bias"])]


def test_clipping_gives_the_same_bits_and_the_same_norm(clip):
    watched = Watched()
    watched.model.append(nn.Linear(1, 1).double())  # gradients of two types
    watched.model[3].weight.grad = torch.ones(1, 1).double()
    watched.model[0].weight.grad, watched.model[2].bias.grad = torch.randn(8, 4), torch.randn(1)
    other = copy.deepcopy(watched.model)
    for mine, theirs in zip(watched.model.parameters(), other.parameters(), strict=True):
        theirs.grad = None if mine.grad is None else mine.grad.clone()
    plain = nn.utils.clip_grad_norm_(other.parameters(), 0.5)
    assert torch.equal(clip(watched.watch)(watched.model.parameters(), 0.5), plain)
    for mine, theirs in zip(watched.model.parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, theirs.grad)
    assert len(watched.watch._clipped.tensors) == 3
    assert nn.utils.clip_grad_norm_.__wrapped__.__name__ == "clip_grad_norm_"


def test_several_optimizers_and_passes_count_as_the_rank_counts_them():
    watched = Watched()
    second = watched.follow(torch.optim.SGD([extra := nn.Parameter(torch.ones(2))], lr=0.1))
    watched.model.extra = extra
    for step in range(1, 4):
        for turn in range(2):
            watched.backward(NAN if (step, turn) == (3, 0) else 1.0)
        extra.grad = torch.ones(2)
        watched.optimizer.step()
        second.step()
        watched.optimizer.zero_grad()
    assert watched.told == [(5, LOSS, "nan", [])], "each call of an optimizer is a step"


def test_parameters_without_gradients_complex_sparse_and_empty_ones_are_looked_at():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 2, sparse=True)
            self.waves = nn.Parameter(torch.ones(2, dtype=torch.complex64))
            self.empty, self.unused = nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(2))
            self.large = nn.Parameter(torch.full((4,), 3e38))

    for name in ("table.weight", "waves", None):
        odd = Odd()
        watched = Watched(model=odd)
        optimizer = watched.follow(torch.optim.SGD(odd.parameters(), lr=1e-3))
        loss = odd.table(torch.tensor([1, 3])).sum() + odd.waves.abs().sum() + (odd.large * 1e-38).sum()
        loss.backward()
        if name == "table.weight":
            odd.table.weight.grad._values()[0] = NAN
        if name == "waves":
            odd.waves.grad[1] = complex(1.0, NAN)
        optimizer.step()
        assert [each.names for each in watched.found] == ([[name]] if name else []), "the squares of 3e38 are too large"


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_is_no_finding(monkeypatch, fused):
    watched = Watched()
    watched.optimizer = watched.follow(torch.optim.Adam(watched.model.parameters(), lr=1e-2, fused=fused))
    monkeypatch.setattr(torch.amp.grad_scaler.GradScaler, "step", torch.amp.grad_scaler.GradScaler.step)
    rank_nonfinite.watch_scaler(torch.amp.grad_scaler, watched.watch)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = copy.deepcopy(watched.model.state_dict())
    for step in range(1, 4):
        loss = watched.model(torch.randn(3, 4)).square().mean()
        scaled = scaler.scale(loss) * (math.inf if step < 3 else 1.0)
        watched.watch.note_loss(scaled)
        scaled.backward()
        scaler.step(watched.optimizer)
        scaler.update()
        watched.optimizer.zero_grad()
        if step == 2:
            assert all(torch.equal(before[name], each) for name, each in watched.model.state_dict().items())
    assert watched.found == []
    assert scaler.get_scale() == 1.0


def test_norms_are_computed_so_rarely_that_they_cost_their_share():
    watch = NonFinite(lambda: -1, lambda _: None)
    optimizer = torch.optim.SGD([parameter := nn.Parameter(torch.randn(1_000_000))], lr=0.0)
    parameter.grad = torch.randn(1_000_000)
    looks = 0
    for _ in range(3000):
        since = watch._since
        watch.before_step(optimizer)
        looks += watch._since == 0
        assert watch._since <= since + 1
    assert 3 <= looks < 100, "a step of this loop takes microseconds"


def test_one_finding_is_all():
    watched = Watched()
    for _ in range(4):
        watched.step(NAN)
    assert len(watched.found) == 1


# -- steps that are left out ---------------------------------------------------------------------------------------------


def skipping(watched, **options):
    """Steps of this optimizer are left out where a gradient is not finite. This process is the only rank."""
    skips = rank_nonfinite.Skips(watched.watch)
    watched.optimizer = torch.optim.Adam(watched.model.parameters(), lr=1e-2, **options)
    watched.optimizer.register_step_pre_hook(rank_nonfinite.step_hook(watched.watch, skips))
    return skips


def test_a_step_that_is_left_out_changes_neither_weights_nor_moments(capsys):
    one, other = Watched(), Watched()
    skips = skipping(one)
    for step in range(1, 9):
        torch.manual_seed(step)
        one.backward(NAN if step in (3, 4, 6) else 1.0)
        one.optimizer.step()
        one.optimizer.zero_grad()
        torch.manual_seed(step)
        if step not in (3, 4, 6):
            other.step()
    assert (skips.steps, skips.row) == (3, 0)
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for key, value in other.optimizer.state[theirs].items():
            assert torch.equal(one.optimizer.state[ours][key], value)
    assert one.told[0][:2] == (3, LOSS), "the first value is named, as without it"
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "algorun: warning: step 3 is left out on all ranks, a gradient is not finite (the first one)",
        "algorun: warning: step 4 is left out on all ranks, a gradient is not finite (2 so far)",
    ]


def test_a_hundred_in_a_row_are_an_error():
    watched = Watched()
    skips = skipping(watched)
    for _ in range(99):
        watched.step(NAN)
    watched.step()
    for _ in range(99):
        watched.step(NAN)
    with pytest.raises(
        RuntimeError, match=r"^100 optimizer steps in a row were left out, .*: the model learns nothing$"
    ):
        watched.step(NAN)
    assert skips.steps == 199


def test_a_step_with_a_closure_is_left_out_too():
    watched = Watched()
    skips = skipping(watched)
    before = copy.deepcopy(watched.model.state_dict())

    def closure():
        watched.optimizer.zero_grad()
        watched.backward(NAN)

    watched.optimizer.step(closure)
    assert skips.steps == 1
    assert all(torch.equal(before[name], value) for name, value in watched.model.state_dict().items())


def test_what_a_scaler_leaves_out_is_its_own():
    watched = Watched()
    skips = skipping(watched, fused=True)
    watched.optimizer.found_inf = torch.ones(())
    watched.backward(NAN)
    watched.optimizer.step()
    assert skips.steps == 0


def test_gradients_in_half_precision_and_very_large_ones_are_finite():
    watched = Watched()
    skips = skipping(watched)
    watched.backward()
    for each in watched.model.parameters():
        each.grad = torch.full_like(each, 1e30)  # the sum of their squares is more than float32 can hold
    watched.optimizer.step()
    assert skips.steps == 0
