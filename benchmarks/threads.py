"""What the interpreter allows, without dtq: threads that compute, and one that is to answer beside them.

`python -m benchmarks.threads` is the process with the threads; its standard input and output are the socket of whoever
asks. `computed` and `handed_over` ask.
"""

from __future__ import annotations

import queue
import socket
import struct
import subprocess
import sys
import threading
import time

from benchmarks.stand import percentile
from dtq.worker.supervisor import SWITCH_INTERVAL_S

UNIT_S = 0.005
"""Of computing, by the thread's own clock, as the handler `compute` does it."""
STAMP = struct.Struct("q")


def computed(processes: int, threads: int, seconds: float) -> float:
    """Return the units of computing that so many processes of so many threads do in a second."""
    running = [_Started(threads) for _ in range(processes)]
    time.sleep(1)  # all compute
    before = [one.units() for one in running]
    began = time.perf_counter()
    time.sleep(seconds)
    done = sum(one.units() - start for one, start in zip(running, before, strict=True))
    took = time.perf_counter() - began
    for one in running:
        one.stop()
    return done / took


def handed_over(threads: int, seconds: float) -> tuple[float, float]:
    """Return p50 and p99, in ms, of the way of a signal through a process in which so many threads compute.

    The way is that of a task to an idle slot: one thread hears of it, asks for it and gets the answer, and hands it to
    another thread.
    """
    process = _Started(threads)
    delays = []
    give_up_at = time.perf_counter() + seconds
    while time.perf_counter() < give_up_at:
        delays.append(process.handover_ms())
        time.sleep(0.2)
    process.stop()
    return percentile(delays, 0.5), percentile(delays, 0.99)


class _Started:
    """A process with threads that compute, and the socket to it."""

    def __init__(self, threads: int) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(60)
        command = [sys.executable, "-m", "benchmarks.threads", str(threads)]
        self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
        theirs.close()
        self.handover_ms()

    def units(self) -> int:
        self._ours.sendall(b"u")
        return self._number()

    def handover_ms(self) -> float:
        began = time.monotonic_ns()
        self._ours.sendall(b"h")
        self._number()  # what a claim asks
        self._ours.sendall(b"r")
        return (self._number() - began) / 1e6

    def stop(self) -> None:
        self._ours.close()
        self._process.wait(10)

    def _number(self) -> int:
        return int(STAMP.unpack(self._ours.recv(STAMP.size, socket.MSG_WAITALL))[0])


class _Threads:
    """In the process: the threads that compute, the one that hears, and the one that is handed what it heard."""

    def __init__(self, number: int) -> None:
        self._units = [0] * number
        self._socket = socket.socket(fileno=0)
        self._inbox: queue.SimpleQueue[None] = queue.SimpleQueue()
        for index in range(number):
            threading.Thread(target=self._compute, args=(index,), daemon=True).start()
        threading.Thread(target=self._be_handed, daemon=True).start()

    def hear(self) -> None:
        while asked := self._socket.recv(1):
            if asked == b"u":
                self._socket.sendall(STAMP.pack(sum(self._units)))
                continue
            self._socket.sendall(STAMP.pack(0))
            self._socket.recv(1)
            self._inbox.put(None)

    def _compute(self, index: int) -> None:
        while True:
            until = time.thread_time() + UNIT_S
            while time.thread_time() < until:
                sum(range(1_000))
            self._units[index] += 1

    def _be_handed(self) -> None:
        while True:
            self._inbox.get()
            self._socket.sendall(STAMP.pack(time.monotonic_ns()))


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _Threads(int(sys.argv[1])).hear()
