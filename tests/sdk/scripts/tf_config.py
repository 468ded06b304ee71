"""Notes TF_CONFIG, which TensorFlow's MultiWorkerMirroredStrategy reads."""

import json
import os

import facts

config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]
facts.write(rank, tf_config=config)
print(f"worker {rank} of {len(config['cluster']['worker'])}")
