from __future__ import annotations

import errno
import itertools
import socket
import threading
import time

import pytest

from loadgen.errors import TargetError
from loadgen.transport import connection, raw
from loadgen.transport.base import End
from loadgen.transport.sockets import (
    POLL_IN,
    POLL_OUT,
    SelectorPoller,
    parse_target,
    resolve_target,
)
from tests.loadgen.scripted import HEAD, LAST_CHUNK, Answer, chunk, reset, serving, stream, token
from tests.loadgen.sending import give_up, record_of, sender


def answers(*pieces: bytes, pause_s: float = 0.002) -> Answer:
    """Each piece with a send of its own; the connection stays."""

    def answer(sock: socket.socket, _: bytes) -> bool:
        for piece in pieces:
            sock.sendall(piece)
            time.sleep(pause_s)
        return True

    return answer


def then_closes(*pieces: bytes) -> Answer:
    """The pieces, then an orderly end of the connection."""

    def answer(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(b"".join(pieces))
        return False

    return answer


def test_a_request_is_what_it_should_be() -> None:
    with (
        serving(answers(stream(3))) as server,
        sender("raw", server.url, headers=(("Authorization", "Bearer k"),)) as it,
    ):
        exchange = it.ask(b'{"a": 1}')
    assert exchange.ended is End.COMPLETE
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/completions HTTP/1.1"
    assert f"Host: 127.0.0.1:{server.port}".encode() in lines
    assert {b"Authorization: Bearer k", b"X-Request-Id: run-0", b"Content-Length: 8"} <= set(lines)
    assert b"Content-Type: application/json" in lines
    assert body == b'{"a": 1}'


def test_instants_are_in_order_and_each_read_has_its_stamp() -> None:
    pieces = [HEAD, *(chunk(token()) for _ in range(4)), LAST_CHUNK]
    with serving(answers(*pieces, pause_s=0.01)) as server, sender("raw", server.url) as it:
        exchange = it.ask()
    assert exchange.connected_ns is not None
    assert exchange.written_ns is not None
    assert exchange.sent_ns is not None
    assert exchange.scheduled_ns <= exchange.sent_ns <= exchange.connected_ns <= exchange.written_ns
    assert len(exchange.chunks) == len(exchange.stamps) == len(exchange.reads_ns)
    assert exchange.stamps == sorted(exchange.stamps)
    assert all(stamp <= read for stamp, read in zip(exchange.stamps, exchange.reads_ns, strict=True))
    assert exchange.ended_ns == exchange.reads_ns[-1]


def test_the_kernel_stamp_is_the_arrival_though_the_client_sleeps() -> None:
    sent_ns = []

    def answer(sock: socket.socket, _: bytes) -> bool:
        time.sleep(0.02)
        sent_ns.append(time.monotonic_ns())
        sock.sendall(stream(1))
        return True

    with serving(answer) as server, sender("raw", server.url) as it:
        if not it.transport.counts.has_kernel_stamps:
            pytest.skip("this kernel gives no receive stamps")
        exchange = it.send()
        it.rest(5_000_000)
        time.sleep(0.08)
        it.wait(1)
    assert exchange.stamp_source == "kernel"
    assert 0 <= exchange.stamps[0] - sent_ns[0] < 10_000_000
    assert exchange.reads_ns[0] - exchange.stamps[0] > 30_000_000
    lag_ns = record_of(exchange, 1).recv_lag_ns
    assert lag_ns is not None
    assert lag_ns > 30_000_000


def test_without_kernel_stamps_the_read_is_the_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "start_stamping", lambda: None)
    with serving(answers(stream(2))) as server, sender("raw", server.url) as it:
        exchange = it.ask()
    assert exchange.stamp_source == "user"
    assert exchange.stamps == exchange.reads_ns


