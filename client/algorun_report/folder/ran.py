"""What ran, and on what, out of the launcher's result.json."""

from __future__ import annotations

from algorun.common.sizes import size_text

from .json_files import Fields
from .log_files import shown

IMAGE_ROW = "image"


def rows(ran: Fields) -> tuple[tuple[str, str], ...]:
    """A name and a text for each thing that is known. Raises UserError where the file is another's."""
    software = [f"{name} {version}" for name, version in ran.table("versions").plain()]
    found = (
        ("command", ran.text("command")),
        ("commit of the code", ran.text("commit")),
        ("software", ", ".join([*software, *_engine(ran)])),
        (IMAGE_ROW, ran.text("image")),
        ("hardware of a host", ", ".join(_hardware(ran))),
    )
    return tuple((name, shown(text)) for name, text in found if text)


def _engine(ran: Fields) -> list[str]:
    return [f"started by the engine {engine}"] if (engine := ran.text("engine")) else []


def _hardware(ran: Fields) -> list[str]:
    cpus, memory = ran.number("cpus"), ran.number("memory_bytes")
    found = [f"{cpus:.0f} CPU{'s'[: cpus != 1]}"] if cpus else []
    found += [f"{size_text(int(memory))} of memory"] if memory else []
    return found + [f"{count} x {model}" for model, count in ran.table("gpus").plain()]
