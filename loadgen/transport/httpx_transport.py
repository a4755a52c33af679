"""The portable transport: httpx on asyncio, for HTTP/2, proxies and settings from the environment.

Fills the same exchanges as the raw transport with what httpx lets one see: body bytes without their
framing, and the instant after each read as its stamp. It costs some ten times as much a token, and its
stamps carry the delays of its event loop. Redirects are not followed, nothing is retried, and no pool
limits what is in flight.
"""

from __future__ import annotations

import asyncio
import selectors
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx

from loadgen.clock import now_ns
from loadgen.transport.base import End, Exchange, TransportConfig, TransportCounts, identity_headers
from loadgen.transport.lookout import Lookout
from loadgen.transport.sockets import errno_name
from loadgen.transport.tls import client_context, tls_words

COARSE_WAIT_NS = 1_500_000  # asyncio sleeps in steps of a millisecond; the rest is spun
CLOSED_EARLY = ("peer closed connection", "Server disconnected", "Connection closed")


class _Selector(selectors.DefaultSelector):
    """asyncio's selector, which notes what each look at the sockets says of the time before."""

    def __init__(self) -> None:
        super().__init__()
        self.lookout = Lookout()
        # What a look reports reaches the answer's task a turn or two of the loop later, and before it sleeps.
        self._since_ns = deque([self.lookout.since_ns], maxlen=3)

    @property
    def since_ns(self) -> int:
        """An instant at which nothing of what is handed out now had come."""
        return self._since_ns[0]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        asked_ns = now_ns()
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            self.lookout.looked(asked_ns)
        else:
            ready = super().select(timeout)
            self.lookout.woke(asked_ns)
            self._since_ns.clear()
        self._since_ns.append(self.lookout.since_ns)
        return ready

    def close(self) -> None:
        self.lookout.close()
        super().close()


class _Read:
    """Whether a piece still comes out of the last read: until the loop turns, nothing new can have come."""

    def __init__(self) -> None:
        self.is_same = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_same = True
        loop.call_soon(self._end)

    def _end(self) -> None:
        self.is_same = False


