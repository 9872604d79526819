"""The help: a line for every tab, key and palette entry, at the open tab, searched, with a glossary."""

import re

import pytest
from rich.cells import cell_len

from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.help import GLOSSARY, HelpReader, bindings_by_id, help_page, printed, sections
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.widgets.entries import Chips
from cs336_tui.tui.widgets.lines import Lines
from cs336_tui.tui.widgets.menu_bars import KeyBar
from tests.tui.test_keys import MOVES, every_binding
from tests.tui.watched import SMALL, WIDE, Benches, comes, on_screen, press, text, until


def described() -> set[str]:
    """The ids of the bindings of which the help tells."""
    return {id for part in sections(replaying=True) for name, _ in part.entries for id in name.split()}


def test_every_key_that_means_something_has_a_line() -> None:
    told = described()
    for cls, binding in every_binding():
        keys = {key.removeprefix("shift+") for key in binding.key.split(",")}
        if keys <= MOVES or binding.id in told:
            continue
        same = [each.id for _, each in every_binding() if each.tooltip == binding.tooltip and each.id in told]
        assert binding.tooltip, (cls, binding.id)
        assert same, f"{binding.id} has no line in data/help.toml"


def test_every_key_that_a_tab_or_the_app_shows_has_a_line_of_its_own() -> None:
    shown = {id for id, binding in bindings_by_id().items() if binding.show}
    assert shown - described() - {"help.escape", "export.cancel", "ask.cancel"} == set()


def test_the_keys_that_move_are_named() -> None:
    told = text(help_page(200, replaying=False).lines)
    for word in ("↑ ↓ ← →", "Space", "Enter", "Esc", "Tab", "Home  End", "PgUp  PgDn"):
        assert f"{word} " in told


def test_each_entry_names_bindings_that_there_are_by_their_keys() -> None:
    known = bindings_by_id()
    for section in sections(replaying=True):
        for name, about in section.entries:
            if re.fullmatch(r"[a-z]+\.[a-z_]+( [a-z]+\.[a-z_]+)*", name):
                assert set(name.split()) <= known.keys(), name
            assert about
    told = text(help_page(400, replaying=True).lines)
    assert not [id for id in known if id in told.split()]
    assert "\nx Space " in told
    assert "\nq Ctrl+C " in told
    assert "< " in told


def test_every_tab_is_told_and_has_a_section() -> None:
    page = help_page(100, replaying=False)
    told = text(page.lines)
    for tab in TABS.values():
        assert re.search(rf"^{re.escape(tab.key)} +{tab.label}: ", told, re.MULTILINE)
        title = text([page.lines[page.starts[tab.id]]])
        assert tab.title in title


def test_the_glossary_has_the_words_of_this_tool_each_in_one_plain_sentence() -> None:
    told = text(help_page(120, replaying=False).lines) + "\n"
    words = (
        "cell,pass,edition,verdict,pivot,exposed,warm-up,measured step,phase,lane,rank,report,preset,sweep,MFU,busbw,"
        "peak allocated,peak reserved,launch-bound,contended"
    )
    for word in words.split(","):
        sentence = GLOSSARY[word]
        assert sentence.endswith("."), word
        assert ". " not in sentence, word
        assert f"\n{word} " in told


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_help_opens_at_the_tab(size: tuple[int, int]) -> None:
    async with on_screen(Cs336App(Benches()), "NVIDIA", size=size) as (app, pilot):
        for name in ("results", "sessions", "kernels", "precision"):
            tab = TABS[name]
            await pilot.press("escape", tab.key)
            await comes(pilot, lambda name=name: app.main.tab_at_focus == name)
            await pilot.press("question_mark")
            await comes(pilot, lambda: isinstance(app.screen, HelpReader) and text_in(app) != "")
            assert tab.title in text_in(app).splitlines()[0]
            await pilot.press("question_mark")
            await comes(pilot, lambda: not isinstance(app.screen, HelpReader))


def text_in(app: Cs336App) -> str:
    """The text of the help as far as it is in sight."""
    return app.screen.query_one("#text", Lines).text


