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


class Answer:
    """One answer in progress: what is known of it and how it is rendered.

    text_of: takes the tokens one by one and returns the text that each adds.
    """

    def __init__(
        self,
        *,
        request_id: str,
        submission: Submission,
        model: str,
        created_s: int,
        text_of: Callable[[int], str],
    ) -> None:
        self.submission = submission
        self.is_stream = submission.is_stream
        self.headers = {"x-request-id": request_id}
        self.num_tokens = 0
        self.num_cached: int | None = None
        self.has_begun = False
        self._text_of = text_of
        self._pieces: list[str] = []
        self._scanner = StopScanner(submission.stops) if submission.stops else None
        self._kind, chunk_kind, name = CHAT if submission.is_chat else COMPLETION
        self._about = {
            "id": f"{name}-{request_id}",
            "object": chunk_kind,
            "created": created_s,
            "model": model,
        }
        head = b"data: " + _encode(self._about)[:-1] + b',"choices":[{"index":0,'
        before, after = (b'"delta":{"content":', b"}") if submission.is_chat else (b'"text":', b"")
        self._before = head + before
        self._after = after + b',"logprobs":null,"finish_reason":'
        role = b'%b"delta":{"role":"assistant","content":""%bnull}]}\n\n' % (head, self._after)
        self._opening = role if submission.is_chat else b""

    def take(self, token_id: int, reason: FinishReason | None) -> FinishReason | None:
        """Add a token; return why the answer ends with it, which may be a stop string."""
        self.num_tokens += 1
        text = self._text_of(token_id)
        if self._scanner is not None:
            text = self._scanner.feed(text)
            if self._scanner.has_stopped:
                reason = FinishReason.STOP
            elif reason is not None:
                text += self._scanner.flush()
        self._pieces.append(text)
        return reason

    def token_event(self, reason: FinishReason | None) -> bytes:
        """Return the event of the token taken last; the first of a chat also says who speaks."""
        why = b"null" if reason is None else b'"%b"' % reason.encode()
        event = b"%b%b%b%b%b}]}\n\n" % (
            self._opening,
            self._before,
            _encode(self._pieces[-1]),
            self._after,
            why,
        )
        self._opening, self.has_begun = b"", True
        return event

    def closing_events(self) -> bytes:
        """Return what follows the last token: usage where it was asked for, and the end."""
        if not self.submission.has_usage_event:
            return DONE_EVENT
        usage = _encode({**self._about, "choices": [], "usage": self._usage()})
        return b"data: %b\n\n%b" % (usage, DONE_EVENT)

    def body(self, reason: FinishReason) -> bytes:
        """Return the whole answer as one JSON document."""
        text = "".join(self._pieces)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": str(reason)}
        if self.submission.is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        about = {**self._about, "object": self._kind}
        return _encode({**about, "choices": [choice], "usage": self._usage()})

    def _usage(self) -> dict[str, Any]:
        num_prompt, num_output = len(self.submission.prompt), self.num_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
        }
        if self.num_cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.num_cached}
        return usage
