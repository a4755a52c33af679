"""Scheduling policies by name; each is four answers composed in a file of its own."""

from __future__ import annotations

from collections.abc import Callable

from reference_engine.config import ConfigError, EngineConfig
from reference_engine.policies.base import Policy
from reference_engine.policies.vllm_v1 import vllm_v1

POLICIES: dict[str, Callable[[EngineConfig], Policy]] = {"vllm-v1": vllm_v1}


def make_policy(config: EngineConfig) -> Policy:
    """Compose the policy that `config` names; raises ConfigError with the list of names."""
    if config.policy not in POLICIES:
        raise ConfigError(f"unknown policy {config.policy!r}; known policies: {', '.join(POLICIES)}")
    return POLICIES[config.policy](config)
