"""API keys with names and roles: the file that holds their hashes, and what tells whose a key is.

One line a key: name, role, hash and the time it was made, separated by spaces; `#` begins a comment. A key has 256
random bits, so one SHA-256 is as good as a slow hash and can be had for every request (docs/decisions has more).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from dtq.errors import ConfigurationError

log = logging.getLogger(__name__)

Role = Literal["read", "submit", "admin"]
"""Each may do what the one before it may: look; submit too; everything."""

ROLES: tuple[Role, ...] = get_args(Role)

SOLE = "default"
"""The name of the one key of DTQ_API_KEY; none of a file can have it."""

MAX_KEYS = 1_000
LOOK_AGAIN_S = 1.0
"""A changed file is in force after this long at the latest."""

_MAX_FILE_BYTES = 256 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_HEAD = "# API keys of dtq: name, role, hash, time. `flask dtq key` writes this file; a line can be removed by hand.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is kept of a key: not the key."""

    name: str
    role: Role
    digest: bytes
    """SHA-256 of the key."""
    created: str = ""
    """RFC 3339; empty when the file does not say."""

    def line(self) -> str:
        """Return the key's line of the file."""
        return f"{self.name} {self.role} sha256:{self.digest.hex()} {self.created}".rstrip() + "\n"


def digest_of(key: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def checked_name(name: str) -> str:
    """Return a name that a key can have. Raises ValueError, whose text says what is allowed."""
    if not _NAME.fullmatch(name):
        raise ValueError("a name is 1 to 64 of A-Z a-z 0-9 _ . @ - and begins with a letter or a digit")
    if name == SOLE:
        raise ValueError(f"{SOLE} is the name of the key in DTQ_API_KEY")
    return name


# --- the file ---------------------------------------------------------------------------------------------------------


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys of a file. Raises ConfigurationError when it cannot be read, naming the line that is wrong."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigurationError(f"{path} has more than {_MAX_FILE_BYTES} bytes: is it a file of API keys?")
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the file of API keys cannot be read: {path}: {_told(error)}") from None
    found: dict[str, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            key = _key(words)
            if key.name in found:
                raise ValueError("the name stands there twice")
        except ValueError as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from None
        found[key.name] = key
    if len(found) > MAX_KEYS:
        raise ConfigurationError(f"{path} has {len(found)} keys; at most {MAX_KEYS} are allowed")
    return tuple(found.values())


def _told(error: Exception) -> str:
    return (error.strerror or "no reason given") if isinstance(error, OSError) else "not text"


def _key(words: Sequence[str]) -> ApiKey:
    if not 3 <= len(words) <= 4:
        raise ValueError("a line is: name role sha256:<64 hex digits> time")
    name, role, digest = words[:3]
    if role not in ROLES:
        raise ValueError(f"a role is one of {', '.join(ROLES)}")
    found = _HASH.fullmatch(digest)
    if found is None:
        raise ValueError("the third word is not sha256:<64 hex digits>: `flask dtq key create` writes it")
    return ApiKey(
        name=checked_name(name),
        role=role,
        digest=bytes.fromhex(found[1]),
        created=words[3] if len(words) == 4 else "",
    )


def create_key(path: Path, name: str, role: Role) -> str:
    """Add a key to a file, which is made (mode 0600) when it is not there, and return the key: nobody can later.

    Raises ValueError for a name that cannot be or is taken, ConfigurationError for a file that cannot be used.
    """
    checked_name(name)
    key = f"dtq_{secrets.token_urlsafe(32)}"
    with _changing(path) as keys:
        if name in keys:
            raise ValueError(f"there is a key {name} already; remove it first, or choose another name")
        if len(keys) >= MAX_KEYS:
            raise ValueError(f"the file has {MAX_KEYS} keys already")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys[name] = ApiKey(name=name, role=role, digest=digest_of(key), created=now).line()
    return key


def remove_key(path: Path, name: str) -> bool:
    """Take a key out of a file. Returns whether it was there. Raises ConfigurationError."""
    read_keys(path)
    with _changing(path) as keys:
        return keys.pop(name, None) is not None


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[dict[str, str]]:
    """Give the lines of the keys by name, and replace the file by them: whole or not at all, one change at a time."""
    try:
        directory = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {_told(error)}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        keys = {key.name: key.line() for key in read_keys(path)} if path.exists() else {}
        before = dict(keys)
        yield keys
        if keys != before:
            _replace(path, keys.values())
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {_told(error)}") from None
    finally:
        os.close(directory)


def _replace(path: Path, lines: Iterable[str]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(_HEAD)
            file.writelines(lines)
            file.flush()
            with contextlib.suppress(FileNotFoundError, PermissionError):  # whoever could read it still can
                known = path.stat()
                os.fchmod(file.fileno(), known.st_mode & 0o777)
                os.fchown(file.fileno(), known.st_uid, known.st_gid)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


# --- whose key it is --------------------------------------------------------------------------------------------------


class KeyRing:
    """The keys in force. Safe to use from any thread; a changed file is read again within LOOK_AGAIN_S."""

    def __init__(self, sole: str = "", path: Path | None = None) -> None:
        """sole: the one key of DTQ_API_KEY, with the role admin. path: the file, if there is one; read at once.

        Raises ConfigurationError for a file that cannot be used.
        """
        self._sole: list[ApiKey] = [ApiKey(name=SOLE, role="admin", digest=digest_of(sole))] if sole else []
        self._path = path
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._seen: object = None
        self._keys = self._sole
        if path is not None:
            self._seen = _signature(path)
            self._keys = [*self._sole, *read_keys(path)]
            self._look_at = time.monotonic() + LOOK_AGAIN_S

    @property
    def asks(self) -> bool:
        """Whether keys are asked for at all: an empty file asks for one that nobody has."""
        return bool(self._sole) or self._path is not None

    def whose(self, offered: str) -> ApiKey | None:
        """Return the key that was offered, or None. Takes as long for a wrong one as for a right one."""
        digest, found = digest_of(offered), None
        for key in self._current():
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    def named(self, name: str) -> ApiKey | None:
        """Return the key of a name as it is now, or None."""
        return next((key for key in self._current() if key.name == name), None)

    def _current(self) -> Sequence[ApiKey]:
        if self._path is not None and time.monotonic() >= self._look_at and self._lock.acquire(blocking=False):
            try:
                self._look_at = time.monotonic() + LOOK_AGAIN_S
                self._look(self._path)
            finally:
                self._lock.release()
        return self._keys

    def _look(self, path: Path) -> None:
        signature = _signature(path)
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._keys = [*self._sole, *read_keys(path)]
            log.info("read %d API keys from %s", len(self._keys) - len(self._sole), path)
        except ConfigurationError as error:  # a slip of the editor must not lock everybody out
            log.error("the API keys stay as they were: %s", error.message)


def _signature(path: Path) -> object:
    """Return what differs once a file has changed."""
    try:
        known = path.stat()
    except OSError as error:
        return error.errno
    return known.st_mtime_ns, known.st_size, known.st_ino
