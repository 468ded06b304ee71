"""Pictures of schedules and partitions: text as it stands, SVG and traces by what is in them."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.parallel import draw, schedules
from algorun_train.parallel.partition.costs import SegmentProfile
from algorun_train.parallel.schedules import Action, PipelineShape, Span, Timeline
from tests.conftest import examples
from tests.train.parallel.shapes import Costs, chosen

SVG = "{http://www.w3.org/2000/svg}"

ONE_F_ONE_B = """\
schedule 1f1b: 4 ranks, 4 stages, 8 microbatches, bubble 27.3% (equal stages)
rank 0 |F0 F1 F2 F3                   B0--- F4 B1--- F5 B2--- F6 B3--- F7 B4---    B5---    B6---    B7--- |
rank 1 |   F0 F1 F2             B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- F7 B5---    B6---    B7---       |
rank 2 |      F0 F1       B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- F6 B5--- F7 B6---    B7---             |
rank 3 |         F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6--- F7 B7---                   |"""

GPIPE = """\
schedule gpipe: 2 ranks, 2 stages, 3 microbatches, bubble 25.0% (equal stages)
rank 0 |F0 F1 F2          B0--- B1--- B2--- |
rank 1 |   F0 F1 F2 B0--- B1--- B2---       |"""

INTERLEAVED = """\
schedule interleaved: 2 ranks, 4 stages, 2 microbatches, bubble 20.0% (equal stages)
rank 0 |F0a F1a F0b F1b         B0b----     B1b---- B0a---- B1a---- |
rank 1 |    F0a F1a F0b B0b---- F1b B1b---- B0a---- B1a----         |"""

ZBV = """\
schedule zbv: 2 ranks, 4 stages, 3 microbatches, bubble 5.3% (equal stages)
rank 0 |F0a F1a F2a F0b I0b W0b F1b I1b W1b W0a---- F2b I2b W2b W1a---- W2a----     |
rank 1 |    F0a F0b F1a F1b I0b W0b F2a I0a W0a F2b I1b W1b I1a I2b I2a W1a W2b W2a |"""

SHORTENED = """\
schedule 1f1b: 2 ranks, 2 stages, 40 microbatches, bubble 2.4% (equal stages)
rank 0 |F0  F1          B0----- F2  B1-- .. B37---- F39 B38----     B39---- |
rank 1 |    F0  B0----- F1  B1----- F2   .. F38 B38---- F39 B39----         |"""

SEGMENTS = [SegmentProfile(f"blocks.{k}", (f"blocks.{k}",), 0.002, 0.004, 2 << 20, 3 << 20, 1 << 18) for k in range(6)]

DECISION = """\
stage  rank  first unit  weights MiB  forward ms  backward ms  in flight   MiB
    0     0  blocks.0            9.0        6.00        12.00          2  50.0
    1     1  blocks.3            9.0        6.00        12.00          1  44.0
