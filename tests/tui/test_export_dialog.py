"""Exporting from the app, and copying: `c` copies the table of each tab as markdown, and says so."""

import csv
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from textual.pilot import Pilot
from textual.widgets import Button, Input, Label, OptionList

from cs336_tui.config.settings import Found, Settings
from cs336_tui.export import catalogue
from cs336_tui.export.catalogue import Choice
from cs336_tui.export.writing.files import FORMATS, SUFFIXES
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.controllers import dialogs
from cs336_tui.tui.controllers.commands import commands
from cs336_tui.tui.dialogs.export import ExportDialog, Written
from cs336_tui.tui.tab_list import TABS
from tests.export.html_reader import Reader
from tests.samples import mixed_session
from tests.tui.kept_sessions import MIXED, STOPPED, keep, stopped_session
from tests.tui.watched import SMALL, demo, on_screen, press, replaying, until

SESSION = "2026-11-20T14-03-42-demo"
RESULTS = f"cs336-tui-results-{SESSION}.md"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


@pytest.fixture
def app(tmp_path: Path) -> Cs336App:
    return replaying(demo(), tmp_path)


@asynccontextmanager
async def exporting(app: Cs336App) -> AsyncIterator[Pilot[object]]:
    """The app at 80x24 with the demo session, its Export open."""
    async with on_screen(app, size=SMALL) as (_, pilot):
        await press(pilot, "e", seen="↑↓ what")
        yield pilot


def dialog(app: Cs336App) -> ExportDialog:
    assert isinstance(app.screen, ExportDialog)
    return app.screen


async def choose(pilot: Pilot[object], app: Cs336App, what: str) -> None:
    found = dialog(app).query_one("#what", OptionList)
    found.highlighted = found.get_option_index(what)
    await pilot.pause()


async def written(pilot: Pilot[object], app: Cs336App) -> None:
    await until(pilot, lambda _: isinstance(app.screen, Written))


def is_shown(text: str) -> Callable[[str], bool]:
    """The text is on the screen, wherever its lines are broken."""
    return lambda screen: text in re.sub(r"[\s│]+", " ", screen)


async def test_latex_takes_three_keys_from_the_first_screen(app: Cs336App, here: Path) -> None:
    async with on_screen(app, size=SMALL) as (_, pilot):
        for key in ("e", "right", "enter"):
            await press(pilot, key, seen=lambda _: len(app.screen_stack) == 2)
        await written(pilot, app)
        await press(pilot, "c", seen=lambda _: bool(app.clipboard))
        await press(pilot, "enter", seen=lambda _: len(app.screen_stack) == 1)
    (file,) = here.iterdir()
    assert app.clipboard == str(file)
    assert file.name == RESULTS.replace(".md", ".tex")
    text = file.read_text()
    assert re.search(r"\\begin\{table\}.*\\caption\{.+\}\\label\{tab:results\}.*347\.4.*\\end\{table\}", text, re.S)


async def test_why_there_is_no_preview_stands_whole_in_the_dialog(app: Cs336App) -> None:
    async with exporting(app) as pilot:
        await choose(pilot, app, "pivot")
        dialog(app).query_one("#axes", Input).value = "nonsense:pass"
        shown = " ".join(re.sub("[│▐▌]", " ", await until(pilot, "! field nonsense")).split())
        assert "! field nonsense: expected one of size, model, model-args, edition, arch and " in shown
        assert "`cs336-tui export --help` lists them" in shown


@pytest.mark.parametrize("what", ["results", "figures", "summary"])
async def test_a_name_that_no_file_can_have_is_refused(app: Cs336App, here: Path, what: str) -> None:
    async with exporting(app) as pilot:
        await choose(pilot, app, what)
        name, problem = dialog(app).query_one("#name", Input), dialog(app).query_one("#problem", Label)
        of_a_file = ("~nobody-of-this-name/x", ".") if what == "results" else ()
        for text in ("n" * 300, "n" * 300 + "/x", "a\0b", *of_a_file):
            name.value = text
            await pilot.press("right")  # another format, for which the name gets another suffix
            name.value = text
            problem.update("")
            name.focus()
            await press(pilot, "enter", seen=lambda _: str(problem.content).startswith("! "))
        await pilot.press("escape")
    assert not list(here.iterdir())


