"""The report of a job's folder: where each value comes from, and what a damaged or foreign folder is told."""

from __future__ import annotations

import contextlib
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.errors import UserError
from algorun_report.folder.definitions import from_option
from algorun_report.folder.read import read_report
from algorun_report.page.render import render
from algorun_report.run_report import Axis, Cost, MetricPlace, ReportedAttempt, ReportedHost, RunReport
from tests.conftest import examples
from tests.report.job_folders import BEGIN, JOB, job_json, line, write_job

KEYS = (
    "job", "status", "kind", "created", "ended", "hosts", "billable_s", "phases", "name", "begin", "end", "metrics",
    "Name", "Regex", "failure", "line", "create", "AlgorithmSpecification", "MetricDefinitions",
)  # fmt: skip


def refused(folder, *options: str) -> str:
    with pytest.raises(UserError) as caught:
        read_report(folder, [from_option(each) for each in options])
    assert caught.value.code == 64
    return str(caught.value).replace(str(folder), "F")


def logs(folder, **streams: str):
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    for name, text in streams.items():
        (folder / "logs" / f"{name.replace('_', '-')}.log").write_text(text)
    return folder


def series(report: RunReport, name: str) -> dict[str, list[float]]:
    (found,) = [each for each in report.metrics if each.name == name]
    return {each.label: list(each.values) for each in found.series}


def test_a_metric_that_takes_too_long_is_left_out_with_a_notice(tmp_path):
    folder = logs(tmp_path, algo_1="loss=1\n" + "a" * 200 + "b\nloss=2\n", algo_2="loss=3\n")
    report = read_report(folder, [from_option("slow=(a+)+$"), from_option("loss=loss=([0-9.]+)")])
    assert [each.name for each in report.metrics] == ["loss"]
    assert series(report, "loss") == {"algo": [1.0, 2.0, 3.0]}
    (notice,) = [each for each in report.notices if "slow" in each]
    assert notice.startswith(
        "Metric slow is left out: the regular expression '(a+)+$' takes more than 2 s on a few lines"
    )
    assert "'a{99999999999999999999}' is no regular expression" in refused_option("a=a{99999999999999999999}")


def refused_option(text: str) -> str:
    with pytest.raises(UserError) as caught:
        from_option(text)
    return str(caught.value)


def test_series_are_the_figures_of_the_logs(tmp_path):
    report = read_report(write_job(tmp_path / "job", hosts=3, steps=40))
    assert [each.name for each in report.metrics] == [
        "train:loss",
        "grad_norm",
        "train:images_per_s",
        "train:data_wait",
    ]
    for host in (1, 2, 3):
        words = [line(host, step).split() for step in range(40)]
        assert series(report, "train:loss")[f"algo-{host}"] == [float(each[5]) for each in words]
        assert series(report, "grad_norm")[f"algo-{host}"] == [float(each[6].partition("=")[2]) for each in words]
    assert report.axis is Axis.TIME
    assert list(report.metrics[0].series[0].x[:3]) == [140.5, 141.0, 141.5]  # seconds since the job's begin


def test_facts_of_the_job(tmp_path):
    report = read_report(write_job(tmp_path / "job"), rate=2.0)
    assert (report.job, report.status, report.kind, report.instance) == (JOB, "Completed", "training", "ml.g5.12xlarge")
    assert [each.name for each in report.phases] == ["Starting", "Downloading", "Training", "Uploading"]
    assert (report.created, report.ended) == (BEGIN, BEGIN + 5148)
    assert report.cost == Cost(hosts=2, billable_s=1510, training_s=5042, rate=2.0)
    assert report.hosts == (ReportedHost("algo-1", 1, 51), ReportedHost("algo-2", 1, 51))
    assert report.attempts == (ReportedAttempt(1, "", BEGIN),)
    assert report.notices == ()


