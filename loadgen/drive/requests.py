"""Requests made ready before they are due: prompt, body and head as bytes.

A prompt is a pure function of the seed, the nonce and its index, so that it does not matter which load
process makes it, or when. Some wait in a bounded queue; one that is due and not ready is made on
the spot and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.drive.config import DriveConfig
from loadgen.drive.dispatch import Share
from loadgen.endpoints.base import Endpoint
from loadgen.endpoints.openai import Chat
from workloads.prompts import DRAWN, PromptMaker
from workloads.texts import Prompt, plain_text, read_texts

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

    def __init__(self, share: Share, config: DriveConfig, endpoint: Endpoint) -> None:
        self._share = share
        self._config = config
        self._endpoint = endpoint
        self._maker = PromptMaker(config.seed, config.nonce)
        self._texts: dict[int, Prompt] = {}
        if config.prompts not in DRAWN:
            prompts = read_texts(Path(config.prompts)).prompts
            self._texts = {i: prompts[i] for i in np.unique(share.text_id).tolist()}

    def body(self, position: int) -> bytes:
        """A body whose prompt has the planned number of tokens once the target has added its own."""
        prompt = self._text(position) if self._texts else self._drawn(position)
        output_tokens = int(self._share.output_tokens[position])
        return self._endpoint.body(prompt, output_tokens, self._config.model)

    def _text(self, position: int) -> Any:
        text = self._texts[int(self._share.text_id[position])]
        return text if isinstance(self._endpoint, Chat) else plain_text(text)

    def _drawn(self, position: int) -> str | list[int]:
        share, config = self._share, self._config
        index, num_tokens = int(share.index[position]), int(share.prompt_tokens[position])
        blocks, block_tokens = share.blocks_of(position), share.block_tokens
        if config.prompts == "token-ids":
            return self._maker.token_ids(index, num_tokens, blocks, block_tokens)
        num_words = max(round((num_tokens - config.prompt_offset) / config.tokens_per_word), 1)
        block_words = round(block_tokens / config.tokens_per_word)
        return self._maker.text(index, num_words, blocks, block_words)
