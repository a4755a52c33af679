"""Several targets behind one transport: who gets which request, and that nothing is lost on the way."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from loadgen.clock import now_ns
from loadgen.transport.base import End, Exchange, TransportConfig
from loadgen.transport.raw import RawTransport
from loadgen.transport.sockets import resolve_target
from tests.loadgen.driving import even_plan, run_drive
from tests.loadgen.scripted import serving, stream
from tests.loadgen.sending import BODY
from tests.loadgen.test_drive import answer_soon, never_answer, request_ids


def slowly(sock: socket.socket, _: bytes) -> bool:
    time.sleep(0.3)
    sock.sendall(stream(4))
    return True


def test_round_robin_is_by_index_whatever_the_number_of_processes(tmp_path: Path) -> None:
    for num_workers in (1, 3):
        with serving(answer_soon) as even, serving(answer_soon) as odd:
            driven = run_drive(
                even_plan(20, gap_ms=5), tmp_path, even.url, more_urls=(odd.url,), workers=num_workers
            )
        assert driven.outcomes == {"ok": 20}
        assert sorted(request_ids(even)) == list(range(0, 20, 2))
        assert sorted(request_ids(odd)) == list(range(1, 20, 2))


def test_the_least_busy_gets_the_next_request(tmp_path: Path) -> None:
    with serving(slowly) as slow, serving(answer_soon) as quick:
        driven = run_drive(
            even_plan(20, gap_ms=30),
            tmp_path,
            slow.url,
            more_urls=(quick.url,),
            balance="least-in-flight",
        )
    assert driven.outcomes == {"ok": 20}
    assert len(request_ids(quick)) > 2 * len(request_ids(slow)) > 0


def test_a_target_that_refuses_fails_its_share_only(tmp_path: Path) -> None:
    with socket.socket() as free, serving(answer_soon) as server:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
        driven = run_drive(even_plan(10, gap_ms=5), tmp_path, server.url, more_urls=(dead,))
    assert driven.outcomes == {"ok": 5, "connect_failed": 5}


@contextlib.contextmanager
def spread(*urls: str) -> Iterator[tuple[RawTransport, list[Exchange]]]:
    ended: list[Exchange] = []
    config = TransportConfig(targets=tuple(map(resolve_target, urls)), path="/v1/completions")
    transport = RawTransport(config, ended.append)
    try:
        yield transport, ended
    finally:
        transport.close()


def test_a_live_request_can_be_given_up_and_counts_are_added_up() -> None:
    with serving(never_answer) as a, serving(answer_soon) as b, spread(a.url, b.url) as (transport, ended):
        exchanges = [Exchange(index=i, request_id=f"r-{i}", scheduled_ns=now_ns()) for i in range(2)]
        for exchange in exchanges:
            transport.send(exchange, transport.render(exchange.request_id, BODY))
        give_up_ns = now_ns() + 10_000_000_000
        while not ended and now_ns() < give_up_ns:
            transport.wait(now_ns() + 20_000_000)
        assert [exchange.index for exchange in ended] == [1]
        assert repr(transport) == "<RawTransport 1+0 live, 1 idle>"
        transport.end(exchanges[0], End.CANCELLED, "enough")
        transport.check_clock()
        assert [(e.index, e.ended) for e in ended] == [(1, End.COMPLETE), (0, End.CANCELLED)]
        assert transport.counts.num_connections == 2
        assert transport.counts.num_bytes == sum(map(len, exchanges[1].chunks))
