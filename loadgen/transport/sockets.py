"""Sockets as the raw transport needs them: where to connect, how a stamp is asked for and read, how to wait.

The target's name is resolved once, before the run. On Linux each socket asks the kernel for a receive stamp
(SO_TIMESTAMPNS); elsewhere, or where the kernel refuses, the instant after the read is the stamp. What the
bytes mean is decided elsewhere.
"""

from __future__ import annotations

import errno
import select
import selectors
import socket
import struct
import sys
import time
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit

from loadgen.errors import TargetError

SO_TIMESTAMPNS = 35  # Linux, asm-generic; Python names no constant for it
STAMP = struct.Struct("qq")  # seconds and nanoseconds of CLOCK_REALTIME
ANCILLARY_BYTES = 64
READ_BYTES = 65_536  # under malloc's threshold for mmap: a larger buffer costs page faults at every read
PROBE_TIMEOUT_S = 2.0
STAMP_TRIES = 50
STAMP_PAUSE_S = 0.002

POLL_IN = 0x001  # as epoll numbers them, also for the portable poller
POLL_OUT = 0x004
POLL_BROKEN = 0x008 | 0x010  # error, hang-up


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go: one address, resolved before the run (AF_UNSPEC where it has not been)."""

    scheme: str
    host: str
    port: int
    prefix: str
    family: socket.AddressFamily
    address: tuple[str, int] | tuple[str, int, int, int]

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default_port = 443 if self.scheme == "https" else 80
        return host if self.port == default_port else f"{host}:{self.port}"

    def path(self, endpoint_path: str) -> str:
        """Join the URL's own path and the endpoint's; a base that ends in /v1 does not double it."""
        prefix = self.prefix
        if prefix.endswith("/v1") and endpoint_path.startswith("/v1/"):
            prefix = prefix.removesuffix("/v1")
        return prefix + endpoint_path


def parse_target(url: str) -> Target:
    """Take a URL apart without looking its host up. Raises TargetError for one that cannot be used."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as exc:
        raise TargetError(f"target {url!r}: {exc}; give it as http://host:port") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TargetError(f"target {url!r} is not an http or https URL; give it as http://host:port")
    return Target(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        prefix=parts.path.rstrip("/"),
        family=socket.AF_UNSPEC,
        address=(parts.hostname, port),
    )


def resolve_target(url: str) -> Target:
    """Look the URL's host up once and take the first of its addresses that accepts a connection.

    Where none does, the first is kept: whoever sends finds out why. Raises TargetError for a URL that cannot
    be used and for a name that has no address.
    """
    target = parse_target(url)
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise TargetError(f"target {url!r}: cannot find host {target.host!r} ({exc.strerror})") from exc
    candidates = [(family, address) for family, _, _, _, address in found]
    family, address = next((c for c in candidates if _accepts(*c)), candidates[0])
    return replace(target, family=socket.AddressFamily(family), address=address)  # type: ignore[arg-type]


def _accepts(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(PROBE_TIMEOUT_S)
            sock.connect(address)
    except OSError:
        return False
    return True


def open_socket(target: Target, *, wants_stamps: bool) -> socket.socket:
    """A non-blocking TCP socket, not yet connected; OSError where no descriptor is left."""
    sock = socket.socket(target.family, socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0))
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if wants_stamps:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock


def start_stamping() -> socket.socket | None:
    """Have the kernel stamp what it receives while the socket returned is open; None where it cannot.

    The kernel starts stamping some moments after the first socket asks and stops with the last, so that one
    must always be there: it is waited for until a TCP socket has been seen to get a stamp.
    """
    if sys.platform != "linux":
        return None
    keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        keeper.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if _sees_stamp():
            return keeper
    except OSError:
        pass
    keeper.close()
    return None


def _sees_stamp() -> bool:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        client.settimeout(PROBE_TIMEOUT_S)
        client.connect(server.getsockname())
        peer, _ = server.accept()
        with peer:
            for _ in range(STAMP_TRIES):
                peer.send(b"x")
                _, ancillary, _, _ = client.recvmsg(1, ANCILLARY_BYTES)
                if ancillary and ancillary[0][:2] == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                    return True
                time.sleep(STAMP_PAUSE_S)
    return False


def errno_name(error: OSError) -> str:
    """`ECONNREFUSED: Connection refused`."""
    code = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return f"{code}: {error.strerror or error}"


class Poller(Protocol):
    """select.epoll, as far as it is used here."""

    def register(self, fd: int, eventmask: int, /) -> None: ...
    def modify(self, fd: int, eventmask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout: float | None = ...) -> list[tuple[int, int]]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class SelectorPoller:
    """What the system has in place of epoll, under epoll's names."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, eventmask: int, /) -> None:
        self._selector.register(fd, _to_selector(eventmask))

    def modify(self, fd: int, eventmask: int, /) -> None:
        self._selector.modify(fd, _to_selector(eventmask))

    def unregister(self, fd: int, /) -> None:
        self._selector.unregister(fd)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        return [(key.fd, _from_selector(mask)) for key, mask in self._selector.select(timeout)]

    def fileno(self) -> int:
        return self._selector.fileno()

    def close(self) -> None:
        self._selector.close()


def _to_selector(mask: int) -> int:
    return (selectors.EVENT_READ if mask & POLL_IN else 0) | (selectors.EVENT_WRITE if mask & POLL_OUT else 0)


def _from_selector(mask: int) -> int:
    return (POLL_IN if mask & selectors.EVENT_READ else 0) | (POLL_OUT if mask & selectors.EVENT_WRITE else 0)


def open_poller() -> Poller:
    """epoll where there is one."""
    return select.epoll() if hasattr(select, "epoll") else SelectorPoller()
