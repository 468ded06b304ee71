"""Writes the rank's environment, arguments and folder as JSON to $SM_OUTPUT_DATA_DIR/rank-N.json."""

import json
import os
import sys

seen = {"env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path, "stdin": sys.stdin.read()}
with open(os.path.join(sys.argv[-1], f"rank-{os.environ['RANK']}.json"), "w") as out:
    json.dump(seen, out)
