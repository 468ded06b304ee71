"""`submit` remembers: what is done is not sent again, and what differs is named."""

from __future__ import annotations

import json

import pytest

from algorun_client.commands.main import main
from algorun_client.common.errors import ApiError, BucketDenied
from algorun_client.connection import LOCAL, Site
from algorun_client.submit import submit
from algorun_client.submit.place import kept_state, place
from tests.client.submit.place.memory import World
from tests.clones import git
from tests.conftest import clean_environ

TASK = "s3://local/images/train"


class Laptop:
    """A folder with a program, and an account in memory."""

    def __init__(self, capsys):
        self.world, self._capsys = World(), capsys
        self.world.status = "Completed"

    def connect(self, *_, **__):
        target = self.world.target
        return Site(target=target, following=lambda: target, session=None, pace=LOCAL, options=" --where local")

    def submit(self, *words, code=0):
        self._capsys.readouterr()
        line = ["submit", "--where", "local", "--detach", "--json", *words]
        assert main(line, clean_environ(TOKEN="hunter2")) == code
        said = self._capsys.readouterr()
        self.err = said.err
        return [json.loads(line) for line in said.out.splitlines()]

    def differences(self, *words):
        found = [each["differences"] for each in self.submit(*words) if each["event"] == "changed"]
        return found[0] if found else None


@pytest.fixture
def laptop(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "images"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.png").write_text("a")
    (folder / "data" / "b.png").write_text("b")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "lib.py").write_text("x = 1\n")
    monkeypatch.chdir(folder)
    made = Laptop(capsys)
    monkeypatch.setattr(submit, "connect", made.connect)
    return made


def test_the_same_task_twice_makes_one_job(laptop):
    sent, end = laptop.submit("--in", "train=data", "train.py")
    assert (sent["event"], sent["joined"]) == ("sent", False)
    done, end = laptop.submit("--in", "train=data", "train.py")
    assert done == {"event": "done", "job": sent["job"], "number": 1}
    assert (end["kind"], end["code"], end["job"]) == ("done", 0, sent["job"])
    puts = len(laptop.world.puts)
    laptop.submit("--in", "train=data", "train.py")
    assert (laptop.world.creates, len(laptop.world.puts)) == (1, puts)


def test_people_read_that_it_is_done_and_how_to_get_it(laptop, capsys):
    (sent, _) = laptop.submit("train.py")
    assert main(["submit", "--where", "local", "train.py"], clean_environ()) == 0
    assert capsys.readouterr().err == (
        f"algorun: done already by {sent['job']} (execution 1): nothing has changed; --force runs it again\n"
        f"algorun: bring it home with: algorun fetch {sent['job']} --where local\n"
    )


def test_one_byte_of_code_or_data_is_named(laptop, tmp_path):
    line = ("--in", "train=data", "train.py")
    laptop.submit(*line)
    (tmp_path / "images" / "lib.py").write_text("x = 2\n")
    assert laptop.differences(*line) == ["code: lib.py has changed"]
    (tmp_path / "images" / "data" / "b.png").write_text("c")
    assert laptop.differences(*line) == ["in.train: b.png has changed"]
    (tmp_path / "images" / "train.py").chmod(0o755)
    assert laptop.differences(*line) == ["code: train.py has changed"]
    assert laptop.differences(*line) is None
    assert laptop.world.creates == 4


def test_people_read_what_has_changed(laptop, tmp_path, capsys):
    (sent, _) = laptop.submit("train.py")
    for number in range(7):
        (tmp_path / "images" / f"new{number}\x1b[31m.py").write_text("")
    assert main(["submit", "--where", "local", "--detach", "train.py"], clean_environ()) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"algorun: runs again, because of what has changed since {sent['job']}:"
    assert lines[1] == "algorun:   code: new0.py is new"
    assert lines[6] == "algorun:   and 2 more"


def test_an_object_in_s3_that_was_replaced_is_named(laptop):
    for name in "ab":
        laptop.world.objects[f"s3://b-ucket/images/{name}"] = (b"1", "")
    line = ("--in", "train=s3://b-ucket/images", "train.py")
    laptop.submit(*line)
    laptop.world.objects["s3://b-ucket/images-old/c"] = (b"1", "")
    assert laptop.submit(*line)[0]["event"] == "done"
    laptop.world.objects["s3://b-ucket/images/b"] = (b"2", "")
    assert laptop.differences(*line) == ["in.train: b has changed"]


