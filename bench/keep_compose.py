"""Stands in for docker: `keep_compose.py FOLDER compose -f FILE up ..` keeps the job that the SDK's local mode wrote.

For each host FOLDER gets its /opt/ml tree and HOST.json, the compose file's entrypoint and environment. Nothing runs.
Runs under the SDK's own Python, which has yaml.
"""

import json
import shutil
import sys
from pathlib import Path, PurePosixPath

import yaml


def keep(compose: Path, folder: Path) -> None:
    for host, service in yaml.safe_load(compose.read_text())["services"].items():
        for volume in service["volumes"]:
            source, _, target = volume.removesuffix(":z").partition(":")
            place = folder / host / PurePosixPath(target).relative_to("/opt/ml")
            place.mkdir(parents=True, exist_ok=True)
            if Path(source).is_dir():
                shutil.copytree(source, place, dirs_exist_ok=True)
        kept = {"entrypoint": service["entrypoint"], "environment": service["environment"]}
        (folder / f"{host}.json").write_text(json.dumps(kept))


def main() -> int:
    folder, argv = Path(sys.argv[1]), sys.argv[2:]
    if argv[:2] == ["compose", "version"]:
        print("Docker Compose version v2.0.0")
    elif argv[:2] == ["compose", "-f"]:
        keep(Path(argv[2]), folder)
    else:
        sys.exit(f"docker {argv} is not expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
