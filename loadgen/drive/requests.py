"""Requests made ready before they are due: prompt, body and head as bytes.

A prompt is a pure function of the seed, the nonce and its index, so that it does not matter which load
process makes it, or when. Some wait in a bounded queue; one that is due and not ready is made on
the spot and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from loadgen.drive.dispatch import Share
from loadgen.endpoints.base import Endpoint
from workloads.prompts import PromptMaker

MAX_READY = 2_048
MAX_READY_BYTES = 32 << 20

Render = Callable[[int], bytes]


class ReadyRequests:
    """The next payloads of a share, in the order in which they are sent."""

    def __init__(self, render: Render, num_requests: int) -> None:
        self._render = render
        self._num_requests = num_requests
        self._ready: deque[bytes] = deque()
        self._ready_bytes = 0
        self._next_position = 0
        self.num_late = 0

    def has_room(self) -> bool:
        """Whether `fill_one` has something to do."""
        return (
            self._next_position < self._num_requests
            and len(self._ready) < MAX_READY
            and self._ready_bytes < MAX_READY_BYTES
        )

    def fill_one(self) -> None:
        """Make the next request."""
        payload = self._render(self._next_position)
        self._next_position += 1
        self._ready.append(payload)
        self._ready_bytes += len(payload)

    def fill(self) -> None:
        """Make as many as are kept."""
        while self.has_room():
            self.fill_one()

    def take(self, position: int) -> bytes:
        """The payload of the request at `position`; positions are taken in order, each once."""
        if not self._ready:
            assert position == self._next_position
            self.num_late += 1
            self.fill_one()
        payload = self._ready.popleft()
        self._ready_bytes -= len(payload)
        return payload


class RequestBodies:
    """Makes the body of each request of a share."""

    def __init__(
        self, share: Share, prompts: PromptMaker, endpoint: Endpoint, model: str, offset: int
    ) -> None:
        self._share = share
        self._prompts = prompts
        self._endpoint = endpoint
        self._model = model
        self._offset = offset

    def body(self, position: int) -> bytes:
        """A body whose prompt has the planned number of tokens once the target has added its own."""
        share = self._share
        num_words = max(int(share.prompt_tokens[position]) - self._offset, 1)
        prompt = self._prompts.text_with_blocks(
            int(share.index[position]), num_words, share.blocks_of(position), share.block_tokens
        )
        return self._endpoint.body(prompt, int(share.output_tokens[position]), self._model)
