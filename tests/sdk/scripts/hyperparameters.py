"""Tells what arrived of the job's hyperparameters."""

import argparse
import json
import os

import facts

parser = argparse.ArgumentParser()
for name in ("text", "quoted", "number", "dollar"):
    parser.add_argument(f"--{name}")
arguments = parser.parse_args()
facts.write(0, parsed=vars(arguments), hps=json.loads(os.environ["SM_HPS"]), variable=os.environ["SM_HP_TEXT"])
facts.save_model(**vars(arguments))
