"""The dialog that exports a session to files and to the clipboard, and the one that says where they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Checkbox, Input, Label, OptionList
from textual.widgets.option_list import Option

from cs336_tui.config.reading import exists
from cs336_tui.stats.quantities import counted
from cs336_tui.tui.background import in_background, tried
from cs336_tui.tui.dialogs.windows import Dialog, OneOf, Press
from cs336_tui.tui.judging import give_way
from cs336_tui.tui.keys import bind, bind_keys, key_name
from cs336_tui.tui.widgets.entries import Chips, InputLine

if TYPE_CHECKING:
    from cs336_tui.export.catalogue import Choice, Offer
    from cs336_tui.export.folder import Source

_AUTO = "auto"
_DIGITS = (_AUTO, *map(str, range(6)))


_PREVIEWED = 40
"""Lines of the preview, more than there is room for."""


class _Tick(Checkbox):
    """A checkbox whose two states differ by more than colour. Space turns it, Enter is the dialog's."""

    BINDINGS: ClassVar[list[BindingType]] = [bind_keys("enter", "screen.accept", "Save", "export.enter", show=False)]

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override]
        return "✓" if self.value else " "


class ExportDialog(Dialog[tuple[Path, ...]]):
    """Asks what to write, in which format and where, writes it, and answers with the paths; with none where nothing was
    written. A file that exists is not overwritten before a second, differently labelled press of the button.

    Up and down choose what, left and right the format, Enter saves: the list has the focus at first. The text that it
    would write is shown as far as there is room.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("escape", "cancel", "Cancel", "export.cancel"),
        bind("save-file", "accept", "Save", "export.save"),
        bind_keys("left", "format(-1)", "Format before", "export.format_before", show=False),
        bind_keys("right", "format(1)", "Next format", "export.format_next", show=False),
        bind("copy", "copy", "Copy", "export.copy"),
    ]

    AUTO_FOCUS = "#what"

    def __init__(self, offers: Sequence[Offer], first: Choice, source: Source, folder: Path) -> None:
        from cs336_tui.export.catalogue import RESULTS, suited

        super().__init__()
        self._offers, self._source = {offer.what: offer for offer in offers}, source
        self._choice = first if first.what in self._offers else suited(first, RESULTS)
        self.folder = folder
        """The folder that was chosen last."""
        self._may_overwrite: Path | None = None
        self._named_by_hand = self._writing = False
        self._file = InputLine(self._usual_name, id="name", compact=True)
        self._folder = InputLine(str(folder), id="folder", compact=True, select_on_focus=False)
        self._problem = Label("", id="problem", markup=False)
        self._about = Label("", id="about", markup=False)
        self._preview = Label("", id="preview", markup=False)
        self._save = Press("Save", id="save", variant="primary", compact=True)

    def compose(self) -> ComposeResult:
        from cs336_tui.analysis.pivot import VALUES
        from cs336_tui.stats.quantities import UNITS

        choice = self._choice
        turn, copy = key_name("export.format_before", "export.format_next"), key_name("export.copy")
        leave = key_name("export.cancel")
        with self.box("Export", f"↑↓ what · {turn} format · Enter save · {copy} copy · {leave} cancel"):
            with Horizontal(id="choices"):
                yield OptionList(*self._options(), id="what", compact=True)
                with Vertical(id="how"):
                    yield self._about
                    yield OneOf("format", "Format", (), (), multiple=False)
                    with Vertical(id="pivot"):
                        yield _entry("Rows:cols", "axes", choice.axes)
                        yield OneOf("value", "Value", VALUES, [choice.value], multiple=False)
                        yield _entry("Baseline", "baseline", choice.baseline, "KEY=VALUE, of a speed-up")
                    yield _entry("Columns", "columns", choice.columns, "all, or size,pass,mean")
                    wanted = _AUTO if choice.digits is None else str(choice.digits)
                    yield OneOf("unit", "Unit", UNITS, [choice.unit], multiple=False)
                    yield OneOf("digits", "Digits", _DIGITS, [wanted], multiple=False)
                    yield _Tick("notes below the tables", choice.notes, id="notes", compact=True)
                    yield _Tick("as pandas writes them, without notes", choice.pandas, id="pandas", compact=True)
                    yield self._preview
            yield _Row("Name", self._file)
            yield _Row("Folder", self._folder)
            yield self._problem
            with Horizontal(id="buttons"):
                yield Press("Copy", id="copy", compact=True)
                yield Press("Cancel", id="cancel", compact=True)
                yield self._save

    def on_mount(self) -> None:
        found = self.query_one("#what", OptionList)
        found.highlighted = found.get_option_index(self._choice.what)
        self._show()

    def _options(self) -> list[Option]:
        rows: list[Option] = []
        for group, offers in groupby(self._offers.values(), lambda offer: offer.group):
            rows.append(Option(Content.assemble((group, "$primary bold")), disabled=True))
            rows += [Option(self._option(offer), id=offer.what) for offer in offers]
        return rows

    def _option(self, offer: Offer) -> Content:
        return Content(f"{'▸' if offer.what == self._choice.what else ' '}{offer.title}")

    @property
    def _usual_name(self) -> str:
        from cs336_tui.export.catalogue import usual_name

        return usual_name(self._choice, self._source.state)

    @property
    def path(self) -> Path:
        """The file or folder that it would write."""
        folder, name = map(os.path.expanduser, (self._folder.value or ".", self._file.value))  # which never raises
        return Path(folder, name)

    def _show(self) -> None:
        """Bring the right side up to date with the choice."""
        from cs336_tui.export.catalogue import PIVOT, RESULTS, SUMMARY, formats_of

        choice = self._choice
        self._about.update(self._offers[choice.what].about)
        chips = self.query_one("#entry-format", OneOf)
        chips.chips = tuple(formats_of(choice.what))
        chips.take(choice.format)
        self.query_one("#pivot").display = choice.what == PIVOT
        self.query_one("#columns-row").display = choice.what == RESULTS
        self.query_one("#entry-unit").display = choice.takes_unit
        self.query_one("#entry-digits").display = choice.takes_digits
        has_tables = not choice.is_folder and choice.what != SUMMARY
        self.query_one("#notes").display = has_tables and choice.format not in ("csv", "json")
        self.query_one("#pandas").display = has_tables and choice.format == "markdown"
        self.query_one("#copy").display = not choice.is_folder
        with self.prevent(Input.Changed):
            if not self._named_by_hand:
                self._file.value = self._usual_name
            elif choice.is_folder:
                self._file.value = Path(self._file.value).stem
            else:
                with suppress(ValueError):  # such as a lone dot
                    self._file.value = str(Path(self._file.value).with_suffix(Path(self._usual_name).suffix))
        self._reset()
        self._preview_it()

    def _reset(self) -> None:
        self._may_overwrite = None
        self._save.label = "Save"
        self._problem.update("")

    def _choose(self, **changes: object) -> None:
        choice = msgspec.structs.replace(self._choice, **changes)
        if choice != self._choice:
            self._choice = choice
            self._show()

    # What people change.

    @on(OptionList.OptionHighlighted)
    def _what_chosen(self, event: OptionList.OptionHighlighted) -> None:
        from cs336_tui.export.catalogue import suited

        now = event.option_list.highlighted_option  # the event may be older: the list begins with its first option
        if now is not None and now.id and now.id != self._choice.what:
            before, self._choice = self._choice.what, suited(self._choice, now.id)
            self._show()
            for what in (before, now.id):
                event.option_list.replace_option_prompt(what, self._option(self._offers[what]))

    def action_format(self, by: int) -> None:
        self.query_one("#entry-format", OneOf).action_move(by)

    def on_entry_changed(self, event: Chips.Changed) -> None:
        name, value = event.entry.field, event.value[0]
        self._choose(**{name: (None if value == _AUTO else int(value)) if name == "digits" else value})

    @on(Checkbox.Changed)
    def _ticked(self, event: Checkbox.Changed) -> None:
        self._choose(**{str(event.checkbox.id): event.value})

    @on(Input.Changed, "#name")
    def _named(self) -> None:
        from cs336_tui.export.catalogue import formats_of
        from cs336_tui.export.writing.files import format_of

        self._named_by_hand = self._file.value != self._usual_name
        named = format_of(Path(self._file.value))
        if named and named in formats_of(self._choice.what) and named != self._choice.format:
            self._choice = msgspec.structs.replace(self._choice, format=named)
            self.query_one("#entry-format", OneOf).take(named)
            self._preview_it()
        self._reset()

    @on(Input.Changed, "#folder")
    def _moved(self) -> None:
        self._reset()

    @on(Input.Changed, "#axes")
    @on(Input.Changed, "#baseline")
    @on(Input.Changed, "#columns")
    def _typed(self, event: Input.Changed) -> None:
        self._choose(**{str(event.input.id): event.value.strip()})

    # What people ask for.

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        self.dismiss(())

    def _make(self, then: Callable[[tuple[str | None, str]], object]) -> None:
        """Make the text on a thread; `then` is given it, or why there is none, if the choice is still the same."""
        from cs336_tui.export.catalogue import text_of

        choice = self._choice

        def work() -> tuple[str | None, str]:
            give_way()
            return tried(partial(text_of, choice, self._source.state))

        def made(found: tuple[str | None, str]) -> None:
            if choice == self._choice:
                then(found)

        in_background(self, work, made)

    def _preview_it(self) -> None:
        """Show the first lines of the text."""

        def show(found: tuple[str | None, str]) -> None:
            text, problem = found
            self._preview.update("\n".join((text or "").splitlines()[:_PREVIEWED]))
            if text is None:
                self._refuse(problem)

        if self._choice.is_folder:
            self._preview.update("")
        else:
            self._make(show)

    @on(Button.Pressed, "#copy")
    def action_copy(self) -> None:
        """The text to the clipboard of the terminal, in the format that is chosen."""

        def copied(found: tuple[str | None, str]) -> None:
            text, problem = found
            if text is None:
                self._refuse(problem)
                return
            self.app.copy_to_clipboard(text)
            lines = f"{counted(len(text.splitlines()), 'line')}, as {self._choice.format}"
            self.app.notify(f"{lines}: sent to the terminal's clipboard.", title="Copied")

        if self._choice.is_folder:
            self._refuse("figures and folders cannot be copied; save them")
        else:
            self._make(copied)

    @on(Button.Pressed, "#save")
    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def action_accept(self) -> None:
        """Write it, on a thread. On a refusal the dialog stays and says why."""
        from cs336_tui.export.catalogue import write
        from cs336_tui.export.writing.files import format_of, why_unknown

        path, choice = self.path, self._choice
        if self._writing:
            return
        if not self._file.value.strip():
            self._refuse("a name is needed")
        elif path.suffix and not choice.is_folder and format_of(path) is None:
            self._refuse(why_unknown(path))
        elif exists(path) and self._may_overwrite != path:
            self._refuse(f"{path.name} already exists; press Overwrite (Enter) to replace it, or choose another name")
            self._may_overwrite, self._save.label = path, "Overwrite"
        else:
            self._writing = True
            self._problem.update("writing ..." if not choice.is_folder else "drawing the figures, some seconds ...")
            work = partial(write, choice, self._source, path, overwrite=self._may_overwrite == path)
            in_background(self, partial(tried, work), partial(self._written, path, choice))

    def _written(self, path: Path, choice: Choice, found: tuple[None, str]) -> None:
        from cs336_tui.export.catalogue import remember

        self._writing = False
        if problem := found[1]:
            self._refuse(problem.replace(" name, or leave out --no-clobber", ""))
            return
        remember(choice)
        self.folder = path.parent
        self.dismiss((path,))

    def _refuse(self, why: str) -> None:
        from cs336_tui.export.writing.texts import in_brief

        self._problem.update(f"! {in_brief(why, most=200)}")


def _entry(label: str, field: str, value: str, placeholder: str = "") -> _Row:
    return _Row(label, InputLine(value, placeholder, id=field, compact=True), id=f"{field}-row")


class _Row(Horizontal):
    """A label and the field beside it."""

    def __init__(self, label: str, field: Widget, id: str | None = None) -> None:
        super().__init__(Label(label, markup=False), field, id=id)


class Written(Dialog[None]):
    """Says where the files are; the path can be copied."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("escape,enter", "dismiss", "Close", "written.close"),
        bind("copy", "copy", "Copy the path", "written.copy"),
    ]

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self._paths = [str(path.absolute()) for path in paths]

    def compose(self) -> ComposeResult:
        copy, close = key_name("written.copy"), key_name("written.close")
        with self.box("Written", f"{copy} copy the path · {close} close"):
            for path in self._paths:
                yield Label(path, markup=False)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard("\n".join(self._paths))
        self.app.notify("The path was sent to the terminal's clipboard.", title="Copied")
