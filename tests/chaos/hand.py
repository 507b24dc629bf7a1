"""The random hand: does one harm after the other, each survivable, drawn from one seed."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

from dtq.errors import DtqError
from dtq.keys import GROUP
from dtq.redisio import Server
from tests.chaos.fleet import LEASE_S, Fleet


class Hand:
    """Every method is one harm; `harm` draws one."""

    def __init__(self, fleet: Fleet, seed: int, only: Sequence[str] = ()) -> None:
        """only: the names of the harms to draw from; empty: all."""
        self.fleet = fleet
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._harms: list[tuple[int, Callable[[], None]]] = [
            (6, self.kill_worker),
            (4, self.terminate_worker),
            (2, self.freeze_worker),
            (5, self.cut_connections),
            (4, self.swallow_reply),
            (2, self.half_close),
            (2, self.double_commands),
            (1, self.delay_replies),
            (1, self.delete_stream),
            (1, self.destroy_group),
            (1, self.take_the_lock),
            (3, self.forget_scripts),
            (3, self.kill_clients),
            (1, self.kill_server),
            (1, self.restart_server),
            (1, self.pause_server),
        ]
        if only:
            self._harms = [(weight, harm) for weight, harm in self._harms if harm.__name__ in only]
        if not self._harms:
            raise SystemExit(f"none of {', '.join(only)} is a harm")

    def harm(self) -> None:
        """Do one harm, and pause a little."""
        weights = [weight for weight, _ in self._harms]
        chosen = self._random.choices([harm for _, harm in self._harms], weights)[0]
        self.done[chosen.__name__] += 1
        with contextlib.suppress(DtqError):  # the server is just being harmed otherwise
            chosen()
        time.sleep(self._random.uniform(0.2, 1.5))

    def _number(self) -> int:
        return self._random.randrange(len(self.fleet.workers))

    def kill_worker(self) -> None:
        self.fleet.kill(self._number())

    def terminate_worker(self) -> None:
        self.fleet.terminate(self._number())

    def freeze_worker(self) -> None:
        self.fleet.freeze(self._number(), LEASE_S * self._random.uniform(0.3, 2.5))

    def cut_connections(self) -> None:
        self.fleet.proxy.cut()

    def half_close(self) -> None:
        self.fleet.proxy.half_close()

    def swallow_reply(self) -> None:
        self.fleet.proxy.drop_next_reply(matching=b"EVALSHA", times=self._random.randint(1, 3))

    def double_commands(self) -> None:
        self.fleet.proxy.double_next(b"EVALSHA", times=self._random.randint(1, 5))

    def delay_replies(self) -> None:
        self.fleet.proxy.delay_s = self._random.choice([0.1, 2.0])
        time.sleep(self._random.uniform(0.2, 2.0))
        self.fleet.proxy.delay_s = 0.0

    def delete_stream(self) -> None:
        self._call("DEL", self.fleet.keys.stream("default", self._random.randrange(10)))

    def destroy_group(self) -> None:
        self._call("XGROUP", "DESTROY", self.fleet.keys.stream("default", self._random.randrange(10)), GROUP)

    def take_the_lock(self) -> None:
        self._call("SET", self.fleet.keys.scheduler_lock(), "nobody", "PX", "10000")

    def forget_scripts(self) -> None:
        self._call("SCRIPT", "FLUSH")

    def kill_clients(self) -> None:
        self._call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def kill_server(self) -> None:
        self.fleet.server.kill()
        time.sleep(self._random.uniform(0, 1.5))
        self.fleet.server.start()

    def restart_server(self) -> None:
        self.fleet.server.restart()

    def pause_server(self) -> None:
        self.fleet.server.pause()
        time.sleep(self._random.uniform(0.2, 2.5))
        self.fleet.server.resume()

    def _call(self, *command: str) -> None:
        server = Server.connect(self.fleet.server.url)
        try:
            server.call(*command)
        finally:
            server.close()
