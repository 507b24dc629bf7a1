"""Where settings come from: the environment and `.env`, and what stands there that is none of ours."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource

from dtq.fields import PREFIX, shown, variable

log = logging.getLogger(__name__)

_MAX_WARNINGS = 20
# What Kubernetes sets in every container for a service named dtq, dtq-api, dtq-redis ... (enableServiceLinks):
# DTQ_API_SERVICE_HOST, DTQ_API_SERVICE_PORT, DTQ_API_SERVICE_PORT_HTTP, DTQ_API_PORT=tcp://10.0.0.1:8000,
# DTQ_API_PORT_8000_TCP=tcp://10.0.0.1:8000, DTQ_API_PORT_8000_TCP_PROTO, _PORT and _ADDR.
_SERVICE_NAME = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_SERVICE_VALUE = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)
_SECRET_OPTION = re.compile(r"([?&;][^=&#]*(?:pass|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE)


def is_service_variable(name: str, value: str) -> bool:
    """Whether a variable tells of a Kubernetes service and not of a setting."""
    return bool(_SERVICE_NAME.search(name)) or (name.endswith("PORT") and bool(_SERVICE_VALUE.match(value)))


class Environment(EnvSettingsSource):
    """The environment without what Kubernetes put there about services of the same names."""

    def __call__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__call__().items() if _is_meant(name, value)}


class DotEnv(DotEnvSettingsSource):
    """The file `.env`, which may hold variables of other programs too."""

    def __call__(self) -> dict[str, Any]:
        known = self.settings_cls.model_fields
        return {name: value for name, value in super().__call__().items() if name in known and _is_meant(name, value)}


def _is_meant(name: str, value: Any) -> bool:
    return not is_service_variable(variable(name), str(value))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` with the known name that is most like `name`, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {found[0]}?" if found else ""


def hide_passwords(url: str) -> str:
    """Return a URL with `***` for each password in it, whatever else is wrong with it."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    credentials, at, place = rest.rpartition("@")
    if at and not separator:
        rest = f"***@{place}"
    elif at and ":" in credentials:
        rest = f"{credentials.partition(':')[0]}:***@{place}"
    return scheme + separator + _SECRET_OPTION.sub(r"\1***", rest)


def warn_about_names(env_file: str | Path | None, known: Iterable[str]) -> None:
    """Log a warning for each DTQ_ name that is no setting, and one for all that Kubernetes has set.

    env_file: the `.env` that was read, if any; it is looked at too. known: the variables of the settings.
    """
    variables = {**_from_file(env_file), **os.environ}
    ours = {name: value for name, value in variables.items() if name.upper().startswith(PREFIX)}
    known = frozenset(known)
    services = sorted(name for name, value in ours.items() if is_service_variable(name, value))
    if services:
        log.warning(
            "ignored what Kubernetes says about services: %s (enableServiceLinks: false in the pod's spec ends it)",
            shown(services),
        )
    unknown = sorted(name for name in ours if name.upper() not in known and name not in services)
    for name in unknown[:_MAX_WARNINGS]:
        log.warning("%s is no setting of dtq and is ignored%s", shown(name), nearest(name.upper(), known))


def _from_file(env_file: str | Path | None) -> dict[str, str]:
    if env_file is None or not Path(env_file).expanduser().is_file():
        return {}
    from dotenv import dotenv_values  # what pydantic-settings reads it with

    values = dotenv_values(Path(env_file).expanduser(), encoding="utf-8")
    return {name: value or "" for name, value in values.items()}
