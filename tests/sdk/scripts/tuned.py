"""A job of a tuner: prints the objective, which is best at lr=0.1, and how many ranks there are."""

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--layers", type=int, required=True)
parser.add_argument("--optimizer", required=True)
parser.add_argument("--epochs", type=int, default=0)
options = parser.parse_args()
if os.environ.get("RANK", "0") == "0":
    print(f"layers={options.layers} optimizer={options.optimizer} epochs={options.epochs}", flush=True)
    print(f"world={os.environ.get('WORLD_SIZE')}", flush=True)
    print(f"val_loss={abs(options.lr - 0.1):.6f};", flush=True)
