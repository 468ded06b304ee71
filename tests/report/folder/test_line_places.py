"""The step or epoch that a line names."""

from __future__ import annotations

import math

import pytest

from algorun_report.folder.line_places import LinePlace, place_of
from algorun_report.run_report import MetricPlace

STEP, EPOCH, NONE = MetricPlace.STEP, MetricPlace.EPOCH, MetricPlace.NONE


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("[0 algo-1] step: 50/240 epoch: 5/20 train_loss: 1.6", LinePlace(STEP, 50, 5)),
        ("[0 algo-1] epoch: 5/20 train_loss: 0.9 val_loss : 0.5", LinePlace(EPOCH, 5)),
        ("train_loss: 0.9", LinePlace(NONE)),
        ("step 7 loss 0.5", LinePlace(STEP, 7)),
        ("step=7, loss=0.5", LinePlace(STEP, 7)),
        ("Epoch [3/10], Step [ 70/600], Loss: 0.5", LinePlace(STEP, 70, 3)),
        ("{'loss': 0.5, 'step': 7}", LinePlace(STEP, 7)),
        ("{'loss': 0.5, 'epoch': 1.25}", LinePlace(EPOCH, 1.25)),
        ("global_step: 12 loss: 3", LinePlace(STEP, 12)),
        ("iter 120: loss 2.5, time 300ms", LinePlace(STEP, 120)),
        ("Iteration: 3 loss=1", LinePlace(STEP, 3)),
        ("Epoch: [4][ 10/100]  Loss 6.9", LinePlace(EPOCH, 4)),
        ("checkpoint: /opt/ml/checkpoints/step-00000048 loss: 1", LinePlace(NONE)),
        ("step: 0.35 s loss: 1", LinePlace(NONE)),
        ("step: 35ms loss: 1", LinePlace(NONE)),
        ("step 35 ms loss: 1", LinePlace(NONE)),
        ("epoch: 12 s loss: 1", LinePlace(NONE)),
        ("0.0947 s a step, loss: 1", LinePlace(NONE)),
        ("timestep: 3 last_step: 4 loss: 1", LinePlace(NONE)),
        ("step: 99999999999999999999 loss: 1", LinePlace(NONE)),
    ],
)
def test_the_place_of_a_line(line, place):
    found = place_of(line)
    assert (found.kind, found.number) == (place.kind, place.number)
    assert found.epoch == place.epoch or (math.isnan(found.epoch) and math.isnan(place.epoch))
