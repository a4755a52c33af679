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
        is_chat = submission.is_chat
        chunk_kind = "chat.completion.chunk" if is_chat else "text_completion"
        body_kind = "chat.completion" if is_chat else "text_completion"
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{request_id}"
        self._about = {"id": self._id, "object": chunk_kind, "created": created_s, "model": model}
        self._about_body = {**self._about, "object": body_kind}
        head = msgspec.json.encode(self._about)[:-1] + b',"choices":[{"index":0,'
        if is_chat:
            self._prefix = b"data: " + head + b'"delta":{"content":'
            self._middle = b'},"logprobs":null,"finish_reason":'
        else:
            self._prefix = b"data: " + head + b'"text":'
            self._middle = b',"logprobs":null,"finish_reason":'
        self._suffix = self._middle + b"null}]}\n\n"
        self._role_event = (
            b"data: " + head + b'"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]}\n\n'
        )

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
        piece = _encode(self._pieces[-1])
        if reason is None:
            event = self._prefix + piece + self._suffix
        else:
            event = b'%b%b%b"%b"}]}\n\n' % (self._prefix, piece, self._middle, reason.encode())
        is_first, self.has_begun = not self.has_begun, True
        return self._role_event + event if is_first and self.submission.is_chat else event

    def closing_events(self) -> bytes:
        """Return what follows the last token: usage where it was asked for, and the end."""
        if not self.submission.has_usage_event:
            return DONE_EVENT
        usage = msgspec.json.encode({**self._about, "choices": [], "usage": self._usage()})
        return b"data: %b\n\n%b" % (usage, DONE_EVENT)

    def body(self, reason: FinishReason) -> bytes:
        """Return the whole answer as one JSON document."""
        text = "".join(self._pieces)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": str(reason)}
        if self.submission.is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return msgspec.json.encode({**self._about_body, "choices": [choice], "usage": self._usage()})

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
