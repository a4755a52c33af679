"""`--knob NAME=VALUE`: what a policy, or the engine under it, can be told; the same live and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from loadgen.errors import UsageError

# Settings of the engine that have no flag of their own: the name of the knob, and of the field it sets.
SETTINGS = {
    "block_tokens": "block_tokens",
    "max_model_len": "max_model_len",
    "swap_tokens": "swap_tokens",
    "prefix_sharing": "is_prefix_shared",
}

Value = int | float | bool | str


def field_names(kind: type[Any]) -> set[str]:
    """Return the names of a dataclass's fields."""
    return {item.name for item in fields(kind)}


def parse_knobs(lines: Sequence[str]) -> dict[str, Value]:
    """Read `NAME=VALUE` lines; UsageError where a name or the kind of a value is not known."""
    from reference_engine.config import DoorConfig, EngineConfig
    from reference_engine.policies import all_knobs

    defaults, door = EngineConfig(), DoorConfig()
    kinds: dict[str, type] = {knob.name: knob.kind for knob in all_knobs().values()}
    kinds |= {name: type(getattr(door, name)) for name in field_names(DoorConfig)}
    kinds |= {name: type(getattr(defaults, setting)) for name, setting in SETTINGS.items()}
    found: dict[str, Value] = {}
    for line in lines:
        name, equals, text = line.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in kinds:
            raise UsageError(f"--knob {line!r}: write NAME=VALUE with one of {', '.join(sorted(kinds))}")
        found[name] = _read(line, text.strip(), kinds[name])
    return found


def _read(line: str, text: str, kind: type) -> Value:
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"--knob {line!r}: write true or false")
        return text == "true"
    try:
        value: Value = kind(text)
    except ValueError:
        raise UsageError(f"--knob {line!r}: {text!r} is not {kind.__name__}") from None
    return value


def server_flags(knobs: dict[str, Value]) -> list[str]:
    """Write knobs as flags of the reference engine's server."""
    flags: list[str] = []
    for name, value in knobs.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags
