"""Exporting from the app."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual.widgets import Button, Checkbox, Input, Select

from cs336_tui.export.writeups import LAYOUTS
from cs336_tui.tui.app import Cs336App
from tests.tui.watched import SMALL, demo, log_of, until

RESULTS = "cs336-tui-results-2026-11-20T14-03-42-demo.md"
TABLES = "cs336-tui-tables-2026-11-20T14-03-42-demo.md"
SUMMARY = "cs336-tui-summary-2026-11-20T14-03-42-demo.md"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def app(tmp_path: Path) -> Cs336App:
    return Cs336App(replay=log_of(demo(), tmp_path), speed=0)


async def test_both_files_are_written_where_the_app_was_started(app: Cs336App, here: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, RESULTS)
        await pilot.press("ctrl+s")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
    assert {path.name for path in here.iterdir()} == {RESULTS, SUMMARY}
    assert "347.4" in (here / RESULTS).read_text()
    assert "NVIDIA H100" in (here / SUMMARY).read_text()


async def test_a_layout_of_write_ups_is_chosen_and_written(app: Cs336App, here: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, "Tables as in a write-up")
        choice = app.screen.query_one("#layout", Select)
        assert [value for _, value in choice._options][: len(LAYOUTS)] == [*LAYOUTS]
        choice.value = "attention"
        app.screen.query_one("#want-2", Checkbox).value = True
        await pilot.press("ctrl+s")
        await until(pilot, "no cell of attention alone")
        assert not any(here.iterdir()), "nothing is written of what cannot all be made"
        choice.value = "min-max"
        await pilot.press("ctrl+s")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
    assert "Min (s)" in (here / TABLES).read_text()
    assert len(list(here.iterdir())) == 3


async def test_a_layout_is_written_as_pandas_writes_it(app: Cs336App, here: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, "as pandas writes them")
        app.screen.query_one("#layout", Select).value = "min-max"
        for tick in ("#want-2", "#pandas"):
            app.screen.query_one(tick, Checkbox).value = True
        await pilot.press("ctrl+s")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
    header = r"\|    \| Model +\| Pass +\| +Warmup \| +Min \(s\) \|"
    assert re.search(header, (here / TABLES).read_text())
    assert "sample standard deviation" not in (here / TABLES).read_text()


async def test_a_problem_of_the_session_is_written_with_its_figures_beside_it(app: Cs336App, here: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, "Tables as in a write-up")
        choice = app.screen.query_one("#layout", Select)
        offered = {str(value) for _, value in choice._options} - set(LAYOUTS)
        assert offered
        assert all(value.startswith("problem 2026/") for value in offered)
        choice.value = "problem 2026/benchmarking_script"
        await until(pilot, lambda _: app.screen.query_one("#want-2", Checkbox).value)
        await pilot.press("ctrl+s")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
    text = (here / TABLES).read_text()
    assert text.startswith("# 2026 benchmarking_script: ")
    figures = {path.name for path in (here / TABLES.replace(".md", "-figures")).iterdir()}
    for shown in re.findall(r"!\[[^]]*\]\(<([^>]+)>\)", text):
        assert (here / shown).is_file()
    assert {name.rpartition(".")[2] for name in figures} == {"svg", "pdf", "png"}


async def test_an_existing_file_needs_a_second_yes(app: Cs336App, here: Path) -> None:
    (here / RESULTS).write_text("mine")
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, RESULTS)
        await pilot.press("ctrl+s")
        await until(pilot, "already exists")
        assert (here / RESULTS).read_text() == "mine"
        assert str(app.screen.query_one("#save", Button).label) == "Overwrite"
        await pilot.press("ctrl+s")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
    assert "347.4" in (here / RESULTS).read_text()


async def test_another_name_asks_again(app: Cs336App, here: Path) -> None:
    for name in ("a.md", "b.md"):
        (here / name).write_text("mine")
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, RESULTS)
        app.screen.query_one("#path-0", Input).value = "a.md"
        await pilot.press("ctrl+s")
        await until(pilot, "a.md already exists")
        app.screen.query_one("#path-0", Input).value = "b.md"
        await pilot.pause()
        await pilot.press("ctrl+s")
        await until(pilot, "b.md already exists")
        await pilot.press("escape")
    assert (here / "a.md").read_text() == (here / "b.md").read_text() == "mine"


async def test_a_path_that_cannot_be_written_leaves_the_dialog_open(app: Cs336App, here: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, RESULTS)
        app.screen.query_one("#path-0", Input).value = "no/such/folder/x.md"
        await pilot.press("ctrl+s")
        await until(pilot, "! no/such/folder/x.md")
        assert len(app.screen_stack) == 2
    assert not list(here.iterdir())


async def test_nothing_ticked_and_two_equal_names_are_refused(app: Cs336App, here: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, RESULTS)
        app.screen.query_one("#path-1", Input).value = RESULTS
        await pilot.press("ctrl+s")
        await until(pilot, "both would be written")
        for name in ("#want-0", "#want-1"):
            app.screen.query_one(name).toggle()  # type: ignore[attr-defined]
        await pilot.pause()
        await pilot.press("ctrl+s")
        await until(pilot, "nothing is ticked")
    assert not list(here.iterdir())


async def test_letters_typed_into_a_name_are_letters(app: Cs336App, here: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("e")
        await until(pilot, RESULTS)
        field = app.screen.query_one("#path-0", Input)
        field.value = ""
        field.focus()
        await pilot.press(*"crest.md")
        assert field.value == "crest.md"
        await pilot.press("enter")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
    assert (here / "crest.md").exists()


async def test_c_copies_the_table(app: Cs336App, here: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("c")
        await until(pilot, lambda _: "347.4" in app.clipboard)
    assert not list(here.iterdir())


async def test_without_results_there_is_nothing_to_export() -> None:
    app = Cs336App()
    async with app.run_test(size=SMALL, notifications=True) as pilot:
        await pilot.press("e")
        await until(pilot, "no results yet")
        await pilot.press("c")
        assert len(app.screen_stack) == 1
        assert app.clipboard == ""
