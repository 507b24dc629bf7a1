"""The group `flask dtq`: which commands there are, and where each lives."""

from __future__ import annotations

import click

from dtq import __version__
from dtq.commands.console import Group

COMMANDS = {
    "up": "dtq.commands.up:up",
    "demo": "dtq.commands.demo:demo",
    "status": "dtq.commands.status:status",
    "task": "dtq.commands.tasks:task",
    "queue": "dtq.commands.queues:queue",
    "dlq": "dtq.commands.dead:dlq",
    "bulk": "dtq.commands.bulk:bulk",
    "worker": "dtq.commands.workers:worker",
    "mq": "dtq.commands.messages:mq",
    "events": "dtq.commands.events:events",
    "audit": "dtq.commands.audit:audit",
    "key": "dtq.commands.apikeys:key",
    "config": "dtq.commands.config:config",
    "doctor": "dtq.commands.doctor:doctor",
    "bench": "dtq.commands.bench:bench",
    "openapi": "dtq.commands.document:openapi",
    "completion": "dtq.commands.document:completion",
    "submit": "dtq.commands.tasks:submit",
    "get": "dtq.commands.tasks:get",
    "list": "dtq.commands.tasks:list_tasks",
    "cancel": "dtq.commands.tasks:cancel",
    "retry-dlq": "dtq.commands.dead:requeue",
    "discard-dlq": "dtq.commands.dead:discard",
}
"""By name, in the order of the help; the last six are short for those of `task` and `dlq`."""


HELP = """Run and operate dtq, the task queue.

\b
Exit status: 0 done, 1 failed, 2 usage or validation, 3 not found,
4 wrong state, 5 full, 69 Redis out of reach, 75 gave up waiting,
78 configuration.
"""


@click.group("dtq", cls=Group, lazy=COMMANDS, help=HELP)
@click.version_option(__version__, prog_name="dtq")
def dtq() -> None:
    """Have nothing to do but to hold the commands."""
