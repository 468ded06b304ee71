"""The launcher's dataclasses beside the standard library's: the same class made by both behaves the same."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from algorun.common import fast_dataclasses


def made(module: Any) -> tuple[type, type, type]:
    """A frozen class, one that inherits from it, and one that is not frozen."""

    @module.dataclass(frozen=True, slots=True)
    class Base:
        """A document."""

        first: int
        second: str = "two"
        secret: str = module.field(default="", repr=False)
        more: Mapping[str, int] = module.field(default_factory=dict)

        @property
        def both(self) -> str:
            return f"{self.first}{self.second}"

    @module.dataclass(frozen=True, slots=True)
    class Derived(Base):
        third: float = 3.0

    @module.dataclass(slots=True)
    class Mutable:
        count: int = 0

        def __repr__(self) -> str:
            return f"<{self.count}>"

    return Base, Derived, Mutable


@pytest.fixture(params=[dataclasses, fast_dataclasses], ids=["standard library", "fast"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_values_by_place_by_name_and_by_default(module: Any) -> None:
    base, derived, mutable = made(module)
    assert base(1).both == "1two"
    assert base(1, second="b").both == "1b"
    assert base(first=1).more == {}
    one, other = base(1), base(1)
    assert one.more is not other.more  # the function is called for each
    assert (derived(1, "b", "s", {}, 4.0).third, derived(1).third) == (4.0, 3.0)
    assert mutable().count == 0


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1,), {"first": 2}), ((1,), {"other": 2}), ((1, 2, 3, 4, 5), {})]
)
def test_wrong_values_are_a_type_error(module: Any, values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        made(module)[0](*values, **named)


def test_repr_names_the_fields_but_for_hidden_ones(module: Any) -> None:
    base, derived, mutable = made(module)
    assert repr(base(1, secret="password")).endswith("Base(first=1, second='two', more={})")
    assert repr(derived(1)).endswith("Derived(first=1, second='two', more={}, third=3.0)")
    assert repr(mutable(2)) == "<2>"  # a method of its own stays


def test_objects_of_one_class_with_equal_values_are_equal(module: Any) -> None:
    base, derived, mutable = made(module)
    assert base(1) == base(1)
    assert base(1) != base(2)
    assert base(1) != derived(1)
    assert base(1) != (1, "two", "", {})
    assert mutable(1) == mutable(1)
    assert hash(base(1, more=())) == hash(base(1, more=()))
    assert len({base(1, more=()), base(1, more=())}) == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(mutable(1))


def test_a_frozen_object_cannot_be_changed_and_no_object_takes_other_names(module: Any) -> None:
    base, _, mutable = made(module)
    one, two = base(1), mutable(1)
    with pytest.raises(AttributeError):
        one.first = 2
    with pytest.raises(AttributeError):
        del one.first
    assert one.first == 1
    assert not hasattr(one, "__dict__")
    two.count = 5
    assert two.count == 5
    with pytest.raises((AttributeError, TypeError)):
        two.other = 1


def test_fields_replace_and_patterns(module: Any) -> None:
    base, derived, _ = made(module)
    assert [each.name for each in module.fields(derived)] == ["first", "second", "secret", "more", "third"]
    assert [each.name for each in module.fields(base(1))] == ["first", "second", "secret", "more"]
    first, second, _, more = module.fields(base)
    assert first.default is module.MISSING
    assert second.default == "two"
    assert more.default_factory is dict
    assert module.replace(derived(1), third=5.0) == derived(1, third=5.0)
    with pytest.raises(TypeError):
        module.replace(base(1), third=5.0)
    match base(7):
        case base(first, second="two"):
            assert first == 7
        case _:
            raise AssertionError("the pattern does not fit")
    assert module.is_dataclass(base)
    assert module.is_dataclass(base(1))
    assert not module.is_dataclass(int)


def test_copies_are_equal() -> None:
    from algorun.control.failures.failure import Failure
    from algorun.control.wire.messages import Fail

    message = Fail(Failure("exit", "algo-1", 3, "the end"))
    assert copy.deepcopy(message) == message == pickle.loads(pickle.dumps(message))
    assert Fail.__doc__ == "Something of this host has failed."
    assert Fail.__qualname__ == "Fail"


def test_a_class_without_slots_is_refused() -> None:
    with pytest.raises(TypeError, match="slots=True"):
        fast_dataclasses.dataclass(slots=False)


def post_init() -> type:
    class A:
        first: int

        def __post_init__(self) -> None: ...

    return A


def with_annotation(kind: str, default: object) -> type:
    return type("A", (), {"__annotations__": {"first": kind}, "first": default})


@pytest.mark.parametrize(
    "kind",
    [
        post_init(),
        with_annotation("list[int]", []),
        with_annotation("ClassVar[int]", 3),
        with_annotation("InitVar[int]", 3),
    ],
    ids=["post-init", "a list as default", "ClassVar", "InitVar"],
)
def test_what_only_the_standard_library_does_is_refused(kind: type) -> None:
    with pytest.raises(TypeError, match="use the standard library"):
        fast_dataclasses.dataclass(slots=True, frozen=True)(kind)


def test_a_job_starts_without_the_slow_modules() -> None:
    """dataclasses imports inspect, 8 ms; difflib and ast serve errors and hyperparameters. Ours are those of other engines, of
    reports while ranks run, of a hang and of the end."""
    slow = {"ast", "dataclasses", "difflib", "inspect", "shutil"}
    ours = (
        "control.hub.inquiry",
        "control.hang.standstill",
        "control.hub.reports",
        "host.measuring.step_trace",
        "plan.engines.mpirun",
        "plan.ray_cluster",
        "timing.table",
    )
    slow |= {f"algorun.{each}" for each in ours}
    assert all(map(importlib.util.find_spec, slow)), "a module has another name by now"
    parts = "algorun.cli, algorun.host.run, algorun.network.channel, algorun.network.hub_server, algorun.plan.plan"
    parts += ", algorun.commands.simulate"
    program = f"import sys, {parts}; print({slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
