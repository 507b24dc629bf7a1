"""A proxy between client and server that misbehaves on command."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit


class _Answer(NamedTuple):
    """What the proxy says itself instead of asking the server."""

    reply: bytes
    matching: bytes
    until: float


class FlakyProxy:
    """Forwards connections to a server until it is told otherwise; every method works while clients are connected.

    Requests are told apart command by command, so `matching` looks at one whole command as it goes over the wire.
    """

    def __init__(
        self, upstream_url: str, *, tcp: bool = False, length: Callable[[bytes], int | None] | None = None
    ) -> None:
        """upstream_url: `unix://path` or `redis://host:port`. tcp: listen on a loopback port, not on a unix socket.

        length: how many bytes the first request in a buffer takes, where it is not a command of Redis.
        """
        self.length = length or command_length
        self._upstream = urlsplit(upstream_url)
        self._directory = tempfile.mkdtemp(prefix="dtq-")
        self._tcp = tcp
        self._address: tuple[str, int] | str = ("127.0.0.1", 0) if tcp else os.path.join(self._directory, "p")
        self.delay_s = 0.0
        """How long each reply is held back."""
        self.dropped = 0
        """How many replies were swallowed."""
        self.connections = 0
        """How many connections were taken over all."""
        self.commands: deque[bytes] = deque(maxlen=1000)
        """The last commands that came, as they went over the wire."""
        self._hold = threading.Event()
        self._hold.set()
        self._lock = threading.Lock()
        self._drops: list[bytes] = []
        self._doubles: list[bytes] = []
        self.doubled = 0
        """How many commands were passed on twice."""
        self._answer: _Answer | None = None
        self._pipes: list[_Pipe] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.accept()

    @property
    def url(self) -> str:
        """What a client connects to instead of the server."""
        userinfo, at, _ = self._upstream.netloc.rpartition("@")
        if isinstance(self._address, str):
            return f"unix://{userinfo}{at}{self._address}"
        return f"redis://{userinfo}{at}127.0.0.1:{self._address[1]}"

    def drop_next_reply(self, matching: bytes = b"", times: int = 1) -> None:
        """Forward the next command that contains `matching`, swallow its reply and cut its connection."""
        with self._lock:
            self._drops += [matching] * times

    def double_next(self, matching: bytes = b"", times: int = 1) -> None:
        """Send the next command that contains `matching` to the server twice, and pass on the first reply only."""
        with self._lock:
            self._doubles += [matching] * times

    def answer(self, error: str, *, matching: bytes = b"", for_s: float = 60.0) -> None:
        """Answer commands with an error (`"READONLY You can't write ..."`) without forwarding them, for a while."""
        with self._lock:
            self._answer = _Answer(f"-{error}\r\n".encode(), matching, time.monotonic() + for_s)

    def stop_answering(self) -> None:
        """Forward everything again."""
        with self._lock:
            self._answer = None

    def cut(self) -> None:
        """Cut all connections, both ways."""
        with self._lock:
            pipes = list(self._pipes)
        for pipe in pipes:
            pipe.cut()

    def half_close(self) -> None:
        """Close the direction to the client: it reads the end, and can still write."""
        with self._lock:
            pipes = list(self._pipes)
        for pipe in pipes:
            with contextlib.suppress(OSError):
                pipe.client.shutdown(socket.SHUT_WR)

    def hang(self) -> None:
        """Take connections and commands and pass no reply on, until `unhang`."""
        self._hold.clear()

    def unhang(self) -> None:
        """Pass replies on, also those that were held back."""
        self._hold.set()

    def refuse(self) -> None:
        """Refuse new connections; those that stand are left alone."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            listener.close()
            if isinstance(self._address, str):
                os.unlink(self._address)

    def accept(self) -> None:
        """Take new connections, again at the same address."""
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_INET if self._tcp else socket.AF_UNIX)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(self._address)
        listener.listen(64)
        self._address = listener.getsockname()
        self._listener = listener
        self._spawn(self._take_connections, listener)

    def close(self) -> None:
        """Stop and cut everything. Idempotent."""
        self.refuse()
        self.unhang()
        self.cut()
        for thread in self._threads:
            thread.join(timeout=5)
        shutil.rmtree(self._directory, ignore_errors=True)

    def wait_while_held(self) -> None:
        """Hold a reply back as long as `hang` and `delay_s` say. (Called by the connections.)"""
        self._hold.wait(timeout=60)
        if self.delay_s:
            time.sleep(self.delay_s)

    def decide(self, command: bytes) -> bytes | None:
        """Return what to answer to a command: an error, b"" to drop the server's reply, None for the reply itself."""
        self.commands.append(command)
        with self._lock:
            answer = self._answer
            if answer is not None and answer.matching in command and time.monotonic() < answer.until:
                return answer.reply
            for matching in self._drops:
                if matching in command:
                    self._drops.remove(matching)
                    self.dropped += 1
                    return b""
        return None

    def copies(self, command: bytes) -> int:
        """Return how often a command is sent to the server. (Called by the connections.)"""
        with self._lock:
            for matching in self._doubles:
                if matching in command:
                    self._doubles.remove(matching)
                    self.doubled += 1
                    return 2
        return 1

    def _take_connections(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX if self._upstream.scheme == "unix" else socket.AF_INET)
            try:
                if self._upstream.scheme == "unix":
                    upstream.connect(self._upstream.path)
                else:
                    upstream.connect((self._upstream.hostname, self._upstream.port))
            except OSError:  # the server is away: so is the proxy
                client.close()
                upstream.close()
                continue
            pipe = _Pipe(self, client, upstream)
            with self._lock:
                self._pipes = [*(one for one in self._pipes if not one.ended), pipe]
            self.connections += 1
            self._spawn(pipe.carry_commands)
            self._spawn(pipe.carry_replies)

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="flaky-proxy")  # type: ignore[arg-type]
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()


