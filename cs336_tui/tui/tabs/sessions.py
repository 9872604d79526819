"""The Sessions tab: the sessions of the folder, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from textual.binding import BindingType
from textual.events import Paste

from cs336_tui.export.writing.tables import Column
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.session.store import SessionInfo
from cs336_tui.tui import format
from cs336_tui.tui.dialogs.windows import AskText
from cs336_tui.tui.keys import bind, bind_keys, key_name
from cs336_tui.tui.requests import Wish, requests_of
from cs336_tui.tui.widgets.columns import Copied, copied_table, heading_lines, lay_out, middle, shown_table
from cs336_tui.tui.widgets.lines import Line, line, paragraphs
from cs336_tui.tui.widgets.rows import TableRows

Source = tuple[str, SessionState]
"""A session with its title."""

_LONGEST_NOTE = 40
_LONGEST_VALUES = 18
_STAGE_ROOM, _COUNTS_ROOM = len("▶ running"), len("✓ 12 ok · 3 left")
"""Least room for what changes while a session runs."""


class Compared(msgspec.Struct, frozen=True):
    """The subject of Compare: sessions with their titles, or the two marked cells."""

    sessions: tuple[Source, ...]
    cells: tuple[tuple[Source, CellState], ...] = ()

    @property
    def has_sides(self) -> bool:
        """True if there are two to be held against each other."""
        return 2 in (len(self.cells), len(self.sessions))


class SessionsPane(TableRows):
    """The list. Compare shows the marked sessions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("enter", "ask('open')", "Open", "sessions.open"),
        bind("open-file", "open_file", "Open file", "sessions.open_file"),
        bind("stop", "stop_opening", "Stop reading", "sessions.stop_opening"),
        bind("mark", "mark", "Mark to compare", "sessions.mark", also="space"),
        bind("resume", "ask('resume')", "Resume", "sessions.resume"),
        bind("name", "ask('rename')", "Name", "sessions.rename"),
        bind("note", "ask('annotate')", "Note", "sessions.annotate"),
        bind("delete", "ask('delete')", "Delete", "sessions.delete"),
        bind("search", "search", "Filter", "sessions.search"),
    ]

    _infos: tuple[SessionInfo, ...] | None = None
    _taken: tuple[SessionInfo, ...] = ()
    """The same, the newest first."""
    _laid_out_for: object = None
    _counts_room, _stage_room = _COUNTS_ROOM, _STAGE_ROOM
    _problem = ""
    _wanted = ""
    """Words of the sessions that are listed; empty: all."""
    _own: Path | None = None
    _now: SessionInfo | None = None
    _opened: Path | None = None
    opening = ""
    """Progress of reading a recording; empty while none is read."""
    marked: tuple[Path, ...] = ()
    """The logs of the marked sessions, in the order of marking."""

    @property
    def infos(self) -> tuple[SessionInfo, ...]:
        """The sessions, as read last; that of this app as it is now."""
        now = self._now
        return tuple(now if now and info.path == now.path else info for info in self._infos or ())

    def take(self, infos: Iterable[SessionInfo], problem: str = "") -> None:
        """Show these sessions, or the `problem` with the folder. The cursor stays on its session."""
        before = self.selected
        self._taken, self._problem = tuple(infos), problem
        self._infos = self._sorted(tuple(filter(self._is_wanted, self._taken)))
        self._laid_out_for = None
        goes_on = any(info.stage == "running" for info in self._taken)
        self._counts_room = max([_COUNTS_ROOM * goes_on, 1, *(len(counts(info)) for info in self._taken)])
        self._stage_room = max([_STAGE_ROOM * goes_on, 1, *(len(stage(info, own=True)) for info in self._taken)])
        paths, there = [info.path for info in self.infos], {info.path for info in self._taken}
        if before is not None and before.path in paths:
            self.cursor = paths.index(before.path)
        marked = tuple(path for path in self.marked if path in there)
        if marked != self.marked:
            self.marked = marked
            requests_of(self).compare_marked()
        self._refill()

    def _is_wanted(self, info: SessionInfo) -> bool:
        if not self._wanted:
            return True
        words = (*(column.cell(info) for column in self._columns()), *info.sizes, *info.contexts, *info.passes)
        text = " ".join(map(str, words)).casefold()
        return all(word in text for word in self._wanted.casefold().split())

    def resort(self) -> None:
        if self._infos is not None:
            self.take(self._taken, self._problem)

    def _sorted(self, infos: tuple[SessionInfo, ...]) -> tuple[SessionInfo, ...]:
        """In the order of the column; those without a value last, each time the newest first."""
        column = next((each for each in self._columns() if each.key == self.sort.key), None)
        if column is None:
            return infos[::-1] if self.sort.descending else infos
        values: dict[Path, Any] = {
            info.path: column.value(info) if column.read else column.cell(info) for info in infos
        }
        known = [info for info in infos if values[info.path] not in (None, "")]
        known.sort(key=lambda info: values[info.path], reverse=self.sort.descending)
        return (*known, *(info for info in infos if values[info.path] in (None, "")))

    def show(self, own: Path | None, opened: Path | None, now: SessionInfo | None = None) -> None:
        """Paint; `own`: the log of the session that this app runs, which stands as `now` says; `opened`: the log of the
        opened one."""
        self._own, self._opened, self._now = own, opened, now
        self._refill()

    def show_opening(self, text: str) -> None:
        """Show how far a recording has been read, or no more."""
        self.opening = text
        self._refill()

    @property
    def selected(self) -> SessionInfo | None:
        return self.infos[self.cursor] if self.cursor < len(self.infos) else None

    def _refill(self) -> None:
        stops = f"{key_name('sessions.stop_opening')} stops"
        above = [line((f"… {format.plain(self.opening)} · {stops}", "strong"))] if self.opening else []
        if self._wanted:
            found = f"{len(self.infos)} of {len(self._taken)} with {self._wanted}"
            above.append(line((f"{found} · {key_name('sessions.search')}: others", "strong")))
        if self.infos and not self._problem:
            head = [*above, *self._lay_out(len(above))]
            self.draw_from(
                len(self.infos), lambda first, last: (head, self._rows_in_sight(first, last)), heading_rows=len(head)
            )
            return
        files = "a session's log or folder, a torch profiler trace, CUDA memory snapshot or nsys report"
        opens, role = f"{key_name('sessions.open_file')} opens {files} (or drop it here).", "muted"
        told = ["No sessions yet. Each run is kept here as a session.", opens]
        if self._infos is None:
            told = ["Reading sessions ..."]
        elif self._problem:
            told, role = [f"! {self._problem}"], "caution"
        elif self._wanted:
            told = ["No session has these words."]
        self.fill((), [*above, (), *paragraphs(told, self.content_size.width, role)])

    def _lay_out(self, above: int) -> list[Line]:
        """The columns that fit, below `above` lines; their heading."""
        count = len(self.infos)
        position = len(f"  {count}–{count} of {count}") if count >= self.content_size.height - above else 0
        width = max(self.content_size.width - position, 1)
        if (width, self.marked) != self._laid_out_for:
            self._laid_out_for = width, self.marked
            columns = self._columns()
            texts = [["" if column.room else column.cell(info) for column in columns] for info in self.infos]
            self.pages = lay_out(columns, texts, width, alike=[False] * len(columns)).pages(width)
        layout = self.layout_now
        assert layout is not None
        return heading_lines(layout.heading_of(self.sort), self.columns_words, width)

    def _rows_in_sight(self, first: int, last: int) -> Sequence[Line]:
        infos, columns, layout = self.infos[first:last], self._columns(), self.layout_now
        assert layout is not None
        roles = ["bad" if info.problem else "strong" if info.path == self._own else "text" for info in infos]
        return [
            line((layout.row([column.cell(info) for column in columns]), role))
            for info, role in zip(infos, roles, strict=True)
        ]

    def copied(self) -> Copied | None:
        """The sessions of the folder."""
        table = shown_table(self.infos, self._columns()).without("mark")
        return copied_table("The list of sessions", table) if self.infos else None

    def _columns(self) -> tuple[Column[SessionInfo], ...]:
        def mark(info: SessionInfo) -> str:
            place = f"{self.marked.index(info.path) + 1}" if info.path in self.marked else ""
            return place + ("▶" if info.path == self._own else "◉" if info.path == self._opened else "")

        def progress(info: SessionInfo) -> str:
            return stage(info, own=info.path == self._own)

        def short(text: str) -> str:
            return middle(format.plain(text), _LONGEST_NOTE)

        return (
            Column("mark", "", text=mark),
            Column("title", "session", left=True, text=lambda info: short(info.name or info.begun or info.session)),
            Column("sizes", "size", left=True, text=lambda info: ran(info)[0]),
            Column("contexts", "context", left=True, rank=2, text=lambda info: in_brief(info.contexts)),
            Column("passes", "pass", left=True, rank=1, text=lambda info: ran(info)[2]),
            Column("state", left=True, text=progress, room=self._stage_room),
            Column("cells", left=True, rank=3, read=lambda info: info.ok, text=counts, room=self._counts_room),
            Column("devices", "device", left=True, rank=4, text=lambda info: format.plain(", ".join(info.devices))),
            Column("host", left=True, rank=5, show=format.plain),
            Column("note", left=True, rank=2, show=short),
            Column("begun", left=True, rank=7, read=lambda info: info.started_at, text=lambda info: info.begun or "?"),
            Column("session", "id", left=True, rank=6, show=format.plain),
        )

    def action_ask(self, wish: Wish) -> None:
        if (info := self.selected) is not None:
            requests_of(self).do_with_session(wish, info)

    def action_choose(self) -> None:
        self.action_ask("open")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "stop_opening":
            return bool(self.opening)
        return super().check_action(action, parameters)

    def action_open_file(self) -> None:
        requests_of(self).open_recording("")

    def action_search(self) -> None:
        """Ask for words, and list the sessions that have them in any column."""
        AskText("Filter sessions", "Words such as small train-step; nothing for all.", self._wanted).ask(self._filter)

    def _filter(self, words: str) -> None:
        self._wanted, self.cursor = words, 0
        self.resort()

    def action_stop_opening(self) -> None:
        requests_of(self).stop_reading()

    def on_paste(self, event: Paste) -> None:
        event.stop()
        requests_of(self).open_recording(event.text)

    def action_mark(self) -> None:
        if (info := self.selected) is None:
            return
        others = tuple(path for path in self.marked if path != info.path)
        self.marked = (*others, info.path) if others == self.marked else others
        self._refill()
        requests_of(self).compare_marked()


