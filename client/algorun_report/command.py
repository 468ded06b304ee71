"""`algorun report`: writes the page of a job's folder."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from algorun.common.aside import aside
from algorun.common.errors import ExitCode, UserError
from algorun.common.plain_text import plain, uncommanding_json
from algorun.timing.step_trace import Merged

from .folder.definitions import Definition, from_option
from .folder.read import is_job_folder, read_report
from .folder.trace_files import merge
from .options import add_page_options, is_path, subject
from .page.render import render
from .run_report import RunReport

PAGE = "report.html"


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises UserError (exit code 64)."""

    def error(self, message: str) -> NoReturn:
        raise UserError("command line", message, fix=f"{self.prog} -h")


def main(words: Sequence[str]) -> int:
    """Runs `algorun report ..` without its first word, and returns the exit code. Raises UserError, but not with --json."""
    try:
        options = _parser().parse_args(words)
        folder = Path(options.folder)
        page = make_page(folder, checked(options), folder / PAGE)
    except UserError as error:
        if "--json" not in words:
            raise
        print(f"algorun: error: {plain(str(error))}", file=sys.stderr)
        _write_end(error.code, "error", text=str(error))
        return error.code
    page.say(as_json=options.json)
    if options.json:
        _write_end(ExitCode.OK, "done", job=page.report.job)
    return ExitCode.OK


def _write_end(code: int, kind: str, *, job: str = "", text: str = "") -> None:
    """The last object of --json, as every command of the client prints it."""
    fields = {"job": job, "code": int(code), "code_known": True, "kind": kind, "source": "client", "text": text}
    print(uncommanding_json(json.dumps({"event": "end", **fields, "again": ""})))


def is_of_folder(words: Sequence[str]) -> bool:
    """True if the words of `algorun report` name a folder; False if they name a job, or nothing."""
    text = subject(list(words))
    return bool(text) and (is_path(text) or is_job_folder(Path(text)))


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the user asks of a page."""

    metrics: tuple[Definition, ...]
    rate: float | None  # the price of one host for one hour; None: not given
    out: str  # the page's path, "" for the default


def checked(options: argparse.Namespace) -> ReportOptions:
    """The options of `add_page_options`. Raises UserError."""
    return ReportOptions(tuple(from_option(text) for text in options.metric), _rate(options.price), options.out)


def make_page(folder: Path, asked: ReportOptions, default: Path) -> Page:
    """Writes the page of a job's folder. Raises UserError; then there is no page."""
    report = read_report(folder, asked.metrics, asked.rate)
    text = render(report)
    path = Path(asked.out) if asked.out else default
    _write(path, text)
    prefix = "" if path.parent.resolve() == folder.resolve() else f"{path.stem}-"
    return Page(report, path, len(text.encode()), merge(folder, path.parent, prefix))


@dataclass(frozen=True, slots=True)
class Page:
    """A page that was written."""

    report: RunReport
    path: Path
    size: int  # bytes
    traces: Sequence[tuple[Merged, Path]] = ()  # of steps, and their files

    @property
    def warnings(self) -> list[str]:
        """What the user should know of the metrics."""
        return [f"metric {name}: no line of the logs matches {regex!r}" for name, regex in self.report.silent_metrics]

    def to_json(self) -> dict[str, object]:
        """What --json prints."""
        metrics = [
            {"name": each.title, "series": len(each.series), "values": sum(len(one.values) for one in each.series)}
            for each in self.report.metrics
        ]
        return {
            "event": "report",
            "job": self.report.job,
            "file": str(self.path),
            "bytes": self.size,
            "metrics": metrics,
            "traces": [str(path) for _, path in self.traces],
            "warnings": self.warnings,
        }

    def say(self, *, as_json: bool) -> None:
        """Prints where the page is."""
        if as_json:
            print(uncommanding_json(json.dumps(self.to_json())))
            return
        for text in self.warnings:
            print(f"algorun: warning: {text}", file=sys.stderr)
        report = self.report
        print(
            f"{self.path}: {_counted(report.metrics, 'metric')} of {_counted(report.hosts, 'host')}, {self.size / 1e6:.1f} MB"
        )
        for trace, path in self.traces:
            print(trace.line(str(path)))


def _counted(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'s'[: len(things) != 1]}"


def _parser() -> _Parser:
    parser = _Parser(
        prog="algorun report",
        description="Draw a fetched job as one HTML page.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", help="what `algorun fetch` or `algorun simulate` has left")
    add_page_options(parser, f"FOLDER/{PAGE}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _rate(text: str) -> float | None:
    if not text:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        raise UserError("--price", f"{text!r}", allowed="a number, 0 or more", fix="--price 1.006")
    return rate


def _write(path: Path, page: str) -> None:
    """Writes the page aside and renames it. Raises UserError."""
    try:
        with aside(path) as made:
            made.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(str(path), error.strerror or str(error), fix="--out FILE in a folder with free space") from None
