"""Who looks, and how they want to see times and colours: kept in cookies, so that pages are right without a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Literal, TypedDict
from zoneinfo import ZoneInfo, available_timezones

Theme = Literal["auto", "light", "dark"]
YEAR_S = 365 * 86_400
COOKIES = {"time": "dtq_time", "zone": "dtq_zone", "theme": "dtq_theme"}
_THEMES: Mapping[str, Theme] = {"auto": "auto", "light": "light", "dark": "dark"}
_UTC = ZoneInfo("UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """What of the person in front of the page changes what the page shows. Equal viewers see the same."""

    name: str = ""
    """Whose key it is; empty where none is asked for."""
    may_write: bool = True
    may_destroy: bool = True
    absolute: bool = False
    """Times as clock times, not as "2 m ago"."""
    zone_name: str = "UTC"
    theme: Theme = "auto"

    @property
    def zone(self) -> ZoneInfo:
        """The zone of clock times."""
        return zone(self.zone_name) or _UTC

    def zone_word(self, local: datetime) -> str:
        """Return what the zone is called at that time: CEST, UTC, +04."""
        return local.tzname() or self.zone_name


class Preferences(TypedDict):
    """How things are to be shown: fields of a Viewer."""

    absolute: bool
    zone_name: str
    theme: Theme


def preferences(cookies: Mapping[str, str]) -> Preferences:
    """Return what the cookies say; what they cannot say counts as not said."""
    name = cookies.get(COOKIES["zone"], "UTC")
    return {
        "absolute": cookies.get(COOKIES["time"]) == "absolute",
        "zone_name": name if zone(name) else "UTC",
        "theme": _THEMES.get(cookies.get(COOKIES["theme"], ""), "auto"),
    }


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo | None:
    """Return a time zone by its IANA name; None for what is none, or what this machine does not know."""
    try:
        return ZoneInfo(name)
    except (OSError, LookupError, ValueError):  # a directory, none there, a path that leads elsewhere
        return None


@lru_cache(maxsize=1)
def zone_names() -> tuple[str, ...]:
    """Return the names to choose from."""
    return tuple(sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/")))
