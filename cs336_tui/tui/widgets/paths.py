"""Completion of a path that is typed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from textual.suggester import Suggester


class PathSuggester(Suggester):
    """Completes the last word of a text, if it has a slash, to the first file or folder that it is the beginning of."""

    async def get_suggestion(self, value: str) -> str | None:
        ending = await asyncio.to_thread(_ending, re.split(r"[\s,=]", value)[-1])
        return value + ending if ending else None


def _ending(word: str) -> str:
    """The rest of the path, with a slash behind a folder; empty if there is none."""
    folder, slash, name = word.rpartition("/")
    try:
        paths = sorted(Path(folder + slash).expanduser().iterdir()) if slash else []
    except (OSError, RuntimeError):  # no such folder, or no such user
        return ""
    found = (path for path in paths if path.name.startswith(name) and (name or path.name[0] != "."))
    return next((f"{path.name}{'/' * path.is_dir()}"[len(name) :] for path in found), "")
