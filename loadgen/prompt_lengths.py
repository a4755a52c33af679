"""How many tokens a prompt of n words is, where the tokenizer is not known: counted on probes, then a line.

Each word of the list is one token in every tokenizer it was tried with. Two prompts of known length tell
whether that holds here, and how many tokens the server adds; where it does not hold, more prompts give a
ratio with its error. Who counts is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.errors import UsageError

CountTokens = Callable[[str], int | None]
CountWords = Callable[[Sequence[str]], int | None]
USAGE = "usage"
MIN_TOKENS_PER_WORD = 0.5  # below it whoever counts does not count prompts: the same number for any
FURTHER_PROBES = ((0, 48), (32, 96), (16, 128), (0, 112))  # words from and to, for the fit of a ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLengths:
    """A prompt of n words is offset + tokens_per_word * n tokens, by the counts of `counted_by`.

    worst_miss: the largest difference over the probes, as a share of the count; 0 where the line is exact.
    """

    offset: int
    tokens_per_word: float
    counted_by: str
    worst_miss: float

    @property
    def is_exact(self) -> bool:
        return self.tokens_per_word == 1 and self.worst_miss == 0

    def describe_fit(self) -> str | None:
        """How the lengths were fitted, for the manifest; None where nothing had to be."""
        if self.is_exact:
            return None
        return f"fitted at {self.tokens_per_word:.3f} tokens a word, within {self.worst_miss:.1%}"

    def finding(self) -> tuple[str, str]:
        """What was found, and what it means where that is not as it should be."""
        found = f"the server adds {self.offset} to each prompt"
        if self.counted_by != USAGE:
            found += f" (counted by {self.counted_by}, which knows no chat template)"
        if self.is_exact:
            return found, ""
        found += f"; it counts {self.tokens_per_word:.3f} tokens for each one-token word"
        return found, f"prompts are fitted, to within {self.worst_miss:.1%}"


def find_lengths(
    known: Sequence[tuple[Sequence[str], int | None]],
    counters: Mapping[str, CountWords],
    words: Sequence[str],
) -> PromptLengths | None:
    """Take the first counter that counts. known: the words of probes, with the tokens that usage tells."""
    for source, count in counters.items():
        found = known if source == USAGE else [(probe, count(probe)) for probe, _ in known]
        counts = [(len(probe), tokens) for probe, tokens in found if tokens]
        if len({num_words for num_words, _ in counts}) < 2:
            continue
        lengths = fit_lengths(counts, source)
        if lengths.is_exact:
            return lengths
        for start, end in FURTHER_PROBES:
            if tokens := count(words[start:end]):
                counts.append((end - start, tokens))
        lengths = fit_lengths(counts, source)
        if lengths.tokens_per_word >= MIN_TOKENS_PER_WORD:
            return lengths
    return None


def fit_lengths(counts: Sequence[tuple[int, int]], counted_by: str) -> PromptLengths:
    """Fit the line through pairs of words and tokens, two or more; slope 1 where that is exact."""
    words, tokens = np.array(counts, np.float64).T
    slope, offset = (1.0, tokens[0] - words[0])
    if np.ptp(tokens - words) > 0:
        slope, offset = np.polyfit(words, tokens, 1)
    fitted = slope * words + round(offset)
    return PromptLengths(
        offset=round(offset),
        tokens_per_word=float(slope),
        counted_by=counted_by,
        worst_miss=float(np.abs(fitted / tokens - 1).max()),
    )


def count_by_file(path: Path) -> CountTokens:
    """Count by a local tokenizer.json, read with the `tokenizers` package."""
    try:
        from tokenizers import Tokenizer
    except ImportError as exc:
        raise UsageError(f"--tokenizer {path} needs the tokenizers package: pip install tokenizers") from exc
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # the package raises nothing narrower
        raise UsageError(f"--tokenizer {path} cannot be read as a tokenizer.json: {exc}") from exc
    return lambda text: len(tokenizer.encode(text).ids)