class _Pipe:
    """One connection of a client and its connection to the server."""

    def __init__(self, proxy: FlakyProxy, client: socket.socket, upstream: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.upstream = upstream
        self.doomed = False
        """Whether the next reply is swallowed, and the connection with it."""
        self._running = 2
        self._copies: deque[int] = deque()
        """Of each command whose replies have not come yet."""
        self._replies = b""

    @property
    def ended(self) -> bool:
        return self._running <= 0

    def cut(self) -> None:
        for one in (self.client, self.upstream):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def carry_commands(self) -> None:
        buffer = b""
        with contextlib.suppress(OSError):
            while data := self.client.recv(65536):
                buffer += data
                while (length := self.proxy.length(buffer)) is not None:
                    command, buffer = buffer[:length], buffer[length:]
                    verdict = self.proxy.decide(command)
                    if verdict:
                        self.client.sendall(verdict)
                        continue
                    self.doomed = self.doomed or verdict is not None
                    copies = self.proxy.copies(command)
                    self._copies.append(copies)
                    self.upstream.sendall(command * copies)
        self._end()

    def carry_replies(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.upstream.recv(65536):
                if self.doomed:
                    break
                self.proxy.wait_while_held()
                self.client.sendall(self._without_doubles(data))
        self._end()

    def _without_doubles(self, data: bytes) -> bytes:
        self._replies += data
        if self._replies[:1] not in b"+-:$*":  # not RESP2: nothing to count
            passed_on, self._replies = self._replies, b""
            return passed_on
        passed_on = b""
        while (length := reply_length(self._replies)) is not None:
            reply, self._replies = self._replies[:length], self._replies[length:]
            copies = self._copies.popleft() if self._copies else 1
            passed_on += b"" if copies == 0 else reply
            if copies == 2:
                self._copies.appendleft(0)  # the next reply is one too many
        return passed_on

    def _end(self) -> None:
        self.cut()
        self._running -= 1
        if self.ended:
            self.client.close()
            self.upstream.close()


def reply_length(buffer: bytes, start: int = 0) -> int | None:
    """Return where the first reply (RESP2) at `start` of the buffer ends, None when it is not complete."""
    end = buffer.find(b"\r\n", start)
    if end < 0:
        return None
    kind, position = buffer[start : start + 1], end + 2
    if kind == b"$" and buffer[start + 1 : end] != b"-1":
        position += int(buffer[start + 1 : end]) + 2
    elif kind == b"*" and buffer[start + 1 : end] != b"-1":
        for _ in range(int(buffer[start + 1 : end])):
            inner = reply_length(buffer, position)
            if inner is None:
                return None
            position = inner
    return position if position <= len(buffer) else None


def http_length(buffer: bytes) -> int | None:
    """Return how many bytes the first HTTP request in the buffer takes, None when it is not complete."""
    head, end, _ = buffer.partition(b"\r\n\r\n")
    if not end:
        return None
    announced = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = len(head) + 4 + (int(announced[0].partition(b":")[2]) if announced else 0)
    return length if len(buffer) >= length else None


def command_length(buffer: bytes) -> int | None:
    """Return how many bytes the first command in the buffer takes, None when it is not complete (or not there)."""
    end = buffer.find(b"\r\n")
    if end < 0:
        return None
    if not buffer.startswith(b"*"):  # an inline command
        return end + 2
    position = end + 2
    for _ in range(int(buffer[1:end])):
        end = buffer.find(b"\r\n", position)
        if end < 0:
            return None
        position = end + 2 + int(buffer[position + 1 : end]) + 2
        if position > len(buffer):
            return None
    return position
