"""mpi-basics under a real mpirun, and its plain refusal without one."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import needs_mpi
from tests.train.training_runs import ROOT, clean_environ


def mpirun(tmp_path, ranks, *words):
    environ = clean_environ(tmp_path) | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--oversubscribe", "-np", str(ranks), sys.executable, *words]
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60)


class TestUnderMpirun:
    pytestmark = needs_mpi

    @pytest.mark.slow(but=["2"])
    @pytest.mark.parametrize("ranks", [1, 2, 6])
    def test_all_exercises_are_checked(self, tmp_path, ranks):
        done = mpirun(tmp_path, ranks, "-m", "algorun_train.jobs.mpi_basics", "--size", "10")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("check: ") == 3
        assert f"a token went round {ranks} ranks and came back as {sum(range(ranks))}" in done.stdout
        assert json.loads((tmp_path / "output" / "data" / "summary.json").read_text()) == {"checks": 3}

    def test_a_wrong_result_on_one_rank_ends_all_with_an_error(self, tmp_path):
        program = (
            "import algorun_train.jobs.mpi_basics as m\n"
            "def wrong(world, size):\n"
            "    if world.rank == 1: m.expect('the answer', 41, 42)\n"
            "    world.recv(source=1, tag=77)\n"  # the others wait for what never comes
            "m.EXERCISES = (wrong,)\n"
            "m.main([])\n"
        )
        done = mpirun(tmp_path, 3, "-c", program)
        assert done.returncode == 1
        assert "WrongResult: the answer: got 41, expected 42" in done.stderr
        assert not (tmp_path / "output").exists()


def test_without_mpirun_it_says_what_it_needs(tmp_path):
    environ = {k: v for k, v in clean_environ(tmp_path).items() if not k.startswith(("OMPI_", "PMI"))}
    environ |= {"RANK": "0", "WORLD_SIZE": "2"} | {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "algorun_train.jobs.mpi_basics"]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 64
    assert done.stderr.startswith("error: mpi-basics was not started by mpirun")
    assert "--engine mpirun" in done.stderr
    assert len(done.stderr.splitlines()) == 1
