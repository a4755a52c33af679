"""The bytes of answers: server-sent events, one a token, or one JSON body.

What does not change within a stream is encoded once. A token whose text is held back (a part of a character,
or what may be the beginning of a stop string) has an event with empty text; the last token's event carries
the finish reason, and usage follows in an event of its own, as vLLM sends them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from reference_engine.api import Submission
from reference_engine.sequence import FinishReason
from reference_engine.stops import StopScanner

DONE_EVENT = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
# What a whole answer is called, what a part of one, and how its id begins.
CHAT = ("chat.completion", "chat.completion.chunk", "chatcmpl")
COMPLETION = ("text_completion", "text_completion", "cmpl")

_encode = msgspec.json.Encoder().encode


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Choice:
    """The answer to one prompt.

    text_of: takes the tokens one by one and returns the text that each adds.
    """

    def __init__(
        self, index: int, submission: Submission, about: dict[str, Any], text_of: Callable[[int], str]
    ) -> None:
        self.index = index
        self.num_prompt = len(submission.prompts[index])
        self.num_tokens = 0
        self.num_cached: int | None = None
        self.reason: FinishReason | None = None
        self._is_chat = submission.is_chat
        self._text_of = text_of
        self._pieces: list[str] = []
        self._scanner = StopScanner(submission.stops) if submission.stops else None
        head = b'data: %b,"choices":[{"index":%d,' % (_encode(about)[:-1], index)
        before, after = (b'"delta":{"content":', b"}") if self._is_chat else (b'"text":', b"")
        self._before = head + before
        self._after = after + b',"logprobs":null,"finish_reason":'
        role = b'%b"delta":{"role":"assistant","content":""%bnull}]}\n\n' % (head, self._after)
        self._opening = role if self._is_chat else b""

    def take(self, token_id: int, reason: FinishReason | None) -> None:
        """Add a token; the answer ends with it where there is a reason, which may be a stop string."""
        self.num_tokens += 1
        text = self._text_of(token_id)
        if self._scanner is not None:
            text = self._scanner.feed(text)
            if self._scanner.has_stopped:
                reason = FinishReason.STOP
            elif reason is not None:
                text += self._scanner.flush()
        self._pieces.append(text)
        self.reason = reason

    def token_event(self) -> bytes:
        """Return the event of the token taken last; the first of a chat also says who speaks."""
        why = b"null" if self.reason is None else b'"%b"' % self.reason.encode()
        piece = _encode(self._pieces[-1])
        event = b"%b%b%b%b%b}]}\n\n" % (self._opening, self._before, piece, self._after, why)
        self._opening = b""
        return event

    def body(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        said = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        return {"index": self.index, "logprobs": None, "finish_reason": str(self.reason), **said}


class Answer:
    """The answer to one HTTP request: a choice for each of its prompts.

    new_text: makes what turns one prompt's tokens into text. waits_for: the handles of the prompts that the
    engine still works on.
    """

    def __init__(
        self,
        *,
        request_id: str,
        submission: Submission,
        model: str,
        created_s: int,
        new_text: Callable[[], Callable[[int], str]],
    ) -> None:
        self.is_stream = submission.is_stream
        self.headers = {"x-request-id": request_id}
        self.has_begun = False
        self.waits_for: set[int] = set()
        self._has_usage_event = submission.has_usage_event
        self._kind, part, name = CHAT if submission.is_chat else COMPLETION
        self._about = {"id": f"{name}-{request_id}", "object": part, "created": created_s, "model": model}
        self.choices = [
            Choice(index, submission, self._about, new_text()) for index in range(len(submission.prompts))
        ]

    def closing_events(self) -> bytes:
        """Return what follows the last token: usage where it was asked for, and the end."""
        if not self._has_usage_event:
            return DONE_EVENT
        usage = _encode({**self._about, "choices": [], "usage": self._usage()})
        return b"data: %b\n\n%b" % (usage, DONE_EVENT)

    def body(self) -> bytes:
        """Return the whole answer as one JSON document."""
        choices = [choice.body() for choice in self.choices]
        return _encode({**self._about, "object": self._kind, "choices": choices, "usage": self._usage()})

    def _usage(self) -> dict[str, Any]:
        num_prompt = sum(choice.num_prompt for choice in self.choices)
        num_output = sum(choice.num_tokens for choice in self.choices)
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
        }
        cached = [choice.num_cached for choice in self.choices if choice.num_cached is not None]
        if cached:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(cached)}
        return usage