def test_a_step_of_the_wall_clock_spoils_no_stamp() -> None:
    """The wall clock is set back an hour between the pairing and the first stamp, as the offset sees it."""
    with serving(answers(stream(2), pause_s=0)) as server, sender("raw", server.url) as it:
        if not it.transport.counts.has_kernel_stamps:
            pytest.skip("this kernel gives no receive stamps")
        assert isinstance(it.transport, raw.RawTransport)
        for wrong_by_ns in (-3_600_000_000_000, 3_600_000_000_000):
            it.transport._offset.ns += wrong_by_ns
            exchange = it.ask()
            assert exchange.stamp_source == "user"
            assert exchange.stamps[0] == exchange.reads_ns[0]
        assert it.transport.counts.num_clock_steps == 2
        assert it.ask().stamp_source == "kernel"


def test_a_connection_is_kept_and_used_again() -> None:
    with serving(answers(stream(3))) as server, sender("raw", server.url) as it:
        exchanges = []
        for _ in range(4):
            exchanges.append(it.ask())
            it.rest()
    assert [exchange.reused for exchange in exchanges] == [False, True, True, True]
    assert exchanges[1].connected_ns is None
    assert it.transport.counts.num_connections == 1


def test_a_connection_rests_before_it_is_used_again() -> None:
    with serving(answers(stream(1))) as server, sender("raw", server.url) as it:
        it.ask()
        assert it.ask().reused is False
        it.rest()
        assert it.ask().reused is True
    assert it.transport.counts.num_connections == 2


def test_fresh_connections_are_one_each() -> None:
    with serving(answers(stream(1))) as server, sender("raw", server.url, fresh_connections=True) as it:
        for _ in range(3):
            assert it.ask().reused is False
            it.rest()
            assert repr(it.transport) == "<RawTransport 0 live, 0 idle>"  # though the server would keep it
    assert it.transport.counts.num_connections == 3
    assert b"Connection: close" in server.requests[0]


def test_a_head_without_end_is_given_up() -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"X-More: of it\r\n" * 10_000
    with serving(answers(head)) as server, sender("raw", server.url) as it:
        exchange = it.ask()
    assert exchange.ended is End.MALFORMED
    assert "a head over" in (exchange.error or "")


def test_a_server_that_closes_after_each_answer_costs_no_request() -> None:
    with serving(then_closes(stream(2))) as server, sender("raw", server.url) as it:
        for _ in range(5):
            assert it.ask().ended is End.COMPLETE
            it.wait_until(lambda: "0 idle" in repr(it.transport))
    assert it.transport.counts.num_connections == 5


