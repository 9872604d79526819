"""The dialog that exports a session to files and to the clipboard."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Checkbox, Input, Label, Select

from cs336_tui.session.state import SessionState
from cs336_tui.tui.dialogs.window import Dialog

RESULTS, SUMMARY, LAYOUT = "Results table", "Session summary", "Tables as in a write-up"


class _Tick(Checkbox):
    """A checkbox whose two states differ by more than colour."""

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override]
        return "✓" if self.value else " "


class ExportDialog(Dialog[str]):
    """Asks which texts to write and where, writes them, and answers with one line that says what was done. A file that
    exists is not overwritten before a second, differently labelled press of the button."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss('')", "Cancel", id="export.cancel"),
        Binding("ctrl+s", "save", "Save", id="export.save"),
    ]

    AUTO_FOCUS = "#save"

    def __init__(self, state: SessionState, copy: Callable[[str], None]) -> None:
        from cs336_tui.export.writeups import LAYOUTS

        super().__init__()
        self._state, self._copy = state, copy
        # The name comes from a log, which anybody may have written.
        session = re.sub(r"[^\w-]+", "-", state.started.session)[:80] if state.started else "session"
        self._may_overwrite: frozenset[Path] = frozenset()
        self._problem = Label("", id="problem", markup=False)
        self._save = Button("Save", id="save", variant="primary", compact=True)
        self._copies = _Tick(f"{RESULTS} to the clipboard", value=False, id="clipboard", compact=True)
        layouts = [(layout, layout) for layout in LAYOUTS]
        self._layout = Select(layouts, value=layouts[0][0], allow_blank=False, id="layout", compact=True)
        self._pandas = _Tick("as pandas writes them, without notes", value=False, id="pandas", compact=True)
        self._texts = [
            (
                name,
                _Tick(f"{name} (markdown) to", value=name != LAYOUT, id=f"want-{index}", compact=True),
                Input(f"cs336-tui-{word}-{session}.md", id=f"path-{index}", compact=True),
            )
            for index, (name, word) in enumerate(((RESULTS, "results"), (SUMMARY, "summary"), (LAYOUT, "tables")))
        ]

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = "Export"
            for name, wanted, field in self._texts:
                yield wanted
                if name == LAYOUT:
                    yield self._layout
                    yield self._pandas
                field.cursor_blink = False
                yield field
            yield self._copies
            yield self._problem
            with Horizontal():
                yield Button("Cancel", id="cancel", compact=True)
                yield self._save

    @on(Input.Changed)
    @on(Checkbox.Changed)
    @on(Select.Changed)
    def _reset(self) -> None:
        self._may_overwrite = frozenset()
        self._save.label = "Save"
        self._problem.update("")

    @on(Button.Pressed, "#cancel")
    def _cancel(self) -> None:
        self.dismiss("")

    @on(Button.Pressed, "#save")
    @on(Input.Submitted)
    async def action_save(self) -> None:
        """Write what is ticked. On a refusal the dialog stays and says why."""
        from cs336_tui.export.files import AlreadyThere, ExportError, write_atomically
        from cs336_tui.export.results import TableError

        wanted = [(name, Path(field.value).expanduser()) for name, tick, field in self._texts if tick.value]
        to_clipboard = self._copies.value
        paths = [path for _, path in wanted]
        if twice := next((path for path in paths if paths.count(path) > 1), None):
            return self._refuse(f"{twice}: both would be written to the same file; choose two names")
        if not wanted and not to_clipboard:
            return self._refuse("nothing is ticked; tick what to export, or press Esc")
        there = frozenset(path for _, path in wanted if path.exists())
        if not there <= self._may_overwrite:
            self._may_overwrite = there
            self._save.label = "Overwrite"
            names = ", ".join(path.name for path in sorted(there))
            return self._refuse(f"{names} already exists; press Overwrite to replace, or choose another name")
        done: list[str] = []
        try:
            texts = [self._text(name) for name, _ in wanted]
            for path, text in zip(paths, texts, strict=True):
                await asyncio.to_thread(write_atomically, path, text, overwrite=path in self._may_overwrite)
                done.append(str(path))
        except (AlreadyThere, ExportError, TableError) as error:
            return self._refuse(str(error))
        if to_clipboard:
            self._copy(self._text(RESULTS))
            done.append("the clipboard")
        self.dismiss(f"written to {' and '.join(done)}")
        return None

    def _text(self, name: str) -> str:
        from cs336_tui.export.formats import pandas_text, render_all
        from cs336_tui.export.results import results_markdown, results_of
        from cs336_tui.export.summary import summary_markdown
        from cs336_tui.export.writeups import layout_tables

        if name == LAYOUT:
            tables = layout_tables(results_of(self._state), str(self._layout.value), published=self._pandas.value)
            return pandas_text(tables) if self._pandas.value else render_all(tables, "markdown")
        return {RESULTS: results_markdown, SUMMARY: summary_markdown}[name](self._state)

    def _refuse(self, why: str) -> None:
        self._problem.update(f"! {why}")