def test_a_variable_is_compared_and_its_value_is_nowhere(laptop):
    laptop.submit("--env", "TOKEN", "train.py")
    assert laptop.submit("--env", "TOKEN", "train.py")[0]["event"] == "done"
    assert laptop.differences("--env", "TOKEN=other", "train.py") == ["environment: TOKEN has changed"]
    assert not [uri for uri, (content, _) in laptop.world.objects.items() if b"hunter2" in content]


def model_of(laptop, sent):
    """The model that a job leaves."""
    job, number = sent["job"], sent["number"]
    uri = f"s3://local/images/data/jobs/{number:04d}/output/{job}/output/model.tar.gz"
    laptop.world.objects[uri] = (b"", "")
    return uri


def test_an_upstream_that_ran_again_is_a_change(laptop):
    (sent, _) = laptop.submit("--task", "data", "--cwd", "x", "lib.py")
    model_of(laptop, sent)
    line = ("--in", "train=task:data/model,extract", "train.py")
    laptop.submit(*line)
    assert laptop.submit(*line)[0]["event"] == "done"
    (sent, _) = laptop.submit("--task", "data", "--cwd", "x", "--force", "lib.py")
    assert sent["number"] == 2
    model_of(laptop, sent)
    (difference,) = laptop.differences(*line)
    assert difference.startswith(f"in.train: is now what {sent['job']} left; it was images-data-0001-")


def test_an_upstream_whose_output_was_removed_feeds_nothing(laptop):
    (sent, _) = laptop.submit("--task", "data", "--cwd", "x", "lib.py")
    uri = model_of(laptop, sent)
    del laptop.world.objects[uri]
    puts = list(laptop.world.puts)
    (end,) = laptop.submit("--in", "train=task:data/model,extract", "train.py", code=64)
    assert end["text"].startswith(f"--in train: task:data/model: nothing lies in {uri}; fix: `algorun submit --force ")
    (end,) = laptop.submit("--in", "train=task:data/state", "train.py", code=64)
    assert "nothing lies in s3://local/images/data/state/" in end["text"]
    assert (laptop.world.puts, laptop.world.creates) == (puts, 1)


def test_the_same_files_of_another_commit_are_no_change(laptop, tmp_path):
    folder = tmp_path / "images"
    (sent, _) = laptop.submit("train.py")
    git(folder, "init", "-q")
    git(folder, "add", "train.py", "lib.py", "data")
    for message in ("first", "second"):
        git(folder, "commit", "-qm", message, "--allow-empty")
        assert laptop.submit("train.py")[0] == {"event": "done", "job": sent["job"], "number": 1}
    laptop.world.status = "InProgress"
    laptop.submit("--task", "runs", "train.py")
    git(folder, "commit", "-qm", "third", "--allow-empty")
    assert laptop.submit("--task", "runs", "train.py")[0]["joined"]


def test_force_and_a_clean_state_run_it_again(laptop):
    laptop.submit("train.py")
    for name in ("train/state/algo-1/c", "train2/state/c", "train/state-2/c"):
        laptop.world.objects[f"s3://local/images/{name}"] = (b"", "")
    assert [each["event"] for each in laptop.submit("--force", "train.py")] == ["kept_state", "sent", "end"]
    assert f"{TASK}/state/algo-1/c" in laptop.world.objects
    laptop.submit("--clean-state", "train.py")
    assert f"{TASK}/state/algo-1/c" not in laptop.world.objects
    assert {f"{TASK}2/state/c", f"{TASK}/state-2/c"} < laptop.world.objects.keys()
    assert laptop.world.creates == 3


def checkpoint(laptop, step, size=5):
    """A checkpoint of `ddp` in the task's state, with the marks that SageMaker's agent leaves."""
    part = f"{TASK}/state/step-{step:08d}/part-0000-of-0001"
    for name in (f"{part}.pt", f"{part}.json", f"{part}.pt.sagemaker-uploaded"):
        laptop.world.objects[name] = (b"x" * size, "")


