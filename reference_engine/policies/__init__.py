"""Scheduling policies by name, and their knobs.

A policy is a function whose keyword parameters are its knobs; those in COMMON apply to any policy and replace
one of its answers. A knob that a policy does not have is refused, never ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from reference_engine.config import ConfigError, EngineConfig
from reference_engine.policies.base import Eviction, Observer, Policy, Requeue
from reference_engine.policies.eviction import VICTIMS, is_more_important, is_nearer_its_end
from reference_engine.policies.order import FairQueue, LongestPrefixQueue, make_order
from reference_engine.policies.systems import no_evict, orca, sarathi, sglang, static, vllm_v0, vllm_v1

POLICIES: dict[str, Callable[..., Policy]] = {
    "static": static,
    "orca": orca,
    "vllm-v0": vllm_v0,
    "vllm-v1": vllm_v1,
    "sarathi": sarathi,
    "sglang": sglang,
    "no-evict": no_evict,
}

DISPLACING = {"priority": is_more_important, "srpt-oracle": is_nearer_its_end}


def override(
    policy: Policy,
    config: EngineConfig,
    *,
    order: str | None = None,
    victim: str | None = None,
    requeue: Literal["front", "order", "back"] | None = None,
    swap: bool = False,
    displace: bool = False,
    skip_window: int = 0,
    sigma: float = 0.5,
    deadline_floor_s: float = 0.5,
    deadline_per_token_s: float = 0.001,
) -> Policy:
    """Replace answers of a policy; every parameter is a knob of all policies.

    order, victim: by name. requeue: where the evicted wait. swap: evict to host memory while there is room.
    displace: let the order take the place of residents, not only the next free one. skip_window: how many
    unfit requests admission may step over. sigma: error of sjf-predicted. deadline_*: promises of edf.
    With another order than fcfs, the evicted wait where it puts them, and `priority` evicts by it.
    """
    queue = policy.order
    if order is not None:
        queue = make_order(
            order,
            config,
            sigma=sigma,
            deadline_floor_s=deadline_floor_s,
            deadline_per_token_s=deadline_per_token_s,
        )
    if victim is not None and victim not in VICTIMS:
        raise ConfigError(f"unknown victim {victim!r}; known victims: {', '.join(VICTIMS)}")
    if displace and order not in DISPLACING:
        raise ConfigError(f"displace needs one of the orders {', '.join(DISPLACING)}")
    if swap and not config.swap_tokens:
        raise ConfigError("swap needs swap_tokens above 0")
    if victim is None and order == "priority":
        victim = "least-important"
    if requeue is None and order not in (None, "fcfs"):
        requeue = "order"
    eviction = Eviction(
        victim=VICTIMS[victim] if victim else policy.eviction.victim,
        requeue=Requeue(requeue) if requeue else policy.eviction.requeue,
        is_swap=swap,
        outranks=DISPLACING[order] if displace and order else None,
    )
    observers: tuple[Observer, ...] = policy.observers
    if isinstance(queue, LongestPrefixQueue | FairQueue):
        observers = (*observers, queue)
    return replace(policy, order=queue, eviction=eviction, skip_window=skip_window, observers=observers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A keyword parameter of one or more policies.

    kind: int, float, bool or str. defaults: by policy; None where the policy has an answer of its own.
    """

    name: str
    kind: type
    choices: tuple[str, ...] | None
    defaults: dict[str, Any]


def all_knobs() -> dict[str, Knob]:
    """Return every knob by name; those of `override` belong to all policies."""
    knobs: dict[str, Knob] = {}
    for policy, factory in POLICIES.items():
        for knob in [*_knobs_of(override, policy).values(), *_knobs_of(factory, policy).values()]:
            knobs.setdefault(knob.name, knob).defaults.update(knob.defaults)
    return knobs


def _knobs_of(factory: Callable[..., Policy], policy: str) -> dict[str, Knob]:
    hints = get_type_hints(factory)
    found: dict[str, Knob] = {}
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        hint = hints[parameter.name]
        if get_origin(hint) in (Union, UnionType):
            (hint,) = (option for option in get_args(hint) if option is not NoneType)
        choices = get_args(hint) or None
        found[parameter.name] = Knob(
            name=parameter.name,
            kind=str if choices else hint,
            choices=choices,
            defaults={policy: parameter.default},
        )
    return found


def make_policy(config: EngineConfig) -> Policy:
    """Compose the policy that `config` names with its knobs; raises ConfigError where they do not fit."""
    factory = POLICIES.get(config.policy)
    if factory is None:
        raise ConfigError(f"unknown policy {config.policy!r}; known policies: {', '.join(POLICIES)}")
    own, common = _knobs_of(factory, config.policy), _knobs_of(override, config.policy)
    for name, value in config.knobs.items():
        _check_knob(name, value, {**common, **own}, config.policy)
    policy = factory(config, **{name: v for name, v in config.knobs.items() if name in own})
    rest: dict[str, Any] = {name: v for name, v in config.knobs.items() if name not in own}
    return override(policy, config, **rest)


def _check_knob(name: str, value: object, known: Mapping[str, Knob], policy: str) -> None:
    if name not in known:
        raise ConfigError(f"policy {policy} has no knob {name!r}; its knobs: {', '.join(sorted(known))}")
    knob = known[name]
    is_number = knob.kind is float and isinstance(value, int) and not isinstance(value, bool)
    if not is_number and type(value) is not knob.kind:
        raise ConfigError(f"knob {name} must be {knob.kind.__name__}, not {value!r}")
    if knob.choices and value not in knob.choices:
        raise ConfigError(f"knob {name} must be one of {', '.join(knob.choices)}, not {value!r}")
    if isinstance(value, int | float) and value < 0:
        raise ConfigError(f"knob {name} must not be negative, not {value}")
