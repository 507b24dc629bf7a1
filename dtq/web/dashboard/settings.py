"""What is in force: how things are shown to you, the settings, the server behind it all."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dtq import __version__
from dtq.serverinfo import server_info
from dtq.settings import Settings
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads
from dtq.web.dashboard.viewer import zone_names


@page("/settings", area="settings")
def index(reads: Reads, asked: Asked) -> Context:
    """Show what is in force."""
    client = reads.client
    server = server_info(client.server, "server")
    return {
        "title": "Settings",
        "version": __version__,
        "zones": zone_names(),
        "settings": described(client.settings),
        "server": {
            "Kind": "embedded" if client.embedded else client.server.kind,
            "Address": client.server.safe_url,
            "Program": _program(server),
            "Up": server.get("uptime_in_seconds", ""),
            "Memory": _memory(reads.memory),
            "When it is full": reads.memory.get("maxmemory_policy", "unknown"),
            "Leader": client.queries.leader() or "none",
        },
    }


def described(settings: Settings) -> list[tuple[str, str, str, bool]]:
    """Return (variable, value, what it is, whether it was set) of each setting; secrets are not shown."""
    told = []
    for (name, field), (variable, value) in zip(
        type(settings).model_fields.items(), settings.as_shown().items(), strict=True
    ):
        told.append((variable, value, re.sub(r"`", "", field.description or ""), name in settings.model_fields_set))
    return told


def _program(server: Mapping[str, str]) -> str:
    for name in ("valkey", "redis"):
        if version := server.get(f"{name}_version"):
            return f"{name} {version}"
    return "unknown"


def _memory(memory: Mapping[str, str]) -> str:
    used, most = memory.get("used_memory_human", "unknown"), memory.get("maxmemory_human", "")
    return f"{used} of {most}" if memory.get("maxmemory", "0") != "0" else f"{used}, no limit"
