"""Hosts (or ranks) that end seconds apart; what each writes last must not be lost."""

import argparse
import json
import os
import sys
import time

import facts

parser = argparse.ArgumentParser()
parser.add_argument("--first", type=int, default=0, help="who ends first")
parser.add_argument("--seconds", type=float, default=5.0)
parser.add_argument("--fail-late", type=int, default=0)
arguments = parser.parse_args()

hosts = json.loads(os.environ["SM_HOSTS"])
rank = int(os.environ.get("RANK", hosts.index(os.environ["SM_CURRENT_HOST"])))
if rank != arguments.first:
    time.sleep(arguments.seconds)
    if arguments.fail_late:
        sys.exit("the last evaluation failed")
facts.write(rank, world_size=int(os.environ.get("WORLD_SIZE", len(hosts))))
if rank != arguments.first:
    facts.save_model(rank=rank)
print(f"rank {rank} done")
