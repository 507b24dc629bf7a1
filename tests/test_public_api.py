"""What `import dtq` gives, and what it does not load."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

import dtq

ROOT = Path(__file__).resolve().parent.parent


def modules_after(code: str) -> set[str]:
    """The names of the modules that are loaded once a fresh interpreter has run `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    return set(done.stdout.split())


def test_importing_dtq_loads_nothing_else() -> None:
    loaded = modules_after("import dtq")
    assert {name for name in loaded if name.startswith("dtq")} == {"dtq"}
    assert not loaded & {"flask", "werkzeug", "redis", "pydantic", "jsonschema"}


def test_registering_handlers_and_submitting_need_no_flask() -> None:
    loaded = modules_after("from dtq import task, Client, TaskContext, idempotent_operation")
    assert not loaded & {"flask", "werkzeug", "jinja2", "gunicorn"}
    assert not any(name.startswith("dtq.web") for name in loaded)


@pytest.mark.parametrize("name", dtq.__all__)
def test_every_public_name_is_there_and_the_same_each_time(name: str) -> None:
    assert getattr(dtq, name) is getattr(dtq, name)
    assert name in dir(dtq)


def test_each_public_name_lives_where_it_is_said_to_live() -> None:
    assert dtq.RetryableError is dtq.errors.RetryableError
    assert dtq.__getattr__("errors") is dtq.errors  # asked only where nothing has imported it yet
    assert dtq.TaskTimeout.__module__ == "dtq.errors"
    assert dtq.task.__module__ == "dtq.registry"
    assert dtq.Client.__module__ == "dtq.client"


def test_the_names_for_type_checkers_are_the_names_at_run_time() -> None:
    source = Path(dtq.__file__).read_text(encoding="utf-8")
    typed = {line.split(" as ")[-1].strip() for line in source.splitlines() if line.startswith("    from dtq")}
    assert typed == set(dtq.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dtq' has no attribute 'nothing'"):
        _ = dtq.nothing  # type: ignore[attr-defined]


def test_the_package_says_that_it_is_typed_and_which_version_it_is() -> None:
    assert importlib.resources.files("dtq").joinpath("py.typed").is_file()
    assert dtq.__version__.count(".") == 2
