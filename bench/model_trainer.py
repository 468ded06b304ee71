"""What ModelTrainer of SDK v3 leaves for each host: the SDK writes it in its local mode, keep_compose.py takes it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "sdk"))

from sdk_environment import PYTHON, environment  # noqa: E402

LIMIT_S = 180.0
SDK = PYTHON["v3"]


def job(
    folder: Path, program: str, hosts: int, image: str, options: Mapping[str, Any]
) -> tuple[Path, dict[str, str], dict[str, str]]:
    """The folder of all hosts' /opt/ml trees, each host's command, the environment of all. `options` are ModelTrainer's."""
    source, root, trees, shim = (folder / name for name in ("source", "root", "trees", "shim"))
    for path in (source, root, trees, shim):
        path.mkdir(parents=True)
    (source / "program.py").write_text(program)
    docker = shim / "docker"
    docker.write_text(f'#!/bin/sh\nexec {shlex.join([str(SDK), str(HERE / "keep_compose.py"), str(trees)])} "$@"\n')
    docker.chmod(0o755)
    environ = environment(folder / "client", "v3")
    environ["PATH"] = f"{shim}:{environ['PATH']}"
    wish = {"kind": "ModelTrainer", "image": image, "hosts": hosts, "source": str(source), "root": str(root)}
    asked, answered = folder / "job.json", folder / "result.json"
    asked.write_text(json.dumps({**wish, "options": options}))
    argv = [str(SDK), str(HERE.parent / "tests" / "sdk" / "v3.py"), str(asked), str(answered)]
    done = subprocess.run(
        argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
    )
    result = json.loads(answered.read_text()) if answered.exists() else {"ok": False, "error": done.stderr.decode()}
    if not result["ok"]:
        sys.exit(f"SDK v3 with {dict(options)}: {result['error']}")
    kept = {path.stem: json.loads(path.read_text()) for path in sorted(trees.glob("*.json"))}
    commands = {host: shlex.join(one["entrypoint"]) for host, one in kept.items()}
    variables = dict(pair.split("=", 1) for pair in next(iter(kept.values()))["environment"])
    return trees, commands, variables
