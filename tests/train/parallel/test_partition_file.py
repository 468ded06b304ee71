"""The partition file: written, read, edited by hand and refused."""

import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from algorun_train.parallel.partition.costs import SegmentProfile
from algorun_train.parallel.partition.partition_file import Job, read_partition, reuse, write
from algorun_train.parallel.planning.model_hash import model_hash
from tests.conftest import examples
from tests.train.parallel.shapes import Costs, chosen

UNITS = (("embed",), ("blocks.0.norm", "blocks.0.mix"), ("blocks.1.norm", "blocks.1.mix"), ("head",))
SHARED = {"embed": (("embed.weight", 160), ("scale", 4)), "head": (("embed.weight", 160),)}
SEGMENTS = [
    SegmentProfile(units[0], units, 0.001 * (k + 1), 0.002, 100 * k, 4000, 64, SHARED.get(units[0], ()))
    for k, units in enumerate(UNITS)
]
PARAMETERS = [("embed.weight", (10, 4), "float32"), ("head.weight", (4, 10), "float32")]
JOB = Job(model_hash(PARAMETERS), "2.13.0", "cpu", "float32", ((8, 128),), 4, "1f1b", 2, "speed", None)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "partition.json"
    write(file, JOB, SEGMENTS, chosen(SEGMENTS, 2, 1, 4, "1f1b"))
    return file


def edit(path, change):
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    return path


def load(path, job=JOB, units=UNITS, stages=2):
    return reuse(path, read_partition(path), job, units, stages)


def test_what_is_written_is_read(path):
    file = read_partition(path)
    assert file.job == JOB
    assert list(file.segments) == SEGMENTS
    assert file.stages == (("embed", "blocks.0.norm", "blocks.0.mix"), ("blocks.1.norm", "blocks.1.mix", "head"))
    found = load(path)
    assert (found.begins, found.differs, found.outdated, found.profiled) == ((0, 2), (), False, True)
    table = json.loads(path.read_text())
    assert table["format"] == 1
    assert table["decision"]["step_s"] == chosen(SEGMENTS, 2, 1, 4, "1f1b").step_s
    assert [segment["shared"] for segment in table["segments"]] == [dict(segment.shared) for segment in SEGMENTS]
    assert [p.name for p in path.parent.iterdir()] == ["partition.json"]  # nothing is left aside


def test_a_file_from_before_weights_could_be_shared_is_read(path):
    file = read_partition(edit(path, lambda table: [segment.pop("shared") for segment in table["segments"]]))
    assert list(file.segments) == [dataclasses.replace(segment, shared=()) for segment in SEGMENTS]


def test_moving_units_makes_a_manual_partition(path):
    def move(table):
        first, second = table["stages"]
        second["units"][:0] = [first["units"].pop(-2), first["units"].pop(-1)]

    found = load(edit(path, move))
    assert found.begins == (0, 1)
    manual = Costs(read_partition(path).segments, 2, 1, 4, "1f1b").predict(found.begins)
    assert manual.step_s > chosen(SEGMENTS, 2, 1, 4, "1f1b").step_s


def test_the_hash_is_of_names_shapes_and_dtypes_in_any_order():
    assert model_hash(PARAMETERS) == model_hash(reversed(PARAMETERS))
    others = [
        [("embed.weights", (10, 4), "float32"), PARAMETERS[1]],
        [("embed.weight", (4, 10), "float32"), PARAMETERS[1]],
        [("embed.weight", (10, 4), "bfloat16"), PARAMETERS[1]],
        PARAMETERS[:1],
    ]
    assert len({model_hash(rows) for rows in [PARAMETERS, *others]}) == 5
    assert model_hash([("a", [2], "float32")]) == model_hash([("a", (2,), "float32")])


def test_other_microbatches_outdate_the_figures(path):
    shape = load(path, dataclasses.replace(JOB, microbatch_shapes=((4, 128),)))
    assert (shape.outdated, shape.profiled) == (True, False)
    assert shape.differs == ("shape of a microbatch ((8, 128),) then, ((4, 128),) now",)
    count = load(path, dataclasses.replace(JOB, microbatches=8))
    assert (count.outdated, count.profiled, count.differs) == (True, True, ("microbatches 4 then, 8 now",))


def test_another_machine_or_wish_is_told(path):
    other = dataclasses.replace(JOB, device="cuda", torch="2.15.0", optimize="memory", limit_bytes=5, recompute=True)
    found = load(path, other)
    assert (found.outdated, found.profiled) == (False, False)
    assert found.differs == (
        "device cpu then, cuda now",
        "torch 2.13.0 then, 2.15.0 now",
        "optimize speed then, memory now",
        "limit in bytes None then, 5 now",
        "recompute False then, True now",
    )
    merged = ((*UNITS[0], *UNITS[1]), *UNITS[2:])
    found = load(path, units=merged)
    assert found.begins == (0, 1)
    assert (found.differs, found.profiled) == (("the model can be cut in other places now",), False)


