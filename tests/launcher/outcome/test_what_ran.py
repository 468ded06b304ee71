"""What ran, for the report: the command line without secrets, software and hardware."""

from __future__ import annotations

import sys

from algorun.common import __version__
from algorun.common.fast_dataclasses import replace
from algorun.job.values import Sourced
from algorun.machine.nvidia import Nvidia
from algorun.outcome.what_ran import LONGEST_COMMIT, what_ran
from tests.conftest import job, machine


def test_the_command_line_has_no_secret_and_no_folder_of_the_job():
    config = job("script")
    words = ("--lr", "0.1", "--api-key", "sk-abcdefgh", "postgres://me:geheimnis@db/x")
    config = replace(config, entry=replace(config.entry, args=words))
    found = what_ran(config, machine(), sys.executable)
    assert found["command"] == "python -u train.py --lr 0.1 --api-key *** postgres://me:***@db/x"
    config = replace(config, entry=replace(config.entry, args=("--db", "{'api_key': 'geheimnis'")))
    assert "geheimnis" not in str(what_ran(config, machine(), sys.executable)["command"])
    assert found["versions"]["algorun"] == __version__
    assert found["engine"] == "native"


def test_the_commit_is_that_of_the_variable_which_nobody_makes_long():
    config = job("script")
    assert what_ran(config, machine(), sys.executable)["commit"] == ""
    given = replace(config.input, environ={**config.environ, "ALGORUN_CODE_COMMIT": "1a2b " + 5000 * "x"})
    told = what_ran(replace(config, input=given), machine(), sys.executable)["commit"]
    assert told.startswith("1a2b xx")
    assert len(told) == LONGEST_COMMIT


def test_gpus_are_counted_by_model_and_those_that_are_hidden_do_not_count():
    cards = Nvidia(devices=2, models=("NVIDIA A10G", "NVIDIA A10G"))
    host = replace(machine(), gpus=Sourced(2, "test"), nvidia=cards)
    assert what_ran(job("script"), host, sys.executable)["gpus"] == {"NVIDIA A10G": 2}
    assert what_ran(job("script"), replace(host, nvidia=Nvidia()), sys.executable)["gpus"] == {"GPU": 2}
    assert what_ran(job("script"), replace(host, gpus=Sourced(0, "CUDA_VISIBLE_DEVICES")), sys.executable)["gpus"] == {}


def test_a_package_of_the_job_s_own_environment_counts_more(tmp_path):
    own = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (own / "numpy-99.0.dist-info").mkdir(parents=True)
    versions = what_ran(job("script"), machine(), str(tmp_path / "bin" / "python"))["versions"]
    assert versions["numpy"] == "99.0"
