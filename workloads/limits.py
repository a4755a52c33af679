"""What happens to a request that does not fit the model's context: a named policy, always with a count.

error: refuse the workload. clip: shorten the prompt, then the answer. drop: leave the request out.
resample: draw another pair of lengths for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError

OverContext = Literal["error", "clip", "drop", "resample"]
OVER_CONTEXT: tuple[str, ...] = ("error", "clip", "drop", "resample")
MAX_ROUNDS = 1000
Ints = NDArray[np.int64]
Redraw = Callable[[Ints], tuple[Ints, Ints]]
Where = Callable[[int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Lengths that fit; `kept` says which rows are left, counts how many were treated, by what was done."""

    input_tokens: Ints
    output_tokens: Ints
    kept: NDArray[np.bool_]
    counts: dict[str, int]


def fit(
    lengths: tuple[Ints, Ints], context: int | None, policy: OverContext, redraw: Redraw, where: Where
) -> Fitted:
    """Apply the policy to prompts and answers that may take `context` tokens together (None: any number).

    redraw(rows) draws new pairs for these rows; where(i) names row i.
    """
    inputs, outputs = lengths
    kept = np.ones(len(inputs), bool)
    over = np.flatnonzero(inputs + outputs > context) if context is not None else np.zeros(0, np.int64)
    if context is None or not len(over):
        return Fitted(input_tokens=inputs, output_tokens=outputs, kept=kept, counts={})
    inputs, outputs = inputs.copy(), outputs.copy()
    if policy == "error":
        i = int(over[0])
        raise WorkloadError(
            f"{where(i)} asks for {inputs[i]} prompt + {outputs[i]} output tokens, over the context of "
            f"{context} (as do {len(over)} of {len(inputs)} requests); shorten the lengths, or choose "
            "--over-context clip, drop or resample"
        )
    if policy == "clip":
        outputs[over] = np.minimum(outputs[over], context - 1)
        inputs[over] = context - outputs[over]
    elif policy == "drop":
        kept[over] = False
    else:
        _resample(inputs, outputs, context, redraw)
    done = {"clip": "clipped", "drop": "dropped", "resample": "resampled"}[policy]
    return Fitted(input_tokens=inputs, output_tokens=outputs, kept=kept, counts={done: len(over)})


def _resample(inputs: Ints, outputs: Ints, context: int, redraw: Redraw) -> None:
    for _ in range(MAX_ROUNDS):
        over = np.flatnonzero(inputs + outputs > context)
        if not len(over):
            return
        inputs[over], outputs[over] = redraw(over)
    raise WorkloadError(f"no pair of {MAX_ROUNDS} drawn fits a context of {context}; shorten the lengths")
