"""Waiting for many sockets in many threads: each report of a socket goes to exactly one of them."""

from __future__ import annotations

import select
import sys

if sys.platform == "linux":

    class Poller:
        """Reports a watched socket once, to one thread, and watches it no more until it is told to."""

        def __init__(self) -> None:
            self._epoll = select.epoll()

        def watch(self, fd: int) -> None:
            """Report `fd` once when it is readable, or closed by the other side. Raises OSError."""
            try:
                self._epoll.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)
            except FileNotFoundError:  # its first time
                self._epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)

        def watch_always(self, fd: int) -> None:
            """Report `fd` to every thread as long as it is readable."""
            self._epoll.register(fd, select.EPOLLIN)

        def wait(self) -> int:
            """Return the next report, however long it takes."""
            while not (events := self._epoll.poll(maxevents=1)):
                pass
            return events[0][0]

else:  # macOS and the BSDs

    class Poller:
        """Reports a watched socket once, to one thread, and watches it no more until it is told to."""

        def __init__(self) -> None:
            self._kqueue = select.kqueue()

        def watch(self, fd: int) -> None:
            """Report `fd` once when it is readable, or closed by the other side. Raises OSError."""
            self._add(fd, select.KQ_EV_ADD | select.KQ_EV_ONESHOT)

        def watch_always(self, fd: int) -> None:
            """Report `fd` to every thread as long as it is readable."""
            self._add(fd, select.KQ_EV_ADD)

        def wait(self) -> int:
            """Return the next report, however long it takes."""
            while not (events := self._kqueue.control(None, 1, None)):
                pass
            return events[0].ident

        def _add(self, fd: int, flags: int) -> None:
            self._kqueue.control([select.kevent(fd, select.KQ_FILTER_READ, flags)], 0)
