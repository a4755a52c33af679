"""What a manifest holds, as rows of text: how the run was made, and where, so that it can be made again.

Decides order and wording of the facts and leaves nothing out; nested names are dotted, null is a dash.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.quantities import DASH

RUN_FACTS = ("status", "started", "ended", "seeds", "plan_digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of the run, and where its value came from: flag, env, file or default."""

    name: str
    value: str
    origin: str

    @property
    def is_default(self) -> bool:
        return self.origin == "default"


def command(manifest: Mapping[str, Any]) -> str:
    """Return the command that made the run, ready for a shell; empty where it is not known."""
    given = manifest.get("command") or ""
    return given if isinstance(given, str) else shlex.join(map(str, given))


def tables(manifest: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return headings with their rows of name and value: the run, its target, its environment."""
    run = {name: manifest[name] for name in RUN_FACTS if name in manifest}
    named = {"Run": run, "Target": manifest.get("target"), "Environment": manifest.get("environment")}
    return [(heading, flatten(tree)) for heading, tree in named.items() if tree]


def settings(manifest: Mapping[str, Any]) -> list[Setting]:
    """Return every setting, those that somebody chose first."""
    entries = (manifest.get("config") or {}).items()
    listed = [
        Setting(name=str(name), value=plain(entry["value"]), origin=str(entry["origin"]))
        for name, entry in entries
    ]
    return sorted(listed, key=lambda setting: setting.is_default)


def flatten(tree: Any, prefix: str = "") -> list[tuple[str, str]]:
    """List the leaves of a JSON value as dotted name and text; objects in a list by their first value."""
    if isinstance(tree, Mapping):
        inner = [(f"{prefix}.{name}" if prefix else str(name), value) for name, value in tree.items()]
    elif isinstance(tree, list) and tree and all(isinstance(item, Mapping) and item for item in tree):
        inner = []
        for item in tree:
            first, *rest = map(plain, item.values())
            inner.append((f"{prefix}.{first}", "; ".join(filter(None, rest))))
    else:
        return [(prefix, plain(tree))]
    return [leaf for name, value in inner for leaf in flatten(value, name)]


def plain(value: Any) -> str:
    """Write a JSON value as a person would."""
    if value is None or value == []:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    if isinstance(value, list):
        return ", ".join(map(plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