def test_other_arguments_go_with_the_state_of_the_old_ones_and_one_line_says_so(laptop, capsys):
    laptop.submit("ddp", "--lr", "0.1")
    checkpoint(laptop, 180)
    checkpoint(laptop, 90)
    line = ["submit", "--where", "local", "--detach", "ddp", "--lr", "0.01"]
    kept = (
        f"algorun: the state of earlier jobs goes along: {TASK.replace('train', 'ddp')}/state/ (6 files, 30 B; "
        "2 checkpoints, the newest of step 180); --clean-state begins anew"
    )
    for name in [*laptop.world.objects]:
        laptop.world.objects[name.replace("/train/state/", "/ddp/state/")] = laptop.world.objects[name]
    assert main([*line[:3], "--dry-run", *line[4:]], clean_environ()) == 0
    assert kept in capsys.readouterr().err.splitlines()
    assert main(line, clean_environ()) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[1] == 'algorun:   arguments: were ["--lr", "0.1"], are ["--lr", "0.01"]'
    assert said[2] == kept
    (again, *_) = laptop.submit("ddp", "--lr", "0.01")
    assert again["event"] == "done"
    assert laptop.err == ""  # nothing is sent, so nothing goes along
    assert main([*line[:4], "--clean-state", *line[4:]], clean_environ()) == 0
    assert "goes along" not in capsys.readouterr().err


def test_programs_see_the_state_that_goes_along_also_after_a_failed_job(laptop):
    laptop.world.status = "Failed"
    assert [each["event"] for each in laptop.submit("train.py")] == ["sent", "end"]
    laptop.world.objects[f"{TASK}/state/algo-1/weights.ckpt"] = (b"1234", "")
    kept = laptop.submit("train.py")[0]
    assert kept == {
        "event": "kept_state", "uri": f"{TASK}/state/", "files": 1, "bytes": 4, "checkpoints": 0, "step": None
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "is_kept"), [("training", True), ("processing", False)])
def test_a_processing_job_gets_no_state(laptop, capsys, kind, is_kept):
    checkpoint(laptop, 1)
    line = ["submit", "--where", "local", "--dry-run", "--kind", kind, "train.py"]
    assert main(line, clean_environ()) == 0
    assert ("goes along" in capsys.readouterr().err) == is_kept


def test_a_state_that_may_not_be_listed_may_go_along(laptop, monkeypatch, capsys):
    def denied(*_):
        raise BucketDenied(ApiError("AccessDenied", "no", "ListObjectsV2"), "s3:ListBucket", "local")

    monkeypatch.setattr(kept_state.state_folder, "summary", denied)
    assert main(["submit", "--where", "local", "--detach", "train.py"], clean_environ()) == 0
    said = capsys.readouterr().err
    assert f"the state in {TASK}/state/ goes along, if there is any; it cannot be listed: " in said
    assert "--clean-state begins anew" in said


@pytest.mark.parametrize("status", ["Failed", "Stopped"])
def test_what_did_not_complete_runs_again(laptop, status):
    laptop.world.status = status
    laptop.submit("train.py")
    assert [each["event"] for each in laptop.submit("train.py")] == ["sent", "end"]
    assert laptop.world.creates == 2


def test_a_running_job_is_joined_also_with_force(laptop):
    laptop.world.status = "InProgress"
    laptop.submit("train.py")
    for words in ((), ("--force",)):
        (sent, _) = laptop.submit(*words, "train.py")
        assert sent["joined"]
    (end,) = laptop.submit("--clean-state", "train.py", code=64)
    assert "runs, and writes this state" in end["text"]
    assert laptop.world.creates == 1


