"""A processing job: writes the names of its host's shard."""

import json
import os
from pathlib import Path

ROOT = Path("/opt/ml/processing")
names = sorted(path.name for path in (ROOT / "input/data").iterdir())
(ROOT / "output" / f"{os.environ['SM_CURRENT_HOST']}.json").write_text(json.dumps(names))
