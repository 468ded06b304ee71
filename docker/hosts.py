"""Writes /opt/ml trees as SageMaker prepares them, one for each host. Standard library only.

    python3 docker/hosts.py FOLDER --hosts algo-1,algo-2 [--hyperparameters 'epochs=3 lr=0.001'] [--channel train]

FOLDER/<host> is to be mounted as /opt/ml of that host. Inputs are written anew; what an earlier run left in `model`
and `output` goes, because SageMaker starts every job without; `code`, `checkpoints` and `input/data` stay.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def resource_config(host: str, hosts: Sequence[str], interface: str) -> dict[str, object]:
    """The content of resourceconfig.json on one host; the order of `hosts` is the order of the ranks."""
    return {"current_host": host, "hosts": list(hosts), "network_interface_name": interface}


def input_data_config(channels: Sequence[str]) -> dict[str, object]:
    """The content of inputdataconfig.json: channels whose files were copied before the start."""
    return {
        channel: {
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        }
        for channel in channels
    }


def write_host(
    folder: Path,
    host: str,
    hosts: Sequence[str],
    hyperparameters: Mapping[str, str],
    channels: Sequence[str] = (),
    interface: str = "eth0",
) -> Path:
    """Writes the tree of one host under `folder` and returns its path, the /opt/ml of that host."""
    root = folder / host
    for name in ("model", "output"):
        if (root / name).is_dir():
            shutil.rmtree(root / name)
    for name in ("input/config", "input/data", "model", "output/data", "code", "checkpoints"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for channel in channels:
        (root / "input/data" / channel).mkdir(exist_ok=True)
    files = {
        "resourceconfig.json": resource_config(host, hosts, interface),
        "hyperparameters.json": dict(hyperparameters),
        "inputdataconfig.json": input_data_config(channels),
    }
    for name, content in files.items():
        (root / "input/config" / name).write_text(json.dumps(content, indent=2) + "\n")
    return root


def parse_hyperparameters(text: str) -> dict[str, str]:
    """`'epochs=3 lr=0.001'` as {"epochs": "3", "lr": "0.001"}; quotes as in a shell. ValueError without a `=`."""
    pairs: dict[str, str] = {}
    for word in shlex.split(text):
        key, sign, value = word.partition("=")
        if not (key and sign):
            raise ValueError(f"hyperparameter '{word}': it is written NAME=VALUE, for example epochs=3")
        pairs[key] = value
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--hosts", required=True, help="names, with commas: algo-1,algo-2")
    parser.add_argument("--hyperparameters", default="", metavar="'NAME=VALUE ..'")
    parser.add_argument("--channel", action="append", default=[], help="an input channel (repeatable)")
    parser.add_argument("--interface", default="eth0", help="network interface of the hosts (default: eth0)")
    arguments = parser.parse_args()
    hosts = [host for host in arguments.hosts.split(",") if host]
    if not hosts or len(set(hosts)) != len(hosts):
        parser.error(f"--hosts '{arguments.hosts}': names separated by commas, each once")
    try:
        hyperparameters = parse_hyperparameters(arguments.hyperparameters)
    except ValueError as error:
        parser.error(str(error))
    for host in hosts:
        root = write_host(arguments.folder, host, hosts, hyperparameters, arguments.channel, arguments.interface)
        print(f"prepared {root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