class HttpxTransport:
    """An event loop that runs only while `wait` is called, and one httpx client on it."""

    def __init__(self, config: TransportConfig, on_end: Callable[[Exchange], None]) -> None:
        self.counts = TransportCounts()
        self._on_end = on_end
        self._selector = _Selector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._dying: set[asyncio.Task[None]] = set()
        (target,) = config.targets
        self._url = f"{target.scheme}://{target.authority}{target.path(config.path)}"
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "bench",
            **dict(config.headers),
            **({"Connection": "close"} if config.fresh_connections else {}),
        }
        is_tls = target.scheme == "https"
        num_idle = 0 if config.fresh_connections else None
        self._client = httpx.AsyncClient(
            http2=not config.fresh_connections,
            verify=is_tls and client_context(config.ca_file, verify=config.verify_tls),
            timeout=None,  # ours are kept by whoever drives
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=num_idle),
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"<HttpxTransport {len(self._tasks)} live>"

    def render(self, request_id: str, body: bytes, session: int = -1) -> bytes:  # noqa: ARG002
        """The body; httpx makes the head."""
        return body

    def send(self, exchange: Exchange, payload: bytes) -> None:
        """Give the request to httpx and let it begin."""
        exchange.sent_ns = now_ns()
        exchange.framed = False
        self._tasks[exchange.index] = self._loop.create_task(self._run(exchange, payload))
        self._run_loop_once()

    async def _run(self, exchange: Exchange, payload: bytes) -> None:
        end, error = End.COMPLETE, None
        try:
            await self._stream(exchange, payload)
        except asyncio.CancelledError:
            return
        except httpx.ConnectError as exc:
            end, error = End.CONNECT_FAILED, _words(exc)
        except httpx.RemoteProtocolError as exc:
            error = str(exc)
            end = End.EOF if error.startswith(CLOSED_EARLY) else End.MALFORMED
        except (httpx.HTTPError, OSError, ssl.SSLError) as exc:
            is_connected = exchange.connected_ns is not None or exchange.reused is not False
            end, error = End.RESET if is_connected else End.CONNECT_FAILED, _words(exc)
        self._finish(exchange, end, error)

    async def _stream(self, exchange: Exchange, payload: bytes) -> None:
        async def trace(event: str, _: dict[str, Any]) -> None:
            _note(exchange, event)

        headers = self._headers | identity_headers(exchange.request_id, exchange.session)
        extensions = {"trace": trace}
        async with self._client.stream(
            "POST", self._url, content=payload, headers=headers, extensions=extensions
        ) as response:
            exchange.headers_ns = now_ns()
            exchange.status = response.status_code
            exchange.headers = dict(response.headers)
            read = _Read()
            async for data in response.aiter_raw():
                self.counts.num_bytes += len(data)
                if read.is_same:  # httpx cuts a read by HTTP chunks, and hands them out one after the other
                    exchange.chunks[-1] += data
                    continue
                read_ns = now_ns()
                exchange.chunks.append(data)
                exchange.stamps.append(read_ns)
                exchange.reads_ns.append(read_ns)
                exchange.since_ns.append(self._selector.since_ns)
                self.counts.num_reads += 1
                read.begin(self._loop)

    def end(self, exchange: Exchange, end: End, error: str) -> None:
        """Give a live exchange up; its connection closes as soon as the loop runs."""
        task = self._tasks[exchange.index]
        task.cancel()
        self._dying.add(task)
        task.add_done_callback(self._dying.discard)
        self._finish(exchange, end, error)

    def _finish(self, exchange: Exchange, end: End, error: str | None) -> None:
        exchange.ended = end
        exchange.error = error
        exchange.ended_ns = now_ns()
        del self._tasks[exchange.index]
        if exchange.reused is False and exchange.connected_ns is not None:
            self.counts.num_connections += 1
        if self._loop.is_running():
            self._loop.stop()
        self._on_end(exchange)

    def wait(self, until_ns: int) -> bool:
        """Run the loop until the instant or until a request ends."""
        num_reads, num_live = self.counts.num_reads, len(self._tasks)
        while True:
            self.counts.num_wakeups += 1
            left_ns = until_ns - now_ns()
            if left_ns > COARSE_WAIT_NS:
                alarm = self._loop.call_later((left_ns - COARSE_WAIT_NS) / 1e9, self._loop.stop)
                self._loop.run_forever()
                alarm.cancel()
            else:
                self._run_loop_once()
            if len(self._tasks) != num_live or now_ns() >= until_ns:
                return self.counts.num_reads != num_reads or len(self._tasks) != num_live

    def _run_loop_once(self) -> None:
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def check_clock(self) -> None:
        """Nothing to pair: every stamp is our own clock's."""

    def close(self) -> None:
        """Close every connection and the loop."""
        self._loop.run_until_complete(self._close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _close(self) -> None:
        await asyncio.gather(*self._dying, return_exceptions=True)
        await self._client.aclose()


def _note(exchange: Exchange, event: str) -> None:
    """Take from httpcore's trace when the connection stood and when the request had been written."""
    match event:
        case "connection.connect_tcp.started":
            exchange.reused = False
            exchange.write_lag_ns = now_ns() - (exchange.sent_ns or 0)
        case "connection.connect_tcp.complete" | "connection.start_tls.complete":
            exchange.connected_ns = now_ns()
        case "http11.send_request_headers.started" | "http2.send_request_headers.started":
            exchange.reused = exchange.connected_ns is None
        case "http11.send_request_body.complete" | "http2.send_request_body.complete":
            exchange.written_ns = now_ns()
            exchange.write_lag_ns += exchange.written_ns - (exchange.connected_ns or exchange.sent_ns or 0)


def _words(exc: BaseException) -> str:
    """The innermost cause in the system's words, which httpx and httpcore wrap several times."""
    cause: BaseException | None = exc
    seen = exc
    while cause is not None:
        seen, cause = cause, cause.__cause__ or cause.__context__
        if isinstance(seen, ssl.SSLError):
            return tls_words(seen)
        if isinstance(seen, OSError) and seen.errno:
            return errno_name(seen)
    return str(exc) or type(exc).__name__
