"""A server that misbehaves on purpose: `--fault NAME=PROBABILITY`, once per fault.

All other requests are answered properly. The fault of a request is a pure function of `--seed` and the number
at the end of its X-Request-Id, so that it depends neither on the order of arrival nor on the number of load
processes. GET /log says who got what.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys

from loadgen.golden.answers import MODEL
from loadgen.golden.server import add_common_flags
from tests.servers.faults import FAULTS, HEAD, LAST_CHUNK, Wire, whole

PROPER = "none"


class FaultyServer:
    """Answers every request with its fault and remembers which that was."""

    def __init__(self, probability_of: dict[str, float], seed: int) -> None:
        self.probability_of = probability_of
        self.seed = seed
        self.log: list[tuple[str, str]] = []

    def choose_fault(self, request_id: str) -> str:
        """Return the fault of a request, or `none`."""
        index = request_id.rpartition("-")[2]
        left = random.Random(f"{self.seed}:{index}").random()
        for name, probability in self.probability_of.items():
            left -= probability
            if left < 0:
                return name
        return PROPER

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until either side ends the connection."""
        # asyncio.CancelledError: the server is stopping while a fault still holds its answer back.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._serve_request(reader, writer):
                pass
        writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ", 2)[1]
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if path.endswith("/completions"):
            return await self._answer(writer, fields.get("x-request-id", ""), json.loads(body))
        model = {"id": MODEL, "object": "model"}
        answers = {"/v1/models": {"object": "list", "data": [model]}, "/log": self.log, "/health": {}}
        writer.write(whole("200 OK", json.dumps(answers.get(path)).encode()))
        return True

    async def _answer(self, writer: asyncio.StreamWriter, request_id: str, asked: dict[str, object]) -> bool:
        name = self.choose_fault(request_id)
        self.log.append((request_id, name))
        num_tokens = asked.get("max_tokens", 16)
        assert isinstance(num_tokens, int)
        wire = Wire(writer=writer, num_tokens=num_tokens, prompt_tokens=len(str(asked.get("prompt")).split()))
        await FAULTS.get(name, proper)(wire)
        return wire.keeps_alive


async def proper(wire: Wire) -> None:
    """Answer as a good server does."""
    await wire.send(HEAD)
    await wire.send_events(*wire.events())
    await wire.send(LAST_CHUNK)


def parse_fault(text: str) -> tuple[str, float]:
    """Parse NAME=PROBABILITY."""
    name, _, probability = text.partition("=")
    if name not in FAULTS:
        raise argparse.ArgumentTypeError(f"unknown fault {name!r}; known: {', '.join(FAULTS)}")
    return name, float(probability or 1)


async def serve(server: FaultyServer, host: str, port: int) -> None:
    """Serve until stdin reaches end of file."""
    listener = await asyncio.start_server(server.serve_connection, host, port, limit=1 << 24, backlog=4096)
    port = listener.sockets[0].getsockname()[1]
    print(json.dumps({"port": port, "pid": os.getpid()}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Run the faulty server."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument(
        "--fault", type=parse_fault, action="append", default=[], help=f"of {', '.join(FAULTS)}"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    asyncio.run(serve(FaultyServer(dict(args.fault), args.seed), args.host, args.port))


if __name__ == "__main__":
    main()
