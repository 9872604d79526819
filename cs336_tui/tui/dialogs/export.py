"""The dialog that exports a session to files and to the clipboard."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Checkbox, Input, Label, Select

from cs336_tui.session.state import SessionState
from cs336_tui.tui.dialogs.window import Dialog
from cs336_tui.tui.keys import bind

if TYPE_CHECKING:
    from cs336_tui.export.problems import Exported

RESULTS, SUMMARY, LAYOUT = "Results table", "Session summary", "Tables as in a write-up, or of a problem"
_PROBLEM = "problem "
"""Before a problem's name, among the names of layouts."""


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
        bind("save-file", "save", "Save", "export.save"),
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
        choices = [*((layout, layout) for layout in LAYOUTS), *_problems(state)]
        self._first = choices[0][1]
        self._layout = Select(choices, value=self._first, allow_blank=False, id="layout", compact=True)
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

    @on(Select.Changed)
    def _want_what_was_chosen(self, event: Select.Changed) -> None:
        if event.value != self._first:
            next(tick for name, tick, _ in self._texts if name == LAYOUT).value = True

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
            texts = [self._text(name, path) for name, path in wanted]
            figures = [await asyncio.to_thread(self._figures, name, path) for name, path in wanted]
            for path, text, drawn in zip(paths, texts, figures, strict=True):
                overwrite = path in self._may_overwrite
                files: dict[Path, str | bytes] = {path: text, **drawn}
                for place, content in files.items():
                    await asyncio.to_thread(write_atomically, place, content, overwrite=overwrite)
                done.append(str(path))
        except (AlreadyThere, ExportError, TableError) as error:
            return self._refuse(str(error))
        if to_clipboard:
            self._copy(self._text(RESULTS, Path()))
            done.append("the clipboard")
        self.dismiss(f"written to {' and '.join(done)}")
        return None

    def _text(self, name: str, path: Path) -> str:
        """The text; of a problem with its figures beside `path`."""
        from cs336_tui.export.files import figures_beside
        from cs336_tui.export.formats import pandas_text, render_all
        from cs336_tui.export.results import results_markdown, results_of
        from cs336_tui.export.summary import summary_markdown
        from cs336_tui.export.writeups import layout_tables

        if name != LAYOUT:
            return {RESULTS: results_markdown, SUMMARY: summary_markdown}[name](self._state)
        pandas = self._pandas.value
        if exported := self._exported():
            folder = figures_beside(path).name if exported.figures else None
            draw = partial(pandas_text, captions=True) if pandas else None
            return exported.render("markdown", folder, with_notes=not pandas, draw=draw)
        tables = layout_tables(results_of(self._state), str(self._layout.value), published=pandas)
        return pandas_text(tables) if pandas else render_all(tables, "markdown")

    def _figures(self, name: str, path: Path) -> dict[Path, bytes]:
        """Files of a problem's figures, beside `path`."""
        from cs336_tui.export.files import figures_beside, make_folder

        exported = self._exported() if name == LAYOUT else None
        if not (exported and exported.figures):
            return {}
        folder = figures_beside(path)
        make_folder(folder)
        return {
            folder / f"{drawing.name}.{format_}": content
            for drawing in exported.figures
            for format_, content in drawing.files().items()
        }

    def _exported(self) -> Exported | None:
        """The problem that was chosen, if it is not a layout."""
        from cs336_tui.analysis.problems import Material
        from cs336_tui.export.problems import export_problem
        from cs336_tui.export.results import results_of

        name = str(self._layout.value)
        if not name.startswith(_PROBLEM):
            return None
        material = Material((self._state,), tuple(results_of(self._state)), published=self._pandas.value)
        return export_problem(name.removeprefix(_PROBLEM), material)

    def _refuse(self, why: str) -> None:
        self._problem.update(f"! {why}")


def _problems(state: SessionState) -> Iterator[tuple[str, str]]:
    """Labels and names of the problems that the session has something for."""
    from cs336_tui.analysis.problems import editions_of, progress_of
    from cs336_tui.config.problems.all_problems import every_problem
    from cs336_tui.export.results import results_of

    results = results_of(state)
    editions = editions_of(results)
    for edition, problem in every_problem():
        if edition in editions and (mark := progress_of(problem, edition, [state], results).mark):
            yield f"problem {edition}/{problem.name} {mark}", f"{_PROBLEM}{edition}/{problem.name}"