@pytest.mark.parametrize("size", [SMALL, WIDE, (40, 12)])
async def test_help_is_searched_while_one_types(size: tuple[int, int]) -> None:
    async with on_screen(Cs336App(), size=size) as (app, pilot):
        await press(pilot, "question_mark", seen="/ search")
        await press(pilot, "slash", *"rank", seen=lambda _: found_at(app)[1] > 3)
        many = found_at(app)[1]
        await press(pilot, "s", seen=lambda _: 0 < found_at(app)[1] < many)
        await press(pilot, "x", seen="not found")
        await press(pilot, *["backspace"] * 2, seen=lambda _: found_at(app)[1] == many)
        before, _ = found_at(app)
        for key in ("enter", "down"):
            await pilot.press(key)
        await until(pilot, lambda _: found_at(app)[0] == (before + 1) % many + 1)
        await press(pilot, "up", "up", seen=lambda _: found_at(app)[0] == before)
        await press(pilot, "escape", seen="/ search")
        assert isinstance(app.screen, HelpReader)
        await press(pilot, "end", seen="effective settings")
        await press(pilot, "escape", seen=lambda _: len(app.screen_stack) == 1)


def found_at(app: Cs336App) -> tuple[int, int]:
    """The match that is shown, from 1, and the number of matches."""
    found = re.match(r"(\d+)/(\d+)", str(app.screen.query_one("#box").border_subtitle))
    return (int(found[1]), int(found[2])) if found else (0, 0)


@pytest.mark.parametrize("size", [(40, 24), SMALL, WIDE, (200, 60)])
async def test_the_last_row_shows_whole_keys_of_the_pane_first_and_always_help_and_quit(size: tuple[int, int]) -> None:
    async with on_screen(Cs336App(Benches()), size=size) as (app, pilot):
        bar = app.main.query_one(KeyBar)
        for tab in TABS.values():
            await press(pilot, "escape", tab.key, seen=lambda _, tab=tab: app.main.tab_at_focus == tab.id)
            shown = re.split(r"  +", bar.text.strip())
            assert shown[-2:] == ["? Help", "q Quit"], tab.id
            assert cell_len(bar.text) <= size[0]
            active = [each for each in app.screen.active_bindings.values() if each.binding.show and each.enabled]
            whole = {f"{app.get_key_display(each.binding)} {each.binding.description}" for each in active}
            assert set(shown) <= whole, tab.id
            of_pane = {each.binding.description for each in active if each.node is not app}
            places = [any(text.endswith(f" {each}") for each in of_pane) for text in shown[:-2]]
            assert places == sorted(places, reverse=True), shown


async def test_the_palette_finds_each_field_and_value_of_the_form_and_goes_there() -> None:
    async with on_screen(Cs336App(Benches())) as (app, pilot):
        found = {each.title: each for each in app.get_system_commands(app.screen)}
        assert "Go to steps" in found
        await found["Go to attention: sdpa"].callback()
        await until(pilot, "sdpa: torch's")
        entry = app.main.query_one("#entry-attention", Chips)
        assert (app.focused, entry.under_cursor) == (entry, "sdpa")
        form = app.main.query_one("#form").region
        await until(pilot, lambda _: entry.region.intersection(form) == entry.region)


async def test_the_palette_does_and_tells_what_keys_of_all_tabs_do_and_shows_the_settings() -> None:
    async with on_screen(Cs336App(Benches()), notifications=True) as (app, pilot):
        commands = [*app.get_system_commands(app.screen)]
        assert not [each.title for each in commands if not each.help or each.help == each.title]
        titles = [each.title for each in commands]
        assert sorted(set(titles)) == sorted(titles)
        for id, binding in bindings_by_id().items():
            if id.startswith("app.") and binding.show and app.check_action(binding.action, ()):
                assert any(f"({printed(binding)})" in each.help for each in commands), id
        await press(pilot, "escape", "colon", *"Queue: OOM", "enter", seen="after OOM: try all")
        await press(pilot, "colon", *"Kernels: Search", "enter", seen="there is nothing to do this with here now")
        assert app.main.open_tab == "kernels"
        await press(pilot, "colon", *"Settings", "enter", seen='theme = "cs336-dark"')
        await press(pilot, "escape", "colon", *"Show the Log tab", "enter", seen=lambda _: app.main.open_tab == "log")
        await press(pilot, "colon", *"2024/bench", seen="Preset 2024/benchmarking_script")