def test_a_connection_closed_at_rest_is_found_before_reuse() -> None:
    may_close = threading.Event()

    def answer(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(stream(1))
        may_close.wait(5)
        return False

    with serving(answer) as server, sender("raw", server.url) as it:
        it.ask()
        may_close.set()
        time.sleep(0.03)  # the end of the connection arrives while nobody looks at the sockets
        assert it.ask().ended is End.COMPLETE
    assert it.transport.counts.num_connections == 2


def test_connection_close_and_http_1_0_are_not_kept() -> None:
    whole = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    for answer in (whole, b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"):
        with serving(answers(answer)) as server, sender("raw", server.url) as it:
            for _ in range(2):
                assert it.ask().ended is End.COMPLETE
                it.rest()
        assert it.transport.counts.num_connections == 2


ENDINGS = {
    "chunked": stream(3),
    "trailers": HEAD + chunk(token()) + b"0\r\nX-Sum: 1\r\n\r\n",
    "crlf events": HEAD + chunk(token().replace(b"\n", b"\r\n")) * 3 + LAST_CHUNK,
    "counted": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "bare line feeds": b"HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n3\nabc\n0\n\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    "misleading header": b"HTTP/1.1 200 OK\r\nX-Note: chunked\r\ncontent-length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("answer", ENDINGS.values(), ids=ENDINGS.keys())
def test_the_end_of_a_response_is_found_wherever_the_reads_are_cut(answer: bytes) -> None:
    cuts = [*range(1, 30), *range(len(answer) - 12, len(answer))]
    splits = iter([*cuts, len(answer)])

    def answer_in_two(sock: socket.socket, _: bytes) -> bool:
        cut = next(splits)
        sock.sendall(answer[:cut])
        time.sleep(0.001)
        sock.sendall(answer[cut:])
        return True

    with serving(answer_in_two) as server, sender("raw", server.url) as it:
        for _ in range(len(cuts) + 1):
            exchange = it.ask()
            assert exchange.ended is End.COMPLETE
            assert b"".join(exchange.chunks) == answer
    assert len(server.requests) == len(cuts) + 1


def test_a_response_a_byte_at_a_time() -> None:
    answer = stream(1)
    pieces = [answer[i : i + 1] for i in range(len(answer))]
    with serving(answers(*pieces, pause_s=0)) as server, sender("raw", server.url) as it:
        exchange = it.ask()
    assert exchange.ended is End.COMPLETE
    assert b"".join(exchange.chunks) == answer


def breaks_after(*pieces: bytes) -> Answer:
    def answer(sock: socket.socket, _: bytes) -> bool:
        for piece in pieces:
            sock.sendall(piece)
            time.sleep(0.01)
        reset(sock)
        return False

    return answer


BREAKS: dict[str, tuple[Answer, End, str]] = {
    "until eof": (then_closes(b"HTTP/1.1 200 OK\r\n\r\n", token()), End.EOF, "truncated"),
    "cut": (then_closes(HEAD, chunk(token())), End.EOF, "truncated"),
    "nothing": (then_closes(b""), End.EOF, "reset"),
    "reset": (breaks_after(HEAD, chunk(token())), End.RESET, "reset"),
    "reset at once": (breaks_after(), End.RESET, "reset"),
    "not http": (answers(b"SSH-2.0-OpenSSH_9.6\r\n"), End.MALFORMED, "malformed"),
    "bad chunk": (answers(HEAD, b"zz\r\nxx\r\n\r\n"), End.MALFORMED, "malformed"),
}


@pytest.mark.parametrize(("answer", "end", "outcome"), BREAKS.values(), ids=BREAKS.keys())
def test_a_broken_answer_ends_as_what_it_is(answer: Answer, end: End, outcome: str) -> None:
    with serving(answer) as server, sender("raw", server.url) as it:
        exchange = it.ask()
        assert exchange.ended is end
        assert record_of(exchange).outcome == outcome
        it.rest()
        assert it.send().reused is False
        give_up(it, next(iter(it.transport._live.values())).exchange)  # type: ignore[attr-defined]


def test_an_answer_beyond_the_bound_ends_as_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_RESPONSE_BYTES", 100_000)
    flood = itertools.repeat(chunk(token() * 100), 100)
    with serving(answers(HEAD, *flood, pause_s=0)) as server, sender("raw", server.url) as it:
        exchange = it.ask()
    assert exchange.ended is End.MALFORMED
    assert "longer than" in str(exchange.error)
    assert sum(map(len, exchange.chunks)) < 300_000


def test_a_large_request_leaves_in_parts() -> None:
    body = b"x" * 6_000_000
    with serving(answers(stream(1))) as server, sender("raw", server.url) as it:
        exchange = it.send(body)
        was_written = exchange.written_ns is not None
        it.wait(1)
    assert exchange.ended is End.COMPLETE
    assert not was_written
    assert exchange.written_ns is not None
    assert server.requests[0].endswith(body)


def test_an_answer_before_the_request_was_read_is_kept() -> None:
    """413 and a close, as a proxy does with a prompt that it does not want."""
    refusal = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        sock, _ = listener.accept()
        if not sock.recv(1000):  # looking the target up took a connection
            sock.close()
            sock, _ = listener.accept()
            sock.recv(1000)
        sock.sendall(refusal)
        sock.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
        sock.close()

    threading.Thread(target=refuse, daemon=True).start()
    with listener, sender("raw", f"http://127.0.0.1:{listener.getsockname()[1]}") as it:
        exchange = it.ask(b"x" * 6_000_000)
    assert exchange.ended is End.COMPLETE
    assert record_of(exchange).http_status == 413


def test_a_refused_connection_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with sender("raw", f"http://127.0.0.1:{port}") as it:
        exchange = it.ask()
    assert exchange.ended is End.CONNECT_FAILED
    assert str(exchange.error).startswith("ECONNREFUSED")
    assert record_of(exchange).outcome == "connect_failed"


def test_without_a_descriptor_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(raw, "open_socket", no_socket)
    with serving(answers(stream(1))) as server, sender("raw", server.url) as it:
        exchange = it.ask()
    assert exchange.ended is End.CONNECT_FAILED
    assert exchange.error == "EMFILE: Too many open files"
    assert exchange.sent_ns is not None


def test_a_live_request_can_be_given_up() -> None:
    with serving(answers(HEAD, pause_s=0.2)) as server, sender("raw", server.url) as it:
        exchange = it.send()
        it.wait_until(lambda: bool(exchange.chunks))
        give_up(it, exchange, End.STALLED)
        assert it.finished == [exchange]
        assert exchange.ended is End.STALLED
        assert exchange.chunks == [HEAD]


def test_ipv6() -> None:
    try:
        with serving(answers(stream(1)), host="::1") as server, sender("raw", server.url) as it:
            assert it.ask().ended is End.COMPLETE
            assert f"Host: [::1]:{server.port}".encode() in server.requests[0]
    except OSError as exc:
        pytest.skip(f"no IPv6 loopback: {exc}")


def test_waiting_ends_at_its_instant() -> None:
    with serving(answers(stream(1))) as server, sender("raw", server.url) as it:
        for _ in range(3):
            until_ns = time.monotonic_ns() + 3_000_000
            assert it.transport.wait(until_ns) is False
            assert time.monotonic_ns() >= until_ns


def test_without_a_timer_the_wait_is_as_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "open_alarm", lambda: None)
    monkeypatch.setattr(raw, "open_poller", SelectorPoller)
    with serving(answers(stream(2))) as server, sender("raw", server.url) as it:
        assert it.ask().ended is End.COMPLETE
        until_ns = time.monotonic_ns() + 5_000_000
        it.transport.wait(until_ns)
        assert time.monotonic_ns() >= until_ns


def test_the_portable_poller_reports_as_epoll_does() -> None:
    poller = SelectorPoller()
    left, right = socket.socketpair()
    with left, right:
        poller.register(left.fileno(), POLL_OUT)
        assert poller.poll(0) == [(left.fileno(), POLL_OUT)]
        poller.modify(left.fileno(), POLL_IN)
        assert poller.poll(0) == []
        right.send(b"x")
        assert poller.poll(1) == [(left.fileno(), POLL_IN)]
        poller.unregister(left.fileno())
        assert poller.poll(0) == []
    poller.close()


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "127.0.0.1:80", "http://x:99999"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(TargetError, match="http://host:port"):
        parse_target(url)


def test_a_name_without_an_address_is_refused() -> None:
    with pytest.raises(TargetError, match="cannot find host"):
        resolve_target("http://no-such-host.invalid:80")


def test_the_paths_of_url_and_endpoint_are_joined() -> None:
    for base, path in {
        "http://h": "/v1/completions",
        "http://h/": "/v1/completions",
        "http://h/v1": "/v1/completions",
        "http://h/v1/": "/v1/completions",
        "http://h/proxy/v1": "/proxy/v1/completions",
        "http://h/proxy": "/proxy/v1/completions",
    }.items():
        assert parse_target(base).path("/v1/completions") == path
