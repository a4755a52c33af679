"""Conversations as text: ShareGPT JSON and OpenAI `messages` JSON lines; sessions and lengths, no times.

Each answer is one row; its prompt is all that was said before. Token counts are estimated at four
characters a token, since the model's tokenizer is not known: the result says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workloads.errors import WorkloadError
from workloads.traces.source import Head, Row, objects
from workloads.traces.table import Format, ReadRows

CHARACTERS_PER_TOKEN = 4
ANSWERS = ("gpt", "chatgpt", "bing", "bard", "assistant")


def estimate_tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _read(key: str, role: str, text: str) -> ReadRows:
    """Make the reader of conversations that stand under `key`, each message with a `role` and a `text`."""

    def read(head: Head, columns: tuple[str, ...]) -> Iterator[Row]:
        for line, conversation in objects(head):
            said = 0
            for message in _messages(head, line, conversation.get(key)):
                length = estimate_tokens(str(message.get(text) or ""))
                if message.get(role) in ANSWERS and said:
                    found = {"input": said, "output": length, "session": line}
                    yield line, [found[name] for name in columns]
                said += length

    return read


def _messages(head: Head, line: int, messages: object) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise WorkloadError(f"{head.path}, entry {line}: its conversation is not a list of messages")
    return messages


def _format(name: str, key: str, role: str, text: str) -> Format:
    return Format(
        name=name,
        unit="s",
        matches=lambda head: isinstance(head.first.get(key), list),
        input_tokens="input",
        output_tokens="output",
        session="session",
        read_rows=_read(key, role, text),
        note=f"token counts are estimates, from text at {CHARACTERS_PER_TOKEN} characters a token",
    )


SHAREGPT = _format("sharegpt", "conversations", "from", "value")
OPENAI_MESSAGES = _format("openai-messages", "messages", "role", "content")
