"""What the runs of a series were made on, as their manifests say: simulated or measured, target, workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.measure.replicates import read_document
from reports import words

if TYPE_CHECKING:
    from rich.console import Console

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """simulated: that runs are, and how many; empty where all were measured. facts: names and texts."""

    simulated: str
    facts: list[tuple[str, str]]

    @classmethod
    def of(cls, folders: Iterable[Path]) -> Origin:
        """Read the manifests of run folders, and of those directly inside a folder."""
        paths = [
            path for one in folders for path in (*one.glob("manifest.json"), *one.glob("*/manifest.json"))
        ]
        manifests = list(map(read_document, paths))
        virtual = [manifest for manifest in manifests if words.is_simulated(manifest)]
        share = "" if len(virtual) == len(manifests) else f"{len(virtual)} of {len(manifests)} runs "
        simulated = f"{share}simulated in virtual time: nothing was measured" if virtual else ""
        found = (
            ("cost", map(_cost, virtual)),
            ("target", map(_target, manifests)),
            ("workload", map(_workload, manifests)),
        )
        told = [(name, list(dict.fromkeys(filter(None, texts)))) for name, texts in found]
        return cls(simulated=simulated, facts=[(name, "; ".join(texts)) for name, texts in told if texts])


def _cost(manifest: Json) -> str:
    cost = manifest["target"].get("cost") or {}
    return words.printable(f"{cost.get('name')}, {cost.get('origin')}")


def _target(manifest: Json) -> str:
    target = manifest.get("target") or {}
    policy = (target.get("engine") or {}).get("policy")
    kind = target.get("kind")
    where = target.get("url") if kind in ("url", "command") else kind
    said = (where, target.get("model"), policy and f"policy {policy}")
    return words.printable(", ".join(str(part) for part in said if part))


def _workload(manifest: Json) -> str:
    plan = manifest.get("plan") or {}
    workload = plan.get("workload") or {}
    trace = (plan.get("trace") or {}).get("path")
    lengths = (f"{key.removesuffix('_tokens')} {workload[key]}" for key in LENGTHS if workload.get(key))
    told = workload.get("name") or (Path(trace).name if trace else ", ".join(lengths) or "default lengths")
    return words.printable(f"{told}, {workload.get('arrival') or 'recorded'} arrivals")


LENGTHS = ("input_tokens", "output_tokens")


def print_origin(folders: Iterable[Path], console: Console) -> None:
    """Print what the runs were made on, beneath what they say."""
    from rich.text import Text

    origin = Origin.of(folders)
    if origin.simulated:
        console.print(Text(origin.simulated, style="bold yellow"), soft_wrap=True)
    for name, text in origin.facts:
        console.print(Text.assemble((f"{name:<8}  ", "dim"), text), soft_wrap=True)