def test_without_times_curves_count_values_and_the_report_says_so(tmp_path):
    report = read_report(logs(tmp_path, algo_1_7="train_loss: 3\ntrain_loss: 2\n"))
    assert report.axis is Axis.ORDER
    assert list(report.metrics[0].series[0].x) == [1, 2]
    assert [each.partition(":")[0].partition(" (")[0] for each in report.notices] == [
        "Phases, billable time and status of the job are unknown",
        "The lines of the logs have no times",
    ]


def test_damaged_times_are_as_none(tmp_path):
    folder = write_job(tmp_path / "job")
    for damage in ("1\n2\n", "x\n" * 51):
        next((folder / "logs").glob("algo-2-*.times")).write_text(damage)
        assert read_report(folder).axis is Axis.ORDER


def test_numbers_that_no_job_has(tmp_path):
    """A program may print anything; a number of many digits must not end the report, nor fill it."""
    many = "9" * 5000
    text = f"train_loss: 1\n[{many} x] train_loss: 2\nalgorun: attempt {many}/3 follows\nalgorun: attempt 300000/3 follows\n"
    folder = logs(tmp_path, **{"algo_1_7": text, "algo_1²": "train_loss: 3\n"})
    (folder / "logs" / "algo-1-7.times").write_text(f"{'9' * 400}\n" * 4)
    (folder / "output" / "logs").mkdir(parents=True)
    (folder / "output" / "failure-attempt-².txt").write_text("x")
    (folder / "output" / "failure-attempt-300000.txt").write_text("x")
    report = read_report(folder)
    assert "Content-Security-Policy" in render(report)
    assert (report.axis, len(report.attempts), report.hosts) == (
        Axis.ORDER,
        1,
        (ReportedHost("algo-1", 1, 4), ReportedHost("algo-1²", 1, 1)),
    )


def test_hosts_are_in_the_order_of_their_numbers_and_starts_follow_each_other(tmp_path):
    text = "train_loss: {}\n"
    report = read_report(logs(tmp_path, algo_10_7=text.format(10), algo_2_9=text.format(3), algo_2_7=text.format(2)))
    assert series(report, "train:loss") == {"algo-2": [2, 3], "algo-10": [10]}
    assert report.hosts == (ReportedHost("algo-2", 2, 2), ReportedHost("algo-10", 1, 1))


def test_ranks_of_a_host_that_print_the_same_metric_are_series_of_their_own(tmp_path):
    lines = "[0 algo-1] train_loss: 1\n[1 algo-1] train_loss: 9\n[0 algo-1] train_loss: 2\n"
    report = read_report(logs(tmp_path, algo_1_7=lines, algo_2_7="[2 algo-2] train_loss: 5\n"))
    assert series(report, "train:loss") == {"algo-1 rank 0": [1, 2], "algo-1 rank 1": [9], "algo-2": [5]}


def test_late_lines_are_drawn_in_the_order_of_their_times(tmp_path):
    folder = logs(tmp_path, algo_1_7="train_loss: 1\ntrain_loss: 3\ntrain_loss: 2\n")
    (folder / "logs" / "algo-1-7.times").write_text("1000\n3000\n2000\n")
    report = read_report(folder)
    assert (list(report.metrics[0].series[0].x), series(report, "train:loss")) == ([0, 1, 2], {"algo-1": [1, 2, 3]})


def test_what_is_no_finite_number_is_counted_and_left_out(tmp_path):
    report = read_report(
        logs(tmp_path, algo_1_7="loss=1\nloss=nan\nloss=inf\nloss=1.2.3\n"), [from_option("loss=loss=(.*)")]
    )
    assert series(report, "loss") == {"algo-1": [1]}
    assert report.notices[-1] == "loss: 3 texts such as 'nan' are no finite numbers and are left out."
    assert all(math.isfinite(value) for value in report.metrics[0].series[0].values)


