"""What a user says of the engine, the program and its folder beside the distribution: it reaches the plan or is refused."""

from __future__ import annotations

import json

import pytest

from algorun.common.errors import UserError
from tests.conftest import OPEN_MPI

from .distributions import made, read, write


def test_options_for_mpirun_arrive_before_the_program(tmp_path):
    raw = {
        "sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_custom_mpi_options": json.dumps("-verbose --NCCL_DEBUG WARN -x 'GREETING=a b'"),
    }  # fmt: skip
    starter = made(read(write(tmp_path, raw))).hosts[0].starter
    at = starter.index("-verbose")
    assert starter[at : at + 5] == ("-verbose", "-x", "NCCL_DEBUG=WARN", "-x", "GREETING=a b")
    assert at < starter.index("/algorun/rank_exec.py")


@pytest.mark.parametrize("word", ["--mca", "-mca", "--gmca"])
def test_the_users_mca_parameter_takes_the_place_of_ours(word, tmp_path):
    """AWS's documentation recommends this very one; mpirun ends at a parameter that it is given twice."""
    raw = {
        "sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_custom_mpi_options": json.dumps(f"{word} btl_vader_single_copy_mechanism cma -x btl"),
    }  # fmt: skip
    starter = made(read(write(tmp_path, raw))).hosts[0].starter
    at = starter.index("btl_vader_single_copy_mechanism")
    assert starter[at - 1 : at + 2] == (word, "btl_vader_single_copy_mechanism", "cma")
    assert starter.count("btl_vader_single_copy_mechanism") == 1
    assert "btl_tcp_if_include" in starter
    assert starter[starter.index("btl") - 1] == "--mca", "a variable of that name is no parameter"


@pytest.mark.parametrize(
    ("major", "options", "ours"),
    [
        (5, "--mca oob_tcp_if_include eth1", "prte_if_include"),
        (5, "--prtemca prte_if_include eth1", "prte_if_include"),
        (4, "--mca oob_tcp_if_include eth1", "oob_tcp_if_include eth0"),
        (5, "--bind-to core", "--bind-to none"),
        (4, "-bind-to core", "--bind-to none"),
        (5, "--map-by node", "--map-by slot"),
    ],
)
def test_what_the_user_says_by_another_name_takes_the_place_of_ours_too(major, options, ours, tmp_path):
    """Open MPI 5 ends at an option that is there twice."""
    raw = {"sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true"}
    raw["sagemaker_mpi_custom_mpi_options"] = json.dumps(options)
    line = " ".join(made(read(write(tmp_path, raw)), openmpi=OPEN_MPI[major]).hosts[0].starter)
    assert line.count(options) == 1
    assert ours not in line.replace(options, "")


def test_torchrun_meets_elsewhere_than_its_ranks_where_they_count_hosts(tmp_path):
    """A script that sets MASTER_PORT itself would wait for ever in torchrun's own store."""
    raw = {"sagemaker_program": '"train.py"', "algorun_engine": "torchrun"}
    ranks = made(read(write(tmp_path, raw)))
    hosts = made(read(write(tmp_path / "hosts", {**raw, "algorun_per_host": "true"})))
    assert (ranks.keeps_contract, hosts.keeps_contract) == (True, False)
    for made_plan, ours in ((ranks, True), (hosts, False)):
        contract = {variable.name: variable.value for variable in made_plan.contract}
        assert (f"--master-port={contract['MASTER_PORT']}" in made_plan.hosts[0].starter) == ours
        assert contract["TORCHELASTIC_USE_AGENT_STORE"] == "False"


@pytest.mark.parametrize(
    "option",
    [
        "-np 3",
        "--host a",
        "-hostfile=x",
        "--mca plm_rsh_agent ssh",
        "-mca plm slurm",
        "--prtemca plm_ssh_agent ssh",
        "--prtemca prte_ssh_agent ssh",
    ],
)
def test_options_that_contradict_the_plan_are_refused(option, tmp_path):
    raw = {"sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true"}
    raw["sagemaker_mpi_custom_mpi_options"] = json.dumps(option)
    with pytest.raises(UserError, match="contradicts the plan"):
        made(read(write(tmp_path, raw)))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("8 5 --batch_size 32", ["8", "5", "--batch_size", "32"]),
        ('"8 5"', ["8", "5"]),
        ('["a b", 3, true]', ["a b", "3", "True"]),
        ("trainer.max_epochs=10 'x y=1'", ["trainer.max_epochs=10", "x y=1"]),
        ("7", ["7"]),
        ('""', []),
    ],
)
def test_the_command_line_mode_replaces_hyperparameters(args, expected, tmp_path):
    job = read(write(tmp_path, {"sagemaker_program": '"train.py"', "lr": "1", "algorun_args": args}))
    assert list(job.entry.args) == expected


def test_the_working_folder_can_be_chosen(tmp_path):
    base = write(tmp_path, {"sagemaker_program": '"train.py"', "algorun_cwd": '"sub"'})
    (base / "code" / "sub").mkdir()
    job = read(base)
    assert job.entry.cwd == str(base / "code" / "sub")
    assert job.entry.argv("python") == ("python", "-u", str(base / "code" / "train.py"))


def test_the_code_stays_on_the_module_path_of_a_job_that_works_elsewhere(tmp_path):
    raw = {"sagemaker_program": '"package.train"', "algorun_cwd": f'"{tmp_path}/checkpoints"'}
    base = write(tmp_path / "ml", raw)
    (base / "code" / "package").mkdir()
    (base / "code" / "package" / "train.py").write_text("pass")
    (tmp_path / "checkpoints").mkdir()
    plan_ = made(read(base, PYTHONPATH="/before"))
    assert (plan_.cwd, plan_.argv) == (str(tmp_path / "checkpoints"), ("python", "-u", "-m", "package.train"))
    assert [v.value for v in plan_.env if v.name == "PYTHONPATH"] == [f"{base}/code:/before"]