async def test_it_opens_with_what_was_exported_last_and_where(app: Cs336App, here: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with exporting(app) as pilot:
        await choose(pilot, app, "layout min-max")
        await pilot.press("right", "right")
        dialog(app).query_one("#folder", Input).value = str(elsewhere)
        await pilot.press("enter")
        await written(pilot, app)
        await press(pilot, "enter", "e", seen=lambda screen: "●typst" in screen and "▸min-max" in screen)
        assert dialog(app).path == elsewhere / f"cs336-tui-min-max-{SESSION}.typ"
    other = replaying(demo(), tmp_path)
    async with exporting(other) as pilot:
        await until(pilot, lambda screen: "●typst" in screen and "▸min-max" in screen)
        assert dialog(other).path == here / f"cs336-tui-min-max-{SESSION}.typ"


async def test_it_says_that_it_writes_and_hears_keys(
    app: Cs336App, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slowly(choice: Choice, source: object, path: Path, *, overwrite: bool) -> None:  # noqa: ARG001
        go_on.wait(30)
        path.write_text("made")

    monkeypatch.setattr(catalogue, "write", slowly)
    async with exporting(app) as pilot:
        await press(pilot, "enter", seen="writing ...")
        await press(pilot, "down", "enter", seen="▸Pivot")
        go_on.set()
        await written(pilot, app)
    assert [file.name for file in here.iterdir()] == [RESULTS]


async def test_the_format_of_the_settings_is_the_first(tmp_path: Path, here: Path) -> None:  # noqa: ARG001
    async with exporting(replaying(demo(), tmp_path, settings=Found(Settings(export_format="tex")))) as pilot:
        await until(pilot, lambda screen: "●latex" in screen and "▸Results" in screen)


async def test_the_text_is_shown_before_it_is_written(tmp_path: Path, here: Path) -> None:  # noqa: ARG001
    async with on_screen(replaying(demo(), tmp_path)) as (_, pilot):
        await press(pilot, "e", seen="| size")
        await press(pilot, "right", seen=r"\caption{")


@pytest.mark.parametrize("field", ["what", "entry-format", "columns", "entry-digits", "notes", "name", "folder"])
async def test_enter_saves_from_every_field(app: Cs336App, here: Path, field: str) -> None:
    async with exporting(app) as pilot:
        dialog(app).query_one(f"#{field}").focus()
        await press(pilot, "enter", seen=lambda _: isinstance(app.screen, Written))
    assert [file.name for file in here.iterdir()] == [RESULTS]


async def test_an_existing_file_needs_a_second_yes_and_another_name_asks_again(app: Cs336App, here: Path) -> None:
    for name in ("a.md", RESULTS):
        (here / name).write_text("mine")
    async with exporting(app) as pilot:
        for name in ("a.md", RESULTS):
            dialog(app).query_one("#name", Input).value = name
            await pilot.pause()
            await press(pilot, "ctrl+s", seen=is_shown(f"{name} already exists"))
            assert str(app.screen.query_one("#save", Button).label) == "Overwrite"
        assert (here / "a.md").read_text() == (here / RESULTS).read_text() == "mine"
        await pilot.press("enter")
        await written(pilot, app)
    assert (here / "a.md").read_text() == "mine"
    assert "347.4" in (here / RESULTS).read_text()


async def test_letters_typed_into_a_name_are_letters_and_its_suffix_is_the_format(app: Cs336App, here: Path) -> None:
    async with exporting(app) as pilot:
        field = dialog(app).query_one("#name", Input)
        field.focus()
        await pilot.pause()
        for name, format_ in (("c.tex", "latex"), ("c.JSON", "json"), ("crest.csv", "csv")):
            field.value = ""
            await pilot.press(*name)
            assert field.value == name
            await until(pilot, f"●{format_}")
        await pilot.press("enter")
        await written(pilot, app)
    assert len(list(csv.DictReader((here / "crest.csv").read_text().splitlines()))) == 19


async def test_c_copies_in_the_format_and_another_keeps_a_name_but_for_its_suffix(app: Cs336App, here: Path) -> None:
    async with exporting(app) as pilot:
        await press(pilot, "right", "c", seen=lambda _: r"\begin{tabular}" in app.clipboard)
        await pilot.press("left")
        field = dialog(app).query_one("#name", Input)
        field.value = "mine.md"
        await pilot.pause()
        await pilot.press("right", "right")
        assert field.value == "mine.typ"
        await choose(pilot, app, "pivot")
        assert field.value == "mine.typ"
    assert not list(here.iterdir())


async def test_what_cannot_be_written_is_refused_and_nothing_is_written(app: Cs336App, here: Path) -> None:
    async with exporting(app) as pilot:
        for what, field, text, said in (
            ("layout attention", "#folder", ".", "no cell of attention alone"),
            ("pivot", "#axes", "size:precision", "different cells"),
            ("results", "#folder", "no/such/folder", "does not exist; create it or choose another path"),
            ("results", "#name", "t.xlsx", "spreadsheets open .csv"),
            ("results", "#name", "", "a name is needed"),
        ):
            await choose(pilot, app, what)
            dialog(app).query_one(field, Input).value = text
            await pilot.pause()
            await press(pilot, "ctrl+s", seen=is_shown(said))
            assert len(app.screen_stack) == 2
    assert not list(here.iterdir())


async def test_the_palette_has_an_entry_for_each_format_that_is_wanted_often(app: Cs336App, here: Path) -> None:  # noqa: ARG001
    async with on_screen(app, size=SMALL) as (_, pilot):
        entries = {each.title: each for each in commands(app, ())}
        for name in ("csv", "latex", "markdown", "figures", "summary"):
            entry = entries[f"Export {name}"]
            assert entry.help
            entry.callback()
            await until(pilot, f"●{name}" if name in FORMATS else f"▸{name.capitalize()}")
            if name in FORMATS:
                assert dialog(app).path.name == RESULTS.replace(".md", f".{SUFFIXES[name]}")
            await press(pilot, "escape", seen=lambda _: len(app.screen_stack) == 1)


async def test_without_results_there_is_nothing_to_export() -> None:
    async with on_screen(Cs336App(), size=SMALL, notifications=True) as (app, pilot):
        await press(pilot, "e", seen="no results yet")
        assert ["run cells (r), or open" in each.message for each in app._notifications] == [True]
        await pilot.press("c")
        assert len(app.screen_stack) == 1
        assert app.clipboard == ""


COPIED = {
    "configure": ("The results", "size"),
    "live": ("The results", "size"),
    "device": ("The results", "size"),
    "results": ("The results", "size"),
    "log": ("The results", "size"),
    "compare": ("Compare, view pivot", "size"),
    "estimate": ("The estimate", "size"),
    "roofline": ("The roofline", "cell"),
}
"""Of the demo session: the name of what each tab copies, and the first heading."""


def table_in(text: str) -> list[list[str]]:
    """The rows of the first table as a reader of markdown finds them, its head first."""
    return Reader(MarkdownIt("commonmark").enable("table").render(text)).rows


async def test_each_tab_copies_its_table_as_markdown_and_says_so(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), size=SMALL, notifications=True) as (app, pilot):
        for tab in TABS.values():
            if tab.id not in COPIED:
                continue
            name, heading = COPIED[tab.id]
            app._clipboard = ""
            await press(pilot, tab.key, seen=lambda _, tab=tab: app.main.open_pane == tab.id)
            await app.main.filled(tab.id)
            await press(pilot, "c", seen=lambda _: bool(app.clipboard))
            await until(pilot, lambda _, name=name: any(name in each.message for each in app._notifications))
            assert any("markdown" in each.message for each in app._notifications)
            app.clear_notifications()
            rows = table_in(app.clipboard)
            assert rows[0][0] == heading, tab.id
            assert len(rows) > 1


async def test_the_columns_in_sight_are_copied_and_all_of_them_when_it_is_asked_again(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), size=SMALL, notifications=True) as (app, pilot):
        widths = []
        for told in ("c again copies all columns", "clipboard.", "c again copies all columns"):
            await press(pilot, "4", "c", seen=lambda _: bool(app.clipboard))
            assert told in [each.message for each in app._notifications][-1]
            widths.append(len(table_in(app.clipboard)[0]))
            app._clipboard = ""
        assert widths[0] == widths[2] < widths[1]


