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

    def fit(
        self,
        input_tokens: Ints,
        output_tokens: Ints,
        redraw: Callable[[Ints], tuple[Ints, Ints]],
        where: Callable[[int], str],
    ) -> Fitted:
        """Apply the policy. redraw(rows) draws new pairs for these rows; where(i) names row i."""
        kept = np.ones(len(input_tokens), bool)
        if self.context_tokens is None:
            return Fitted(input_tokens=input_tokens, output_tokens=output_tokens, kept=kept, counts={})
        over = np.flatnonzero(input_tokens + output_tokens > self.context_tokens)
        if not len(over):
            return Fitted(input_tokens=input_tokens, output_tokens=output_tokens, kept=kept, counts={})
        inputs, outputs = input_tokens.copy(), output_tokens.copy()
        if self.policy == "error":
            i = int(over[0])
            raise WorkloadError(
                f"{where(i)} asks for {inputs[i]} prompt + {outputs[i]} output tokens, over the context of "
                f"{self.context_tokens} (as do {len(over)} of {len(inputs)} requests); shorten the "
                "lengths, or choose --over-context clip, drop or resample"
            )
        if self.policy == "clip":
            outputs[over] = np.minimum(outputs[over], self.context_tokens - 1)
            inputs[over] = self.context_tokens - outputs[over]
        elif self.policy == "drop":
            kept[over] = False
        else:
            self._resample(inputs, outputs, over, redraw)
        done = {"clip": "clipped", "drop": "dropped", "resample": "resampled"}[self.policy]
        return Fitted(input_tokens=inputs, output_tokens=outputs, kept=kept, counts={done: len(over)})

    def _resample(
        self, inputs: Ints, outputs: Ints, over: Ints, redraw: Callable[[Ints], tuple[Ints, Ints]]
    ) -> None:
        for _ in range(MAX_ROUNDS):
            inputs[over], outputs[over] = redraw(over)
            over = over[inputs[over] + outputs[over] > (self.context_tokens or 0)]
            if not len(over):
                return
        context = self.context_tokens
        raise WorkloadError(f"no pair of {MAX_ROUNDS} drawn fits a context of {context}; shorten the lengths")


NO_LIMIT = ContextLimit(context_tokens=None, policy="error")
