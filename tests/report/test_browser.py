"""The page in a real browser: nothing of a job runs, nothing is loaded, every chart is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from algorun import cli
from tests.report.browser import Browser, needs_chromium
from tests.report.job_folders import write_job, write_rank_times

pytestmark = needs_chromium
HOSTILE = (
    "<script>document.title = 'taken'</script>",
    "<img src=https://example.com/x.png onerror=\"document.title = 'taken'\">",
    "</script></pre><svg onload=\"document.title = 'taken'\">",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def page_of(folder: Path) -> Path:
    assert cli.main(["report", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return page_of(write_job(tmp_path_factory.mktemp("large") / "job", hosts=16, steps=10_000))


# They need chromium, which a newcomer's machine does not have; report/page has the same without a browser.
@pytest.mark.slow
def test_a_log_line_is_text_and_the_page_asks_for_nothing(browser, tmp_path):
    page = page_of(write_job(tmp_path / "job", more=HOSTILE))
    browser.look()
    browser.open(page)
    assert browser.value("document.title").endswith(": report")
    assert browser.value("document.querySelector('details pre').textContent").endswith("\n".join(HOSTILE))
    assert browser.value("[document.scripts.length, document.images.length]") == [3, 0]
    assert browser.becomes("document.documentElement.dataset.charts", "4")
    assert browser.complaints() == []
    assert browser.requested() == [page.as_uri()]


@pytest.mark.slow
def test_the_policy_stops_a_script_and_a_request_that_got_into_the_page(browser, tmp_path):
    """As if escaping had failed: the browser itself refuses."""
    page = page_of(write_job(tmp_path / "job"))
    page.write_text(page.read_text().replace("<footer>", f"<footer>{''.join(HOSTILE[:2])}"))
    browser.open(page)
    assert browser.value("document.title").endswith(": report")
    assert any("Content Security Policy" in text for text in browser.complaints())


@pytest.mark.slow
def test_16_hosts_with_10_000_values_a_metric_are_drawn_from_less_than_5_mb(browser, large):
    """How soon they are on the screen: docs/report.md."""
    browser.look()
    browser.open(large)
    assert large.stat().st_size < 5_000_000
    assert browser.becomes("document.querySelectorAll('.chart canvas').length", 4)
    assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_window(browser, large, width):
    browser.look(width=width)
    browser.open(large)
    assert browser.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_reader_chooses_an_activity_and_sees_each_rank_under_the_cursor(browser, tmp_path):
    folder = write_job(tmp_path / "job")
    (folder / "output" / "logs").mkdir(parents=True)
    write_rank_times(folder / "output", hosts=16, ranks=8, reports=500, slow=9)
    browser.look()
    browser.open(page_of(folder))
    most, cell = "document.getElementById('most').textContent", "document.getElementById('cell').textContent"
    assert browser.becomes("document.querySelectorAll('.heat canvas').length", 1)
    assert browser.becomes(most, "95 %")
    browser.value("(s => { s.value = 'exchange'; s.onchange() })(document.getElementById('activity'))")
    assert browser.becomes(most, "30 %")
    move = (
        "(over => { const box = over.getBoundingClientRect(); over.dispatchEvent(new MouseEvent('mousemove', "
        "{clientX: box.left + box.width / 4, clientY: box.bottom - 1, bubbles: true})) })(document.querySelector('.heat .u-over'))"
    )
    browser.value(move)
    assert browser.becomes(f"{cell}.startsWith('rank 127 on algo-16, ')", True)
    assert browser.value(cell).endswith(": 30 %, 60 steps")
    assert browser.complaints() == []


@pytest.mark.slow
def test_colours_follow_the_system_also_while_the_page_is_open(browser, large):
    back = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelectorAll('.u-marker')[1]).borderTopColor"
    browser.look()
    browser.open(large)
    assert browser.becomes(f"[{back}, {line}]", ["rgb(255, 255, 255)", "rgb(0, 114, 178)"])
    browser.look(dark=True)
    assert browser.becomes(f"[{back}, {line}]", ["rgb(20, 23, 27)", "rgb(86, 180, 233)"])


def test_a_reader_chooses_between_steps_and_time(browser, tmp_path):
    browser.look()
    browser.open(page_of(write_job(tmp_path / "job")))
    axis = "document.querySelector('.chart .u-legend th').textContent"
    assert browser.becomes(f"{axis}.trim()", "step")
    browser.value("(s => { s.value = 'time'; s.dispatchEvent(new Event('change')) })(document.getElementById('axis'))")
    assert browser.becomes(f"{axis}.trim()", "time")
    assert browser.complaints() == []
