"""Requests made ready before they are due: prompt, body and head as bytes.

A prompt is a pure function of the seed, the nonce and its index, so that it does not matter which load
process makes it, or when. Some wait in a bounded queue; one that is due and not ready is made on
the spot and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadgen.drive.dispatch import Share
from loadgen.endpoints.base import Endpoint
from workloads.prompts import PromptMaker

MAX_READY = 2_048
MAX_READY_BYTES = 32 << 20

Render = Callable[[int], bytes]


class ReadyRequests:
    """Payloads by position: of the next requests in `order`, and of those that were `expect`ed since."""

    def __init__(self, render: Render, order: Sequence[int]) -> None:
        self._render = render
        self._order = order
        self._num_begun = 0
        self._expected: dict[int, None] = {}
        self._ready: dict[int, bytes] = {}
        self._ready_bytes = 0
        self.num_late = 0

    def has_room(self) -> bool:
        """Whether `fill_one` has something to do."""
        return (
            (self._num_begun < len(self._order) or bool(self._expected))
            and len(self._ready) < MAX_READY
            and self._ready_bytes < MAX_READY_BYTES
        )

    def expect(self, position: int) -> None:
        """Learn of a request that is not in `order`: a turn whose instant has just become known."""
        self._expected[position] = None

    def fill_one(self) -> None:
        """Make the next request; those expected come first, for they are due within a think time."""
        if self._expected:
            position = next(iter(self._expected))
            del self._expected[position]
        else:
            position = self._order[self._num_begun]
            self._num_begun += 1
        payload = self._render(position)
        self._ready[position] = payload
        self._ready_bytes += len(payload)

    def fill(self) -> None:
        """Make as many as are kept."""
        while self.has_room():
            self.fill_one()

    def take(self, position: int) -> bytes:
        """The payload of the request at `position`; those in `order` are taken in that order, each once."""
        if position not in self._ready:
            self.num_late += 1
            if position not in self._expected:
                assert position == self._order[self._num_begun]
                self._num_begun += 1
            self._expected.pop(position, None)
            return self._render(position)
        payload = self._ready.pop(position)
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
