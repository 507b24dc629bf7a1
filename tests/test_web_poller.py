"""The web server's poller: each report of a socket goes to one thread, and the next one when it is asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from dtq.web.poller import Poller


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def reports() -> Iterator[tuple[Poller, SimpleQueue[int]]]:
    """A poller with four threads that wait, and what they hear."""
    poller, heard = Poller(), SimpleQueue[int]()
    end, ending = socket.socketpair()
    poller.watch_always(end.fileno())

    def wait() -> None:
        while (fd := poller.wait()) != end.fileno():
            heard.put(fd)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    yield poller, heard
    ending.close()
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads)
    end.close()


def test_what_is_readable_is_reported_to_one_thread_and_again_only_when_it_is_watched_again(
    ends: tuple[socket.socket, socket.socket], reports: tuple[Poller, SimpleQueue[int]]
) -> None:
    (ours, theirs), (poller, heard) = ends, reports
    theirs.sendall(b"there is more to read than anybody does")
    for _ in range(50):
        poller.watch(ours.fileno())
        assert heard.get(timeout=5) == ours.fileno()
    theirs.sendall(b"and more")
    other, gone = socket.socketpair()
    with other:
        gone.close()
        poller.watch(other.fileno())  # whoever hears of this would have heard of that
        assert heard.get(timeout=5) == other.fileno()
    assert heard.empty()


@pytest.mark.parametrize("how", [socket.SHUT_RDWR, socket.SHUT_RD])
def test_a_connection_that_is_shut_down_here_is_reported(
    how: int, ends: tuple[socket.socket, socket.socket], reports: tuple[Poller, SimpleQueue[int]]
) -> None:
    """So the main thread can end a wait, and leave the rest to whoever hears of it."""
    (ours, _), (poller, heard) = ends, reports
    poller.watch(ours.fileno())
    ours.shutdown(how)
    assert heard.get(timeout=5) == ours.fileno()
