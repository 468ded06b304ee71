"""How long `algorun report` takes for a job of 16 hosts, and how long a browser takes to show its page.

Four metrics, each with 10,000 values for each host. The browser is a headless Chromium; measured is the time from the
address to the picture, without the start of the browser. Docs promise 2 s.

    python bench/page.py [--rounds 5] [--hosts 16] [--values 10000]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from algorun_report.folder.read import read
from algorun_report.page.render import render
from tests.report.browser import CHROMIUM, Browser
from tests.report.job_folders import write_job

CHARTS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--values", type=int, default=10_000, help="of each metric and host")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="algorun-page-") as scratch:
        folder = write_job(Path(scratch, "job"), hosts=options.hosts, steps=options.values)
        page = Path(scratch, "report.html")
        drawn = []
        for _ in range(options.rounds):
            begin = time.monotonic()
            page.write_text(render(read(folder)), encoding="utf-8")
            drawn.append(time.monotonic() - begin)
        print(f"{options.hosts} hosts, {options.values} values of each of {CHARTS} metrics, {options.rounds} rounds")
        print(f"  page of the folder: {_seconds(drawn)}, {page.stat().st_size / 1e6:.2f} MB")
        if CHROMIUM is None:
            print("no chromium on PATH (apt-get install chromium): the time on the screen is absent")
            return
        with Browser(Path(scratch, "chromium")) as browser:
            browser.look()
            shown = [browser.open(page) for _ in range(options.rounds)]
            if not browser.becomes("document.querySelectorAll('.chart canvas').length", CHARTS):
                sys.exit(f"error: the page has not {CHARTS} charts: {browser.complaints()}")
        print(f"  page on the screen: {_seconds(shown)}")


def _seconds(times: list[float]) -> str:
    return f"{statistics.median(times):.2f} s (from {min(times):.2f} to {max(times):.2f})"


if __name__ == "__main__":
    main()
