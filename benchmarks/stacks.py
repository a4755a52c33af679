"""What a streamed token costs the client: `python -m benchmarks.stacks STACK URL ...` prints one JSON line.

Each stack opens the same streams to a golden server, stamps every read or line and keeps the bytes, parsing
nothing. The server holds its first tokens back until all streams stand, so that the CPU time counted is that
of receiving alone; a stream starts 4 ms after the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.endpoints.openai import Completions
from loadgen.interpret import PlanRow, to_record
from loadgen.records import RequestRecord
from loadgen.transport.base import Exchange, TransportConfig
from loadgen.transport.raw import RawTransport
from loadgen.transport.sockets import resolve_target

SPACING_S = 0.004
SETTLE_S = 1.0
COMPLETIONS = Completions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The streams to open."""

    url: str
    num_streams: int
    num_tokens: int

    @property
    def body(self) -> bytes:
        """The request that each stream sends."""
        asked = {"model": "golden", "prompt": "a b c", "max_tokens": self.num_tokens, "stream": True}
        return json.dumps(asked).encode()


def opening_s(num_streams: int) -> float:
    """How long after the start every stream stands: the server's TTFT must be longer."""
    return num_streams * SPACING_S + SETTLE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCost:
    """What receiving cost. `reads` counts the stamps that were taken between the first token and the last."""

    stack: str
    num_events: int
    reads: int
    cpu_us_per_event: float
    parse_us_per_event: float | None = None

    @property
    def reads_per_event(self) -> float:
        """1 where each event had a stamp of its own."""
        return self.reads / self.num_events


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What our transport brought in, and what it cost from the first token to the last."""

    exchanges: list[Exchange]
    reads: int
    cpu_s: float


def receive_exchanges(ask: Ask) -> Received:
    """Receive the streams through our own transport, the garbage collector off as in a load process."""
    gc.freeze()
    gc.disable()
    ended: list[Exchange] = []
    config = TransportConfig(targets=(resolve_target(ask.url),), path="/v1/completions")
    transport = RawTransport(config, ended.append)
    start_ns = time.monotonic_ns()
    for index in range(ask.num_streams):
        due_ns = start_ns + round(index * SPACING_S * 1e9)
        while time.monotonic_ns() < due_ns:
            transport.wait(due_ns)
        exchange = Exchange(index=index, request_id=f"b-{index}", scheduled_ns=due_ns)
        transport.send(exchange, transport.render(exchange.request_id, ask.body))
    opened_ns = start_ns + round(opening_s(ask.num_streams) * 1e9)
    while time.monotonic_ns() < opened_ns:
        transport.wait(opened_ns)
    opening_reads, cpu_s = transport.counts.num_reads, time.process_time()
    while len(ended) < ask.num_streams:
        transport.wait(time.monotonic_ns() + 1_000_000_000)
    cpu_s = time.process_time() - cpu_s
    return Received(exchanges=ended, reads=transport.counts.num_reads - opening_reads, cpu_s=cpu_s)


def parse_exchange(exchange: Exchange, ask: Ask) -> RequestRecord:
    """Turn bytes and stamps into a row, as a load process does when it has time."""
    row = PlanRow(index=exchange.index, prompt_tokens=3, output_tokens=ask.num_tokens)
    record = to_record(exchange, COMPLETIONS, epoch_ns=0, row=row)
    assert len(record.chunk_ns) == ask.num_tokens, record
    return record


def receive_with_bench(ask: Ask) -> StackCost:
    """Drive our own transport, then parse what it kept."""
    received = receive_exchanges(ask)
    begun_s = time.process_time()
    for exchange in received.exchanges:
        parse_exchange(exchange, ask)
    num_events = ask.num_streams * ask.num_tokens
    return StackCost(
        stack="bench",
        num_events=num_events,
        reads=received.reads - ask.num_streams,  # the tail is a write of its own
        cpu_us_per_event=received.cpu_s / num_events * 1e6,
        parse_us_per_event=(time.process_time() - begun_s) / num_events * 1e6,
    )


ReadStream = Callable[[list[int]], Coroutine[Any, Any, None]]


async def receive_with_aiohttp(ask: Ask) -> StackCost:
    """Iterate over whatever a read brings (`iter_any`), on the standard event loop."""
    import aiohttp

    limits = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def read_stream(stamps: list[int]) -> None:
            kept = []
            async with session.post(f"{ask.url}/v1/completions", data=ask.body) as response:
                async for data in response.content.iter_any():
                    stamps.append(time.monotonic_ns())
                    kept.append(data)

        return await measure_async("aiohttp iter_any", ask, read_stream)


async def receive_with_httpx(ask: Ask) -> StackCost:
    """Iterate over lines, as most OpenAI clients do, on the standard event loop."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as session:

        async def read_stream(stamps: list[int]) -> None:
            kept = []
            async with session.stream("POST", f"{ask.url}/v1/completions", content=ask.body) as response:
                async for line in response.aiter_lines():
                    if line:
                        stamps.append(time.monotonic_ns())
                        kept.append(line)

        return await measure_async("httpx aiter_lines", ask, read_stream)


async def measure_async(stack: str, ask: Ask, read_stream: ReadStream) -> StackCost:
    """Open the streams on schedule and return what they cost once all of them stand."""
    start_s = time.monotonic()
    stamps: list[list[int]] = [[] for _ in range(ask.num_streams)]
    tasks: list[asyncio.Task[None]] = []
    for index in range(ask.num_streams):
        await asyncio.sleep(start_s + index * SPACING_S - time.monotonic())
        tasks.append(asyncio.create_task(read_stream(stamps[index])))
    await asyncio.sleep(start_s + opening_s(ask.num_streams) - time.monotonic())
    assert not any(stamps), "a token came before all streams stood"
    cpu_s = time.process_time()
    await asyncio.gather(*tasks)
    num_events = ask.num_streams * ask.num_tokens
    return StackCost(
        stack=stack,
        num_events=num_events,
        reads=sum(map(len, stamps)) - ask.num_streams,
        cpu_us_per_event=(time.process_time() - cpu_s) / num_events * 1e6,
    )


STACKS: dict[str, Callable[[Ask], StackCost]] = {
    "bench": receive_with_bench,
    "aiohttp": lambda ask: asyncio.run(receive_with_aiohttp(ask)),
    "httpx": lambda ask: asyncio.run(receive_with_httpx(ask)),
}


def main() -> None:
    """Measure one stack and print its cost as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stack", choices=STACKS)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--cpu", type=int)
    args = parser.parse_args()
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    ask = Ask(url=args.url, num_streams=args.streams, num_tokens=args.tokens)
    print(json.dumps(asdict(STACKS[args.stack](ask))))


if __name__ == "__main__":
    main()
