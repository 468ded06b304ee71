"""SageMaker's metric_definitions for the metrics that the bundled entrypoints print, and for the figures of the closing
table (timing/table.py). Users rely on their names."""

from __future__ import annotations

NUMBER = r"([0-9\.]+)"

# Users of AWS's examples have the regular expressions of the two losses already, so the space in "val_loss :" must stay.
PRINTED = [
    {"Name": "train:loss", "Regex": f"train_loss: {NUMBER}"},
    {"Name": "validation:loss", "Regex": f"val_loss : {NUMBER}"},
    {"Name": "validation:accuracy", "Regex": f"val_accuracy: {NUMBER}"},
    {"Name": "train:images_per_s", "Regex": f"images_per_s: {NUMBER}"},
    {"Name": "train:sequences_per_s", "Regex": f"sequences_per_s: {NUMBER}"},
    {"Name": "train:perplexity", "Regex": f"train_perplexity: {NUMBER}"},
    {"Name": "validation:perplexity", "Regex": f"val_perplexity: {NUMBER}"},
    {"Name": "train:tokens_per_s", "Regex": f"tokens_per_s: {NUMBER}"},
    {"Name": "train:learning_rate", "Regex": f"learning_rate: {NUMBER}"},
    {"Name": "train:data_wait", "Regex": f"data_wait: {NUMBER}"},
    {"Name": "train:peak_memory_mib", "Regex": f"peak_memory_mib: {NUMBER}"},
]
# The bundled entrypoints print the loss of training in two lines: the mean since the last report with a step, and the mean of
# an epoch. `train:loss` finds both, as AWS's examples read them: a curve of it jumps. These names have one each.
ONE_MEAN_EACH = [
    {"Name": "train:step_loss", "Regex": f"train_loss: {NUMBER} (?:learning_rate|train_perplexity)"},
    {"Name": "train:epoch_loss", "Regex": f"train_loss: {NUMBER} val_loss :"},
    {"Name": "train:step_perplexity", "Regex": f"train_perplexity: {NUMBER} learning_rate"},
    {"Name": "train:epoch_perplexity", "Regex": f"train_perplexity: {NUMBER} val_perplexity"},
]
# The leader prints them once, at the end of any job; shares in percent.
CLOSING = [
    {"Name": "job:goodput", "Regex": f"goodput {NUMBER}%, "},
    {"Name": "job:samples_per_s", "Regex": f"trained {NUMBER} samples/s"},
    {"Name": "job:mfu", "Regex": f"MFU {NUMBER}%"},
    {"Name": "job:data_wait", "Regex": f"data: ranks .*wait {NUMBER}% of the time"},
    {"Name": "job:cost", "Regex": f"cost {NUMBER}: [0-9]+ host"},
]
DEFINITIONS = [*PRINTED, *CLOSING, *ONE_MEAN_EACH]  # SageMaker takes 40: the last are left out first
