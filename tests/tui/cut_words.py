"""Words that a screen shows in part without saying so."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"[A-Za-z][A-Za-z_+-]*[A-Za-z]")
_SHORTEST = 4
"""Letters from which a beginning of a word is taken for a cut one."""


def words_of(screen: str) -> set[str]:
    """The words of a screen that are whole: none that an ellipsis ends."""
    return {found.group() for found in _WORD.finditer(screen) if not _is_marked(screen, found.end())}


def cut_words(screen: str, whole: Iterable[str]) -> dict[str, str]:
    """Each word of the screen that is only the beginning of a `whole` one, and has no ellipsis behind it; with the word
    that it begins. Words that stand by themselves somewhere are none of these."""
    known = {*whole}
    beginnings = {word[:length]: word for word in known for length in range(_SHORTEST, len(word))}
    return {word: beginnings[word] for word in words_of(screen) - known if word in beginnings}


def _is_marked(screen: str, end: int) -> bool:
    return screen[end : end + 1] == "…"
