"""What a pane on a screen of its own asks for."""

from __future__ import annotations

from typing import Any

from cs336_tui.tui.requests import Requests

Asked = list[tuple[str, tuple[Any, ...]]]
"""Names of requests, each with its arguments, in the order in which they came."""


def recording(asked: Asked) -> Requests:
    """Requests that are kept in `asked`."""

    def keep(name: str) -> Any:
        return lambda *arguments: asked.append((name, arguments))

    return Requests(**{name: keep(name) for name in Requests.__struct_fields__})
