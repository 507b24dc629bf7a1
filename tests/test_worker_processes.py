"""The parent of several workers: what becomes of a child that is told to stop before it listens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support import PROJECT

NEVER_LISTENS = """
import os, sys, time
from dtq.worker.processes import Processes
def run(number):
    print(os.getpid(), flush=True)
    time.sleep(60)
    return 0
sys.exit(Processes(1, run).run())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, 70)])
def test_a_stop_that_finds_a_child_before_it_listens_to_signals_is_a_clean_end(number: int, code: int) -> None:
    """A supervisor may have signalled it itself; killed while it should stop it was not by this."""
    parent = subprocess.Popen([sys.executable, "-c", NEVER_LISTENS], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGSTOP)
    os.kill(child, number)
    parent.send_signal(signal.SIGTERM)
    os.kill(parent.pid, signal.SIGCONT)
    assert parent.wait(20) == code
    parent.stdout.close()
