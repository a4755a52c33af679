"""What only the portable transport can do: HTTP/2, proxies, settings from the environment."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
import trustme

from loadgen.transport.base import End
from loadgen.transport.sockets import parse_target
from tests.loadgen.scripted import serving, stream, token
from tests.loadgen.sending import record_of, sender

EVENTS = [token(), token(), token(finish_reason="length"), b"data: [DONE]\n\n"]


class Http2Server:
    """Answers each stream of one HTTP/2 connection with the same events, and counts them."""

    def __init__(self, folder: Path) -> None:
        self.ca_file = str(folder / "ca.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.set_alpn_protocols(["h2"])
        authority.issue_cert("127.0.0.1").configure_cert(self._context)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.request_ids: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        plain, _ = self._listener.accept()  # looking the target up took a connection
        plain.close()
        plain, _ = self._listener.accept()
        with self._context.wrap_socket(plain, server_side=True) as sock:
            connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
            connection.initiate_connection()
            sock.sendall(connection.data_to_send())
            while data := sock.recv(65536):
                for event in connection.receive_data(data):
                    self._answer(connection, event)
                sock.sendall(connection.data_to_send())

    def _answer(self, connection: h2.connection.H2Connection, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            headers = {_text(name): _text(value) for name, value in event.headers}
            self.request_ids.append(headers["x-request-id"])
        elif isinstance(event, h2.events.StreamEnded):
            answer = [(":status", "200"), ("content-type", "text/event-stream")]
            connection.send_headers(event.stream_id, answer)
            for data in EVENTS:
                connection.send_data(event.stream_id, data)
            connection.end_stream(event.stream_id)

    def close(self) -> None:
        self._thread.join(5)
        self._listener.close()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def test_http_2_streams_share_a_connection(tmp_path: Path) -> None:
    server = Http2Server(tmp_path)
    with sender("httpx", server.url, ca_file=server.ca_file) as it:
        it.ask()
        exchanges = [it.send() for _ in range(3)]
        it.wait(4)
    server.close()
    assert server.request_ids == [f"run-{i}" for i in range(4)]
    assert [exchange.ended for exchange in it.finished] == [End.COMPLETE] * 4
    assert it.transport.counts.num_connections == 1
    for exchange in exchanges:
        assert exchange.reused is True
        assert exchange.written_ns is not None
        row = record_of(exchange)
        assert (row.outcome, len(row.chunk_ns)) == ("ok", 3)


def test_a_proxy_of_the_environment_is_used_and_looks_the_name_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(stream(2))
        return True

    url = "http://model.invalid:8000"
    with serving(answer) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with sender("httpx", url, target=parse_target(url)) as it:
            exchange = it.ask()
    assert exchange.ended is End.COMPLETE
    assert proxy.requests[0].startswith(b"POST http://model.invalid:8000/v1/completions HTTP/1.1\r\n")
    assert record_of(exchange).outcome == "ok"
