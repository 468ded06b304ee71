"""Hyperparameters in typed groups: decoded and checked once."""

from __future__ import annotations

import pytest

from algorun.common.errors import UserError
from algorun.job.engine import Engine
from algorun.job.hyperparameter_groups import Hyperparameters, OwnKeys


def test_each_key_goes_to_its_group_decoded():
    found = Hyperparameters.parse(
        {
            "sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true", "sagemaker_extra": "[1]",
            "sagemaker_mpi_num_of_processes_per_host": "2", "sagemaker_mpi_custom_mpi_options": "\"-x 'A=1 2'\"",
            "algorun_engine": "torchrun", "algorun_slots": "3", "algorun_args": '["a b", 3]', "b": "007", "a": "0.10",
            "_tuning_objective_metric": "loss",
        }
    )  # fmt: skip
    assert found.platform.program == "train.py"
    assert found.platform.distributions == ("sagemaker_mpi_enabled",)
    assert found.platform.processes_per_host == 2
    assert found.platform.mpi_options == ("-x", "A=1 2")
    assert found.platform.decoded["sagemaker_extra"] == [1]
    assert found.own == OwnKeys(Engine.TORCHRUN, 3, None, per_host=False, args=("a b", "3"), cwd="")
    assert list(found.user.items()) == [("b", "007"), ("a", 0.1)]


def test_values_of_a_tuner_stand_in_the_words_as_they_came():
    raw = {
        "algorun_args": '["--lr", "{tuned:lr}", "--note={tuned:note}/{tuned:note}", "{tuned:other}"]',
        "algorun_tuned": '["lr", "note"]', "lr": "0.10", "note": '"a b"',
    }  # fmt: skip
    found = Hyperparameters.parse(raw)
    assert found.own.args == ("--lr", "0.10", '--note="a b"/"a b"', "{tuned:other}")
    assert found.user == {"lr": 0.1, "note": "a b"}
    without = {key: value for key, value in raw.items() if key != "lr"}
    with pytest.raises(UserError, match="algorun_tuned: the job has no hyperparameter 'lr'"):
        Hyperparameters.parse(without)


def test_processes_count_only_where_a_distribution_is_on():
    raw = {"sagemaker_mpi_num_of_processes_per_host": "two"}
    assert Hyperparameters.parse(raw).platform.processes_per_host is None
    with pytest.raises(UserError, match="'two' is not a whole number"):
        Hyperparameters.parse({**raw, "sagemaker_pytorch_ddp_enabled": "true"})


@pytest.mark.parametrize(("text", "groups"), [("null", None), ("[]", ()), ('["gpu"]', ("gpu",))])
def test_instance_groups_are_absent_or_names(text, groups):
    raw = {"sagemaker_distribution_instance_groups": text}
    assert Hyperparameters.parse(raw).platform.instance_groups == groups
    assert Hyperparameters.parse({}).platform.instance_groups is None
