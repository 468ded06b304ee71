"""The command line: plans, doctor, metric definitions, and one clear error for each bad input."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from algorun.commands import overview
from algorun.job import metric_definitions
from tests.conftest import FAILS_ALONE, TREES, algorun, clean_environ

EVERY_COMMAND = ", ".join((*overview.LAUNCHER, overview.REPORT, *overview.CLIENT))


def prepared(base, resources='{"hosts": ["algo-1"], "current_host": "algo-1"}', hyperparameters="{}", channels="{}"):
    folder = base / "input" / "config"
    folder.mkdir(parents=True)
    for name, text in (
        ("resourceconfig", resources),
        ("hyperparameters", hyperparameters),
        ("inputdataconfig", channels),
    ):
        if text is not None:
            (folder / f"{name}.json").write_text(text)
    return {"SAGEMAKER_BASE_DIR": str(base)}


DEEP = '{"a": ' + "[" * 500 + "]" * 500 + "}"  # Python itself reads it
BAD = [
    ({"resources": None}, "resourceconfig.json: the file is missing"),
    ({"resources": "{"}, "is not JSON: line 1 column 2"),
    ({"resources": '{"hosts": ["a"], "current_host": "b"}'}, "'b' is not in hosts; allowed: a"),
    ({"resources": '{"hosts": ["a", "a"], "current_host": "a"}'}, "a is named more than once"),
    ({"hyperparameters": "[1]"}, "hyperparameters.json: contains a JSON list"),
    ({"channels": '{"train": 1}'}, "inputdataconfig.json train: 1 is not an object"),
    (
        {"hyperparameters": '{"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "0"}'},
        "sagemaker_mpi_num_of_processes_per_host: 0 is not a whole number",
    ),
    ({"hyperparameters": '{"sagemaker_program": "gone.py"}'}, "'gone.py' does not exist"),
    (
        {"resources": DEEP},
        "resourceconfig.json: is not usable JSON: nested deeper than 200 levels; allowed: a JSON object",
    ),
    ({"hyperparameters": DEEP}, "hyperparameters.json: is not usable JSON: nested deeper than 200 levels"),
    ({"channels": DEEP}, "inputdataconfig.json: is not usable JSON: nested deeper than 200 levels"),
    (
        {"hyperparameters": json.dumps({"sagemaker_mpi_enabled": "x" * 200_000})},
        "characters).. xxx",
    ),
]


@pytest.mark.parametrize(("files", "says"), BAD, ids=[says[:60] for _, says in BAD])
def test_bad_input_is_one_line_code_64_and_the_same_text_in_failure(files, says, tmp_path, nothing_left):
    environ = prepared(tmp_path / "ml", **files)
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **environ)
    assert done.code == 64, done.text
    (line,) = [line for line in done.err.splitlines() if line]
    assert line.startswith("algorun: error: ")
    assert says in line
    assert len(line) < 3000  # whatever a value holds
    failure = (tmp_path / "ml" / "output" / "failure").read_text()
    assert line.removeprefix("algorun: error: ") in failure
    assert not (tmp_path / "ml" / "output" / "success").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorun_args", "--token geheimnis 'open"),
        ("sagemaker_mpi_custom_mpi_options", "-x DB_PASS=geheimnis 'open"),
        ("sagemaker_mpi_enabled", '{"api_key": "geheimnis"}'),
    ],
)
def test_bad_input_is_told_without_secrets(key, value, tmp_path, nothing_left):
    given = {"sagemaker_mpi_enabled": "true", "sagemaker_program": "train.py", key: value}
    environ = prepared(tmp_path / "ml", hyperparameters=json.dumps(given))
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **environ)
    assert done.code == 64, done.text
    assert f"hyperparameter {key}" in done.err
    for file in ("failure", "data/failure-full.txt"):
        text = (tmp_path / "ml" / "output" / file).read_text()
        assert "***" in text
        assert "geheimnis" not in text + done.text


def test_an_unknown_hyperparameter_of_a_bundled_entrypoint(tmp_path, nothing_left):
    environ = prepared(tmp_path / "ml", hyperparameters='{"epochz": "3"}')
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **environ)
    assert done.code == 64, done.text
    failure = (tmp_path / "ml" / "output" / "failure").read_text()
    assert failure.startswith("configuration: algo-1, exit 64: unknown option --epochz")
    assert "epochz" in failure
    assert "epochs" in failure
    assert list((tmp_path / "ml").glob("model/*")) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--slots", "0", "ddp"], "--slots: '0' is not a whole number from 1"),
        (["run", "-j", "2", "ddp"], "-j: '2' is not HOSTSxSLOTS"),
        (["simulate", "ddp"], "the number of hosts is missing"),
        (["simulate", "-j", "2x2"], "no program is named"),
        (["simulate", "-j", "2x2", "--channel", "train", "ddp"], "is not NAME=DIR"),
        (
            ["simulate", "-j", "2x2", "--channel", "train=/no/such", "ddp"],
            "'/no/such' in 'train=/no/such' is not a folder",
        ),
        (["simulate", "-j", "999x1", "ddp"], "999 hosts are too many for one machine"),
        (["plan", "--engine", "slurm", "ddp"], "'slurm' is not an engine"),
        (["plan", "-j", "2x2", "--slots", "3", "ddp"], "--slots: 3 cannot be combined with -j 2x2"),
        (["nonsense"], "'nonsense' is no command"),
        (["plan", "--hots", "3", "ddp"], "unrecognized|does not exist|arguments"),
    ],
)
def test_bad_options_are_one_line_and_code_64(arguments, says, tmp_path):
    done = algorun(*arguments, cwd=tmp_path, SAGEMAKER_BASE_DIR=str(tmp_path / "ml"))
    assert done.code == 64, done.text
    assert len(done.err.strip().splitlines()) == 1
    assert re.search(says, done.err) or says in done.err


def test_plan_shows_every_host_and_runs_nothing(tmp_path):
    done = algorun("plan", cwd=tmp_path, SAGEMAKER_BASE_DIR=str(TREES / "mpi"))
    assert done.code == 0
    for word in ("mpirun -np 6", "algo-3", "RANK=5", "hyperparameter sagemaker_mpi_num_of_processes_per_host"):
        assert word in done.out
    assert list(tmp_path.iterdir()) == []


def test_plan_as_json_for_hosts_that_are_not_there(tmp_path):
    done = algorun("plan", "--json", "--hosts", "16", "--slots", "8", "ddp", cwd=tmp_path,
                   SAGEMAKER_BASE_DIR=str(tmp_path))  # fmt: skip
    plan = json.loads(done.out)
    assert (plan["nnodes"], plan["world_size"]) == (16, 128)
    assert plan["hosts"][15]["ranks"][7]["rank"] == 127


def test_doctor_measures_on_wish_and_says_what_does_not_go_together(tmp_path):
    both = algorun("doctor", "--measure", "--json", cwd=tmp_path)
    assert both.code == 64
    assert "--measure: with --json; allowed: one of them; fix: algorun run measure writes measure.json" in both.text


# The launcher of `measure` takes torch's import and some seconds of measuring.
@pytest.mark.slow
def test_doctor_measures_this_machine_and_leaves_nothing(tmp_path):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    done = algorun("doctor", "--measure", cwd=tmp_path, TMPDIR=str(scratch))
    assert done.code == 0, done.text
    assert re.match(r"  \w+ +algorun +\d", done.out), "the table comes first"
    assert re.search(r"\] measure: 1 x .*: matrix product in fp32 \d.*flop/s$", done.out, re.MULTILINE)
    assert re.search(r"\] measure: 1 host: copies in memory \d.*B/s, writes to disk \d.*B/s$", done.out, re.MULTILINE)
    assert "link" not in done.out
    assert done.last == "ok nnodes=1 world_size=1 findings=0"
    assert list(scratch.iterdir()) == []
    assert list(tmp_path.iterdir()) == [scratch]


def test_doctor_tells_of_this_machine(tmp_path):
    done = algorun("doctor", "--json", cwd=tmp_path, SAGEMAKER_BASE_DIR=str(TREES / "mpi"))
    report = json.loads(done.out)
    topics = {finding["topic"]: finding for finding in report["findings"]}
    assert topics["torch"]["state"] == "ok"
    assert topics["hosts"]["value"] == "3, this one is algo-1"
    assert done.code == (0 if report["ok"] else 69)
    table = algorun("doctor", cwd=tmp_path, SAGEMAKER_BASE_DIR=str(TREES / "mpi")).out
    assert all(topic in table for topic in topics)


def test_doctor_finds_a_broken_job_description(tmp_path):
    environ = prepared(tmp_path / "ml", resources="{")
    done = algorun("doctor", cwd=tmp_path, **environ)
    assert done.code == 69
    assert "is not JSON" in done.out


def test_metric_definitions_are_json_for_an_estimator(tmp_path):
    definitions = json.loads(algorun("metric-definitions", cwd=tmp_path).out)
    assert definitions == metric_definitions.DEFINITIONS
    assert all(re.compile(each["Regex"]).groups == 1 for each in definitions)
    assert {"train_loss: ([0-9\\.]+)", "val_loss : ([0-9\\.]+)"} <= {each["Regex"] for each in definitions}


def test_a_module_is_run_from_the_folder_that_is_named(tmp_path, nothing_left):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "job.py").write_text("import os, sys; print('module', sys.argv[1:], os.getcwd())")
    done = algorun("run", "--cwd", "src", "-m", "job", "a", "--b", cwd=tmp_path, ALGORUN_TEST=nothing_left,
                   SAGEMAKER_BASE_DIR=str(tmp_path / "ml"))  # fmt: skip
    assert done.code == 0, done.text
    assert f"[0 algo-1] module ['a', '--b'] {tmp_path / 'src'}" in done.out


def test_options_after_the_program_are_the_programs(tmp_path, nothing_left):
    (tmp_path / "job.py").write_text("import sys; print('got', sys.argv[1:])")
    simulate = ["simulate", "-j", "1x1"]
    for before, target in (
        (["run"], ["-m", "job"]),
        (["run"], ["job.py"]),
        (["run"], ["--", "job.py"]),
        (simulate, ["-m", "job"]),
        (simulate, ["--", "job.py"]),
    ):
        done = algorun(*before, *target, "--lr", "0.1", "-j", "9", "--help", cwd=tmp_path, ALGORUN_TEST=nothing_left,
                       SAGEMAKER_BASE_DIR=str(tmp_path / "ml"))  # fmt: skip
        assert done.code == 0, done.text
        assert "[0 algo-1] got ['--lr', '0.1', '-j', '9', '--help']" in done.out


# The same code with another value or at another moment.
@pytest.mark.slow(but=["ddp"])
@pytest.mark.parametrize("entrypoint", ["ddp", "pipeline", "mpi-basics"])
def test_help_of_a_bundled_entrypoint_is_only_that(entrypoint, tmp_path, nothing_left):
    for before in (["run"], ["simulate", "-j", "2x2"], ["plan"], ["run", "--"]):
        done = algorun(*before, entrypoint, "--epochs", "3", "--help", cwd=tmp_path, ALGORUN_TEST=nothing_left)
        assert done.code == 0, done.text
        assert done.out.startswith(f"usage: python -m algorun_train.jobs.{entrypoint.replace('-', '_')} "), done.out
        assert "algo-1" not in done.out
        assert done.err == ""
        assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_help_of_a_bundled_entrypoint_does_not_wait_for_torch():
    code = (
        "import sys, runpy\nsys.modules['torch'] = None\nsys.argv = ['x', '--help']\n"
        "runpy.run_module('{}', run_name='__main__')\n"
    )
    for module in ("algorun_train.jobs.ddp", "algorun_train.jobs.pipeline", "algorun_train.jobs.mpi_basics"):
        done = subprocess.run(
            [sys.executable, "-I", "-c", code.format(module)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: python -m {module} ")


def test_arguments_of_a_job_follow_the_hyperparameters(tmp_path, nothing_left):
    environ = prepared(tmp_path / "ml", hyperparameters='{"sagemaker_program": "job.py", "lr": "1"}')
    (tmp_path / "ml" / "code").mkdir()
    (tmp_path / "ml" / "code" / "job.py").write_text("import sys; print('got', sys.argv[1:])")
    done = algorun("train", "--epochs", "3", cwd=tmp_path, ALGORUN_TEST=nothing_left, **environ)
    assert "[0 algo-1] got ['--lr', '1', '--epochs', '3']" in done.out, done.text


@pytest.mark.parametrize("folder", ["x" * 120, "absent"])
def test_a_temporary_folder_that_does_not_fit_is_not_used(folder, tmp_path, nothing_left):
    temporary = tmp_path / folder
    if folder != "absent":
        temporary.mkdir()
    (tmp_path / "job.py").write_text("print('fine')")
    done = algorun("run", "job.py", cwd=tmp_path, ALGORUN_TEST=nothing_left, TMPDIR=str(temporary),
                   SAGEMAKER_BASE_DIR=str(tmp_path / "ml"))  # fmt: skip
    assert done.code == 0, done.text


def test_a_folder_whose_name_is_not_utf_8_is_one_line(tmp_path):
    import os

    folder = os.fsdecode(os.fsencode(str(tmp_path)) + b"/b\xffd")
    os.mkdir(folder)
    done = algorun("run", "nothing.py", cwd=folder, SAGEMAKER_BASE_DIR=str(tmp_path / "ml"))
    assert done.code == 64, done.text
    assert "does not exist" in (tmp_path / "ml" / "output" / "failure").read_text()


def test_a_program_that_cannot_start_is_a_clear_error(tmp_path, nothing_left):
    script = tmp_path / "odd"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    environ = {"ALGORUN_TEST": nothing_left, "SAGEMAKER_BASE_DIR": str(tmp_path / "ml"), **FAILS_ALONE}
    done = algorun("run", "odd", cwd=tmp_path, **environ)
    assert done.code == 64, done.text
    assert (
        "the interpreter /no/such/interpreter, which does not exist"
        in (tmp_path / "ml" / "output" / "failure").read_text()
    )


def test_a_full_output_disk_does_not_change_the_exit_code(tmp_path, nothing_left):
    (tmp_path / "ml").mkdir()
    (tmp_path / "ml" / "output").write_text("a file where a folder should be")
    (tmp_path / "job.py").write_text("raise SystemExit(5)")
    environ = {"ALGORUN_TEST": nothing_left, "SAGEMAKER_BASE_DIR": str(tmp_path / "ml"), **FAILS_ALONE}
    done = algorun("run", "job.py", cwd=tmp_path, **environ)
    assert done.code == 5, done.text
    assert "warning" in done.out


def test_a_reader_that_goes_away_does_not_end_the_job(tmp_path, nothing_left):
    import subprocess
    import sys

    from tests.conftest import clean_environ

    (tmp_path / "job.py").write_text(
        "import sys\nfor i in range(20000): print('line', i)\nopen('done', 'w').write('x')\n"
    )
    environ = clean_environ(SAGEMAKER_BASE_DIR=str(tmp_path / "ml"), ALGORUN_TEST=nothing_left)
    argv = f"{sys.executable} -I -m algorun run job.py | head -3"
    subprocess.run(["bash", "-c", argv], cwd=tmp_path, env=environ, timeout=60, check=False, stdout=subprocess.DEVNULL)
    assert (tmp_path / "done").exists()


def test_a_stop_while_the_job_is_being_read_is_not_lost(tmp_path, nothing_left):
    """SIGTERM as soon as the process holds its signals, before any host could have met: an orderly stop."""
    (tmp_path / "script.py").write_text("import time\ntime.sleep(60)\n")
    environ = clean_environ(ALGORUN_TEST=nothing_left, SAGEMAKER_BASE_DIR=str(tmp_path / "ml"), ALGORUN_KILL_S="0.5")
    argv = [sys.executable, "-I", "-m", "algorun", "run", "script.py"]
    job = subprocess.Popen(argv, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True)
    status = Path(f"/proc/{job.pid}/status")
    deadline = time.monotonic() + 30
    sigterm, other = 1 << (signal.SIGTERM - 1), 1 << (signal.SIGUSR2 - 1)
    # Held, or handled already where this test was held up meanwhile. All signals are blocked for a moment before: the C
    # library (glibc 2.41) does so while Python asks it for its first random bytes.
    while not any(
        int(mask, 16) & sigterm and not int(mask, 16) & other
        for mask in re.findall(r"^Sig(?:Blk|Cgt):\s+(\w+)", status.read_text(), re.M)
    ):
        assert time.monotonic() < deadline
        assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 0, out
    assert out.strip().splitlines()[-1].startswith("stopped")


@pytest.mark.parametrize("words", [["simulate", "-j", "1x1", "x.py"], ["run", "x.py"], ["plan", "x.py"], ["ls"]])
def test_a_folder_that_was_removed_is_one_sentence(words, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone}; rmdir {gone}; exec {sys.executable} -I -m algorun {' '.join(words)}"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False, env=clean_environ())
    assert done.returncode == 64
    assert done.stderr == (
        "algorun: error: the current folder: has been removed, or cannot be read (No such file or directory); "
        "fix: cd to another one\n"
    )


def test_output_that_cannot_be_written_ends_a_plan_and_no_job(tmp_path):
    (tmp_path / "train.py").write_text("print('x')\n")
    codes = {}
    for name, words in (("plan", ["plan", "train.py"]), ("job", ["simulate", "-j", "1x1", "train.py"])):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-I", "-m", "algorun", *words],
                cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=clean_environ(),
            )  # fmt: skip
        assert "Traceback" not in done.stderr
        codes[name] = done.returncode
        if name == "plan":
            assert done.stderr == (
                "algorun: error: stdout: No space left on device; fix: write it where there is space\n"
            )
        else:
            assert done.stderr.splitlines()[0] == (
                "algorun: warning: stdout: No space left on device; the log ends here, and the job goes on; "
                "fix: write it where there is space"
            )
    assert codes == {"plan": 64, "job": 0}


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["sumbit", "train.py"], "did you mean 'submit'?"),
        (["stauts"], "did you mean 'status'?"),
        (["lgos", "-f", "x"], "did you mean 'logs'?"),
        (["simulat", "-j", "2x2", "ddp"], "did you mean 'simulate'?"),
        (["train.py", "--lr", "1"], "algorun run train.py runs a program; algorun -h explains the commands"),
        (["zzz"], "algorun run zzz runs a program; algorun -h explains the commands"),
    ],
    ids=" ".join,
)
def test_a_mistyped_command_gets_all_commands_and_the_nearest_one(words, fix, tmp_path):
    done = algorun(*words, cwd=tmp_path)
    assert done.code == 64
    assert (
        done.err == f"algorun: error: command line: {words[0]!r} is no command; allowed: {EVERY_COMMAND}; fix: {fix}\n"
    )


def test_a_plan_of_many_hosts_is_a_summary_and_all_of_it_on_wish(tmp_path):
    short = algorun("plan", "--hosts", "16", "--slots", "8", "ddp", cwd=tmp_path).out
    assert "  algo-2 to algo-15  1 to 14    8      8-119\n" in short
    assert "\nalgo-2 to algo-15: left out here; --all shows every host\n" in short
    assert re.findall(r"^(algo-\d+): slots 8 \(--slots\)$", short, re.MULTILINE) == ["algo-1", "algo-16"]
    assert len(short.splitlines()) < 120
    whole = algorun("plan", "--all", "--hosts", "16", "--slots", "8", "ddp", cwd=tmp_path).out
    assert len(re.findall(r"^algo-\d+: slots 8 \(--slots\)$", whole, re.MULTILINE)) == 16
    assert "left out" not in whole
    assert json.loads(algorun("plan", "--json", "--hosts", "16", "ddp", cwd=tmp_path).out)["nnodes"] == 16


@pytest.mark.parametrize(("ends", "code"), [("pass", 0), ("sys.exit(3)", 3)], ids=["well", "with 3"])
def test_no_program_of_a_job_asks_for_input_at_its_end(tmp_path, nothing_left, ends, code):
    (tmp_path / "train.py").write_text(f"import os, sys\nprint('variable', os.environ.get('PYTHONINSPECT'))\n{ends}\n")
    argv = [
        sys.executable,
        "-m",
        "algorun",
        "simulate",
        "-j",
        "1x1",
        "train.py",
    ]  # not -I, which reads no such variable
    environ = clean_environ(ALGORUN_TEST=nothing_left, PYTHONINSPECT="1", **FAILS_ALONE)
    done = subprocess.run(
        argv, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert "[0 algo-1] variable None" in done.stdout
    assert (done.stdout + done.stderr).count(
        "algorun: PYTHONINSPECT is left out: no program of a job gets a prompt"
    ) == 1
