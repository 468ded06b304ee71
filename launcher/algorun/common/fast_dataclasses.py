"""`dataclass`, `field`, `fields` and `replace` as in the standard library's dataclasses, for a fast start.

The standard library writes the methods of each class as source text and compiles them: about 0.4 ms for a frozen class,
and it imports `inspect`. The launcher has eighty such classes, and every job waits for its start. Here all classes share
one set of methods. What the launcher uses is there and behaves the same; nothing else is. Type checkers see the standard
library's names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
else:
    FIELDS = "__algorun_fields__"  # the attribute of a class: its fields by their names

    class Missing:
        """Stands where a field has no default."""

        def __repr__(self) -> str:
            return "MISSING"

    MISSING = Missing()

    class Field:
        """One field of a class: its name, its default or the function that makes one, and whether repr shows it."""

        __slots__ = ("default", "default_factory", "name", "repr")

        def __init__(self, name: str, default: Any, default_factory: Any, repr: bool) -> None:
            self.name, self.default, self.default_factory, self.repr = name, default, default_factory, repr

    def field(*, default: Any = MISSING, default_factory: Any = MISSING, repr: bool = True) -> Field:
        """What a class gives to a field that is more than a default."""
        return Field("", default, default_factory, repr)

    def dataclass(*, slots: bool, frozen: bool = False) -> Any:
        """Decorates a class with annotated fields. It always gets slots; the argument keeps the call as it is elsewhere.

        The module of the class needs `from __future__ import annotations`, as every module of the launcher has it.
        """
        if not slots:
            raise TypeError("every class of the launcher has slots; fix: slots=True")
        return _frozen if frozen else _mutable

    def fields(kind: Any) -> tuple[Field, ...]:
        """The fields of a class or of one of its objects, in order; those of its base classes first."""
        return tuple(getattr(kind, FIELDS).values())

    def is_dataclass(kind: Any) -> bool:
        """Whether `dataclass` of this module has made the class, or the class of the object."""
        return hasattr(kind, FIELDS)

    def replace(value: Any, /, **changes: Any) -> Any:
        """A copy of an object with other values of the fields that are named."""
        return type(value)(**{name: getattr(value, name) for name in getattr(value, FIELDS)} | changes)

    def _frozen(cls: type) -> type:
        return _made(cls, {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete, "__hash__": _hash})

    def _mutable(cls: type) -> type:
        return _made(cls, {"__hash__": None})

    def _made(cls: type, more: dict[str, Any]) -> type:
        """The class again, with slots and the shared methods; a method of its own stays."""
        own = cls.__annotations__  # without those of its bases
        _refuse_unsupported(cls, own)
        found = {name: each for base in cls.__mro__[:0:-1] for name, each in getattr(base, FIELDS, {}).items()}
        for name in own:
            default = cls.__dict__.get(name, MISSING)
            found[name] = default if isinstance(default, Field) else Field(name, default, MISSING, True)
            found[name].name = name
        shared = {"__init__": _init, "__repr__": _repr, "__eq__": _equal, "__reduce__": _reduce, **more}
        body = shared | {
            key: each for key, each in cls.__dict__.items() if key not in {*own, "__dict__", "__weakref__"}
        }
        body |= {"__annotations__": own, "__slots__": tuple(own), "__match_args__": tuple(found), FIELDS: found}
        body["__qualname__"] = cls.__qualname__
        return type(cls)(cls.__name__, cls.__bases__, body)

    def _refuse_unsupported(cls: type, own: dict[str, Any]) -> None:
        """Raises TypeError where a class uses what only the standard library's dataclasses do."""
        kinds = [
            name for name, kind in own.items() if str(kind).removeprefix("typing.").startswith(("ClassVar", "InitVar"))
        ]
        changing = [name for name in own if isinstance(cls.__dict__.get(name), (list, dict, set))]
        if kinds or changing or hasattr(cls, "__post_init__"):
            where = ", ".join(kinds + changing) or "__post_init__"
            raise TypeError(f"{cls.__name__}: {where}: not supported; fix: use the standard library's dataclasses")

    def _init(self: Any, /, *values: Any, **named: Any) -> None:
        own = getattr(self, FIELDS)
        if not values and named.keys() == own.keys():  # as messages are made, thousands in a second
            for name, value in named.items():
                object.__setattr__(self, name, value)
            return
        if len(values) > len(own):
            raise TypeError(f"{type(self).__name__} takes {len(own)} values, not {len(values)}")
        given = dict(zip(own, values, strict=False))
        for name in named:
            if name not in own or name in given:
                raise TypeError(f"{type(self).__name__}: {'two values for' if name in own else 'no field'} {name!r}")
        given |= named
        for name, each in own.items():
            if name in given:
                value = given[name]
            elif each.default is not MISSING:
                value = each.default
            elif each.default_factory is not MISSING:
                value = each.default_factory()
            else:
                raise TypeError(f"{type(self).__name__}: no value for {name!r}")
            object.__setattr__(self, name, value)

    def _values(value: Any) -> tuple[Any, ...]:
        return tuple(getattr(value, name) for name in getattr(value, FIELDS))

    def _repr(self: Any) -> str:
        shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _equal(self: Any, other: object) -> bool:
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def _hash(self: Any) -> int:
        return hash(_values(self))

    def _reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
        return type(self), _values(self)

    def _refuse_to_set(self: Any, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be set")

    def _refuse_to_delete(self: Any, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be deleted")


__all__ = ["MISSING", "Field", "dataclass", "field", "fields", "is_dataclass", "replace"]