planned step 162.0 ms, bubble 11.1%, largest rank 0 with 50.0 MiB"""

SHARED = """\
blocks.0.weight is in stages 0, 1, 1.0 MiB in each: their gradients are summed
"""

MEMORY = """\
stage  planned MiB  measured MiB  measured / planned
    0         50.0          60.0                1.20
    1          9.5             -                   -"""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("1f1b", 4, 1, 8), ONE_F_ONE_B),
        (("gpipe", 2, 1, 3), GPIPE),
        (("interleaved", 2, 2, 2), INTERLEAVED),
        (("zbv", 2, 2, 3), ZBV),
        (("1f1b", 2, 1, 40, 84), SHORTENED),
    ],
)
def test_schedules_as_text(arguments, text):
    assert draw.schedule_text(PipelineShape(*arguments[:4]), *arguments[4:]) == text


@examples(40)
@given(st.sampled_from(sorted(schedules.SCHEDULES)), st.integers(1, 12), st.integers(1, 40), st.integers(60, 160))
def test_text_never_passes_the_terminals_edge(name, ranks, microbatches, width):
    chunks = schedules.SCHEDULES[name].chunks[0]
    if not schedules.allowed_microbatches(name, ranks, ranks * chunks, [microbatches]):
        return
    rows = draw.schedule_text(PipelineShape(name, ranks, chunks, microbatches), width).splitlines()[1:]
    assert len(rows) == ranks
    assert len({len(row) for row in rows}) == 1
    assert len(rows[0]) <= width


def test_a_decision_as_text():
    assert draw.partition_text(chosen(SEGMENTS, 2, 1, 8, "1f1b"), SEGMENTS) == DECISION

    weight = (("blocks.0.weight", 1 << 20),)
    tied = [replace(each, shared=weight) if each.name in ("blocks.0", "blocks.5") else each for each in SEGMENTS]
    table, planned = DECISION.rsplit("\n", 1)
    assert draw.partition_text(chosen(tied, 2, 1, 8, "1f1b"), tied) == f"{table}\n{SHARED}{planned}"


def test_planned_and_measured_memory_as_text():
    assert draw.memory_text([50 << 20, 19 << 19], [60 << 20, None], "stage") == MEMORY


def timelines():
    decision = Costs(SEGMENTS, 2, 2, 4, "interleaved").predict((0, 1, 3, 4))
    orders = schedules.orders("interleaved", 2, 2, 4)
    planned = schedules.simulate(orders, decision.forward_s, decision.backward_s)
    # Measured times begin at any clock's zero and are longer.
    ranks = tuple(
        tuple(Span(a, 900 + 1.25 * begin, 900 + 1.25 * end) for a, begin, end in spans) for spans in planned.ranks
    )
    return planned, Timeline(ranks)


def test_svg_of_planned_and_measured_at_one_scale():
    planned, measured = timelines()
    assert measured.step_s == pytest.approx(1.25 * planned.step_s)
    assert measured.bubble == pytest.approx(planned.bubble)
    root = ElementTree.fromstring(draw.svg("cut <1> & 2", [("planned", planned), ("measured", measured)]))
    texts = [t.text for t in root.iter(SVG + "text")]
    assert texts[0] == "cut <1> & 2"
    assert f"planned: step {planned.step_s * 1e3:.1f} ms, bubble {planned.bubble:.1%}" in texts
    assert texts.count("rank 1") == 2
    assert {"forward", "backward", "0"} <= set(texts)
    assert "weight gradient" not in texts
    boxes = [(r.find(SVG + "title").text, r) for r in root.iter(SVG + "rect") if r.find(SVG + "title") is not None]
    assert len(boxes) == 2 * sum(map(len, planned.ranks))
    pairs = [r for title, r in boxes if title.startswith("B3 stage 0:")]
    ends = [float(r.get("x")) + float(r.get("width")) for r in pairs]
    assert ends[1] == pytest.approx(1200 - 24, abs=1)  # the longer one fills the picture
    assert ends[0] - 84 == pytest.approx((ends[1] - 84) / 1.25, abs=1)
    fills = {title.split(":")[0]: r.get("fill") for title, r in boxes}
    assert fills["F0 stage 0"] != fills["F0 stage 2"] != fills["B0 stage 2"]
    assert all(84 - 1 <= float(r.get("x")) <= 1200 - 24 for _, r in boxes)


def test_svg_of_nothing_is_a_picture_still():
    root = ElementTree.fromstring(draw.svg("nothing", [("measured", Timeline(((), ())))]))
    texts = [text for text in root.itertext() if text.strip()]
    assert any("measured" in text for text in texts), texts


def test_chrome_trace():
    _, measured = timelines()
    trace = json.loads(draw.chrome_trace(measured))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == sum(map(len, measured.ranks))
    first = spans[0]
    assert (first["name"], first["pid"], first["ts"]) == ("F0 stage 0", 0, 0)
    assert first["dur"] == pytest.approx(1.25 * 2000)
    assert {e["pid"] for e in spans} == {0, 1}
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(measured.step_s * 1e6, abs=0.01)
    assert all(re.fullmatch(r"[FB][0-3] stage [0-3]", e["name"]) for e in spans)
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names == ["pipeline rank 0", "pipeline rank 1"]


def test_an_action_says_what_it_is():
    assert str(Action("F", 1, 3)) == "F3 stage 1"
