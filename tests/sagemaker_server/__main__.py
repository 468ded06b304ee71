"""Starts the server: see the package."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer
from werkzeug.serving import make_server

from algorun_client.aws.s3_store import S3Store
from algorun_client.local.docker_engine import DockerEngine
from algorun_client.local.job_folder import LocalSettings
from algorun_client.local.log_reading import LocalLogs
from algorun_client.local.platform import LocalPlatform

from . import rights
from .app import App
from .faults import Faults
from .host_figures import PublishedFigures
from .late_logs import LateLogs
from .registry import Registry
from .tuning import Tuning

HOST = "127.0.0.1"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sagemaker_server")
    parser.add_argument("--root", type=Path, required=True, help="folder for jobs and logs")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--stop-grace-s", type=float, default=120.0, help="from SIGTERM to SIGKILL")
    parser.add_argument("--sync-s", type=float, default=0.5, help="between two copies of a checkpoint folder")
    parser.add_argument("--docker", action="store_true", help="the hosts are containers of the image that a job names")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {**KEYS, "AWS_EC2_METADATA_DISABLED": "true"}  # the runners of the jobs get them too
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    rights.allow_everything()
    moto = ThreadedMotoServer(HOST, 0, verbose=False)
    moto.start()
    moto_url = f"http://{HOST}:{moto.get_host_and_port()[1]}"
    store = S3Store(boto3.client("s3", endpoint_url=moto_url, region_name=options.region))
    settings = LocalSettings(stop_grace_s=options.stop_grace_s, sync_s=options.sync_s)
    root = options.root.absolute()
    faults = Faults()
    figures = PublishedFigures(root, boto3.client("cloudwatch", endpoint_url=moto_url, region_name=options.region))
    engine = DockerEngine.chosen(os.environ) if options.docker else None
    platform = LocalPlatform(root, store, settings, strict=True, engine=engine)
    tuning = Tuning(platform, LocalLogs(root))
    app = App(platform, LateLogs(LocalLogs(root), faults), faults, Registry(moto_url), figures, tuning)
    server = make_server(HOST, options.port, app, threaded=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"http://{HOST}:{server.server_port}", flush=True)
    print(moto_url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
