"""Writes its own arguments down, exactly."""

import json
import os
import sys
from pathlib import Path

Path(os.environ["SAGEMAKER_BASE_DIR"], f"argv-{os.environ['RANK']}.json").write_text(json.dumps(sys.argv[1:]))