def test_definitions_of_the_request_hold_without_a_job_json(tmp_path):
    folder = logs(tmp_path, algo_1_7="psnr 31.5\n")
    metric = {"Name": "psnr", "Regex": "psnr ([0-9.]+)"}
    create = {
        "AlgorithmSpecification": {"MetricDefinitions": [metric]},
        "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge"},
    }
    (folder / "request.json").write_text(
        json.dumps({"job": "render-0001-aaaaaa", "kind": "training", "create": create})
    )
    report = read_report(folder)
    assert (report.job, report.instance) == ("render-0001-aaaaaa", "ml.p4d.24xlarge")
    assert series(report, "psnr") == {"algo-1": [31.5]}


def test_only_pages_of_aws_s_console_become_links(tmp_path):
    folder = write_job(tmp_path / "job")
    good = "https://eu-west-1.console.aws.amazon.com/sagemaker/home?region=eu-west-1#/jobs/j"
    for bad in (
        "javascript:alert(1)",
        "https://evil.example/.console.aws.amazon.com/",
        "http://x.console.aws.amazon.com/",
    ):
        (folder / "job.json").write_text(json.dumps(job_json(links={"console": good, "logs": bad, "other": good})))
        report = read_report(folder)
        assert report.links == (("console", good),)
        page = render(report)
        assert f'<a href="{good}">console</a>' in page
        assert re.findall('<a href="([^"]*)"', page) == [good, "#missing"]
    (folder / "job.json").write_text(json.dumps(job_json(links=[good])))
    with pytest.raises(UserError, match="links is not an object: the file is damaged"):
        read_report(folder)


def test_a_metric_of_the_job_that_no_line_has_is_told(tmp_path):
    folder = write_job(tmp_path / "job")
    metrics = [{"Name": "psnr", "Regex": "psnr ([0-9.]+)"}]
    (folder / "job.json").write_text(json.dumps(job_json(metrics=metrics)))
    assert read_report(folder).silent_metrics == (("psnr", "psnr ([0-9.]+)"),)


def test_a_restarted_job_has_its_attempts_with_their_causes(tmp_path):
    cause = "exception: rank 1 on algo-2, exit 1, attempt 1/2: ValueError: no data"
    text = f"train_loss: 1\nalgorun: {cause}\nalgorun: attempt 2/2 follows\ntrain_loss: 2\n"
    folder = logs(tmp_path, algo_1_7=text)
    assert read_report(folder).attempts == (ReportedAttempt(1, cause), ReportedAttempt(2, ""))
    (folder / "logs" / "algo-1-7.times").write_text("1000\n2000\n2500\n3000\n")
    assert read_report(folder).attempts == (ReportedAttempt(1, cause, 1.0), ReportedAttempt(2, "", 2.5))


@pytest.mark.parametrize(
    ("phases", "retries", "why"),
    [
        (["Training", "Interrupted", "Starting"], 0, "AWS took the spot instances back"),
        (["Training", "Starting"], 1, "SageMaker started the job again after an error of its own"),
        (["Training"], 0, "the hosts were started again"),
    ],
)
def test_attempts_count_on_when_the_hosts_are_started_again(tmp_path, phases, retries, why):
    cause = "exit: rank 1 on algo-2, exit 1, attempt 1/2"
    restarted = f"train_loss: 1\nalgorun: {cause}\nalgorun: attempt 2/2 follows\ntrain_loss: 2\n"
    folder = logs(tmp_path, algo_1_7=restarted, algo_1_30=restarted, algo_2_8="x\n", algo_2_29="x\n")
    for name, begin in (("algo-1-7", 7), ("algo-1-30", 30), ("algo-2-8", 8), ("algo-2-29", 29)):
        times = range(1000 * begin, 1000 * begin + (4 if "1-" in name[4:] else 1))
        (folder / "logs" / f"{name}.times").write_text("".join(f"{each}\n" for each in times))
    listed = [{"name": each, "begin": n, "end": n + 1} for n, each in enumerate(phases)]
    (folder / "job.json").write_text(json.dumps(job_json(phases=listed, retries=retries, created=5)))
    assert read_report(folder).attempts == (
        ReportedAttempt(1, cause, 5.0),
        ReportedAttempt(2, why, 7.002),
        ReportedAttempt(3, cause, 29.0),
        ReportedAttempt(4, "", 30.002),
    )


