"""Keeps programs running as child processes: starts again what dies, passes their output on, stops them in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
HEALTHY_S = 60.0
"""A program that ran for so long begins again with the first pause."""
HURRY_LIMIT_S = 10.0
"""How long a program that was told to hurry has, until it is killed."""
HURRY_INTERVAL_S = 0.5
POLL_S = 0.05
_MAX_LINE_BYTES = 65_536
_OUTPUT_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is kept running. Each gets a process group of its own, which a Ctrl-C in the terminal does not reach."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    hopeless: frozenset[int] = frozenset()
    """Exit codes of its very first start after which it is not started again: the next would end the same."""
    stop_limit_s: float = 30.0
    """From SIGTERM until it is killed."""
    hurry_signal: signal.Signals = signal.SIGTERM
    """What tells it to end at once, when SIGTERM has told it to end."""
    hurry_all: bool = False
    """Whether that goes to all processes of its group, and not to the first alone."""


class Child:
    """One program, and its process while it runs."""

    def __init__(self, program: Program, relay: Callable[[str, str], None], pass_fds: Sequence[int] = ()) -> None:
        """relay: called from a thread with the name of the program and each line that it writes."""
        self.program = program
        self.starts = 0
        self.start_at = 0.0
        """On time.monotonic(): when a program that does not run is to be started."""
        self._relay = relay
        self._pass_fds = tuple(pass_fds)
        self._process: subprocess.Popen[bytes] | None = None
        self._output: threading.Thread | None = None
        self._started_at = 0.0
        self._pause_s = 0.0

    @property
    def pid(self) -> int | None:
        """Of the process; None while it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def was_healthy(self) -> bool:
        """Whether the last start was long enough ago."""
        return time.monotonic() - self._started_at >= HEALTHY_S

    def start(self) -> None:
        """Start the process. Raises OSError."""
        self.starts += 1
        self._started_at = time.monotonic()
        process = self._process = subprocess.Popen(
            self.program.command,
            env=self.program.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=self._pass_fds,
            process_group=0,
        )
        assert process.stdout is not None
        name = f"output of {self.program.name}"
        self._output = threading.Thread(target=self._pass_on, args=(process.stdout,), name=name, daemon=True)
        self._output.start()

    def ended(self) -> int | None:
        """Return how the process ended, -9 for SIGKILL, once after it has; None while it runs, or does not.

        What it leaves behind in its group ends with it: orphans would hold its port.
        """
        process = self._process
        if process is None or process.poll() is None:
            return None
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        self._process = None
        if self._output is not None:
            self._output.join(_OUTPUT_PATIENCE_S)
        return process.returncode

    def send(self, number: signal.Signals, *, to_all: bool = False) -> None:
        """Send a signal to the process, or to its whole group."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(OSError):
                (os.killpg if to_all else os.kill)(self._process.pid, number)

    def next_pause(self) -> float:
        """Return how long to wait before the next start, in seconds."""
        again = self._pause_s > 0 and not self.was_healthy
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2) if again else FIRST_PAUSE_S
        return self._pause_s

    def _pass_on(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_MAX_LINE_BYTES):
                self._relay(self.program.name, line.decode(errors="replace").rstrip("\r\n"))


class Supervisor:
    """Several programs. Not for several threads; `step` is to be called a few times a second."""

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        say: Callable[[str, str], None],
        relay: Callable[[str, str], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """programs: in the order in which they are stopped.

        say: told in a line, with the name of the program, what happens to it. relay: gets what the programs write.
        pass_fds: file descriptors that the programs inherit.
        """
        self.children = [Child(program, relay, pass_fds) for program in programs]
        self.hopeless: tuple[Program, int] | None = None
        """The program that cannot be run at all, and its exit code: there is nothing left but to stop."""
        self._say = say

    def step(self) -> None:
        """Take in what has ended, start what is due."""
        for child in self.children:
            code = child.ended()
            if code is not None:
                self._plan(child, code)
            elif child.pid is None and self.hopeless is None and time.monotonic() >= child.start_at:
                self._start(child)

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stop the programs one after another, each within its limit; return when none is left.

        hurry: asked again and again; once it says yes, what still runs is told to end at once.
        """
        for child in self.children:
            self._stop(child, hurry)

    def suspend(self) -> None:
        """Let all programs stand still, with all their processes."""
        for child in self.children:
            child.send(signal.SIGSTOP, to_all=True)

    def resume(self) -> None:
        """Let them go on."""
        for child in self.children:
            child.send(signal.SIGCONT, to_all=True)

    def kill(self) -> None:
        """End everything now, without any order. For when something has gone wrong."""
        for child in self.children:
            child.send(signal.SIGKILL, to_all=True)
        deadline = time.monotonic() + HURRY_LIMIT_S
        while any(child.pid for child in self.children) and time.monotonic() < deadline:
            for child in self.children:
                child.ended()
            time.sleep(POLL_S)

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except OSError as error:
            pause_s = child.next_pause()
            child.start_at = time.monotonic() + pause_s
            self._say(child.program.name, f"cannot be started ({error.strerror}); tried again in {pause_s:g} s")

    def _plan(self, child: Child, code: int) -> None:
        if child.starts == 1 and not child.was_healthy and code in child.program.hopeless:
            self.hopeless = child.program, code
            self._say(child.program.name, f"{how(code)}; it cannot be run")
            return
        pause_s = child.next_pause()
        child.start_at = time.monotonic() + pause_s
        self._say(child.program.name, f"{how(code)}; started again in {pause_s:g} s")

    def _stop(self, child: Child, hurry: Callable[[], bool]) -> None:
        program = child.program
        child.send(signal.SIGTERM)
        kill_at = time.monotonic() + program.stop_limit_s
        hurried = False
        hurry_at = time.monotonic() + HURRY_INTERVAL_S / 5  # two signals at the same moment would be one
        while child.pid is not None and child.ended() is None:
            now = time.monotonic()
            if hurry() and now >= hurry_at:
                child.send(program.hurry_signal, to_all=program.hurry_all)
                hurry_at = now + HURRY_INTERVAL_S
                kill_at = kill_at if hurried else min(kill_at, now + HURRY_LIMIT_S)
                hurried = True
            if now >= kill_at:
                self._say(program.name, "does not end; it is killed")
                child.send(signal.SIGKILL, to_all=True)
                kill_at = now + HURRY_LIMIT_S
            time.sleep(POLL_S)


def how(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
