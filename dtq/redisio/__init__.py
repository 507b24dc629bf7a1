"""Redis as dtq talks to it: bytes in, bytes out. The only part that imports redis or fakeredis."""

from dtq.redisio.blocking import BlockingCaller
from dtq.redisio.errors import CommandError, Interrupted, NoScript
from dtq.redisio.server import Server
from dtq.redisio.wire import Arg

__all__ = ["Arg", "BlockingCaller", "CommandError", "Interrupted", "NoScript", "Server"]
