from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from loadgen.errors import TargetError
from loadgen.transport.base import End
from tests.loadgen.scripted import HEAD, LAST_CHUNK, ScriptedServer, chunk, serving, stream, token
from tests.loadgen.sending import record_of, sender

TRANSPORTS = ["raw", "httpx"]


def answer(sock: socket.socket, request: bytes) -> bool:
    """A stream in separate records; the body names how it ends."""
    for piece in (HEAD, *(chunk(token()) for _ in range(2)), chunk(token(finish_reason="length"))):
        sock.sendall(piece)
        time.sleep(0.005)
    sock.sendall(LAST_CHUNK)
    return b"bye" not in request


class Tls:
    """A certificate authority of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.ca_file = str(folder / "ca.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", "localhost").configure_cert(self.context)

    def context_for(self, version: ssl.TLSVersion) -> ssl.SSLContext:
        """Speak that version only."""
        self.context.minimum_version = self.context.maximum_version = version
        return self.context


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@pytest.fixture
def server(tls: Tls) -> Iterator[ScriptedServer]:
    with serving(answer, context=tls.context) as it:
        yield it


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_stream_over_tls_has_the_same_stamps_and_is_kept_alive(tls: Tls, version: ssl.TLSVersion) -> None:
    with (
        serving(answer, context=tls.context_for(version)) as server,
        sender("raw", server.url, ca_file=tls.ca_file) as it,
    ):
        exchanges = []
        for _ in range(3):
            exchanges.append(it.ask())
            it.rest()  # session tickets come here, and must not end the connection
    assert [exchange.ended for exchange in exchanges] == [End.COMPLETE] * 3
    assert [exchange.reused for exchange in exchanges] == [False, True, True]
    first = exchanges[0]
    assert first.sent_ns is not None
    assert first.connected_ns is not None
    assert first.written_ns is not None
    assert first.sent_ns < first.connected_ns <= first.written_ns < first.stamps[0]
    assert first.stamp_source == ("kernel" if it.transport.counts.has_kernel_stamps else "user")
    row = record_of(first)
    assert row.outcome == "ok"
    assert len(row.chunk_ns) == 3
    gaps_ms = [(b - a) / 1e6 for a, b in zip(row.chunk_ns, row.chunk_ns[1:], strict=False)]
    assert min(gaps_ms) > 3


@pytest.mark.parametrize("name", TRANSPORTS)
def test_an_unknown_authority_is_refused_unless_told_otherwise(server: ScriptedServer, name: str) -> None:
    with sender(name, server.url) as it:
        exchange = it.ask()
    assert exchange.ended is End.CONNECT_FAILED
    assert "certificate not accepted" in str(exchange.error)
    assert record_of(exchange).outcome == "connect_failed"
    with sender(name, server.url, verify_tls=False) as it:
        assert it.ask().ended is End.COMPLETE


def test_a_certificate_for_another_host_is_refused(tls: Tls) -> None:
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = trustme.CA()
    authority.issue_cert("elsewhere.example").configure_cert(other)
    authority.cert_pem.write_to_path(tls.ca_file)
    with serving(answer, context=other) as server, sender("raw", server.url, ca_file=tls.ca_file) as it:
        exchange = it.ask()
    assert exchange.ended is End.CONNECT_FAILED
    assert "certificate not accepted" in str(exchange.error)


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_server_without_tls_is_a_failed_connection(name: str) -> None:
    def plain(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return False

    with serving(plain) as server, sender(name, server.url.replace("http:", "https:")) as it:
        it.send()
        it.transport.wait(time.monotonic_ns() + 10_000_000)
        server.close()
        it.wait(1)
    assert it.finished[0].ended is End.CONNECT_FAILED


def test_an_end_in_the_middle_is_seen(tls: Tls) -> None:
    def cut(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(HEAD + chunk(token()))
        return False

    with serving(cut, context=tls.context) as server, sender("raw", server.url, ca_file=tls.ca_file) as it:
        exchange = it.ask()
    assert exchange.ended is End.EOF
    assert b"".join(exchange.chunks) == HEAD + chunk(token())
    assert record_of(exchange).outcome == "truncated"


def test_a_large_answer_and_a_large_request_pass_whole(tls: Tls) -> None:
    def large(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(stream(20_000))
        return True

    with serving(large, context=tls.context) as server, sender("raw", server.url, ca_file=tls.ca_file) as it:
        exchange = it.ask(b"y" * 3_000_000)
    assert exchange.ended is End.COMPLETE
    assert b"".join(exchange.chunks) == stream(20_000)
    assert server.requests[0].endswith(b"y" * 3_000_000)


def test_a_ca_file_that_is_none_is_refused(tmp_path: Path, server: ScriptedServer) -> None:
    with pytest.raises(TargetError, match=r"CA file .*nowhere\.pem"):
        sender("raw", server.url, ca_file=str(tmp_path / "nowhere.pem")).__enter__()
