"""The metrics that the bundled entrypoints print, as SageMaker's metric_definitions. They are part of the interface."""

from __future__ import annotations

NUMBER = r"([0-9\.eE+-]+)"

# The first two regexes are those that users of AWS's examples have already; their spelling, space included, stays.
DEFINITIONS = [
    {"Name": "train:loss", "Regex": r"train_loss: ([0-9\.]+)"},
    {"Name": "validation:loss", "Regex": r"val_loss : ([0-9\.]+)"},
    {"Name": "validation:accuracy", "Regex": r"val_accuracy: ([0-9\.]+)"},
    {"Name": "train:images_per_s", "Regex": r"images_per_s: ([0-9\.]+)"},
    {"Name": "train:lr", "Regex": rf"lr: {NUMBER}"},
]
