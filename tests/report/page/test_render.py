"""The page of a report: what stands in it, and that nothing of a job is more than text in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

import algorun_report.page
from algorun_report.page.render import render
from algorun_report.run_report import (
    Axis,
    Cost,
    Excerpt,
    HostWindows,
    Metric,
    ReportedActivities,
    ReportedAttempt,
    ReportedHost,
    ReportedPhase,
    RunReport,
    Series,
    Sweep,
    SweepRow,
    Traffic,
    Utilization,
    Window,
    normalized,
)

from .pages import chart, data

FILES = Path(algorun_report.page.__file__).parent / "files"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
LOSS = Metric(name="loss", regex="loss=(.*)", series=(Series("algo-1", [1, 2], [0.5, 0.25]),))
PLAIN = RunReport(job="train-0001", metrics=(LOSS,))


def rows(page: str, heading: str) -> list[list[str]]:
    """The texts of the table below a heading."""
    table = page.partition(f">{heading}</h")[2].partition("</table>")[0]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("<tr>")]
    return [[re.sub("<.*?>", "", cell).strip() for cell in row] for row in cells if row]


def test_every_text_of_a_job_is_escaped():
    report = RunReport(
        job=HOSTILE,
        status=HOSTILE,
        kind=HOSTILE,
        instance=HOSTILE,
        closing_line=HOSTILE,
        root_cause=HOSTILE,
        created=0.0,
        hosts=(ReportedHost(HOSTILE, 1, 1),),
        phases=(ReportedPhase(HOSTILE, 0, 1),),
        attempts=(ReportedAttempt(1, HOSTILE), ReportedAttempt(2, HOSTILE, 3.0)),
        metrics=(replace(LOSS, name=HOSTILE, regex=HOSTILE, series=(Series(HOSTILE, [1], [1.0]),)),),
        silent_metrics=((HOSTILE, HOSTILE),),
        utilization=(Utilization(HOSTILE, (Series(HOSTILE, [1], [1.0]),)),),
        traffic=(Traffic(HOSTILE, (Series(HOSTILE, [1], [1.0]),)),),
        activities=ReportedActivities(
            (HOSTILE,), (HostWindows(HOSTILE, (0,), (Window(0, 1, 1, ((0.5,),)),)),), ((1.0, HOSTILE),)
        ),
        results=((HOSTILE, HOSTILE),),
        sweep=Sweep((HOSTILE,), HOSTILE, (SweepRow(HOSTILE, HOSTILE, (HOSTILE,), 1.0),)),
        excerpts=(Excerpt(HOSTILE, (HOSTILE,), 0),),
        notices=(HOSTILE,),
    )
    page = render(report)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == 3  # the data, the library and ours
    assert page.count("</script>") == 3
    assert chart(page, HOSTILE)["labels"] == [HOSTILE]
    assert re.findall(r'class="status [^"]*"', page) == ['class="status other"']


def test_a_name_that_is_no_unicode_text_is_shown_as_well_as_can_be():
    """As a JSON file or the name of a file may hold it."""
    page = render(replace(PLAIN, job="a\ud800b", excerpts=(Excerpt("\udcff", ("x",), 0),)))
    assert "<h1>a?b</h1>" in page.encode().decode()


def test_the_policy_allows_the_scripts_and_the_style_of_the_page_and_nothing_else():
    page = render(PLAIN)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    parts = dict(part.strip().split(" ", 1) for part in policy.replace("&#39;", "'").split(";"))
    assert parts.keys() == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    assert {parts["default-src"], parts["base-uri"], parts["form-action"]} == {"'none'"}

    def hashes(texts: list[str]) -> list[str]:
        return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]

    assert parts["script-src"].split() == hashes(re.findall(r"<script>(.*?)</script>", page, re.DOTALL))
    assert parts["style-src"].split() == hashes(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert not re.search(r"<[^>]* (style|on[a-z]+)=", page.partition("<script>")[0])


def test_the_library_is_the_one_that_its_makers_published():
    """uplot-1.6.32.tgz of npm. A new version: take its two files and LICENSE, and change the numbers here."""
    digests = {
        name: hashlib.sha256((FILES / name).read_bytes()).hexdigest() for name in ("uPlot.iife.min.js", "uPlot.min.css")
    }
    assert digests == {
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    assert (FILES / "uPlot.LICENSE").read_text().splitlines()[0] in render(PLAIN)


def test_a_large_job_stays_below_5_mb_and_says_what_is_drawn():
    values = [1.0 / 3 + n for n in range(10_000)]
    series = tuple(Series(f"algo-{host}", range(10_000), values) for host in range(1, 17))
    metrics = tuple(Metric(name=f"m{n}", regex="", series=series) for n in range(8))
    kinds = ("CPU", "memory", "GPU", "GPU memory", "disk")
    page = render(replace(PLAIN, metrics=metrics, utilization=tuple(Utilization(kind, series) for kind in kinds)))
    assert len(page.encode()) < 5_000_000
    (note,) = set(re.findall(r'<p class="note">(.*values; drawn.*)</p>', page))
    assert note == "160,000 values; drawn are the smallest and the largest in each of 452 stretches"


def test_the_last_value_is_that_of_the_log_also_where_it_is_not_drawn():
    values = [5.0, *[1.0, 9.0] * 5000, 4.0]
    page = render(replace(PLAIN, metrics=(replace(LOSS, series=(Series("algo-1", range(10_002), values),)),)))
    drawn = chart(page, "loss")
    assert drawn["last"] == [4.0]
    assert 4.0 not in drawn["columns"][0]


def test_more_series_than_a_chart_can_show_are_counted():
    series = tuple(Series(f"algo-{host}", [1], [1.0]) for host in range(1, 101))
    page = render(replace(PLAIN, metrics=(replace(LOSS, series=series),)))
    assert len(chart(page, "loss")["labels"]) == 64
    assert "the first 64 of 100 series are drawn" in page


def test_utilization_is_in_percent_of_the_whole_host():
    busy = Series("algo-1", [0, 60], normalized([200.0, 3000.0], units=32))
    page = render(replace(PLAIN, utilization=(Utilization("CPU", (busy,)),)))
    drawn = chart(page, "CPU")
    assert drawn["columns"] == [[6.25, 93.75]]
    assert (drawn["percent"], drawn["axis"], drawn["unit"]) == (True, "time", "% of the host")
    with pytest.raises(ValueError, match="0 cores or GPUs; allowed: 1 or more"):
        normalized([1.0], units=0)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (Cost(hosts=2, billable_s=1800), "price unknown"),
        (Cost(hosts=2, billable_s=1800, rate=7.09), "7.09 "),
        (Cost(hosts=2, billable_s=29, rate=0.115), "0.0019 "),
        (Cost(hosts=1, billable_s=720, rate=1), "0.20 "),
        (Cost(hosts=1, billable_s=1, rate=0.2), "below 0.0001 "),
        (Cost(hosts=1, billable_s=0, rate=0.2), "0.00 "),
        (Cost(hosts=2, billable_s=None, rate=7.09), "billable time unknown"),
    ],
)
def test_a_cost_is_computed_or_said_to_be_unknown(cost, words):
    found = re.search(r"<dt>cost</dt><dd>(.*?)</dd>", render(replace(PLAIN, cost=cost)), re.DOTALL)
    assert found[1].startswith(words)


def test_the_saving_of_spot_instances():
    assert "<dd>70 %</dd>" in render(replace(PLAIN, cost=Cost(hosts=1, billable_s=300, training_s=1000)))
    assert "saved by spot" not in render(replace(PLAIN, cost=Cost(hosts=1, billable_s=300, training_s=300)))


@pytest.mark.parametrize(
    ("cause", "opened"), [("", "algo-1"), ("exit: rank 3 on algo-2, exit 3: no data", "algo-2"), ("capacity", "algo-1")]
)
def test_the_lines_of_the_host_at_fault_are_open(cause, opened):
    excerpts = tuple(Excerpt(host, ("a", "b"), 7) for host in ("algo-1", "algo-2", "algo-21"))
    page = render(replace(PLAIN, root_cause=cause, excerpts=excerpts))
    assert re.findall(r"<details open>\n<summary>(\S+) ", page) == [opened]


def test_phases_attempts_and_a_sweep_are_tables():
    report = replace(
        PLAIN,
        created=100.0,
        ended=200.0,
        axis=Axis.TIME,
        phases=(ReportedPhase("Starting", 100, 125), ReportedPhase("Training", 125, None)),
        attempts=(ReportedAttempt(1, "exit: rank 1 on algo-2, exit 3", 100.0), ReportedAttempt(2, "", 150.5)),
        sweep=Sweep(
            ("lr", "width"),
            "accuracy",
            (SweepRow("s-1", "Completed", ("0.1", "64"), 0.91), SweepRow("s-2", "Failed", ("1", "64"), None)),
        ),
    )
    page = render(report)
    assert [[row[0], row[2], row[3]] for row in rows(page, "Where the time went")] == [
        ["Starting", "25 s", "25 % 25 %"],
        ["Training", "1 min 15 s", "75 % 75 %"],
    ]
    assert rows(page, "Attempts") == [
        ["1", "1970-01-01 00:01:40 UTC", "exit: rank 1 on algo-2, exit 3"],
        ["2", "1970-01-01 00:02:30 UTC", "no failure"],
    ]
    assert rows(page, "Sweep") == [["0.1", "64", "0.91", "Completed", "s-1"], ["1", "64", "none", "Failed", "s-2"]]
    assert data(page)["marks"] == [{"x": 50.5, "text": "attempt 2"}]


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_the_result_comes_first_and_what_is_missing_after_what_is_there():
    results = (("accuracy", "0.9"),)
    report = replace(PLAIN, status="Failed", root_cause="exit: rank 1", results=results, notices=("No times.",))
    page = render(report)
    assert headings(page) == ["Result", "Curves", "Attempts", "What this page cannot show", "Last lines"]
    result = page.partition("<h2>Result</h2>")[2].partition("</section>")[0]
    for text in ("Failed", "exit: rank 1", "<dt>accuracy</dt><dd>0.9</dd>", ">loss</td>", ">0.25</td>"):
        assert text in result
    assert '<a href="#missing">' in result
    assert "No times." in page.partition('id="missing"')[2]


def test_nothing_is_said_of_a_cost_that_nobody_can_know():
    """As of a folder that `algorun simulate` has left."""
    page = render(replace(PLAIN, cost=Cost(hosts=0, billable_s=None)))
    assert "<dt>billable per host</dt>" not in page
    assert "<dt>cost</dt>" not in page
    assert "No line of the job" not in page
    assert "No line of the job" in render(replace(PLAIN, metrics=()))
