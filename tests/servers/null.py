"""A server that answers at once, with no schedule and no log: what a request or a token costs the client.

`--writes token` gives each event a send() of its own, all in a row; `--writes whole` sends the answer in one.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from socket import socket

from loadgen.golden.answers import AnswerShape, read_request, stream_bytes, whole_body
from loadgen.golden.pace import GoldenConfig
from loadgen.golden.server import Connection, GoldenServer, add_common_flags, listen, run_server


class NullServer(GoldenServer):
    """The golden server without its schedule."""

    def __init__(self, listener: socket, *, writes_whole: bool) -> None:
        super().__init__(GoldenConfig(ttft_ns=0, gap_ns=0), listener)
        self.writes_whole = writes_whole

    def begin(self, connection: Connection, request_id: bytes, body: bytes, *, is_chat: bool) -> None:
        """Send the whole answer now."""
        del request_id
        shape, is_stream = read_request(body, is_chat, self.config.tokens_per_event)
        writes = answer_writes(shape) if is_stream else (whole_body(shape),)
        if self.writes_whole:
            writes = (b"".join(writes),)
        for data in writes[:-1]:
            self.send(connection, data)
        self.finish(connection, writes[-1])


@lru_cache(maxsize=4096)
def answer_writes(shape: AnswerShape) -> tuple[bytes, ...]:
    """Return a streamed answer as one piece per write."""
    answer = stream_bytes(shape)
    return (answer.head, *answer.tokens, answer.tail)


def main() -> None:
    """Run the null server."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument("--writes", choices=["token", "whole"], default="token")
    args = parser.parse_args()
    server = NullServer(listen(args.host, args.port), writes_whole=args.writes == "whole")
    run_server(server, args)


if __name__ == "__main__":
    main()
