"""Workload files and presets: a Workload as TOML, read with every key checked, and written back.

The keys are the fields of Workload; clients stand in `[[clients]]`. Durations may carry a unit (`"10m"`),
lengths may be bare numbers, and paths count from the file's own folder. A preset is such a file shipped
here.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from workloads.errors import WorkloadError, unknown_name
from workloads.expression import parse_number, parse_window
from workloads.prompts import DRAWN
from workloads.spec import Workload

_PRESETS = Path(__file__).with_name("presets")
_KINDS = {item.name: str(item.type).partition(" ")[0] for item in fields(Workload)}  # of `int | None`: int
_TYPES: dict[str, tuple[Any, str]] = {
    "float": (int | float, "a number"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
    "str": (str, "text"),
}


def preset_names() -> list[str]:
    return sorted(path.stem for path in _PRESETS.glob("*.toml"))


def load_workload(name_or_path: str) -> Workload:
    """Load a workload file, the preset of that name, or the workload that a run's manifest.json holds."""
    path = Path(name_or_path)
    if not path.exists():
        if name_or_path not in preset_names():
            raise unknown_name("workload file or preset", name_or_path, preset_names())
        path = _PRESETS / f"{name_or_path}.toml"
    try:
        text = path.read_text("utf-8-sig")
        is_manifest = path.suffix == ".json"
        values = json.loads(text)["plan"]["workload"] if is_manifest else tomllib.loads(text)
    except OSError as exc:
        raise WorkloadError(f"{path} cannot be read: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise WorkloadError(f"{path} is not valid TOML: {exc}") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise WorkloadError(f"{path} is no manifest.json of a run") from exc
    values.setdefault("name", "default" if is_manifest else path.stem)
    try:
        return workload_of(values, Path() if is_manifest else path.parent)
    except WorkloadError as exc:
        raise WorkloadError(f"{path}: {exc}") from exc


def workload_of(values: dict[str, Any], folder: Path = Path()) -> Workload:
    """Make a workload of plain values, as `Workload.to_dict` gives; relative paths count from `folder`."""
    read: dict[str, Any] = {}
    for key, value in values.items():
        if key not in _KINDS:
            raise unknown_name("key", key, _KINDS)
        read[key] = _read(key, value, folder)
    return Workload(**read)


def with_changes(workload: Workload, changes: dict[str, Any]) -> Workload:
    """Change some fields; a text is read as the field's type (`rate_per_s=3`, `dequantize=true`)."""
    read: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in _KINDS:
            raise unknown_name("key", key, _KINDS)
        read[key] = _read(key, _typed(key, value), Path())
    if "num_requests" not in read and "duration_s" in read:
        read["num_requests"] = None
    return replace(workload, **read)


def _typed(key: str, value: Any) -> Any:
    """Read a text from the command line as what a file would hold."""
    if isinstance(value, str) and _KINDS[key] == "bool":
        return {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, str) and _KINDS[key] == "int" and value.isdecimal():
        return int(value)
    return value


def _read(key: str, value: Any, folder: Path) -> Any:
    kind = _KINDS[key]
    if key == "clients":
        if not isinstance(value, list) or not all(isinstance(client, dict) for client in value):
            raise WorkloadError("clients are tables: write [[clients]]")
        return tuple(workload_of(client, folder) for client in value)
    if key == "trace_window":
        return parse_window(value) if isinstance(value, str) else tuple(value)
    if value is None:
        return None
    if kind == "Path" or (key == "prompts" and value not in DRAWN):
        path = folder / str(value)
        return path if kind == "Path" else str(path)
    if kind == "float" and isinstance(value, str):
        value = value if (number := parse_number(value)) is None else number
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in ("input_tokens", "output_tokens") and is_number:
        return f"{value:g}"
    types, words = _TYPES.get(kind, (object, ""))
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        raise WorkloadError(f"{key} must be {words}, not {value!r}")
    return float(value) if kind == "float" else value


def render_toml(workload: Workload, comments: tuple[str, ...] = ()) -> str:
    """Write a workload as a file that `load_workload` reads back."""
    values = workload.to_dict()
    clients = values.pop("clients", [])
    lines = [f"# {comment}" for comment in comments] + _lines(values)
    for client in clients:
        lines += ["", "[[clients]]", *_lines(client)]
    return "\n".join(lines) + "\n"


def _lines(values: dict[str, Any]) -> list[str]:
    lines = []
    for key, value in values.items():
        if value is None:
            continue
        if key == "trace_window":
            end = "" if value[1] is None else f"{value[1]!r}s"
            value = f"{value[0]!r}:{end}"
        # A JSON string, number or boolean is a TOML one, too.
        lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return lines
