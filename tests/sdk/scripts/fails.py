"""Every host saves something; then the last one raises, while the others wait for it."""

import json
import os
import time

import facts

hosts = json.loads(os.environ["SM_HOSTS"])
rank = hosts.index(os.environ["SM_CURRENT_HOST"])
facts.write(rank, world_size=len(hosts))
if rank == 0:
    facts.save_model(step=3)
time.sleep(5)
if rank == len(hosts) - 1:
    raise ValueError("bad batch 17")
time.sleep(900)
