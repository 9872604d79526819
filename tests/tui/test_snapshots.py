"""Snapshots of the whole screen at several sizes, from a replayed log, independent of clock and machine; and no tab
cuts a word without an ellipsis."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from cs336_tui.events.events import Event
from cs336_tui.events.peaks import PeakCache, peak_key
from cs336_tui.session.state import fold
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.widgets.lines import Line, Lines
from tests.made_peaks import made_peak
from tests.made_race import race_events
from tests.samples import jobs_session, lanes_session, mixed_session, ranks_sampled, ranks_session
from tests.tui.kept_sessions import MIXED, STOPPED, keep, stopped_session
from tests.tui.watched import demo, in_the_middle, nothing_in_background, on_screen, replaying, screen_text, until

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}


def after(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Play the log to its end, then press the keys."""

    async def prepare(pilot: Pilot[None]) -> None:
        await until(pilot, "at its end")
        await judged(pilot)
        pilot.app.clear_notifications()  # they go by themselves, at a time of their own
        await pilot.pause()
        await pilot.press(*keys)
        pilot.app.clear_notifications()
        await pilot.pause()
        await judged(pilot)

    return prepare


async def judged(pilot: Pilot[None]) -> None:
    """Wait until every verdict in sight is known, and shown."""
    app = pilot.app
    assert isinstance(app, Cs336App)
    for _ in range(2):  # what is found may bring more rows into sight
        await until(pilot, lambda _: app.judging.is_settled and nothing_in_background())
        await pilot.pause()  # what a thread found is taken in


SESSIONS: dict[str, Callable[[], Iterable[Event]]] = {
    "middle": lambda: demo(in_the_middle),
    "end": demo,
    "eight-ranks": lambda: [*ranks_session(8, is_over=False), ranks_sampled(8, on_gpus=False)],
    "eight-gpus": lambda: [*ranks_session(8, is_over=False), ranks_sampled(8, on_gpus=True)],
    "lanes": lambda: lanes_session(ranks=2, set_aside=3, cells=24),
    "slurm": jobs_session,
}
SCREENS = [
    *(("middle", size, keys) for size in SIZES for keys in ("", "6", "8")),
    *(("middle", "80x24", keys) for keys in ("1", "4")),
    *(("end", "120x40", keys) for keys in ("", "4 home enter", "question_mark")),
    *(("eight-ranks", "80x24", ""), ("eight-gpus", "120x40", ""), ("slurm", "120x40", "6")),
    *(("lanes", "80x24", ""), ("lanes", "80x24", "6"), ("lanes", "120x40", "6")),
]
"""Sessions, sizes, and the keys that are pressed at the session's end."""


@pytest.mark.parametrize(("session", "size", "keys"), SCREENS)
def test_a_session(session: str, size: str, keys: str, snap_compare: Any, tmp_path: Path) -> None:
    app = replaying(SESSIONS[session](), tmp_path)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=after(*keys.split()))


@pytest.mark.parametrize("is_over", [False, True], ids=["under-way", "over"])
@pytest.mark.parametrize("size", ["80x24", "120x40"])
def test_a_race(size: str, is_over: bool, snap_compare: Any, tmp_path: Path) -> None:
    lost = {3: "RuntimeError: the optimizer's kernel needs a newer driver"}
    events = race_events(lost=lost, ended="the budget ended" if is_over else "", running=4)
    app = replaying(events, tmp_path)

    async def prepare(pilot: Pilot[None]) -> None:
        await until(pilot, "log axis")
        await after()(pilot)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=prepare)


def test_a_light_theme(snap_compare: Any, tmp_path: Path) -> None:
    app = replaying(demo(in_the_middle), tmp_path, theme="cs336-light")
    assert snap_compare(app, terminal_size=SIZES["120x40"], run_before=after())


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions say when they began in local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("size", SIZES)
def test_export(size: str, snap_compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    app = replaying(demo(), tmp_path)
    app.export_folder = Path("/home/me/write-up")
    keys = ("e", "down", "right") if size == "80x24" else ("e", "right")

    async def prepare(pilot: Pilot[None]) -> None:
        await after(*keys)(pilot)
        await until(pilot, "% needs")

    assert snap_compare(app, terminal_size=SIZES[size], run_before=prepare)


@pytest.mark.parametrize("size", SIZES)
def test_the_roofline(size: str, snap_compare: Any, tmp_path: Path) -> None:
    environment = fold(demo()).environment
    peaks = PeakCache(tmp_path / "peaks")
    for precision, flops_per_s in (("fp32", 48.2e12), ("bf16-mixed", 702e12)):
        peaks.put(peak_key(environment, "cuda:0", precision), made_peak(flops_per_s, 2.61e12, precision))
    app = replaying(demo(), tmp_path, peaks=peaks)

    async def prepare(pilot: Pilot[None]) -> None:
        await after("l")(pilot)
        await until(pilot, "measured 702 TFLOP/s")
        await pilot.press("home")
        await until(pilot, lambda shown: "measured 48.2 TFLOP/s" in shown and "Press n" not in shown)
        await judged(pilot)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=prepare)


@pytest.mark.parametrize("size", SIZES)
def test_the_sessions_of_a_folder(size: str, snap_compare: Any, tmp_path: Path, in_utc: None) -> None:  # noqa: ARG001
    keep(tmp_path, STOPPED, stopped_session())
    keep(tmp_path, MIXED, mixed_session())
    replayed = tmp_path / "replayed"
    replayed.mkdir()
    app = replaying(demo(in_the_middle), replayed, session_dir=tmp_path)

    async def prepare(pilot: Pilot[None]) -> None:
        await until(pilot, "at its end")
        await pilot.press("7")
        await until(pilot, "2026-11-18 09:00")
        pilot.app.clear_notifications()
        await judged(pilot)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=prepare)


ROOMY = (300, 90)
"""A terminal in which nothing is cut."""


_WORD = re.compile(r"[A-Za-z][A-Za-z_+-]*[A-Za-z]")
_SHORTEST = 4
"""Letters from which a beginning of a word is taken for a cut one."""


def words_of(screen: str) -> set[str]:
    """The words of a screen that are whole: none that an ellipsis ends."""
    return {found.group() for found in _WORD.finditer(screen) if screen[found.end() :][:1] != "…"}


def cut_words(screen: str, whole: Iterable[str]) -> dict[str, str]:
    """Each word of the screen that is only the beginning of a `whole` one, and has no ellipsis behind it; with the word
    that it begins. Words that stand by themselves somewhere are none of these."""
    known = {*whole}
    beginnings = {word[:length]: word for word in known for length in range(_SHORTEST, len(word))}
    return {word: beginnings[word] for word in words_of(screen) - known if word in beginnings}


@pytest.mark.parametrize("session", ["middle", "lanes"])
async def test_no_tab_cuts_a_word(session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unmarked: list[str] = []
    paint = Lines.paint

    def watched(pane: Lines, lines: Iterable[Line]) -> None:
        """Paint, and keep each line that is cut at the pane's edge without a sign."""
        meant = list(lines)
        paint(pane, meant)
        for row, spans in zip(pane.text.splitlines(), meant, strict=False):
            whole_row = "".join(span.text for span in spans).rstrip()
            if row != whole_row and not row.endswith("…") and pane.content_size.width:
                unmarked.append(f"{pane.id}: {whole_row} -> {row}")

    monkeypatch.setattr(Lines, "paint", watched)
    whole: set[str] = set()
    seen: dict[tuple[str, str], str] = {}
    async with on_screen(replaying(SESSIONS[session](), tmp_path), "at its end", ROOMY) as (app, pilot):
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
