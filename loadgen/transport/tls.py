"""TLS over the raw transport's sockets: the cipher runs on memory, so that every read keeps its kernel stamp.

Certificates are verified unless the configuration says not to. A record that a read does not complete is
stamped with the read that does.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from loadgen.clock import now_ns
from loadgen.errors import TargetError
from loadgen.transport.base import End
from loadgen.transport.connection import Connection, State
from loadgen.transport.sockets import ANCILLARY_BYTES, POLL_IN, POLL_OUT, READ_BYTES, errno_name

if TYPE_CHECKING:
    from loadgen.transport.raw import Home, RawTransport


def client_context(ca_file: str | None, *, verify: bool) -> ssl.SSLContext:
    """Whom to trust, and no more: httpx asks for its own protocols. TargetError for an unusable CA file."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise TargetError(f"CA file {ca_file}: {exc}") from exc
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def tls_words(error: ssl.SSLError) -> str:
    """What OpenSSL says, without where in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: certificate not accepted: {error.verify_message}"
    return f"TLS: {error.reason}"


class TlsConnection(Connection):
    """A connection whose bytes pass through a TLS session in memory."""

    __slots__ = ("ciphertext_in", "ciphertext_out", "pending", "tls")

    def __init__(
        self, transport: RawTransport, sock: socket.socket, home: Home, context: ssl.SSLContext
    ) -> None:
        super().__init__(transport, sock, home)
        self.ciphertext_in = ssl.MemoryBIO()
        self.ciphertext_out = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.ciphertext_in, self.ciphertext_out, server_hostname=home.target.host)
        self.pending = memoryview(b"")  # ciphertext that the kernel has not taken

    def on_connected(self) -> None:
        """The peer accepted: shake hands before the request may leave."""
        self.state = State.HANDSHAKING
        self.shake_hands()

    def shake_hands(self) -> bool:
        """Go on with the handshake; write the request and return True once it is done."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self.push()
            return False
        except ssl.SSLError as exc:
            self.push()  # the alert, so that the server learns why
            if self.exchange is not None:
                self.finish(End.CONNECT_FAILED, tls_words(exc))
            return False
        super().on_connected()
        return True

    def write(self) -> None:
        """Encrypt what is unsent and hand the kernel what it takes."""
        if self.state is State.HANDSHAKING:
            self.push()
            return
        if self.unsent:
            self.tls.write(self.unsent)
            self.unsent = self.unsent[:0]
        at_ns = now_ns()  # as in the plain case: before the last part leaves
        if self.push() and self.exchange is not None:
            self.note_written(self.exchange, at_ns)

    def push(self) -> bool:
        """Send ciphertext; say whether all of it has left. Asks to be called again where it has not."""
        if not self.pending:
            self.pending = memoryview(self.ciphertext_out.read())
        resting = self.state if self.state is State.HANDSHAKING else State.READING
        try:
            while self.pending:
                self.pending = self.pending[self.sock.send(self.pending) :]
                if not self.pending and self.ciphertext_out.pending:
                    self.pending = memoryview(self.ciphertext_out.read())
        except BlockingIOError:
            waiting = resting if resting is State.HANDSHAKING else State.WRITING
            self.watch(waiting, POLL_IN | POLL_OUT)
            return False
        except OSError:
            self.watch(resting, POLL_IN)  # what the peer said before it stopped listening decides
            return False
        self.watch(resting, POLL_IN)
        return True

    def read(self) -> None:
        """Read once, decrypt what is whole, and stamp it with that read."""
        try:
            data, ancillary, _, _ = self.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            if self.state is State.HANDSHAKING:
                self.push()
            return
        except OSError as exc:
            self.on_broken(errno_name(exc))
            return
        read_ns = now_ns()
        if not data:
            self.on_tls_eof(read_ns)
            return
        since_ns = self.since(len(data), read_ns)
        self.ciphertext_in.write(data)
        if self.state is State.HANDSHAKING and not self.shake_hands():
            return
        self.decrypt(ancillary, since_ns, read_ns)

    def decrypt(self, ancillary: list[tuple[int, int, bytes]], since_ns: int, read_ns: int) -> None:
        """Take every whole record out; session tickets leave nothing and disturb nobody."""
        pieces = []
        has_ended = False
        try:
            while piece := self.tls.read(READ_BYTES):
                pieces.append(piece)
            has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as exc:
            self.on_broken(tls_words(exc))
            return
        if pieces and self.exchange is not None:
            stamp_ns = self.transport.stamp(ancillary, self.exchange, read_ns)
            self.exchange.since_ns.append(since_ns)
            self.keep(self.exchange, b"".join(pieces), stamp_ns, read_ns)
        elif pieces:
            self.close()
        if has_ended and self.state is not State.CLOSED:
            self.on_tls_eof(read_ns)

    def on_tls_eof(self, read_ns: int) -> None:
        """The peer closed, at rest, while shaking hands, or in the middle of an answer."""
        if self.exchange is None:
            self.close()
        elif self.state is State.HANDSHAKING:
            self.finish(End.CONNECT_FAILED, "TLS: the peer closed the connection during the handshake")
        else:
            self.on_eof(read_ns)

    def has_closed(self) -> bool:
        """Whether the peer closed; bytes at rest may be session tickets, which a read takes out."""
        try:
            while self.state is State.IDLE and self.sock.recv(1, socket.MSG_PEEK):
                self.read()
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True
