"""A processing script: counts the lines of its inputs, one result for each host."""

import argparse
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--factor", type=int, default=1)
arguments = parser.parse_args()

lines = [line for path in Path("/opt/ml/processing/input/data").iterdir() for line in path.read_text().splitlines()]
config = json.loads(Path("/opt/ml/config/resourceconfig.json").read_text())
host = config["current_host"]
rank = int(os.environ.get("RANK", config["hosts"].index(host)))
result = {
    "lines": len(lines) * arguments.factor,
    "rank": rank,
    "host": host,
    "world_size": int(os.environ.get("WORLD_SIZE", len(config["hosts"]))),
    "launched_by": "algorun" if "GROUP_RANK" in os.environ else "nobody",
}
Path(f"/opt/ml/processing/output/{host}.json").write_text(json.dumps(result))
print(f"processed {len(lines)} lines on {host}")