def in_brief(values: Sequence[object]) -> str:
    """Values with commas; of many the first and their number."""
    text = format.plain(", ".join(map(str, values)))
    return text if len(text) <= _LONGEST_VALUES else f"{values[0]} +{len(values) - 1}"


def ran(info: SessionInfo) -> tuple[str, ...]:
    """The sizes, contexts and passes of its cells, as far as it has them."""
    context = f"ctx {in_brief(info.contexts)}" if info.contexts else ""
    return in_brief(info.sizes), context, in_brief([format.SHORT_PASSES.get(name, name) for name in info.passes])


_LEFT = {"running": "▶ {} to run", "killed": "✗ {} left, killed"}
_GLYPHS = {"running": "▶", "stopped": "■", "killed": "✗", "done": "✓", "empty": ""}


def stage(info: SessionInfo, *, own: bool) -> str:
    """Its progress, with a glyph: ``■ stopped 77/120`` steps; those of others' cells are not read."""
    if info.problem or not info.cells:
        return ""
    known = info.stage in ("stopped", "killed") or (own and info.stage == "running")
    at = f" {info.steps_done}/{info.steps_total}" if known else ""
    return f"{_GLYPHS[info.stage]} {info.stage}{at}"


def counts(info: SessionInfo) -> str:
    """The number of cells by status, each with a glyph and a word."""
    if info.problem:
        return "✗ log damaged"
    parts = (
        (info.ok, "✓ {} ok"),
        (info.oom, "▲ {} OOM"),
        (info.failed, "✗ {} failed"),
        (info.skipped, "» {} skipped"),
        (info.left, _LEFT.get(info.stage, "· {} left")),
    )
    reports = f"{info.reports} report{'s' * (info.reports != 1)}" if info.reports else ""
    cells = " ".join(text.format(number) for number, text in parts if number) or ("" if reports else "no cells")
    return " · ".join(filter(None, (cells, reports)))
