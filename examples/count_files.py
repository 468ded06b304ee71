"""Counts this host's shard of a Processing job's input."""

import json
import os
from pathlib import Path

found = sorted(path.name for path in Path("/opt/ml/processing/input").rglob("*") if path.is_file())
host = os.environ["SM_CURRENT_HOST"]
Path(f"/opt/ml/processing/output/{host}.json").write_text(json.dumps({"host": host, "files": found}))
print(f"{host}: {len(found)} files", flush=True)