@pytest.mark.parametrize("status", ["InProgress", "none"])
def test_a_job_that_ends_between_the_look_and_the_claim_is_not_made_twice(laptop, monkeypatch, status):
    """It ran at the look, or another client has made and ended it since."""
    laptop.world.status = "InProgress"
    if status == "InProgress":
        laptop.submit("train.py")
    send, late = place.send, []

    def slow_send(*arguments, **options):
        if not late:
            late.append(True)
            if status == "none":
                send(*arguments, **options)
            laptop.world.status = "Completed"
        return send(*arguments, **options)

    monkeypatch.setattr(place, "send", slow_send)
    assert [each["event"] for each in laptop.submit("train.py")][-2:] == ["done", "end"]
    assert laptop.world.creates == 1
    # With --force it runs again in any case.
    laptop.submit("--force", "train.py")
    assert laptop.world.creates == 2


def test_a_running_job_that_may_not_see_a_new_object_is_joined_with_a_warning(laptop):
    laptop.world.status = "InProgress"
    laptop.world.objects["s3://b-ucket/images/a"] = (b"1", "")
    line = ("--in", "train=s3://b-ucket/images", "train.py")
    (first, _) = laptop.submit(*line)
    assert [each["event"] for each in laptop.submit(*line)] == ["sent", "end"]
    laptop.world.objects["s3://b-ucket/images/a"] = (b"2", "")
    (sent, note, _) = laptop.submit(*line)
    assert sent["joined"]
    assert note["text"] == (
        f"job {first['job']} may not see what has changed since it was created (in.train: a has changed); "
        "submit again after its end"
    )
    laptop.world.objects[f"{TASK}/jobs/0001/fingerprint.json"] = (b"", "")
    assert laptop.submit(*line)[0]["joined"]


def test_a_job_of_an_earlier_version_runs_again_with_one_line(laptop, capsys):
    (sent, _) = laptop.submit("train.py")
    for name in (f"{TASK}/jobs/0001/fingerprint.json", f"{TASK}/task.json"):
        laptop.world.objects.pop(name, None)
    assert main(["submit", "--where", "local", "--detach", "train.py"], clean_environ()) == 0
    text = "an earlier version of algorun sent it, and kept nothing to compare with"
    assert capsys.readouterr().err.splitlines()[0] == f"algorun: runs again after {sent['job']}: {text}"


def test_a_damaged_task_file_is_one_error_and_nothing_is_sent(laptop):
    laptop.world.objects[f"{TASK}/task.json"] = (b"{}", "")
    (end,) = laptop.submit("train.py", code=64)
    assert f"{TASK}/task.json: is damaged" in end["text"]
    assert (laptop.world.puts, laptop.world.creates) == ([], 0)


def test_a_dry_run_says_that_submit_would_join_the_running_job(laptop):
    laptop.world.status = "InProgress"
    (sent, _) = laptop.submit("train.py")
    puts, joins = list(laptop.world.puts), "runs already: submit joins it, and sends nothing"
    for words in ((), ("--force",)):
        laptop.submit("--dry-run", *words, "train.py")
        assert laptop.err == f"algorun: job {sent['job']} (execution 1) {joins}\n"
    laptop.submit("--dry-run", "--task", "other", "train.py")
    assert laptop.err == ""
    (end,) = laptop.submit("--dry-run", "--clean-state", "train.py", code=64)
    assert f"--clean-state: job {sent['job']} runs, and writes this state" in end["text"]
    assert laptop.world.puts == puts


def test_a_dry_run_of_all_tasks_names_the_one_whose_job_runs(laptop, tmp_path, capsys):
    tasks = "".join(f'[task.{name}]\nrun = ["train.py"]\n' for name in ("one", "two"))
    (tmp_path / "images" / "algorun.toml").write_text(tasks)
    laptop.world.status = "InProgress"
    (sent, _) = laptop.submit("--task", "one")
    assert main(["submit", "--where", "local", "--json", "--all", "--dry-run"], clean_environ()) == 0
    joins = "runs already: submit joins it, and sends nothing"
    assert capsys.readouterr().err == f"algorun: one: job {sent['job']} (execution 1) {joins}\n"


def test_a_dry_run_says_that_submit_would_send_nothing(laptop):
    laptop.submit("train.py")
    puts = list(laptop.world.puts)
    laptop.submit("--dry-run", "train.py")
    assert "done already by images-train-0001-" in laptop.err
    laptop.submit("--dry-run", "--force", "train.py")
    assert "done already" not in laptop.err
    assert laptop.world.puts == puts
