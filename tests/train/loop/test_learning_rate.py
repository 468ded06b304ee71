"""The learning rate of each step: warm-up, decay per epoch, scaling with the global batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.loop.learning_rate import learning_rate_schedule
from algorun_train.options.job_options import DdpJobOptions


def rates(**options):
    return learning_rate_schedule(DdpJobOptions(**options), global_batch=options.pop("global_batch", 1024))


def test_warm_up_then_decay_per_epoch():
    plan = rates(lr=0.1, warmup_epochs=2, gamma=0.5)
    assert plan.at(0, 0.5) == pytest.approx(0.025)
    assert plan.at(1, 2.0) == pytest.approx(0.1 * 0.5)
    assert plan.at(3, 3.1) == pytest.approx(0.1 * 0.125)


def test_gamma_is_steplr_of_torch():
    plan = rates(lr=0.3, warmup_epochs=0, gamma=0.7)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    theirs = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(5):
        assert plan.at(epoch, epoch + 0.5) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_linear_scaling_of_goyal():
    plan = rates(lr=0.1, scale_lr=True, warmup_epochs=5, gamma=1.0)  # global batch 1024, reference 256
    assert plan.peak == pytest.approx(0.4)
    assert plan.at(0, 1e-9) == pytest.approx(0.1)
    assert plan.at(2, 2.5) == pytest.approx(0.25)
    assert plan.at(7, 7.5) == pytest.approx(0.4)


@given(st.floats(0, 30), st.floats(0.01, 5))
def test_the_rate_never_leaves_its_bounds(progress, warmup):
    plan = rates(lr=0.1, warmup_epochs=warmup, gamma=0.9)
    assert 0 <= plan.at(int(progress), progress) <= 0.1
