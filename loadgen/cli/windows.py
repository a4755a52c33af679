"""One window for the arms of one plan: the longest warm-up that `auto` found in any of them.

Else each arm would be judged on requests of its own, and be offered another rate. A warm-up that was given
stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.store import Run


def share_window(arms: Sequence[Run]) -> list[Run]:
    """Summarize the runs again with the longest warm-up among them; as they are where nothing differs."""
    from loadgen.measure.summary import summarize
    from loadgen.store import load, write_json

    cuts = [(run.summary or {})["window"]["start_s"] for run in arms]
    is_auto = all(run.manifest["config"]["warmup"]["value"] == "auto" for run in arms)
    if not is_auto or min(cuts) == max(cuts):
        return list(arms)
    shared = []
    for run in arms:
        warmup = {"value": max(cuts), "origin": "longest of the arms"}
        config = {**run.manifest["config"], "warmup": warmup}
        write_json(run.path / "manifest.json", {**run.manifest, "config": config})
        again = load(run.path)
        write_json(run.path / "summary.json", summarize(again))
        shared.append(again)
    return shared
