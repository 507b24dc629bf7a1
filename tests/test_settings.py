"""Settings: where they come from, what is refused and how that is told, what never shows (contract, section 15)."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dtq import settings_docs
from dtq.environment import hide_passwords
from dtq.errors import ConfigurationError
from dtq.fields import PREFIX, allowed, shown, variable
from dtq.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parent.parent

DEFAULTS: dict[str, Any] = {
    "DTQ_REDIS_URL": "",
    "DTQ_NAMESPACE": "dtq",
    "DTQ_API_HOST": "127.0.0.1",
    "DTQ_API_PORT": 8000,
    "DTQ_WORKER_CONCURRENCY": 4,
    "DTQ_WORKER_PROCESSES": 1,
    "DTQ_WORKER_ID": "",
    "DTQ_WORKER_METRICS_PORT": 8001,
    "DTQ_TASKS": "examples.tasks",
    "DTQ_QUEUES": ("default",),
    "DTQ_PREFETCH": None,
    "DTQ_VISIBILITY_TIMEOUT_S": 30,
    "DTQ_HEARTBEAT_INTERVAL_S": 5,
    "DTQ_SECRET_KEY": "",
    "DTQ_MAX_QUEUE_DEPTH": 10_000,
    "DTQ_MAX_SCHEDULED": 100_000,
    "DTQ_MAX_PAYLOAD_BYTES": 262_144,
    "DTQ_TASK_TIMEOUT_MS": 30_000,
    "DTQ_MAX_ATTEMPTS": 10,
    "DTQ_RETRY_BASE_DELAY": 1.0,
    "DTQ_RETRY_MAX_DELAY": 60.0,
    "DTQ_RETRY_JITTER": 0.2,
    "DTQ_TASK_RETENTION_S": 604_800,
    "DTQ_RETENTION_MAX_TASKS": 1_000_000,
    "DTQ_RESULT_RETENTION_S": 3600,
    "DTQ_RESULT_MAX_BYTES": 8192,
    "DTQ_IDEM_TTL_S": 86_400,
    "DTQ_DRAIN_TIMEOUT_S": 25,
    "DTQ_DLQ_ENABLED": True,
    "DTQ_DLQ_MAXLEN": 10_000,
    "DTQ_API_KEY": "",
    "DTQ_LOG_LEVEL": "INFO",
    "DTQ_LOG_JSON": False,
    "DTQ_MAX_CRASHES": 3,
    "DTQ_UNKNOWN_TYPE_GRACE_S": 60,
    "DTQ_MAX_QUEUES": 1000,
    "DTQ_EVENTS_MAXLEN": 10_000,
    "DTQ_REJECT_UNKNOWN_TYPES": False,
    "DTQ_PROTECT": "destructive",
    "DTQ_DURABLE_WRITES": False,
    "DTQ_SERVE": "all",
    "DTQ_REDIS_SERVER": "",
    "DTQ_DIRECTORY": Path(),
    # Named by the contract without a default:
    "DTQ_TIMEOUT_GRACE_S": 5,
    "DTQ_MAX_ABANDONED_THREADS": 4,
    "DTQ_MAX_WEBSOCKETS": 24,
}


def refusal(**overrides: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**overrides)
    return str(caught.value).splitlines()


# --- where they come from ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_setting_of_the_contract_is_there_with_its_default(name: str) -> None:
    assert load_settings().model_dump()[name.removeprefix(PREFIX).lower()] == DEFAULTS[name]


def test_arguments_win_over_the_environment_and_the_environment_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("DTQ_API_PORT=1\nDTQ_MAX_QUEUES=1\nDTQ_MAX_CRASHES=1\n")
    monkeypatch.setenv("DTQ_API_PORT", "2")
    monkeypatch.setenv("DTQ_MAX_QUEUES", "2")
    settings = load_settings(api_port=3)
    assert (settings.api_port, settings.max_queues, settings.max_crashes) == (3, 2, 1)


def test_an_argument_of_none_counts_as_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTQ_WORKER_CONCURRENCY", "7")
    assert load_settings(worker_concurrency=None).worker_concurrency == 7


def test_an_empty_value_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("DTQ_MAX_CRASHES=\n")
    monkeypatch.setenv("DTQ_API_PORT", "")
    assert load_settings().api_port == 8000
    assert load_settings().max_crashes == 3


def test_no_file_is_read_when_none_is_asked_for() -> None:
    Path(".env").write_text("DTQ_API_PORT=1\n")
    assert load_settings(env_file=None).api_port == 8000


def test_a_file_may_hold_variables_of_other_programs() -> None:
    Path(".env").write_text("POSTGRES_PASSWORD=x\napi_port=1\nDTQ_API_PORT=2\n")
    assert load_settings().api_port == 2


def test_a_file_that_is_not_utf8_is_refused_with_its_name() -> None:
    Path(".env").write_bytes(b"DTQ_NAMESPACE=\xff\xfe\n")
    assert re.match(r"\.env cannot be read: .*utf-8", refusal()[0])


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_settings().api_port = 1


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("YES", True), ("1", True), ("false", False), ("no", False), ("0", False)]
)
def test_a_switch_may_be_said_in_several_words(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("DTQ_LOG_JSON", text)
    assert load_settings().log_json is value


def test_lists_are_separated_by_commas_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTQ_QUEUES", "mail, low ,mail,")
    monkeypatch.setenv("DTQ_TASKS", "shop.tasks , shop.more")
    assert load_settings().queues == ("mail", "low")
    assert load_settings().tasks == "shop.tasks,shop.more"
    assert load_settings(queues=("a", "b")).queues == ("a", "b")


def test_prefetch_is_auto_or_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(prefetch="12").prefetch == 12
    monkeypatch.setenv("DTQ_PREFETCH", "9")
    assert load_settings(prefetch="auto").prefetch is None


def test_words_may_be_written_in_any_case() -> None:
    settings = load_settings(log_level="debug", serve="ALL", protect="Writes", api_key="k")
    assert (settings.log_level, settings.serve, settings.protect) == ("DEBUG", "all", "writes")


def test_the_heartbeat_follows_a_short_lease() -> None:
    assert load_settings(visibility_timeout_s=2).heartbeat_interval_s == 0.5
    assert load_settings(visibility_timeout_s=300).heartbeat_interval_s == 5
    assert load_settings(visibility_timeout_s=300, heartbeat_interval_s=60).heartbeat_interval_s == 60


def test_websockets_leave_a_quarter_of_the_threads() -> None:
    assert load_settings(web_threads=8).max_websockets == 6
    assert load_settings(web_threads=1).max_websockets == 0


def test_on_a_cluster_the_namespace_becomes_a_hash_tag() -> None:
    cluster = "redis+cluster://node:6379"
    assert load_settings(redis_url=cluster).namespace == "{dtq}"
    assert load_settings(redis_url=cluster, namespace="{x}").namespace == "{x}"
    assert load_settings(namespace="x:y").namespace == "x:y"


def test_the_backoff_is_made_of_its_three_settings() -> None:
    backoff = load_settings(retry_base_delay=2, retry_max_delay=9, retry_jitter=0).backoff
    assert [backoff.delay_s(attempt, lambda: 0.5) for attempt in (1, 2, 3, 10_000)] == [2, 4, 8, 9]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://h",
        "rediss://u:p@h:1/2",
        "unix:///tmp/x.sock",
        "memory://",
        "redis+sentinel://a:1,b:2/main",
        "redis+cluster://a:1,b:2",
    ],
)
def test_the_url_forms_are_accepted(url: str) -> None:
    assert load_settings(redis_url=url).redis_url == url


# --- what is refused, and how that is told ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("API_PORT", "abc", "DTQ_API_PORT=abc cannot be used; allowed: a whole number from 0 to 65535"),
        ("API_PORT", "70000", "DTQ_API_PORT=70000 cannot be used; allowed: a whole number from 0 to 65535"),
        ("RETRY_JITTER", "nan", "DTQ_RETRY_JITTER=nan cannot be used; allowed: a number from 0 to 1"),
        ("DRAIN_TIMEOUT_S", "inf", "DTQ_DRAIN_TIMEOUT_S=inf cannot be used; allowed: a number from 0 to 86400"),
        ("LOG_JSON", "maybe", "DTQ_LOG_JSON=maybe cannot be used; allowed: true or false (also 1 or 0, yes or no)"),
        ("SERVE", "web", "DTQ_SERVE=web cannot be used; allowed: all, api, dashboard"),
        ("PREFETCH", "-1", "DTQ_PREFETCH=-1 cannot be used; allowed: auto, or a whole number from 0 to 1000"),
        ("API_HOST", "a b", "DTQ_API_HOST=a b cannot be used; allowed: a host name or an address"),
        ("TASKS", "a/b", "DTQ_TASKS=a/b cannot be used; allowed: names of Python modules, separated by commas"),
        ("DIRECTORY", "/nowhere/dtq", "DTQ_DIRECTORY=/nowhere/dtq cannot be used; allowed: a directory that exists"),
        ("WORKER_ID", "a b", "DTQ_WORKER_ID=a b cannot be used; allowed: 1 to 128 of A-Z a-z 0-9 _ . : -"),
    ],
)
def test_a_wrong_value_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str) -> None:
    monkeypatch.setenv(PREFIX + name, value)
    assert refusal() == [line]


@pytest.mark.parametrize("name", ["a b", "", "{dtq", "dtq}", "x" * 61, "a'b", "{a}:b"])
def test_a_namespace_that_would_break_keys_or_scripts_is_refused(name: str) -> None:
    assert refusal(namespace=name)[0].startswith("DTQ_NAMESPACE=")


@pytest.mark.parametrize("queues", ["A", "-a", "a b", "a:b", "x" * 65, ",", ("a", "ä")])
def test_a_queue_whose_name_cannot_be_one_is_refused(queues: Any) -> None:
    assert refusal(queues=queues)[0].startswith("DTQ_QUEUES=")


def test_a_value_of_another_type_is_refused_like_any_other() -> None:
    assert refusal(serve=5) == ["DTQ_SERVE=5 cannot be used; allowed: all, api, dashboard"]
    assert refusal(queues=5)[0].startswith("DTQ_QUEUES=5 cannot be used")


@pytest.mark.parametrize("url", ["localhost:6379", "http://h", "redis:h", "redis://", "unix://", "://h"])
def test_a_url_that_names_no_server_is_refused(url: str) -> None:
    (line,) = refusal(redis_url=url)
    assert line.startswith(f"DTQ_REDIS_URL={url} cannot be used; allowed: a URL that begins with redis://")


def test_each_wrong_variable_has_its_line_and_nothing_else_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTQ_VISIBILITY_TIMEOUT_S", "soon")
    monkeypatch.setenv("DTQ_WEB_THREADS", "0")
    assert [line.partition("=")[0] for line in refusal(max_queues=0)] == [
        "DTQ_WEB_THREADS",
        "DTQ_VISIBILITY_TIMEOUT_S",
        "DTQ_MAX_QUEUES",
    ]


def test_a_value_cannot_add_lines_to_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTQ_API_PORT", "1\nDTQ_API_KEY=fine\x1b[2J" + "x" * 5000)
    (line,) = refusal()
    assert line.startswith("DTQ_API_PORT=1\\nDTQ_API_KEY=fine\\x1b[2J")
    assert len(line) < 350


def test_an_argument_that_is_no_setting_is_refused_with_the_nearest_one() -> None:
    assert refusal(api_prot=1) == ["'api_prot' is no setting; did you mean api_port?"]
    assert refusal(zzz=1) == ["'zzz' is no setting"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"heartbeat_interval_s": 10}, "DTQ_HEARTBEAT_INTERVAL_S=10 is too long for DTQ_VISIBILITY_TIMEOUT_S=30"),
        ({"retry_max_delay": 0.5}, "DTQ_RETRY_MAX_DELAY=0.5 is below DTQ_RETRY_BASE_DELAY=1"),
        ({"web_threads": 8, "max_websockets": 8}, "DTQ_MAX_WEBSOCKETS=8 leaves no thread of DTQ_WEB_THREADS=8"),
        ({"protect": "all"}, "DTQ_PROTECT=all needs a key: set DTQ_API_KEY"),
        ({"image": True}, "DTQ_REDIS_URL is not set: in a container it must name a server"),
        ({"redis_url": "memory://", "worker_processes": 2}, "DTQ_WORKER_PROCESSES=2 cannot go with DTQ_REDIS_URL=mem"),
    ],
)
def test_values_that_do_not_go_together_are_refused(given: dict[str, Any], told: str) -> None:
    (line,) = refusal(**given)
    assert line.startswith(told)


def test_all_that_does_not_go_together_is_told_at_once() -> None:
    assert len(refusal(heartbeat_interval_s=10, retry_max_delay=0, image=True)) == 3


def test_in_the_image_a_named_server_is_accepted() -> None:
    assert load_settings(image=True, redis_url="redis://redis:6379/0").image


# --- names that are no settings ---------------------------------------------------------------------------------------


def test_an_unknown_name_is_a_warning_with_the_nearest_known_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DTQ_API_PROT", "1")
    Path(".env").write_text("DTQ_WHATEVER_IT_IS\n")
    load_settings()
    assert [record.getMessage() for record in caplog.records] == [
        "DTQ_API_PROT is no setting of dtq and is ignored; did you mean DTQ_API_PORT?",
        "DTQ_WHATEVER_IT_IS is no setting of dtq and is ignored",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_warnings_about_names_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        monkeypatch.setenv(f"DTQ_NOTHING_{number}", "1")
    load_settings()
    assert len(caplog.records) == 20


def test_the_misspelt_name_is_told_also_when_another_value_is_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DTQ_REDIS_ULR", "redis://h")
    refusal(image=True)
    assert "did you mean DTQ_REDIS_URL?" in caplog.text


def test_known_names_are_no_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DTQ_MAX_QUEUES", "5")
    load_settings()
    assert not caplog.records


def test_variables_of_kubernetes_services_are_ignored_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path(".env").write_text("DTQ_API_PORT=9000\n")
    for name, value in {
        "DTQ_API_PORT": "tcp://10.0.0.1:8000",
        "DTQ_WORKER_METRICS_PORT": "tcp://10.0.0.2:8001",
        "DTQ_API_SERVICE_HOST": "10.0.0.1",
        "DTQ_API_SERVICE_PORT": "8000",
        "DTQ_API_SERVICE_PORT_HTTP": "8000",
        "DTQ_API_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "DTQ_API_PORT_8000_TCP_PROTO": "tcp",
        "DTQ_API_PORT_8000_TCP_PORT": "8000",
        "DTQ_API_PORT_8000_TCP_ADDR": "10.0.0.1",
        "DTQ_PORT": "udp://10.0.0.3:53",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.api_port, settings.worker_metrics_port) == (9000, 8001)
    (record,) = caplog.records
    assert record.getMessage().startswith("ignored what Kubernetes says about services: DTQ_API_PORT,DTQ_API_PORT_8000")


# --- secrets ----------------------------------------------------------------------------------------------------------

PASSWORDS = ("pw/ä?@x", "pw%2F%C3%A4%3F%40x")


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(
    ("form", "safe"),
    [
        ("redis://user:{}@host:1/0", "redis://user:***@host:1/0"),
        ("redis://:{}@host", "redis://:***@host"),
        ("redis+sentinel://u:{}@a:1,b:2/main", "redis+sentinel://u:***@a:1,b:2/main"),
        ("{}@host:6379", "***@host:6379"),
        ("user:{}@host:6379", "***@host:6379"),
        ("http://user:{}@host", "http://user:***@host"),
    ],
)
def test_the_password_of_a_url_never_shows(password: str, form: str, safe: str) -> None:
    url = form.format(password)
    assert hide_passwords(url) == safe
    if url.startswith("redis"):
        settings = load_settings(redis_url=url)
        told = f"{settings!r} {settings} {settings.as_shown()} {settings.safe_redis_url}"
        assert settings.safe_redis_url == safe
    else:
        told = "\n".join(refusal(redis_url=url))
    assert not any(secret in told for secret in PASSWORDS)


def test_a_password_among_the_options_of_a_url_never_shows() -> None:
    url = "unix:///s?db=1&password=a@b&ssl_password=c#d"
    assert hide_passwords(url) == "unix:///s?db=1&password=***&ssl_password=***#d"
    assert hide_passwords("redis://host:1/0") == "redis://host:1/0"
    assert hide_passwords("redis://user@host:1") == "redis://user@host:1"
    assert hide_passwords("") == ""


def test_a_wrong_secret_is_refused_without_being_told() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(secret_key="geheim", api_key="ge heim")
    assert str(caught.value).splitlines() == [
        "DTQ_API_KEY=(not shown) cannot be used; allowed: 1 to 256 printable ASCII characters without spaces",
        "DTQ_SECRET_KEY=(not shown) cannot be used; allowed: at least 16 characters",
    ]
    assert caught.value.__context__ is None


def test_secrets_do_not_show_among_the_values() -> None:
    settings = load_settings(secret_key="geheim" * 4, api_key="geheim")
    told = settings.as_shown()
    assert (told["DTQ_SECRET_KEY"], told["DTQ_API_KEY"]) == ("(not shown)", "(not shown)")
    assert "geheim" not in f"{settings!r} {settings} {told}"


def test_values_are_shown_as_their_variables_would_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(queues="a,b", retry_jitter=0.25, log_json=True, redis_url="redis://h")
    told = settings.as_shown()
    assert told["DTQ_API_KEY"] == ""
    assert told["DTQ_TASK_RETENTION_S"] == "604800"
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


# --- the documents ----------------------------------------------------------------------------------------------------


def test_every_setting_has_a_help_text_and_says_what_is_allowed() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert allowed(field), name


def test_the_documents_are_up_to_date() -> None:
    """Run `make docs` when this fails."""
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == settings_docs.as_markdown()
    assert (ROOT / ".env.example").read_text(encoding="utf-8") == settings_docs.as_env_example()


def test_both_documents_name_every_setting_and_the_groups_are_real() -> None:
    for name in Settings.model_fields:
        assert f"| `{variable(name)}` |" in settings_docs.as_markdown()
        assert f"\n#{variable(name)}=" in settings_docs.as_env_example()
    assert set(settings_docs.GROUPS) <= set(Settings.model_fields)


def test_the_example_file_taken_as_it_is_changes_nothing(tmp_path: Path) -> None:
    example = tmp_path / "example.env"
    example.write_text(re.sub(r"(?m)^#(?=DTQ_)", "", settings_docs.as_env_example()), encoding="utf-8")
    assert load_settings(env_file=example) == load_settings()


def test_the_documents_are_written_where_they_belong(tmp_path: Path) -> None:
    settings_docs.main(tmp_path)
    assert (tmp_path / "docs" / "settings.md").read_text(encoding="utf-8") == settings_docs.as_markdown()
    assert (tmp_path / ".env.example").read_text(encoding="utf-8") == settings_docs.as_env_example()


def test_a_fraction_is_shown_in_full() -> None:
    assert [shown(value) for value in (0.25, 1e-05, 315_360_000.0, True, ("a", "b"))] == [
        "0.25",
        "1e-05",
        "315360000",
        "true",
        "a,b",
    ]


def test_reading_settings_loads_neither_redis_nor_flask() -> None:
    code = (
        "import sys, dtq.settings\n"
        "dtq.settings.load_settings()\n"
        "print(sorted({'redis', 'flask', 'jinja2', 'gunicorn', 'jsonschema'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "[]"
