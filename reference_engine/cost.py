"""What a step costs: a function of how much it computes, in whole picoseconds.

A model is linear in the load of a step, or the larger of two such sums (memory and compute). Coefficients are
integers, so that the end of a step is a sum without rounding and a run of steps costs the same however it is
added up. A profile is a model with its origin: fitted to the step log of a live engine, or computed from data
sheets until somebody measures.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from reference_engine.config import ConfigError
from reference_engine.step import Load

PS_PER_NS = 1_000
PS = {"ps": 1, "ns": 1_000, "us": 1_000_000, "ms": 1_000_000_000, "s": 1_000_000_000_000}
PROFILES = Path(__file__).parent / "profiles"
PROFILE_SCHEMA_VERSION = 1

Loads = Mapping[str, NDArray[np.int64]]  # many loads: a column for each field of Load, a value a step


def features(load: Load) -> NDArray[np.int64]:
    """Return how often each coefficient of Weights counts, in the order of its fields, then copied blocks."""
    decodes, context, prompts, tokens, pairs, copies, after_idle = load
    has_work, is_mixed = decodes + prompts > 0, decodes > 0 and prompts > 0
    row = [has_work, decodes, context, prompts, tokens, pairs, is_mixed, after_idle, copies]
    return np.array(row, np.int64)


def features_of(loads: Loads) -> NDArray[np.int64]:
    """Return the same for many loads, a row each."""
    decodes, prompts = loads["decode_seqs"], loads["prefill_seqs"]
    columns = [
        decodes + prompts > 0,
        decodes,
        loads["decode_context"],
        prompts,
        loads["prefill_tokens"],
        loads["prefill_pairs"],
        (decodes > 0) & (prompts > 0),
        loads["after_idle"],
        loads["swap_blocks"],
    ]
    return np.column_stack(columns).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Picoseconds for each unit of a load.

    mixed: once, where decodes and prompts share a step. cold: once, where the engine was idle before it.
    """

    base: int = 0
    per_decode: int = 0
    per_context: int = 0
    per_prompt: int = 0
    per_token: int = 0
    per_pair: int = 0
    mixed: int = 0
    cold: int = 0

    def as_vector(self) -> NDArray[np.int64]:
        """Return the prices of the features of a load, in their order; copies of blocks have none."""
        return np.array([*(getattr(self, item.name) for item in fields(self)), 0], np.int64)

    def cost_ps(self, load: Load) -> int:
        cost = self.base + self.per_decode * load.decode_seqs + self.per_context * load.decode_context
        if load.prefill_seqs:
            cost += self.per_prompt * load.prefill_seqs + self.per_token * load.prefill_tokens
            cost += self.per_pair * load.prefill_pairs + self.cold * load.after_idle
            if load.decode_seqs:
                cost += self.mixed
        return cost


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Step time: `work`, or the larger of `work` and `bound` where there is a second resource.

    per_swap_block: picoseconds to copy one block to or from the host, never hidden behind the rest.
    """

    work: Weights
    bound: Weights | None = None
    per_swap_block: int = 0

    def cost_ps(self, load: Load) -> int:
        """Return the time of a step with this load, copies of blocks included; 0 for no load at all."""
        copies = self.per_swap_block * load.swap_blocks
        if not load.decode_seqs and not load.prefill_seqs:
            return copies
        work = self.work.cost_ps(load)
        return copies + (work if self.bound is None else max(work, self.bound.cost_ps(load)))

    def costs_ps(self, loads: Loads) -> NDArray[np.int64]:
        """Return the times of many steps."""
        rows = features_of(loads)
        costs = rows @ self.work.as_vector()
        if self.bound is not None:
            costs = np.maximum(costs, rows @ self.bound.as_vector())
        return np.asarray(costs + self.per_swap_block * loads["swap_blocks"])

    def costs_of_decodes_ps(self, load: Load, growth: int, most: int, within_ps: int) -> list[int]:
        """Return the times of the next steps that begin within `within_ps`, at most `most` of them.

        load: of the first, without prompts; each reads `growth` tokens more than the one before.
        """
        first = self.cost_ps(load)
        num_steps = min(most, (within_ps - 1) // first + 1)
        pace = self.work.per_context * growth
        if self.bound is None and not pace:
            return [first] * num_steps
        costs = [first + pace * i for i in range(num_steps)]
        if self.bound is not None:
            work, bound = self.work.cost_ps(load), self.bound.cost_ps(load)
            bound_pace = self.bound.per_context * growth
            costs = [max(work + pace * i, bound + bound_pace * i) for i in range(num_steps)]
        return costs[: bisect_left(list(accumulate(costs, initial=0)), within_ps)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cost model and where it comes from.

    inbound_ns, outbound_ns: from the client's send to the engine, and from the engine to the client.
    held_out: the error on steps that the fit did not see.
    """

    name: str
    origin: str
    work: Weights
    bound: Weights | None = None
    per_swap_block: int = 0
    inbound_ns: int = 0
    outbound_ns: int = 0
    device: str = ""
    model: str = ""
    date: str = ""
    engine: dict[str, int] = {}
    held_out: dict[str, float] = {}
    notes: str = ""
    schema_version: int = PROFILE_SCHEMA_VERSION

    @property
    def cost(self) -> CostModel:
        return CostModel(work=self.work, bound=self.bound, per_swap_block=self.per_swap_block)


