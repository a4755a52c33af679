"""One made-up log of what a client saw, for every tool to sum up: the same numbers for all, on every machine.

Streams of one token an event, events of several tokens, events that one read brought together (also the
first), one-token answers, answers that were not streamed, and failures.
"""

from __future__ import annotations

from random import Random
from typing import Any

NUM_REQUESTS = 400


def make_log() -> list[dict[str, Any]]:
    """One dictionary a request, instants in nanoseconds; `stamps` of events, `tokens` in each."""
    rng = Random(20)
    log, due = [], 0
    for index in range(NUM_REQUESTS):
        due += round(rng.expovariate(20) * 1e9)
        sent = due + round(rng.expovariate(1000) * 1e9)
        kind = rng.random()
        is_ok, is_streamed = kind < 0.92, kind < 0.85
        num_events = rng.choice([1, 2, 3, 8, 20, 40]) if is_ok and is_streamed else 0
        stamps, now = [], sent + round(rng.gammavariate(2, 0.05) * 1e9)
        for _ in range(num_events):
            stamps.append(now)
            now += 0 if rng.random() < 0.1 else round(rng.gammavariate(4, 0.004) * 1e9)
        tokens = [rng.choice([1, 1, 1, 1, 2, 3]) for _ in stamps]
        done = (stamps[-1] if stamps else now) + round(rng.expovariate(500) * 1e9)
        log.append(
            {
                "index": index,
                "scheduled": due,
                "sent": sent,
                "stamps": stamps,
                "tokens": tokens,
                "done": done,
                "prompt_tokens": rng.randrange(1, 500),
                "output_tokens": sum(tokens) if is_streamed else rng.randrange(1, 50),
                "is_ok": is_ok,
            }
        )
    return log
