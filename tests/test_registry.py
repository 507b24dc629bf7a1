"""Tests of `@task` and the registry."""

from __future__ import annotations

import sys

import pytest
from pydantic import BaseModel

from dtq import registry as registry_module
from dtq.errors import ConfigurationError
from dtq.registry import Handler, Registry, task


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str, name: str = "tasks_of_a_test") -> str:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return make


def test_a_decorated_function_is_known_by_its_name_and_still_callable(registry):
    @task("mail.send", max_attempts=3, timeout_ms=500, retry_on=OSError, registry=registry)
    def send(payload, ctx):
        """Send it."""
        return payload, ctx

    assert send({"to": 1}, None) == ({"to": 1}, None)
    assert send.name == "mail.send"
    assert send.__doc__ == "Send it."
    handler = registry.get("mail.send")
    assert (handler.max_attempts, handler.timeout_ms, handler.retry_on) == (3, 500, (OSError,))
    assert registry.get("mail.other") is None
    assert registry.names() == ("mail.send",)


@pytest.mark.parametrize("name", ["", "a b", "é", "a/b", "x" * 129, "a\x00", None])
def test_a_name_that_no_task_type_can_have_is_refused(registry, name):
    with pytest.raises(ConfigurationError, match="task type"):
        task(name, registry=registry)(lambda payload, ctx: None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": 3_600_001}, "timeout_ms"),
        ({"isolation": "vm"}, "isolation"),
        ({"retry_on": ("OSError",)}, "retry_on"),
        ({"schema": "object"}, "schema"),
        ({"schema": {"default": float("nan")}}, "schema"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_at_the_decorator(registry, options, words):
    with pytest.raises(ConfigurationError, match=words):
        task("t", registry=registry, **options)(lambda payload, ctx: None)
    assert registry.names() == ()


def test_only_plain_functions_of_payload_and_context_are_handlers(registry):
    async def later(payload, ctx):
        return None

    def many(payload, ctx):
        yield

    for fn in (later, many, lambda payload: None, lambda a, b, c: None, "no function"):
        with pytest.raises(ConfigurationError):
            registry.register(Handler(name="t", fn=fn))
    registry.register(Handler(name="t", fn=lambda payload, ctx, more=1: None))
    registry.register(Handler(name="u", fn=lambda *args: None))


def test_a_schema_may_be_a_pydantic_model(registry):
    class Mail(BaseModel):
        to: str

    task("mail", schema=Mail, registry=registry)(lambda payload, ctx: None)
    assert registry.get("mail").schema["properties"]["to"]["type"] == "string"


def test_two_functions_with_one_name_are_refused_and_the_same_one_again_is_not(registry):
    def first(payload, ctx):
        return 1

    def second(payload, ctx):
        return 2

    task("t", registry=registry)(first)
    task("t", registry=registry)(first)
    with pytest.raises(ConfigurationError, match=r"registered twice.*first.*second"):
        task("t", registry=registry)(second)
    assert registry.get("t").fn is first


def test_loading_takes_up_what_modules_define(registry, module):
    module("from dtq import task\n@task('tr.one')\ndef one(payload, ctx): ...\n", "tr_first")
    module("from dtq import task\n@task('tr.two')\ndef two(payload, ctx): ...\n", "tr_second")
    registry.load("tr_first, tr_second")
    assert registry.names() == ("tr.one", "tr.two")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nothing_of_that_name", "cannot be imported: No module named 'nothing_of_that_name'"),
        ("1/0", "ZeroDivisionError"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("from dtq import task\n@task('a b')\ndef f(payload, ctx): ...", "task type"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_named_with_the_reason(registry, module, source, words):
    name = module(source)
    with pytest.raises(ConfigurationError) as caught:
        registry.load(name)
    assert name in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("modules", ["", " , ", "no_such_module_here", "examples/tasks", "os.system('x')", "../tasks"])
def test_a_list_of_modules_that_names_none_is_refused(registry, modules):
    with pytest.raises(ConfigurationError, match="DTQ_TASKS"):
        registry.load(modules)


def test_submitting_a_task_function_uses_the_client_that_was_set(registry):
    class Client:
        def submit(self, task_type, payload=None, **options):
            return (task_type, payload, options)

    @task("t", registry=registry)
    def fn(payload, ctx):
        return None

    made = Client()
    registry_module.use_client(made)
    try:
        assert fn.submit({"a": 1}, priority=9) == ("t", {"a": 1}, {"priority": 9})
    finally:
        assert registry_module.use_client() is made


def test_a_client_can_be_made_at_its_first_use(registry):
    class Client:
        def submit(self, task_type, payload=None, **options):
            return task_type

    made = []
    registry_module.use_client(make=lambda: made.append(Client()) or made[0])
    try:
        assert made == []
        fn = task("t", registry=registry)(lambda payload, ctx: None)
        assert [fn.submit(), fn.submit()] == ["t", "t"]
    finally:
        assert registry_module.use_client() is made[0]
    assert len(made) == 1