def remove(table):
    table["stages"][1]["units"].remove("blocks.1.mix")


def twice(table):
    table["stages"][1]["units"].append("embed")


def unknown(table):
    table["stages"][1]["units"][2] = "heads"


def swapped(table):
    units = table["stages"][1]["units"]
    units[0], units[1] = units[1], units[0]


def inside(table):
    first, second = table["stages"]
    second["units"].insert(0, first["units"].pop())


def emptied(table):
    first, second = table["stages"]
    first["units"] += second["units"]
    second["units"] = []


def third(table):
    table["stages"].append({"units": [table["stages"][1]["units"].pop()]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(format=2), "format is 2; allowed: 1; fix: profile again"),
        (lambda t: t.pop("format"), "format is missing; allowed: 1"),
        (lambda t: t["job"].update(model="0" * 64), "model 000000000000.. is not this one .* allowed: the model it was made with; fix: "),
        (remove, "stages: unit blocks.1.mix is missing; allowed: every unit once; fix: put blocks.1.mix after blocks.1.norm"),
        (twice, r"stages\[0\].units: embed is there 2 times; allowed: every unit once; fix: remove the others"),
        (unknown, r"stages\[1\].units: 'heads' is no unit; allowed: .*; fix: did you mean head\?"),
        (swapped, "stages: unit blocks.1.mix comes before blocks.1.norm; allowed: the order of the model; fix: put blocks.1.norm after blocks.0.mix"),
        (inside, r"stages\[1\] begins with blocks.0.mix, where the model cannot be cut; allowed: blocks.0.norm to blocks.0.mix in one stage; fix: move all"),
        (emptied, r"stages\[1\].units is empty; allowed: at least one unit; fix: move one there"),
        (third, "stages has 3 of them; allowed: 2, as this job has; fix: "),
        (lambda t: t.update(stages=[]), r"stages is \[\]; allowed: a list of objects"),
        (lambda t: t["stages"][1].update(units="head"), r"stages\[1\].units is 'head'; allowed: a list of names"),
        (lambda t: t.pop("job"), "job. is a NoneType; allowed: an object"),
        (lambda t: t["job"].update(microbatches=True), "job.microbatches is True; allowed: a whole number of at least 1"),
        (lambda t: t["job"].update(microbatch_shapes=[8]), "job.microbatch_shapes is .*; allowed: a list of shapes"),
        (lambda t: t["job"].pop("schedule"), "job.schedule is missing; allowed: a text"),
        (lambda t: t["job"].update(recompute=1), "job.recompute is 1; allowed: true or false"),
        (lambda t: t["segments"][2].update(forward_s=-1), r"segments\[2\].forward_s is -1; allowed: a number of seconds"),
        (lambda t: t["segments"][0].update(saved_bytes=1.5), r"segments\[0\].saved_bytes is 1.5; allowed: a whole number"),
    ],
)  # fmt: skip
def test_refusals_name_file_key_what_is_allowed_and_the_fix(path, change, message):
    with pytest.raises(UserError, match=f"partition file {path}.*{message}"):
        load(edit(path, change))


def test_no_file_and_no_json(path):
    with pytest.raises(UserError, match="cannot be read: No such file or directory; fix: "):
        read_partition(path.with_name("other.json"))
    for text in ("{", "[1, 2", "\udcff", "[" * 100_000):
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(UserError, match="is not JSON: .*; fix: "):
            read_partition(path)
    path.write_text("[]")
    with pytest.raises(UserError, match="the file is a list; allowed: an object"):
        read_partition(path)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), st.text(max_size=5), st.just([]), st.just({})
)


@settings(examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_value_in_any_place_is_read_or_refused_in_one_sentence(path, data):
    original = path.read_text()
    table = json.loads(original)
    place = below = table
    while isinstance(below, (dict, list)) and below:
        place = below
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        below = place[key]
        if data.draw(st.booleans()):
            break
    place[key] = data.draw(VALUES)
    broken = path.with_name("broken.json")
    broken.write_text(json.dumps(table))
    try:
        begins = load(broken).begins
    except UserError as error:
        text = str(error)
    else:
        assert len(begins) == 2
        return
    assert "\n" not in text
    assert all(word in text for word in (str(broken), "allowed: ", "fix: "))