def test_the_cause_of_an_attempt_is_the_line_before_the_next_one(tmp_path):
    causes = [
        "exit: rank 3 on algo-2, exit 3, attempt 1/4, step 12: boom",
        "exit: rank 3 on algo-2, exit 3, attempt 2/4",
        "lost: algo-2, exit 66",
    ]
    follows = [f"algorun: {each}\nalgorun: attempt {n}/4 follows\n" for n, each in enumerate(causes, 2)]
    report = read_report(logs(tmp_path, algo_1_7="train_loss: 1\n" + "".join(follows)))
    assert [(each.number, each.cause) for each in report.attempts] == [*enumerate(causes, 1), (4, "")]


def test_a_failed_job_has_its_root_cause_and_needs_no_metric(tmp_path):
    folder = logs(tmp_path, algo_1_7="starting\n")
    (folder / "job.json").write_text(
        json.dumps(job_json(status="Failed", failure="exit: rank 3 on algo-2, exit 3: no data"))
    )
    report = read_report(folder)
    assert report.root_cause == "exit: rank 3 on algo-2, exit 3: no data"
    assert report.attempts[0].cause == report.root_cause
    (folder / "output").mkdir()
    (folder / "output" / "result.json").write_text('{"kind": "failed", "code": 3, "line": "failed nnodes=2"}')
    (folder / "output" / "failure-full.txt").write_text("exit: rank 3\n\x1b[31mTraceback\x1b[0m\n")
    assert read_report(folder).root_cause == "exit: rank 3\nTraceback"


@pytest.mark.parametrize("inside", ["algo-{}/output/data", "output/data", "output"])
def test_folders_that_the_launcher_leaves(tmp_path, inside):
    """Those of a simulation, of a host's /opt/ml, and of a fetched output alone."""
    hosts = ("1", "2") if "{}" in inside else ("1",)
    for n, host in enumerate(hosts):
        folder = tmp_path / inside.format(host)
        (folder / "logs").mkdir(parents=True)
        (folder / "logs" / f"rank-{n:05d}.log").write_text(f"train_loss: 0.{host}\n")
        (folder / "result.json").write_text('{"kind": "ok", "code": 0, "line": "ok nnodes=2 restarts=1"}')
        (folder / "summary.json").write_text('{"loss": 0.35142887, "steps": 92, "more": [1]}')
        (folder / "failure-attempt-1.txt").write_text("exit: rank 0 on algo-1, exit 3\nmore\n")
    report = read_report(tmp_path)
    assert (report.status, report.closing_line) == ("Completed", "ok nnodes=2 restarts=1")
    assert report.results == (("loss", "0.351429"), ("steps", "92"))
    assert [each.cause for each in report.attempts] == ["exit: rank 0 on algo-1, exit 3", ""]
    assert series(report, "train:loss") == (
        {"algo-1": [0.1], "algo-2": [0.2]} if "{}" in inside else {"this host": [0.1]}
    )


def test_lines_of_a_thousand_hosts_leave_room_for_the_curves(tmp_path):
    text = "train_loss: 1\n" * 40
    report = read_report(logs(tmp_path, **{f"algo_{host}_7": text for host in range(1, 201)}))
    assert {(len(each.lines), each.skipped) for each in report.excerpts} == {(15, 25)}


