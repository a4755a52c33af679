"""Which events of a stream were tokens, and how many each held.

One event is not one token: servers send role events first, empty text for an undecodable byte, several tokens
at once, or hold text back. So a count is given only where it is stated (token ids, a usage count that rises
with the stream) or verified (as many events as the usage says tokens); else it is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.endpoints.base import ChunkFacts, TokenEvents


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """events: indices of the token-bearing events; tokens: how many each holds; total: of the whole stream.

    source: of `total`, as in the column `output_tokens_source`. rule: what made one event one token, None
    where nothing did.
    """

    events: list[int]
    tokens: list[int | None]
    total: int | None
    source: str
    rule: TokenEvents | None = None


def count_tokens(facts: Sequence[ChunkFacts], known: TokenEvents | None) -> TokenCount:
    """Find the token-bearing events of one stream. known: what preflight found out about the server."""
    usages = [f.usage.completion_tokens for f in facts if f.usage is not None]
    stated = [tokens for tokens in usages if tokens is not None]
    total = stated[-1] if stated else None
    text = [i for i, f in enumerate(facts) if f.is_token]
    if len(stated) > 1:
        events, tokens = _follow_usage(facts)
        if None not in tokens and sum(t for t in tokens if t is not None) == total:
            return TokenCount(events=events, tokens=tokens, total=total, source="usage")
    if len(text) == total:
        return _one_each(text, total, "usage", TokenEvents.TEXT)
    if any(f.num_tokens is not None for f in facts):
        return _from_token_ids(facts, text, total)
    if total is not None:
        return _match_usage(facts, text, total, known)
    if known is not None:
        events = _events_of(facts, known)
        return _one_each(events, len(events), "count", known)
    return TokenCount(events=text, tokens=[None] * len(text), total=None, source="unknown")


def _one_each(events: list[int], total: int, source: str, rule: TokenEvents) -> TokenCount:
    return TokenCount(events=events, tokens=[1] * len(events), total=total, source=source, rule=rule)


def _events_of(facts: Sequence[ChunkFacts], rule: TokenEvents) -> list[int]:
    if rule is TokenEvents.TEXT:
        return [i for i, f in enumerate(facts) if f.is_token]
    if rule is TokenEvents.CONTENT:
        return [i for i, f in enumerate(facts) if f.is_token or (f.is_content_event and not f.finish_reason)]
    return [i for i, f in enumerate(facts) if f.is_content_event]


def _follow_usage(facts: Sequence[ChunkFacts]) -> tuple[list[int], list[int | None]]:
    """Take the tokens of each event from a usage count that rises along the stream."""
    events: list[int] = []
    tokens: list[int | None] = []
    before: int | None = 0
    for i, f in enumerate(facts):
        now = f.usage.completion_tokens if f.usage is not None else None
        raised = now - before if now is not None and before is not None else None
        if f.is_token or (f.is_content_event and raised is not None and raised > 0):
            events.append(i)
            tokens.append(raised if raised is not None and raised >= 0 else None)
            before = now
        elif now is not None:
            before = now
    return events, tokens


def _from_token_ids(facts: Sequence[ChunkFacts], text: list[int], total: int | None) -> TokenCount:
    tokens = [facts[i].num_tokens for i in text]
    counted = sum(t for t in tokens if t is not None)
    if total is not None:
        if counted > total:
            tokens = [None] * len(text)
        return TokenCount(events=text, tokens=_infer_one(tokens, total), total=total, source="usage")
    if None in tokens:
        return TokenCount(events=text, tokens=tokens, total=None, source="unknown")
    return TokenCount(events=text, tokens=tokens, total=counted, source="count")


def _match_usage(
    facts: Sequence[ChunkFacts], text: list[int], total: int, known: TokenEvents | None
) -> TokenCount:
    for rule in (TokenEvents.CONTENT, TokenEvents.FINISH):
        events = _events_of(facts, rule)
        if len(events) == total:
            return _one_each(events, total, "usage", rule)
    if known is None:
        return TokenCount(
            events=text, tokens=_infer_one([None] * len(text), total), total=total, source="usage"
        )
    events = _events_of(facts, known)
    is_eos_counted = len(events) == total - 1 and any(f.finish_reason == "stop" for f in facts)
    if is_eos_counted:  # the end-of-text token is in the usage, and no event carries it
        return _one_each(events, total, "usage", known)
    return TokenCount(events=events, tokens=[None] * len(events), total=total, source="usage")


def _infer_one(tokens: list[int | None], total: int) -> list[int | None]:
    """Fill in the only unknown count, where the total leaves something for it."""
    if tokens.count(None) == 1:
        rest = total - sum(t for t in tokens if t is not None)
        if rest > 0:
            return [rest if t is None else t for t in tokens]
    return tokens
