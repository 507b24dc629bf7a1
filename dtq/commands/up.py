"""`flask dtq up`: everything on this machine, and one Ctrl-C that stops all of it in order."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import click

from dtq.commands.banner import Running, print_banner
from dtq.commands.console import Exit, Failure, json_option, print_json, program, settings
from dtq.commands.instance import AlreadyRunning, Instance
from dtq.commands.stack import programs, url_of, usable_port, web_answers
from dtq.commands.supervise import Supervisor
from dtq.embedded import EmbeddedServer
from dtq.errors import ConfigurationError, DtqError
from dtq.log import configure_logging, escape
from dtq.model import WorkerInfo
from dtq.queries import Queries
from dtq.redisio import Server
from dtq.settings import Settings

log = logging.getLogger("dtq.up")

POLL_S = 0.1
WORKER_PATIENCE_S = 15.0
"""How long the first words wait for a worker once the web answers."""
KEEP_INTERVAL_S = 2.0
KEEP_LIMIT_S = 5.0
ORPHAN_MARGIN_S = 15.0
_COLOURS = {"web": "cyan", "worker": "magenta", "redis": "blue", "up": "green"}
_HOPELESS = {69: Exit.REDIS_AWAY, 78: Exit.CONFIGURATION}


@click.command("up")
@json_option
def up(as_json: bool) -> None:
    """Run everything on this machine: Redis, web, worker. Ctrl-C stops it all in order, a second one hurries.

    Settings are DTQ_* variables or lines of .env; without DTQ_REDIS_URL a private server keeps its data in .dtq/.
    """
    _refuse_where_it_cannot_be()
    chosen = settings()
    Up(chosen, Instance(chosen.directory), as_json=as_json).run()


def _refuse_where_it_cannot_be() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise Failure("up takes signals: it runs in the main thread only", Exit.USAGE)


class Up:
    """One run of it."""

    def __init__(self, chosen: Settings, instance: Instance, *, as_json: bool) -> None:
        self._settings = chosen
        self._instance = instance
        self._as_json = as_json
        self._voice = Voice(chosen)
        self._asked = 0
        """How often somebody has asked for the end."""
        self._rest = False
        """Somebody has typed Ctrl-Z."""

    def run(self) -> None:
        """Start everything, keep it running until asked to stop. Raises Failure, or what the start met."""
        if self._settings.redis_url.startswith("memory:"):
            raise ConfigurationError("DTQ_REDIS_URL=memory:// lives in one process and cannot serve web and worker")
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it was started by nohup
            wanted.append(signal.SIGHUP)
        before: dict[int, Any] = {number: signal.signal(number, self._ask) for number in wanted}
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._ask_to_rest)
        try:
            self._take_the_place()  # not earlier: who interrupts it from here on gets an end in order
            self._start_all()
        finally:
            self._instance.release()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take_the_place(self) -> None:
        try:
            self._instance.take()
        except AlreadyRunning as error:
            facts = error.context["facts"]
            where = f" (pid {facts.get('pid')}, {facts.get('url')})" if facts else ""
            raise Failure(
                f"dtq is already running in {self._instance.directory.parent}{where}; stop it with Ctrl-C there, or "
                "set DTQ_DIRECTORY and DTQ_API_PORT to run a second one",
                Exit.FAILED,
            ) from None

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked += 1

    def _ask_to_rest(self, number: int, frame: FrameType | None) -> None:
        self._rest = True

    def _rest_with(self, supervisor: Supervisor) -> None:
        """Stand still, and the programs too, until `fg` or `bg`: else they would block once their output fills up.

        Leases are not renewed meanwhile: what ran then may have been taken over by another worker.
        """
        self._rest = False
        self._voice.say("up", "suspended, web and worker too; what they hold is lost to them after its lease")
        supervisor.suspend()
        os.kill(os.getpid(), signal.SIGSTOP)
        supervisor.resume()
        self._voice.say("up", "goes on")

    def _start_all(self) -> None:
        if not self._orphans_are_gone():
            return
        port = usable_port(self._settings)
        redis = Redis(self._settings, self._voice.say)
        try:
            if redis.start(lambda: self._asked > 0):
                self._supervise(port, redis)
        finally:
            redis.stop()
        self._voice.say("up", "stopped")

    def _orphans_are_gone(self) -> bool:
        """Wait for what an `up` that was killed has left behind. False: asked to stop meanwhile."""
        if self._instance.take_children():
            return True
        patience_s = self._settings.drain_timeout_s + ORPHAN_MARGIN_S
        self._voice.say("up", f"waiting up to {patience_s:g} s for what an `up` that was killed has left behind")
        give_up_at = time.monotonic() + patience_s
        while not self._asked and not self._instance.take_children():
            if time.monotonic() >= give_up_at:
                pids = self._instance.facts().get("pids")
                known = " ".join(str(pid) for pid in pids.values()) if isinstance(pids, dict) else "?"
                raise Failure(f"processes of an `up` that was killed still run; end them: kill -9 {known}", Exit.FAILED)
            time.sleep(POLL_S)
        return not self._asked

    def _supervise(self, port: int, redis: Redis) -> None:
        supervisor = Supervisor(
            programs(self._settings, port),
            say=self._voice.say,
            relay=self._voice.relay,
            pass_fds=[self._instance.children_fd],
        )
        try:
            self._loop(supervisor, port, redis)
            if self._asked:
                limit = f"{self._settings.drain_timeout_s:g} s"
                self._voice.say("up", f"stopping: web, then worker (what runs gets {limit}); Ctrl-C again hurries")
            supervisor.stop(lambda: self._asked > 1)
        finally:
            supervisor.kill()  # finds nothing, unless something went wrong
        if supervisor.hopeless is not None:
            program, code = supervisor.hopeless
            raise Failure(f"the {program.name} cannot run; its lines above say why", _HOPELESS.get(code, Exit.FAILED))

    def _loop(self, supervisor: Supervisor, port: int, redis: Redis) -> None:
        url = url_of(self._settings, port)
        announced, web_since, described = False, None, None
        while not self._asked and supervisor.hopeless is None:
            supervisor.step()
            if self._rest:
                self._rest_with(supervisor)
            pids = {child.program.name: child.pid for child in supervisor.children}
            if pids != described:
                self._instance.describe({"pid": os.getpid(), "url": url, "pids": pids})
                described = pids
            if not announced:
                if web_since is None and web_answers(self._settings, port):
                    web_since = time.monotonic()
                patient = web_since is not None and time.monotonic() - web_since < WORKER_PATIENCE_S
                if web_since is not None and (redis.has_workers() or not patient):
                    self._announce(Running(url=url, pids=pids, **redis.facts()))
                    announced = True
            time.sleep(POLL_S)

    def _announce(self, running: Running) -> None:
        if self._as_json:
            print_json(running.as_json())
        else:
            print_banner(running, self._settings, colour=self._voice.colour)
        sys.stdout.flush()
        if running.workers and not running.own_types:
            told = f"DTQ_TASKS={self._settings.tasks} has no handler: nothing can be run"
            self._voice.say("up", escape(f"warning: {told}; `{program()} dtq config check` looks again"))


class Redis:
    """The server of this stack: the embedded one, which is kept running, or one that others look after."""

    def __init__(self, chosen: Settings, say: Callable[[str, str], None]) -> None:
        self._settings = chosen
        self._say = say
        self._embedded = None if chosen.redis_url else EmbeddedServer(chosen.directory, chosen.redis_server or None)
        self._started, self._leaving = threading.Event(), threading.Event()
        self._failure: DtqError | None = None
        self._keeper = threading.Thread(target=self._keep, name="redis keeper", daemon=True)
        url = chosen.redis_url or (self._embedded.url if self._embedded else "")
        self._server = Server.connect(url, namespace=chosen.namespace)
        self._queries = Queries(self._server, chosen)
        self._since = 0.0
        """When it was found to serve, on its own clock: workers from before are none of ours."""

    def start(self, asked: Callable[[], bool]) -> bool:
        """Start it, or see that it answers. False: asked to stop meanwhile.

        Raises ServerStartFailed, RedisUnavailable, ConfigurationError.
        """
        if self._embedded is not None:
            self._keeper.start()
            while not self._started.wait(0.02):
                if asked():
                    return False
            if self._failure is not None:
                raise self._failure
        self._since = self._server.now()
        return True

    def stop(self) -> None:
        """Leave it; the embedded one ends when nobody else uses it."""
        self._leaving.set()
        self._server.close()
        if self._embedded is None:
            return
        if self._keeper.ident is not None:
            self._keeper.join(KEEP_LIMIT_S + 1.0)
        if self._keeper.is_alive():  # it waits for a server that loads its data; the lock ends with this process
            return
        if not self._embedded.release() and self._started.is_set() and self._failure is None:
            self._say("redis", "goes on: another program uses it")

    def has_workers(self) -> bool:
        """Whether a worker has made itself known."""
        try:
            return bool(self._workers())
        except DtqError:
            return False

    def facts(self) -> dict[str, Any]:
        """Return what there is to tell of it and of its workers."""
        where = self._server.safe_url if self._embedded is None else f"embedded, its data in {self._embedded.directory}"
        told = {"directory": str(self._settings.directory.resolve()), "redis": where}
        try:
            return {**told, "workers": self._workers(), "task_types": sorted(self._queries.handlers())}
        except DtqError:
            return {**told, "workers": [], "task_types": []}

    def _workers(self) -> list[WorkerInfo]:
        return [worker for worker in self._queries.workers() if worker.started_at >= self._since]

    def _keep(self) -> None:
        assert self._embedded is not None
        try:
            self._embedded.ensure()
        except DtqError as error:
            self._failure = error
            return
        finally:
            self._started.set()
        said = ""
        while not self._leaving.wait(KEEP_INTERVAL_S):
            try:
                if self._embedded.ensure(KEEP_LIMIT_S):
                    self._say("redis", "was gone; started again, with its data")
                said = ""
            except DtqError as error:
                if error.message != said:
                    self._say("redis", escape(error.message))
                said = error.message


class Voice:
    """Lines of several programs and our own, on stderr: with a name before each, or as JSON where that is wanted."""

    def __init__(self, chosen: Settings) -> None:
        self.colour = False if os.environ.get("NO_COLOR") else None
        self._json = chosen.log_json
        self._lock = threading.Lock()
        if self._json:
            configure_logging(chosen.log_level, json=True)

    def say(self, name: str, text: str) -> None:
        """Tell what happens to a program."""
        if self._json:
            log.warning(text, extra={"program": name})
        else:
            self._write(f"{self._prefix(name)}{click.style(text, bold=True)}")

    def relay(self, name: str, line: str) -> None:
        """Pass on what a program writes."""
        self._write(line if self._json else f"{self._prefix(name)}{line}")

    def _prefix(self, name: str) -> str:
        return click.style(f"{name:<6} | ", fg=_COLOURS[name])

    def _write(self, line: str) -> None:
        # Where nobody reads it any more, the programs must not wait for that.
        with self._lock, contextlib.suppress(OSError):
            click.echo(line, err=True, color=self.colour)