@examples(150)
@given(
    st.sampled_from(["job.json", "request.json", "logs/algo-1-7.log", "logs/algo-1-7.times", "output/result.json"]),
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_any_file_gives_a_page_or_an_error_of_its_user(tmp_path_factory, name, content):
    folder = write_job(tmp_path_factory.mktemp("any") / "job", steps=3)
    (folder / "output").mkdir()
    (folder / name).write_bytes(content)
    with contextlib.suppress(UserError):
        assert "Content-Security-Policy" in render(read_report(folder))


def test_a_folder_that_is_none(tmp_path):
    assert refused(tmp_path / "x").startswith("F: no such folder; fix: algorun fetch F, then")
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file") == "F: is not a folder; fix: name the folder that algorun fetch has made"
    assert refused(tmp_path) == (
        "F: is no job's folder: it has no logs/*.log, no job.json and no output of the launcher; "
        "fix: algorun fetch TASK, then algorun report FOLDER with the folder that it names"
    )


def test_a_job_without_metrics(tmp_path):
    assert refused(logs(tmp_path, algo_1_7="hello\n")) == (
        "F: no line of the job's 1 log files holds a metric, so there is nothing to draw; "
        "fix: name one that its lines hold, such as --metric loss='loss=([0-9.]+)'"
    )


def test_a_metric_that_never_appeared(tmp_path):
    assert refused(write_job(tmp_path / "job"), "psnr=psnr: ([0-9.]+)") == (
        "--metric psnr: no line of the job's logs matches 'psnr: ([0-9.]+)'; fix: compare it with a line of the logs; "
        "metrics that appeared: train:loss, grad_norm, train:images_per_s, train:data_wait"
    )


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("psnr", "'psnr' has no '='"),
        ("psnr=(", "metric 'psnr': '(' is no regular expression: missing ), unterminated subpattern at position 0"),
        ("psnr=[0-9]+", "metric 'psnr': '[0-9]+' has no group for the number"),
        ("=([0-9]+)", "metric '': '([0-9]+)' has no group for the number"),
    ],
)
def test_a_wrong_metric_option(tmp_path, option, words):
    allowed = "allowed: NAME=REGEX with one group for the number, such as loss='loss=([0-9.]+)'"
    assert refused(tmp_path, option) == f"--metric: {words}; {allowed}"


@pytest.mark.parametrize("name", ["job.json", "request.json"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[1]", "holds list, not an object: the file is damaged"),
        ("\xff", "is not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("[" * 5000, "is not JSON: nested deeper than 200 levels"),
        (" " * (4 * 1024 * 1024 + 1), "is larger than 4 MiB: the file is damaged"),
    ],
    ids=["empty", "list", "binary", "deep", "large"],
)
def test_a_damaged_file(tmp_path, name, text, words):
    folder = write_job(tmp_path / "job")
    (folder / "output" / "logs").mkdir(parents=True)
    (folder / name).write_bytes(text.encode("latin-1"))
    message = refused(folder)
    assert message.startswith(f"F/{name}: {words}; fix: ")
    assert "algorun fetch TASK" in message


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("result.json", '{"kind": 3}', "kind is not a string"),
        ("result.json", "", "is not JSON: Expecting value"),
        ("summary.json", "[1]", "holds list, not an object"),
    ],
)
def test_a_file_of_the_program_with_a_name_of_the_launcher_s_is_left_out(tmp_path, name, text, words):
    """A processing job's whole output folder is the program's."""
    folder = write_job(tmp_path / "job")
    (folder / "output" / "logs").mkdir(parents=True)
    (folder / "output" / name).write_text(text)
    (notice,) = [text for text in read_report(folder).notices if name in text]
    assert notice.startswith(f"{name} in the job's output is left out: {words}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": 3}, "status is not a string"),
        ({"billable_s": "x"}, "billable_s is not a number"),
        ({"created": float("nan")}, "created is not a number"),
        ({"created": 10**400}, "created is not a number"),
        ({"ended": -1e300}, "ended is not a number"),
        ({"phases": {}}, "phases is not a list of objects"),
        ({"phases": [{"name": "Training"}]}, "a phase has no begin"),
        ({"phases": [{"name": "Training", "begin": True}]}, "phases[0].begin is not a number"),
    ],
)
def test_a_wrong_value(tmp_path, changes, words):
    folder = write_job(tmp_path / "job")
    (folder / "job.json").write_text(json.dumps(job_json(**changes)))
    assert refused(folder) == f"F/job.json: {words}: the file is damaged; fix: fetch the job again: algorun fetch TASK"


