"""gunicorn's messages in the program's one log, and slow clients as what they are."""

from __future__ import annotations

import logging

from gunicorn.config import Config
from gunicorn.glogging import Logger as GunicornLogger


class Logger(GunicornLogger):
    """Writes through the root logger, in whatever form the program has chosen."""

    def setup(self, cfg: Config) -> None:
        """Hand records on instead of writing them."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True
        self.error_log.addFilter(_slow_clients)
        self.error_log.addFilter(_small_talk)


def _slow_clients(record: logging.LogRecord) -> bool:
    """A request or a response that the client left half done is no error of this server: one line, no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, BlockingIOError | TimeoutError):
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args, record.exc_info = "closed a connection whose client took too long", (), None
        return logging.getLogger().isEnabledFor(logging.INFO)
    return True


_SMALL_TALK = (
    *("Starting gunicorn", "Listening at", "Using worker", "Booting worker"),
    *("Worker exiting", "Handling signal", "Shutting down"),
)


def _small_talk(record: logging.LogRecord) -> bool:
    """What gunicorn says of itself while all is well is for whoever debugs it; we say where we serve."""
    if record.levelno == logging.INFO and str(record.msg).startswith(_SMALL_TALK):
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger().isEnabledFor(logging.DEBUG)
    return True
