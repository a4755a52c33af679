"""Texts of one's own as prompts, sent as they are: JSON with `prompt` or `messages`, or ShareGPT's.

One object is one prompt: its text; its messages, without a last answer; or what the human of a conversation
says first. How many tokens that is, only the server knows: the plan holds an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.traces.conversations import ANSWERS, CHARACTERS_PER_TOKEN, estimate_tokens
from workloads.traces.source import look, objects

Prompt = str | list[dict[str, Any]]
Ints = NDArray[np.int64]
ESTIMATE = f"estimated at {CHARACTERS_PER_TOKEN} characters a token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The prompts of a file in its order, with estimates of their tokens and of the answers recorded with
    them (0 where there is none).
    """

    prompts: tuple[Prompt, ...]
    input_tokens: Ints
    output_tokens: Ints

    def choose(self, rng: np.random.Generator, n: int) -> Ints:
        """Choose n of them by chance, each once before any comes a second time."""
        rounds = -(-n // len(self.prompts))
        return np.concatenate([rng.permutation(len(self.prompts)) for _ in range(rounds)])[:n]


def read_texts(path: Path) -> Texts:
    """Read every prompt of a file; raises WorkloadError that names file and line."""
    prompts, lengths = [], []
    for line, row in objects(look(path)):
        prompt, answer = _read(row)
        if not prompt:
            raise WorkloadError(
                f'{path}, line {line} holds no prompt: write {{"prompt": TEXT}} or {{"messages": [...]}}'
            )
        prompts.append(prompt)
        lengths.append((max(estimate_tokens(plain_text(prompt)), 1), estimate_tokens(answer)))
    inputs, outputs = np.array(lengths, np.int64).T
    return Texts(prompts=tuple(prompts), input_tokens=inputs, output_tokens=outputs)


def plain_text(prompt: Prompt) -> str:
    """Give a prompt as one text, for an API that knows no messages."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(_content(message.get("content")) for message in prompt)


def _read(row: dict[str, Any]) -> tuple[Prompt, str]:
    """Find the prompt of one object, and the answer that stands with it."""
    if isinstance(row.get("prompt"), str):
        return row["prompt"], ""
    for key, role, text in (("messages", "role", "content"), ("conversations", "from", "value")):
        messages = row.get(key)
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            continue
        answers = [i for i, message in enumerate(messages) if message.get(role) in ANSWERS]
        if key == "messages":
            # Earlier answers are history; only a last one is left to the server.
            answers = [i for i in answers if i == len(messages) - 1]
        end = answers[0] if answers else len(messages)
        answer = _content(messages[end].get(text)) if answers else ""
        before = messages[:end]
        return before if key == "messages" else "\n".join(_content(m.get(text)) for m in before), answer
    return "", ""


def _content(value: object) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(value, list):
        return "".join(_content(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""