def test_a_definition_that_is_none(tmp_path):
    folder = write_job(tmp_path / "job")
    (folder / "job.json").write_text(json.dumps(job_json(metrics=[{"Name": "a", "Regex": "a=[0-9]"}])))
    assert refused(folder).startswith("F/job.json: metric 'a': 'a=[0-9]' has no group for the number; allowed: ")


def test_means_of_steps_and_of_epochs_are_two_curves(tmp_path):
    """A step's line has the mean since the last report, an epoch's that of the epoch: together they jump."""
    text = (
        "epoch: 1/3 train_loss: 2\nstep: 50/90 epoch: 2/3 train_loss: 1.6\nepoch: 2/3 train_loss: 0.9 val_loss : 0.8\n"
    )
    report = read_report(logs(tmp_path, algo_1_7=text))
    found = {each.title: list(each.series[0].values) for each in report.metrics}
    assert found == {"train:loss by step": [1.6], "train:loss by epoch": [2, 0.9], "validation:loss": [0.8]}
    assert "smallest" in render(report)


def test_values_have_the_step_of_their_line(tmp_path):
    (loss, *_) = read_report(
        logs(tmp_path, algo_1_7="step: 50/90 epoch: 2/3 train_loss: 1.6\nstep: 90/90 train_loss: 1\n")
    ).metrics
    assert (loss.place, loss.is_part, list(loss.series[0].numbers)) == (MetricPlace.STEP, False, [50, 90])
    assert loss.series[0].epochs[0] == 2
    assert math.isnan(loss.series[0].epochs[1])


RAN = {
    "command": "python -u train.py --lr 0.1 --api-key ***",
    "commit": "1a2b3c4d5e6f with uncommitted changes",
    "engine": "torchrun",
    "versions": {"algorun": "0.2.0", "Python": "3.12.3", "torch": "2.10.0"},
    "image": "8d7f21",
    "cpus": 48,
    "memory_bytes": 200_000_000_000,
    "gpus": {"NVIDIA A10G": 4},
}


def with_result(folder, ran):
    output = folder / "output"
    output.mkdir(exist_ok=True)
    (output / "result.json").write_text(json.dumps({"kind": "ok", "code": 0, "line": "ok", "ran": ran}))
    return read_report(folder)


def test_what_ran_stands_above_the_curves(tmp_path):
    folder = logs(tmp_path, algo_1_7="train_loss: 1\n")
    known = with_result(folder, RAN).ran
    assert known == (
        ("command", "python -u train.py --lr 0.1 --api-key ***"),
        ("commit of the code", "1a2b3c4d5e6f with uncommitted changes"),
        ("software", "algorun 0.2.0, Python 3.12.3, torch 2.10.0, started by the engine torchrun"),
        ("image", "8d7f21"),
        ("hardware of a host", "48 CPUs, 200.0 GB of memory, 4 x NVIDIA A10G"),
    )
    assert with_result(folder, {"cpus": 1}).ran == (("hardware of a host", "1 CPU"),)
    assert with_result(folder, {}).ran == ()
    create = {"AlgorithmSpecification": {"TrainingImage": "111122223333.dkr.ecr.eu-west-1.amazonaws.com/algorun:0.2.0"}}
    (folder / "request.json").write_text(json.dumps({"job": "images", "kind": "training", "create": create}))
    assert dict(with_result(folder, RAN).ran)["image"].endswith("/algorun:0.2.0")
    (notice,) = [text for text in with_result(folder, {"gpus": []}).notices if "result.json" in text]
    assert "ran.gpus is not an object" in notice
