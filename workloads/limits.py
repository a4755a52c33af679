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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Lengths that fit; `kept` says which rows are left, counts how many were treated, by what was done."""

    input_tokens: Ints
    output_tokens: Ints
    kept: NDArray[np.bool_]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimit:
    """context_tokens: the most that prompt and answer may take together; None is no limit."""

    context_tokens: int | None
    policy: OverContext

    def fit(self, inputs: Ints, outputs: Ints, redraw: Redraw, where: Callable[[int], str]) -> Fitted:
        """Apply the policy. redraw(rows) draws new pairs for these rows; where(i) names row i."""
        kept = np.ones(len(inputs), bool)
        context = self.context_tokens
        over = np.flatnonzero(inputs + outputs > context) if context is not None else np.zeros(0, np.int64)
        if context is None or not len(over):
            return Fitted(input_tokens=inputs, output_tokens=outputs, kept=kept, counts={})
        inputs, outputs = inputs.copy(), outputs.copy()
        if self.policy == "error":
            i = int(over[0])
            raise WorkloadError(
                f"{where(i)} asks for {inputs[i]} prompt + {outputs[i]} output tokens, over the context of "
                f"{context} (as do {len(over)} of {len(inputs)} requests); shorten the lengths, or choose "
                "--over-context clip, drop or resample"
            )
        if self.policy == "clip":
            outputs[over] = np.minimum(outputs[over], context - 1)
            inputs[over] = context - outputs[over]
        elif self.policy == "drop":
            kept[over] = False
        else:
            _resample(inputs, outputs, context, redraw)
        done = {"clip": "clipped", "drop": "dropped", "resample": "resampled"}[self.policy]
        return Fitted(input_tokens=inputs, output_tokens=outputs, kept=kept, counts={done: len(over)})


def _resample(inputs: Ints, outputs: Ints, context: int, redraw: Redraw) -> None:
    for _ in range(MAX_ROUNDS):
        over = np.flatnonzero(inputs + outputs > context)
        if not len(over):
            return
        inputs[over], outputs[over] = redraw(over)
    raise WorkloadError(f"no pair of {MAX_ROUNDS} drawn fits a context of {context}; shorten the lengths")
