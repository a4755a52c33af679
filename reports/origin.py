"""What the runs of a series were made on, as their manifests say: simulated or measured, target, workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.errors import RunFolderError
from loadgen.measure.replicates import read_document
from loadgen.store import load
from reports import words

if TYPE_CHECKING:
    from rich.console import Console

Json = Mapping[str, Any]
MAX_RATES = 4
LENGTHS = ("input_tokens", "output_tokens")


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


def what_was_measured(manifest: Json) -> str:
    """The target in a few words: `http://..., org/model`, or `simulated 8b-h200`, then the policy."""
    target = manifest.get("target") or {}
    policy = (target.get("engine") or {}).get("policy")
    where = target.get("url") if target.get("kind") in ("url", "command") else target.get("kind")
    said = [where, target.get("model")]
    if words.is_simulated(manifest):
        said = [f"simulated {(target.get('cost') or {}).get('name')}"]
    return words.printable(", ".join(str(part) for part in (*said, policy) if part)) or "?"


def describe_series(folder: Path) -> str:
    """How many of the runs inside are valid, at which rates, and what was measured.

    A capacity has rules of its own for which runs decide: it is not counted.
    """
    runs = []
    for path in folder.glob("**/manifest.json"):
        with suppress(RunFolderError):
            runs.append(load(path.parent))
    verdicts = [((run.summary or {}).get("verdict") or {}).get("status") for run in runs]
    rates = sorted(set(filter(None, (rate_of(run.manifest) for run in runs))))
    span = [f"{rate:.4g}" for rate in (rates if len(rates) <= MAX_RATES else (rates[0], rates[-1]))]
    between = ", " if len(rates) <= MAX_RATES else " to "
    targets = sorted({what_was_measured(run.manifest) for run in runs})
    is_counted = runs and not (folder / "capacity.json").exists()
    said = [f"{verdicts.count('valid')} of {len(runs)} valid"] if is_counted else []
    said += [f"{between.join(span)} /s"] if span else []
    return "  ".join([*said, "; ".join(targets)]).strip()


def rate_of(manifest: Json) -> float | None:
    """The rate that was asked for; None in a closed loop, or where it is not known."""
    rate: float | None = ((manifest.get("config") or {}).get("rate") or {}).get("value")
    return rate


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


def print_origin(folders: Iterable[Path], console: Console) -> None:
    """Print what the runs were made on, beneath what they say."""
    from rich.text import Text

    origin = Origin.of(folders)
    if origin.simulated:
        console.print(Text(origin.simulated, style="bold yellow"), soft_wrap=True)
    for name, text in origin.facts:
        console.print(Text.assemble((f"{name:<8}  ", "dim"), text), soft_wrap=True)