def parse_cost(text: str) -> Profile:
    """Read `affine(...)`, `roofline(...)`, the name of a shipped profile, or the path of a profile or a run.

    base, per_seq, per_token, per_context and per_pair carry units of time; per_seq counts every request in
    the step. roofline is max(base + per_context, per_seq + per_token + per_pair). ConfigError says what is
    wrong.
    """
    match = re.fullmatch(r"\s*(affine|roofline)\s*\((.*)\)\s*", text, re.DOTALL)
    if match is None:
        return load_profile(text)
    given = _parse_coefficients(match[2], text)
    if not any(given.get(name) for name in ("base", "per_seq")) and not (
        given.get("per_context") and given.get("per_token")  # of a decode, and of a prompt
    ):
        raise ConfigError(f"cost {text!r}: some steps would take no time; give base or per_seq")
    per_seq = given.pop("per_seq", 0)
    every = {**given, "per_decode": per_seq, "per_prompt": per_seq}
    if match[1] == "affine":
        return Profile(name=text.strip(), origin="stated", work=Weights(**every))
    memory = {name: every.pop(name) for name in ("base", "per_context") if name in every}
    return Profile(name=text.strip(), origin="stated", work=Weights(**memory), bound=Weights(**every))


COEFFICIENTS = ("base", "per_seq", "per_token", "per_context", "per_pair", "mixed", "cold")


def _parse_coefficients(inner: str, whole: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in inner.split(","))):
        match = re.fullmatch(r"(\w+)\s*=\s*([0-9]*\.?[0-9]+)\s*([a-z]*)", part)
        if match is None or match[1] not in COEFFICIENTS:
            raise ConfigError(
                f"cost {whole!r}: cannot read {part!r}; write NAME=TIME with {', '.join(COEFFICIENTS)}"
            )
        if match[3] not in PS and float(match[2]):
            raise ConfigError(f"cost {whole!r}: {part!r} needs a unit: {', '.join(PS)}")
        found[match[1]] = round(float(match[2]) * PS.get(match[3], 0))
    return found


def shipped_profiles() -> list[str]:
    """Return the names of the profiles that come with the engine."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def load_profile(name: str) -> Profile:
    """Read a shipped profile by name, a file by path, or fit one to the run folder at a path."""
    if Path(name).is_dir():
        from reference_engine.fit import fit_folder

        return fit_folder(Path(name))
    path = PROFILES / f"{name}.json" if name in shipped_profiles() else Path(name)
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        known = ", ".join(shipped_profiles())
        raise ConfigError(
            f"cost {name!r} is not affine(...), not roofline(...), no shipped profile ({known}), no run"
            f" folder and no file that can be read: {error.strerror}"
        ) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a profile: {error}") from error
    if profile.schema_version > PROFILE_SCHEMA_VERSION:
        raise ConfigError(f"{path} has schema version {profile.schema_version}: update bench")
    return profile


def as_facts(profile: Profile) -> dict[str, Any]:
    """Return the profile as plain JSON for manifests and file metadata."""
    facts: dict[str, Any] = msgspec.to_builtins(profile)
    facts["work"] = {f.name: getattr(profile.work, f.name) for f in fields(Weights)}
    return facts
