"""Every setting of dtq: read once from the environment and `.env`, checked, and frozen (contract, section 15).

`load_settings` is the way in. `dtq.settings_docs` turns the fields below into docs/settings.md and `.env.example`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from dtq.backoff import Backoff
from dtq.environment import DotEnv, Environment, hide_passwords, nearest, warn_about_names
from dtq.errors import ConfigurationError
from dtq.fields import PREFIX, allowed, setting, shown, variable
from dtq.keys import Keys

_DAY_S = 86_400
_YEAR_S = 365 * _DAY_S
_MIB = 1024 * 1024
_QUEUE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MODULES = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(,[^\W\d]\w*(\.[^\W\d]\w*)*)*")
_HOST = re.compile(r"\.?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_WORKER_ID = re.compile(r"[A-Za-z0-9_.:-]{0,128}")
_SCHEMES = ("redis", "rediss", "unix", "memory", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_SECRETS = frozenset({"api_key", "secret_key"})


class Settings(BaseSettings):
    """The settings of one process. The variable of a field is its name in capitals after `DTQ_`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    # Redis
    redis_url: str = setting(
        "Where Redis is. Unset: dtq runs a private server for this directory.",
        "",
        allowed="a URL that begins with redis://, rediss://, unix:///, memory://, redis+sentinel:// or redis+cluster://",
        auto="unset",
        repr=False,
    )
    namespace: str = setting(
        "The first part of every key. On a Redis Cluster it is put in braces, so that a namespace lives in one slot.",
        "dtq",
        allowed="1 to 60 of A-Z a-z 0-9 _ . : - (all of it in braces, if you like)",
    )
    directory: Path = setting(
        "Where `.dtq/` is made: the data of the private server, and the secret of the sessions.",
        Path(),
        allowed="a directory that exists",
        auto="the current directory",
    )
    redis_server: str = setting(
        "The program that is run as the private server.",
        "",
        allowed="a path, or a name on PATH",
        auto="the one that comes with dtq, else valkey-server or redis-server",
    )
    durable_writes: bool = setting(
        "A submission is answered once it is on disk (and on a replica, where there is one). Needs appendonly and "
        "Redis 7.2 or Valkey, or a replica.",
        False,
    )
    image: bool = setting("Set by the container image, where an unset DTQ_REDIS_URL is a mistake.", False)

    # Web
    api_host: str = setting(
        "The address that the web server, and a worker's metrics, listen on. The container image sets 0.0.0.0.",
        "127.0.0.1",
        allowed="a host name or an address",
        pattern=r"^[^\s/]{1,255}$",
    )
    api_port: int = setting("The port that the web server listens on; 0: any free one.", 8000, ge=0, le=65_535)
    serve: Literal["all", "api", "dashboard"] = setting(
        "Which part the web server serves: the API, the dashboard, or both.", "all"
    )
    web_processes: int = setting("Processes of the web server.", 1, ge=1, le=256)
    web_threads: int = setting("Threads of each process of the web server.", 32, ge=1, le=1000)
    max_websockets: int = setting(
        "WebSockets of each process of the web server; a socket holds a thread.",
        ge=0,
        le=1000,
        default_factory=lambda data: int(data["web_threads"]) * 3 // 4,
        auto="three quarters of DTQ_WEB_THREADS",
    )
    max_websockets_per_ip: int = setting(
        "WebSockets of each process for one address. Behind a proxy, see DTQ_TRUSTED_PROXIES.", 20, ge=1, le=1000
    )
    api_key: str = setting(
        "The key that destructive calls need as `X-API-Key`. Unset, and no file of keys: no key is asked for.",
        "",
        allowed="1 to 256 printable ASCII characters without spaces",
        auto="unset",
        pattern=r"^[!-~]{0,256}$",
        repr=False,
    )
    api_keys_file: str = setting(
        "A file of several keys with names and roles, made by `flask dtq key create`; changes count within a second.",
        "",
        allowed="a path",
        auto="unset",
    )
    protect: Literal["destructive", "writes", "all"] = setting(
        "What needs a key: destructive calls, submitting too, or reading too.", "destructive"
    )
    secret_key: str = setting(
        "Signs the sessions of the dashboard. Several web hosts must share one.",
        "",
        allowed="at least 16 characters",
        auto="one of its own, kept in `.dtq/`",
        pattern=r"^(?s:.{16,})?$",
        repr=False,
    )

    redact: Annotated[tuple[str, ...], NoDecode] = setting(
        "What the dashboard hides: values of payloads, results and metadata whose key has one of these words in it, "
        "whatever its case and punctuation. `none`: nothing.",
        ("password", "passwd", "secret", "token", "api_key", "authorization", "cookie", "credential", "private_key"),
        allowed="words, separated by commas, or none",
    )
    api_url: str = setting(
        "Where callers reach the API, for the commands that the dashboard shows.",
        "",
        allowed="a URL that begins with http:// or https://",
        auto="the dashboard's own address, or with DTQ_SERVE=dashboard http://127.0.0.1:8000",
        pattern=r"^(https?://[^\s'\"<>]{1,200})?$",
    )

    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = setting(
        "The names by which the web server may be called (the Host header); one that begins with a dot: all below it.",
        (),
        allowed="host names without ports, separated by commas",
        auto="any; without keys and on loopback only those of this machine",
    )
    trusted_proxies: int = setting(
        "Reverse proxies in front of the web server, whose X-Forwarded-For, -Proto and -Host are believed.",
        0,
        ge=0,
        le=10,
    )

    # Worker
    tasks: str = setting(
        "The modules that register the handlers.",
        "examples.tasks",
        allowed="names of Python modules, separated by commas",
    )
    queues: Annotated[tuple[str, ...], NoDecode] = setting(
        "The queues that a worker serves, the most urgent first.",
        ("default",),
        allowed="names of 1 to 64 of a-z 0-9 _ - that begin with a letter or a digit, separated by commas",
    )
    worker_concurrency: int = setting("Tasks that a worker process runs at once.", 4, ge=1, le=1000)
    worker_processes: int = setting("Processes that `python worker.py` runs.", 1, ge=1, le=256)
    worker_id: str = setting(
        "The name of the worker, different for each: a second one of the same name does not start.",
        "",
        allowed="1 to 128 of A-Z a-z 0-9 _ . : -",
        auto="made from host and process",
    )
    worker_metrics_port: int = setting(
        "The port on which a worker serves its metrics; of several processes, the first one's. 0: none.",
        8001,
        ge=0,
        le=65_535,
    )
    prefetch: int | None = setting(
        "Tasks that a worker holds beyond what it runs; auto follows how long tasks take.",
        None,
        allowed="auto, or a whole number from 0 to 1000",
        auto="auto",
        ge=0,
        le=1000,
    )
    visibility_timeout_s: float = setting(
        "The lease, in seconds: tasks of a worker that died are run again this long after its last renewal.",
        30.0,
        ge=0.1,
        le=_DAY_S,
    )
    heartbeat_interval_s: float = setting(
        "Seconds between the heartbeats of a worker; below a third of the lease.",
        ge=0.01,
        le=3600,
        default_factory=lambda data: min(5.0, float(data["visibility_timeout_s"]) / 4),
        auto="5, or a quarter of DTQ_VISIBILITY_TIMEOUT_S where that is less",
    )
    drain_timeout_s: float = setting(
        "Seconds that a stopping worker gives to what it runs, before it hands it back.", 25.0, ge=0, le=_DAY_S
    )
    timeout_grace_s: float = setting(
        "Seconds that a handler has to return once its time limit was raised in it.", 5.0, ge=0, le=3600
    )
    max_abandoned_threads: int = setting(
        "Threads that a worker writes off, because their handlers do not return, before it asks to be restarted.",
        4,
        ge=0,
        le=1000,
    )
    unknown_type_grace_s: float = setting(
        "Seconds that a task whose type no worker knows is kept waiting, before it is a dead letter.",
        60.0,
        ge=0,
        le=_YEAR_S,
    )

    # Tasks
    max_payload_bytes: int = setting("The largest payload, in bytes of compact JSON.", 262_144, ge=2, le=64 * _MIB)
    task_timeout_ms: int = setting("The time limit of a task that brings none, in ms.", 30_000, ge=1, le=3_600_000)
    reject_unknown_types: bool = setting("Refuse a task whose type or queue no live worker serves.", False)

    # Retries
    max_attempts: int = setting(
        "The most that a submission may ask for as max_attempts; without asking, it is the handler's, else 5.",
        10,
        ge=1,
        le=10_000,
    )
    max_crashes: int = setting(
        "Workers that a task may take down with it, before it is a dead letter.", 3, ge=1, le=1000
    )
    retry_base_delay: float = setting(
        "Seconds before the second attempt; doubled for each one after.", 1.0, ge=0, le=_YEAR_S
    )
    retry_max_delay: float = setting("The longest of these delays, in seconds.", 60.0, ge=0, le=_YEAR_S)
    retry_jitter: float = setting(
        "The part of a delay that is left to chance, so that retries do not come all at once; 0.2: by up to 20 %.",
        0.2,
        ge=0,
        le=1,
    )
    dlq_enabled: bool = setting("Keep what failed for good in the dead-letter stream.", True)

    # Limits
    max_queue_depth: int = setting("Tasks in a queue, waiting or running; beyond: 429.", 10_000, ge=1, le=100_000_000)
    max_scheduled: int = setting("Delayed tasks; beyond: 429. Retries are exempt.", 100_000, ge=0, le=100_000_000)
    max_queues: int = setting("Queues; beyond: 429.", 1000, ge=1, le=100_000)
    dlq_maxlen: int = setting("Dead letters; the oldest goes out for a new one.", 10_000, ge=1, le=100_000_000)
    events_maxlen: int = setting("About how many entries the stream of events holds.", 10_000, ge=100, le=100_000_000)
    retention_max_tasks: int = setting(
        "Finished tasks that are kept; the oldest goes out for a new one.", 1_000_000, ge=1, le=1_000_000_000
    )

    # Retention
    task_retention_s: int = setting("Seconds that a finished task is kept.", 7 * _DAY_S, ge=1, le=10 * _YEAR_S)
    result_retention_s: int = setting("Seconds that a result is kept.", 3600, ge=1, le=10 * _YEAR_S)
    result_max_bytes: int = setting("The largest result that is kept, in bytes of JSON.", 8192, ge=0, le=64 * _MIB)
    idem_ttl_s: int = setting(
        "Seconds from the end of a task in which its idempotency key answers with it.", _DAY_S, ge=1, le=10 * _YEAR_S
    )

    # Log
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = setting("What is logged at least.", "INFO")
    log_json: bool = setting("Log lines as JSON.", False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then `.env`; the last two without what is not meant for dtq."""
        env_file = dotenv_settings.env_file if isinstance(dotenv_settings, DotEnvSettingsSource) else None
        return init_settings, Environment(settings_cls), DotEnv(settings_cls, env_file=env_file)

    @field_validator("redis_url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        scheme, separator, rest = url.partition("://")
        if url and not (separator and scheme in _SCHEMES and (rest or scheme == "memory")):
            raise ValueError
        return url

    @field_validator("directory")
    @classmethod
    def _no_misspelt_one(cls, directory: Path) -> Path:
        if not directory.is_dir():  # made silently, it would be a second, empty dtq
            raise ValueError
        return directory

    @field_validator("namespace")
    @classmethod
    def _usable_namespace(cls, namespace: str, info: Any) -> str:
        Keys(namespace)
        cluster = info.data.get("redis_url", "").partition("://")[0].endswith("+cluster")
        return f"{{{namespace}}}" if cluster and not namespace.startswith("{") else namespace

    @field_validator("tasks")
    @classmethod
    def _module_names(cls, text: str) -> str:
        text = re.sub(r"\s*,\s*", ",", text).strip(", \t")
        if text and not _MODULES.fullmatch(text):
            raise ValueError
        return text

    @field_validator("allowed_hosts")
    @classmethod
    def _host_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_HOST.fullmatch(host) for host in hosts):
            raise ValueError
        return tuple(host.lower() for host in hosts)

    @field_validator("redact")
    @classmethod
    def _none_is_nothing(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        return () if words == ("none",) else words

    @field_validator("queues", "allowed_hosts", "redact", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return tuple(part.strip() for part in given.split(",") if part.strip()) if isinstance(given, str) else given

    @field_validator("queues")
    @classmethod
    def _queue_names(cls, queues: tuple[str, ...]) -> tuple[str, ...]:
        if not queues or not all(_QUEUE.fullmatch(queue) for queue in queues):
            raise ValueError
        return tuple(dict.fromkeys(queues))

    @field_validator("worker_id")
    @classmethod
    def _usable_worker_id(cls, worker_id: str) -> str:
        if not _WORKER_ID.fullmatch(worker_id):
            raise ValueError
        return worker_id

    @field_validator("prefetch", mode="before")
    @classmethod
    def _auto(cls, given: Any) -> Any:
        return None if isinstance(given, str) and given.strip().lower() == "auto" else given

    @field_validator("log_level", "serve", "protect", mode="before")
    @classmethod
    def _in_any_case(cls, given: Any, info: Any) -> Any:
        if not isinstance(given, str):
            return given
        return given.strip().upper() if info.field_name == "log_level" else given.strip().lower()

    @model_validator(mode="after")
    def _together(self) -> Self:
        """Check what no value shows by itself."""
        faults = []
        if self.image and not self.redis_url:
            faults.append(
                "DTQ_REDIS_URL is not set: in a container it must name a server, for example redis://redis:6379/0"
            )
        if self.redis_url.startswith("memory:") and self.worker_processes > 1:
            faults.append(
                f"DTQ_WORKER_PROCESSES={self.worker_processes} cannot go with DTQ_REDIS_URL={self.safe_redis_url}: "
                "memory:// lives in one process"
            )
        if self.redis_url.startswith("memory:") and self.durable_writes:
            faults.append("DTQ_DURABLE_WRITES=true cannot go with DTQ_REDIS_URL=memory://: nothing of it is on a disk")
        third = self.visibility_timeout_s / 3
        if self.heartbeat_interval_s >= third:
            faults.append(
                f"DTQ_HEARTBEAT_INTERVAL_S={self.heartbeat_interval_s:g} is too long for "
                f"DTQ_VISIBILITY_TIMEOUT_S={self.visibility_timeout_s:g}; allowed: below a third of it, {third:g}"
            )
        if self.retry_max_delay < self.retry_base_delay:
            faults.append(
                f"DTQ_RETRY_MAX_DELAY={self.retry_max_delay:g} is below DTQ_RETRY_BASE_DELAY="
                f"{self.retry_base_delay:g}; allowed: not below it"
            )
        if self.max_websockets >= self.web_threads:
            faults.append(
                f"DTQ_MAX_WEBSOCKETS={self.max_websockets} leaves no thread of DTQ_WEB_THREADS={self.web_threads} to "
                "answer requests; allowed: less than that"
            )
        if self.protect != "destructive" and not (self.api_key or self.api_keys_file):
            faults.append(f"DTQ_PROTECT={self.protect} needs a key: set DTQ_API_KEY or DTQ_API_KEYS_FILE")
        if faults:
            raise ValueError("\n".join(faults))
        return self

    @property
    def backoff(self) -> Backoff:
        """How long a task waits between attempts."""
        return Backoff(base_s=self.retry_base_delay, max_s=self.retry_max_delay, jitter=self.retry_jitter)

    @property
    def on_loopback(self) -> bool:
        """Whether the web server listens for programs of this machine only."""
        host = self.api_host.strip("[]").lower()
        return host in ("localhost", "::1") or host.startswith("127.")

    @property
    def safe_redis_url(self) -> str:
        """The URL with `***` for its passwords; empty for the private server."""
        return hide_passwords(self.redis_url)

    def as_shown(self) -> dict[str, str]:
        """Return the variables with their values as text, without secrets and passwords: safe to print."""
        return {variable(name): _safe(name, getattr(self, name)) for name in type(self).model_fields}


def load_settings(env_file: str | Path | None = ".env", **overrides: Any) -> Settings:
    """Read, check and freeze the settings: `overrides` go before the environment, the environment before `env_file`.

    env_file: of lines NAME=value; may be missing; None: no file.
    overrides: by field name, such as `worker_concurrency=8`; None counts as not given (so a command line can pass what
        it has). Values may be text, as in the environment.
    Raises ConfigurationError with a line for each wrong variable: its name, its value, what is allowed.
    Logs a warning about DTQ_ names that are no settings.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        warn_about_names(env_file, [variable(name) for name in Settings.model_fields])
        return Settings(**{"_env_file": env_file, **given})
    except ValidationError as error:
        fault = "\n".join(_faults(error))
    except (OSError, UnicodeDecodeError) as error:
        fault = f"{env_file} cannot be read: {error}"
    # Out here, so that it has no context: the library's error holds the values, passwords among them.
    raise ConfigurationError(fault)


def _faults(error: ValidationError) -> list[str]:
    """Return a line for each wrong variable."""
    lines: dict[str, None] = {}
    known = Settings.model_fields
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else ""
        if fault["type"] == "default_factory_not_called":  # its reason has a line of its own
            continue
        if not name:
            lines.update(dict.fromkeys(str(fault["ctx"]["error"]).split("\n")))
        elif name not in known:
            lines[f"{name!r} is no setting{nearest(name, known)}"] = None
        else:
            value = _safe(name, fault["input"])
            lines[f"{variable(name)}={value} cannot be used; allowed: {allowed(known[name])}"] = None
    return list(lines)


def _safe(name: str, value: Any) -> str:
    if name in _SECRETS:
        return "(not shown)" if value else ""
    if value is None:  # only of prefetch
        return "auto"
    return shown(hide_passwords(str(value)) if name == "redis_url" else value)
