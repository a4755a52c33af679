"""Clients that come and go against a live server: `python -m benchmarks.soak [--requests 20000]`.

Every answer is streamed or whole, short or long, and a third of the clients leave before its end: at once,
at the first token, or in between. Memory is small, so that requests are evicted, and prefixes are shared.
Afterwards no request, block or descriptor is left, every request that came in is accounted for, and no
process holds more than it did after the first quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.runs import memory_kb
from loadgen.golden.process import READY_TIMEOUT_S
from reference_engine.steplog import NUM_VALUES
from tests.reference_engine.process import RunningServer, running_server

FLAGS = ("--kv-tokens", "1024", "--max-batch", "32", "--prefix-sharing", "--log-requests", "200")
NUM_CLIENTS = 40
LEAVING_SHARE = 1 / 3
MAX_GROWTH_MB = 6.0  # 400 bytes for each of 15,000 requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the HTTP process and the engine process hold between two crowds; metrics: what the server says."""

    descriptors: list[int]
    own_mb: list[float]
    metrics: str

    def metric(self, name: str) -> int:
        found = re.search(rf"^{name} (\d+)", self.metrics, re.MULTILINE)
        assert found is not None
        return int(found[1])

    @property
    def step_log_mb(self) -> float:
        """The part of the engine's memory that grows until its ring of steps is full."""
        return self.metric("engine_steps_total") * NUM_VALUES * 8 / 1e6


def draw_request(rng: random.Random) -> bytes:
    body = {
        "prompt": [rng.randint(1, 3)] * rng.randint(1, 60),
        "max_tokens": rng.randint(1, 40),
        "stream": rng.random() < 0.7,
        "priority": rng.randint(0, 2),
    }
    data = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


async def visit(port: int, rng: random.Random) -> None:
    """Send one request and read its answer, or leave somewhere on the way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(draw_request(rng))
    if rng.random() < LEAVING_SHARE:
        if (num_bytes := rng.choice((0, 1, 2000))) > 0:
            await reader.read(num_bytes)
    else:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = re.search(rb"content-length: (\d+)", head)
        await (reader.readuntil(b"[DONE]") if length is None else reader.readexactly(int(length[1])))
    writer.close()


async def crowd(port: int, num_requests: int, rng: random.Random) -> None:
    pending = iter(range(num_requests))

    async def client() -> None:
        for _ in pending:
            await asyncio.wait_for(visit(port, rng), READY_TIMEOUT_S)

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))


def settled(server: RunningServer) -> Held:
    """Return what is held once nothing runs and our own connection is closed, too."""
    deadline, pids = time.monotonic() + READY_TIMEOUT_S, (server.about["pid"], server.about["engine_pid"])
    while True:
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            text = answer.read().decode()
        time.sleep(0.1)
        is_idle = "engine_requests_running 0" in text and "engine_requests_waiting 0" in text
        if is_idle or time.monotonic() > deadline:
            return Held(
                descriptors=[len(os.listdir(f"/proc/{pid}/fd")) for pid in pids],
                own_mb=[memory_kb(pid, "Anonymous") / 1e3 for pid in pids],
                metrics=text,
            )


def soak(num_requests: int) -> Iterator[str]:
    """Run so many requests and yield what was seen; raises AssertionError for whatever was left behind."""
    rng = random.Random(4)
    with running_server(*FLAGS) as server:
        before, held = settled(server), []
        for _ in range(4):
            asyncio.run(crowd(server.port, num_requests // 4, rng))
            held.append(settled(server))
            yield f"memory of HTTP and engine process: {', '.join(f'{mb:.1f} MB' for mb in held[-1].own_mb)}"
        first, last = held[0], held[-1]
        for line in ("requests_running", "requests_waiting", 'kv_blocks{state="used"}'):
            assert f"engine_{line} 0\n" in last.metrics, last.metrics
        assert last.descriptors == before.descriptors, "descriptors stay open"
        finished = re.findall(r"finished_total\{reason=\"(.+)\"\} (\d+)", last.metrics)
        assert sum(int(number) for _, number in finished) == num_requests // 4 * 4
        num_evicted = last.metric("engine_preemptions_total")
        assert num_evicted > 0
        grown_mb = [b - a for a, b in zip(first.own_mb, last.own_mb, strict=True)]
        grown_mb[1] -= last.step_log_mb - first.step_log_mb
        yield f"finished: {dict(finished)}; evicted {num_evicted} times"
        grown = ", ".join(f"{mb:+.1f} MB" for mb in grown_mb)
        yield f"since the first quarter, the log of steps apart: {grown}"
        assert max(grown_mb) < MAX_GROWTH_MB, "a process has grown"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    started_s = time.monotonic()
    for line in soak(parser.parse_args().requests):
        print(line, flush=True)
    print(f"nothing was left behind, in {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
