"""Runs a bundled job, and breaks something in it: `broken_job.py JOB WHAT RANK STEP OPTION ..`.

WHAT: loss, overflow, gradient, weight (the state of the optimizer).
"""

import os
import runpy
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

job, what, broken_rank, broken_step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
here = int(os.environ["RANK"]) == broken_rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
optimizers, made = [], [0]
make = torch.optim.Optimizer.__init__


def init(self, *args, **named):
    make(self, *args, **named)
    optimizers.append(self)


torch.optim.Optimizer.__init__ = init
register_optimizer_step_post_hook(lambda *_: made.__setitem__(0, made[0] + 1))
run = torch.autograd.backward


def second_weight():
    weights = [each for group in optimizers[-1].param_groups for each in group["params"] if each.dim() > 1]
    return weights[1]


def backward(tensors, *args, **named):
    now = here and made[0] + 1 == broken_step
    if now and what in ("loss", "overflow") and isinstance(tensors, torch.Tensor):
        tensors = tensors * (float("nan") if what == "loss" else 1e39)
    elif now and what in ("loss", "overflow") and tensors[0].numel() == 1:  # of a pipeline
        tensors = [tensors[0] * (float("nan") if what == "loss" else 1e39)]
    run(tensors, *args, **named)
    if now and what == "gradient" and second_weight().grad is not None:
        gradient = second_weight().grad
        getattr(gradient, "_local_tensor", gradient)[0] = float("nan")
    if now and what == "weight" and optimizers[-1].state:
        (moment,) = (
            value
            for key, value in optimizers[-1].state[second_weight()].items()
            if key in ("exp_avg", "momentum_buffer")
        )
        getattr(moment, "_local_tensor", moment)[0] = float("nan")


torch.autograd.backward = backward
sys.argv[1:5] = []
runpy.run_module(f"algorun_train.jobs.{job}", run_name="__main__", alter_sys=True)
