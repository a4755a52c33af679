"""Sessions: turns whose prompts hold all that was said before.

`closed(turns=4, think=8s)`: a turn comes a think time after the answer before it, so that inside a session
the loop is closed and a slow server delays the next turn. `open(turns=4, gap=30s)`: turns come at times of
their own, whatever the server does. Sessions start by the arrival process; its rate is that of requests, so
that sessions start at the rate divided by the mean number of turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.expression import Expression, parse
from workloads.laws import Geometric, Law, Lognormal, to_tokens
from workloads.lengths import law_of_value
from workloads.prefixes import BLOCK_TOKENS, Drawn
from workloads.streams import Streams

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionModel:
    """turns: how many; pause: seconds, after the answer where is_closed, else after the turn before."""

    turns: Law
    pause: Law
    is_closed: bool

    def draw(self, streams: Streams, start_ns: Ints) -> SessionRows:
        """Lay out the turns of the sessions that start at these instants, one session after the other."""
        num_turns = to_tokens(self.turns.ppf(streams.generator("sessions/turns").random(len(start_ns))))
        firsts = np.cumsum(num_turns) - num_turns
        session = np.repeat(np.arange(len(start_ns)), num_turns)
        turn = np.arange(len(session)) - np.repeat(firsts, num_turns)
        drawn = self.pause.ppf(streams.generator("sessions/pauses").random(len(session)))
        pause_ns = np.where(turn > 0, np.rint(drawn * 1e9), 0).astype(np.int64)
        due_ns = start_ns[session] + _since_first(pause_ns, firsts, num_turns)
        think_ns = np.where((turn > 0) & self.is_closed, pause_ns, -1)
        return SessionRows(session=session, turn=turn, arrival_ns=due_ns, think_ns=think_ns, firsts=firsts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRows:
    """Rows session by session; `firsts` is where each session begins."""

    session: Ints
    turn: Ints
    arrival_ns: Ints
    think_ns: Ints
    firsts: Ints

    def histories(self, inputs: Ints, outputs: Ints) -> Ints:
        """Give the tokens said before each turn: prompts and answers of the turns before."""
        num_turns = np.diff(np.append(self.firsts, len(self.session)))
        return _since_first(inputs + outputs, self.firsts, num_turns) - inputs - outputs

    def own_blocks(self, prefix: Drawn, prompt_tokens: Ints) -> Drawn:
        """Let every prompt be made of its session's own run of blocks, after the session's prefix."""
        counts = np.maximum(prompt_tokens // BLOCK_TOKENS - prefix.num_blocks, 0)
        longest = np.maximum.reduceat(counts, self.firsts) if len(counts) else counts
        starts = prefix.next_id + np.cumsum(longest) - longest
        return prefix.followed_by(starts[self.session], counts)


def _since_first(values: Ints, firsts: Ints, widths: Ints) -> Ints:
    """Cumulative sum that starts anew at each of `firsts`."""
    total = np.cumsum(values)
    before = (total - values)[firsts] if len(firsts) else total
    return np.asarray(total - np.repeat(before, widths))


def parse_sessions(text: str) -> SessionModel:
    """Read `closed(turns=4, think=8s)` or `open(turns=4, gap=30s)`; a number is a mean."""
    expression = parse(text)
    pause_name = {"closed": "think", "open": "gap"}.get(expression.name)
    known = {"turns", pause_name}
    if pause_name is None or expression.plain or expression.pairs or expression.named.keys() != known:
        raise WorkloadError(f"sessions {text!r}: write closed(turns=4, think=8s) or open(turns=4, gap=30s)")
    turns, pause = expression.named["turns"], expression.named[pause_name]
    if any(not isinstance(value, Expression) and value <= 0 for value in (turns, pause)):
        raise WorkloadError(f"sessions {text!r}: turns and {pause_name} must be above 0")
    return SessionModel(
        turns=law_of_value(turns, text) if isinstance(turns, Expression) else Geometric(max(turns, 1.0)),
        # Think times are lognormal with a CV of 1, unless a law is written in full.
        pause=law_of_value(pause, text)
        if isinstance(pause, Expression)
        else Lognormal.of_mean(pause, cv=1.0),
        is_closed=expression.name == "closed",
    )
