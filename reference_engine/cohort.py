"""Residents that decode in step with each other: what changes alike for all of them is kept once.

While a request is in the cohort, its counters follow from how far the cohort has come since it joined, and
what happens to it alone (a block begins, its answer ends) is due at a step that is known beforehand. So a
step of all costs what is due in it, however many they are. For virtual time only: nobody looks at the tokens.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Any

from reference_engine.kv_cache import BlockTables
from reference_engine.scheduler import STAND_IN
from reference_engine.sequence import Sequence


class Member(Sequence):
    """A sequence that reads its counters off its cohort while it is in one; nobody sees the difference."""

    __slots__ = (
        "cohort",
        "decoded_before",
        "first_step",
        "joined",
        "own_computed",
        "own_high_water",
        "own_tokens",
        "serial",
    )

    cohort: Cohort | None
    serial: int  # of the joining that lasts; -1 while in no cohort
    joined: int  # the cohort's step at that
    first_step: int
    decoded_before: int
    own_computed: int
    own_high_water: int
    own_tokens: list[int]

    def __init__(self, **values: Any) -> None:
        self.cohort = None
        self.serial = -1
        super().__init__(**values)

    @property
    def num_computed(self) -> int:
        cohort = self.cohort
        return self.own_computed if cohort is None else self.own_computed + cohort.num_steps - self.joined

    @num_computed.setter
    def num_computed(self, value: int) -> None:
        self.own_computed = value

    @property
    def high_water(self) -> int:
        return self.own_high_water if self.cohort is None else self.num_computed

    @high_water.setter
    def high_water(self, value: int) -> None:
        self.own_high_water = value

    @property
    def tokens(self) -> list[int]:
        tokens = self.own_tokens
        if self.cohort is not None:
            tokens += [STAND_IN] * (self.num_computed + 1 - len(tokens))
        return tokens

    @tokens.setter
    def tokens(self, value: list[int]) -> None:
        self.own_tokens = value


Due = tuple[int, int, Member]  # a step of the cohort; which joining it belongs to; who


class Cohort:
    """num_steps: steps taken together so far. context: tokens that the members have computed, in all."""

    def __init__(self, tables: BlockTables) -> None:
        self.size = 0
        self.num_steps = 0
        self.context = 0
        self._tables = tables
        self._serials = count()
        self._ends: list[Due] = []
        # Who may need a block: by the step at which one begins, counted round in blocks.
        self._blocks: list[list[tuple[int, Member]]] = [[] for _ in range(tables.block_tokens)]
        self._fresh: list[Member] = []
        self._last_step = -1

    def join(self, member: Member) -> None:
        """Take in a resident that decodes."""
        computed, size = member.num_computed, self._tables.block_tokens
        left = member.max_total - len(member.tokens)
        member.joined, member.serial, member.cohort = self.num_steps, next(self._serials), self
        self.size += 1
        self.context += computed
        self._fresh.append(member)
        heappush(self._ends, (self.num_steps + left, member.serial, member))
        if self._tables.num_blocks_of(member.slot) * size - computed < left:
            self._blocks[(self.num_steps - computed) % size].append((member.serial, member))

    def leave(self, member: Member) -> None:
        """Let go of a member: its counters are its own again."""
        computed, tokens = member.num_computed, member.tokens
        num_steps = self.num_steps - member.joined
        self.size -= 1
        self.context -= computed
        member.cohort, member.serial = None, -1
        member.own_computed = computed
        member.own_tokens = tokens
        if num_steps:
            member.own_high_water = computed
            member.note_decodes(member.first_step, self._last_step, num_steps, member.decoded_before)

    def steps_to_end(self) -> int:
        """Return after how many steps the first member ends."""
        ends = self._ends
        while ends and ends[0][2].serial != ends[0][1]:
            heappop(ends)
        return ends[0][0] - self.num_steps

    def take_blocks(self, num_steps: int) -> list[int]:
        """Take the blocks that begin in the next steps; return how many in each. There must be as many."""
        taken, tables, now = [0] * num_steps, self._tables, self.num_steps
        size = tables.block_tokens
        for i in range(num_steps):
            due = self._blocks[(now + i) % size]
            if not due:
                continue
            has_left = False
            for serial, member in due:
                if member.serial != serial:
                    has_left = True
                elif tables.extend(member.slot, member.own_computed + now + i - member.joined):
                    taken[i] += 1
            if has_left:
                due[:] = [entry for entry in due if entry[1].serial == entry[0]]
        return taken

    def num_blocks_due(self) -> int:
        """Return how many blocks begin in the next step; an upper bound."""
        return len(self._blocks[self.num_steps % self._tables.block_tokens])

    def advance(self, num_steps: int, first_step: int, decoded_before: int) -> list[Member]:
        """Let everybody decode; return who ends with the last step. The blocks have been taken.

        first_step: the engine's number of the first of these steps; decoded_before: of the last before it in
        which anybody decoded.
        """
        for member in self._fresh:
            member.first_step, member.decoded_before = first_step, decoded_before
        self._fresh.clear()
        self.num_steps += num_steps
        self.context += self.size * num_steps
        self._last_step = first_step + num_steps - 1
        ended, ends = [], self._ends
        while ends and ends[0][0] <= self.num_steps:
            _, serial, member = heappop(ends)
            if member.serial == serial:
                ended.append(member)
        return ended