async def test_the_columns_in_sight_are_copied_again_when_it_was_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialogs, "AGAIN_S", 0.0)
    async with on_screen(replaying(demo(), tmp_path), size=SMALL, notifications=True) as (app, pilot):
        for _ in range(2):
            app._clipboard = ""
            await press(pilot, "4", "c", seen=lambda _: bool(app.clipboard))
            assert "c again copies all columns" in [each.message for each in app._notifications][-1]


async def test_a_tab_without_a_table_says_so(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), size=SMALL, notifications=True) as (app, pilot):
        for tab in ("queue", "kernels", "memory", "precision"):
            await press(pilot, TABS[tab].key, seen=lambda _, tab=tab: app.main.open_pane == tab)
            app.action_copy_table()
            await until(pilot, f"no table in {TABS[tab].label} yet")
            assert app.clipboard == ""


async def test_sessions_copies_its_list(tmp_path: Path) -> None:
    keep(tmp_path, MIXED, mixed_session())
    keep(tmp_path, STOPPED, stopped_session())
    async with on_screen(Cs336App(session_dir=tmp_path), size=SMALL) as (app, pilot):
        await press(pilot, TABS["sessions"].key, seen="11-19")
        await press(pilot, "c", seen=lambda _: bool(app.clipboard))
    head, *rows = table_in(app.clipboard)
    assert head[0] == "session"
    assert len(rows) == 2
