"""An endpoint with some of its fields changed, whether it is code or a template."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec

from loadgen.endpoints.base import Endpoint


def with_fields(endpoint: Endpoint, **changes: Any) -> Endpoint:
    """The endpoint with those of the changes that it has a field for."""
    if isinstance(endpoint, msgspec.Struct):
        known = {n: v for n, v in changes.items() if n in endpoint.__struct_fields__}
        return msgspec.structs.replace(endpoint, **known)
    known = {n: v for n, v in changes.items() if n in {f.name for f in fields(endpoint)}}  # type: ignore[arg-type]
    return replace(endpoint, **known)  # type: ignore[type-var]


def variants_of(endpoint: Endpoint) -> list[tuple[Endpoint, str]]:
    """The API as it is, then without the extensions that some servers refuse."""
    variants = [(endpoint, "")]
    for change, refused in (
        ({"ignore_eos": False}, "ignore_eos"),
        ({"ignore_eos": False, "include_usage": False}, "ignore_eos and stream_options"),
    ):
        variant = with_fields(endpoint, **change)
        if variant != variants[-1][0]:
            variants.append((variant, refused))
    return variants
