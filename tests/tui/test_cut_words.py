"""No tab cuts a word without an ellipsis, at the sizes that terminals have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from cs336_tui.events.events import Event
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.widgets.lines import Line, Lines
from tests.samples import lanes_session
from tests.tui.test_snapshots import SIZES, judged
from tests.tui.watched import demo, in_the_middle, log_of, screen_text, until

ROOMY = (300, 90)
"""A terminal in which nothing is cut."""


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


@pytest.mark.parametrize("session", ["the middle", "lanes"])
async def test_no_tab_cuts_a_word(session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = {
        "the middle": lambda: [*demo(in_the_middle)],
        "lanes": lambda: lanes_session(ranks=2, set_aside=3, cells=24),
    }[session]()
    unmarked: list[str] = []
    paint = Lines.paint

    def watched(pane: Lines, lines: Iterable[Line]) -> None:
        """Paint, and keep each line that is cut at the pane's edge without a sign."""
        meant = list(lines)
        paint(pane, meant)
        shown = pane.text.splitlines()
        for place, row in enumerate(shown):
            whole_row = "".join(span.text for span in meant[place]).rstrip()
            if row != whole_row and not row.endswith("…") and pane.content_size.width:
                unmarked.append(f"{pane.id}: {whole_row} -> {row}")

    monkeypatch.setattr(Lines, "paint", watched)
    app = Cs336App(replay=log_of(events, tmp_path), speed=0)
    whole: set[str] = set()
    seen: dict[tuple[str, str], str] = {}
    async with app.run_test(size=ROOMY) as pilot:
        await until(pilot, "at its end")
        for name, size in {"roomy": ROOMY, **SIZES}.items():
            await pilot.resize_terminal(*size)
            app.clear_notifications()
            for tab in TABS.values():
                await pilot.press(tab.key)
                await judged(pilot)
                seen[name, tab.id] = screen_text(app)
                whole |= words_of(seen[name, tab.id]) if name == "roomy" else set()
    cut = {where: found for where, text in seen.items() if (found := cut_words(text, whole))}
    assert cut == {}
    assert unmarked == []


def test_a_word_is_cut_where_it_only_begins() -> None:
    whole = words_of("forward  backward  size  forward+backward")
    assert cut_words("forw  size", whole) in ({"forw": "forward"}, {"forw": "forward+backward"})
    assert cut_words("forw…  size  forward", whole) == {}
    assert cut_words("forward+back  siz", whole) == {"forward+back": "forward+backward"}
