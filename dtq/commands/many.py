"""What commands that change many things share: what it is about is shown, and asked for; then it is done, and told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dtq.bulk import BulkJob, BulkWish, preview_as_json
from dtq.bulk.jobs import MAX_RATE, MIN_RATE
from dtq.commands.console import Exit, F, Failure, Number, actor, counted, on_terminal, print_json, program
from dtq.errors import RedisUnavailable
from dtq.log import escape

if TYPE_CHECKING:
    from dtq.client import Client

SAMPLES = 3
LOOK_S = 0.3

rate_option = click.option("--rate", type=Number(MIN_RATE, MAX_RATE), help="At most so many a second.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a destructive command is to go about it."""

    yes: bool
    dry_run: bool
    reason: str
    as_json: bool


def destructive(command: F) -> F:
    """Add the options of destructive commands, as the parameters yes, dry_run and reason."""
    for option in (
        click.option("--reason", default="", help="Kept in the audit."),
        click.option("--dry-run", is_flag=True, help="Only show what it is about."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    ):
        command = option(command)
    return command


def agree(question: str, total: int, samples: Sequence[Mapping[str, Any]], manner: Manner) -> None:
    """Show what a command is about, on stderr, and ask; with --yes do neither.

    Raises Failure (exit 2) where nobody can be asked, or when the answer is no.
    """
    ask(question, total, [_line(sample) for sample in samples], manner)


def ask(question: str, total: int, lines: Sequence[str], manner: Manner) -> None:
    """Do as `agree` does, with samples that are lines already."""
    if manner.yes:
        return
    show_lines(question, total, lines, err=True)
    if not sys.stdin.isatty():
        raise Failure(f"{question}: nobody is there to be asked; --yes does it, --dry-run only shows", Exit.USAGE)
    if not click.confirm("Go on?", default=False, err=True):
        raise Failure("nothing was done", Exit.USAGE)


def show_samples(what: str, total: int, samples: Sequence[Mapping[str, Any]], *, err: bool = False) -> None:
    """Write what it is about, and the newest few of it."""
    show_lines(what, total, [_line(sample) for sample in samples], err=err)


def show_lines(what: str, total: int, lines: Sequence[str], *, err: bool = False) -> None:
    """Write what it is about, and a few lines of it."""
    click.echo(what, err=err)
    for line in lines:
        click.echo(f"  {escape(line)}"[:160], err=err)
    if total > len(lines):
        click.echo(f"  ... and {total - len(lines)} more", err=err)


def _line(sample: Mapping[str, Any]) -> str:
    error = (sample.get("error") or {}).get("message") or sample.get("status") or sample.get("reason") or ""
    return "  ".join((sample["task_id"], sample["task_type"], sample["queue"], str(error)))


def carry_out(client: Client, wish: BulkWish, verb: str, noun: str, manner: Manner) -> None:
    """Do something to many, after it was agreed to, and tell what was done.

    verb: such as `discard`. Exit status 1 when some could not be changed, or when it was stopped in the middle.
    """
    found = client.preview(wish, SAMPLES)
    total, samples, exact = found
    told = f"{verb} {'' if exact else 'at least '}{counted(total, noun)}"
    if manner.dry_run:
        if manner.as_json:
            print_json(preview_as_json(wish, actor(manner.reason), found))
        else:
            show_samples(f"would {told}", total, samples)
        return
    if total or not exact:
        agree(told, total, samples, manner)
    job = client.begin_bulk(wish, actor=actor(manner.reason))
    tell(follow(client, job), manner.as_json)


def follow(client: Client, job: BulkJob) -> BulkJob:
    """Carry a job on, or watch the process that does, until it has ended; Ctrl-C aborts it."""
    try:
        while not (job := client.run_bulk(job, watch=_progress())).ended:
            time.sleep(LOOK_S)  # another process has it
            job = client.bulk.get(job.bulk_id)
    except KeyboardInterrupt:
        return client.abort_bulk(job.bulk_id, actor=actor("interrupted"))
    except RedisUnavailable as error:
        again = f"`{program()} dtq bulk resume {job.bulk_id}` goes on with it"
        raise Failure(f"{error.message}; {again}", Exit.REDIS_AWAY) from None
    return job


def tell(job: BulkJob, as_json: bool) -> None:
    """Write what became of a job. Raises Failure when it was not done in full."""
    if as_json:
        print_json(job.as_json())
    else:
        rest = "".join(
            f", {number} {name}" for name, number in (("skipped", job.skipped), ("failed", job.failed)) if number
        )
        click.echo(f"{job.wish.action}: {job.done} done{rest}")
    if job.state == "aborted":
        raise Failure(f"aborted after {job.done} of {job.total}", Exit.FAILED)
    if job.failed:
        raise Failure(
            f"{job.failed} could not be changed: unreadable, of a newer dtq, or one queue too many", Exit.FAILED
        )


def _progress() -> Callable[[BulkJob], None] | None:
    if not (on_terminal() and sys.stderr.isatty()):
        return None

    def show(job: BulkJob) -> None:
        click.echo(f"\r{job.done} of {job.total}{'' if not job.ended else chr(10)}", nl=False, err=True)

    return show
