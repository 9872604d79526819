"""Keys: one meaning for each on every tab and in every dialog, the tabs and their bar in the order of the screen, and
texts that name keys where a keymap has moved them: no literal key is left in the source, and none on a screen."""

import ast
import importlib
import pkgutil
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.widget import Widget

import cs336_tui.tui
from cs336_tui.config.settings import Found, Settings
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.background import in_background
from cs336_tui.tui.help import bindings_by_id, help_page, sections
from cs336_tui.tui.keys import MEANINGS, key_name, printed_key, tab_name
from cs336_tui.tui.preferences import checked
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.widgets.menu_bars import TabBar, window
from tests.made_race import race_events
from tests.samples import mixed_session
from tests.tui.watched import SMALL, WIDE, Benches, demo, log_of, nothing_in_background, on_screen, press, until

MOVES = {"up", "down", "left", "right", "home", "end", "pageup", "pagedown", "tab", "enter", "space", "escape"}
"""Keys that move, choose or leave in any widget; with Shift too."""
ANSWERS = {"confirm.yes": {"y"}, "confirm.no": {"n"}}
"""Initials that answer a question, printed on its buttons."""


def every_binding() -> Iterator[tuple[type, Binding]]:
    """The bindings of every widget, screen and app of this package."""
    for module in pkgutil.walk_packages(cs336_tui.tui.__path__, "cs336_tui.tui."):
        for found in vars(importlib.import_module(module.name)).values():
            if isinstance(found, type) and issubclass(found, (Widget, Cs336App)) and found.__module__ == module.name:
                for each in found.__dict__.get("BINDINGS", ()):
                    assert isinstance(each, Binding), f"{found.__name__}: {each}"
                    yield found, each


def keys_of(binding: Binding) -> set[str]:
    """The keys that mean something: none that moves or chooses."""
    keys = {key for key in binding.key.split(",") if key.removeprefix("shift+") not in MOVES}
    return keys - ANSWERS.get(binding.id or "", set())


def test_no_key_is_declared_with_two_meanings() -> None:
    keys = [key for meaning in MEANINGS.values() for key in meaning.keys.split(",")]
    assert sorted(set(keys)) == sorted(keys)
    abouts = [meaning.about for meaning in MEANINGS.values()]
    assert sorted(set(abouts)) == sorted(abouts), "a meaning with two keys"
    assert not {tab.key for tab in TABS.values()} & set(keys)


def test_each_binding_has_the_keys_of_one_meaning() -> None:
    declared = {frozenset(meaning.keys.split(",")): meaning.about for meaning in MEANINGS.values()}
    tabs = {f"app.open_{tab.id}": frozenset({tab.key}) for tab in TABS.values()}
    wrong = []
    for cls, binding in every_binding():
        keys = frozenset(keys_of(binding))
        if not keys or tabs.get(binding.id or "") == keys:
            continue
        if declared.get(keys) is None or binding.tooltip not in ("", declared[keys]):
            wrong.append(f"{cls.__name__} {binding.id}: {sorted(keys)} is no meaning of cs336_tui/tui/keys.py")
    assert not wrong, "\n".join(wrong)


def test_no_two_bindings_share_an_id() -> None:
    ids = [binding.id for _, binding in every_binding()]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def test_the_keys_of_tabs_are_in_the_order_of_the_screen() -> None:
    keys = [tab.key for tab in TABS.values()]
    assert keys[:10] == list("1234567890")
    letters = keys[10:]
    assert letters == sorted(letters, key=lambda key: (key.isupper(), key))
    assert set(letters) <= set(string.ascii_letters)
    places = [tab.place for tab in TABS.values()]
    assert places == sorted(places), "the panes of a large screen come first"


NAMED = "Enter|Esc|Home|PgUp|PgDn|Space|Ctrl"
SIGN = r"\[ \]|< >|\+ -|[][<>?/+{}-]"
LITERALS = (
    rf"\b[Pp]ress ([A-Za-z0-9]|{SIGN}|{NAMED})(?![\w'])",
    r"\w \((?:\w+, )?([A-Za-z0-9?:/]|\[ \]|< >)\)",
    rf"(?:^|[·;:,.(] |\band )([A-Za-z]|{SIGN}) (?!is|has)[a-z]+s\b",
    rf"(?:^|[·;,.] )([A-Za-z]|{SIGN}): [a-z]",
    rf"({NAMED})\b",
    r"(?:^|· |columns? |/[\d\0]+ )([←→↑↓]+|\.)(?: |$)",
)
"""Forms of a key in a text: ``press r``, ``Results (4)``, ``u resumes``, ``l: bandwidths``, ``Esc leave``."""
OURS_TO_SAY = {
    "Enter take · \0 leave", "Enter choose · \0 keep", "Enter keep for good · \0 back",
    "\0 field · \0 goal · Enter race · \0 leave",
    "type to narrow · \0 · Enter choose · \0 keep", "\0 · Enter next · \0 end",
    "↑↓ what · \0 format · Enter save · \0 copy · \0 cancel",
    "\0 already exists; press Overwrite (Enter) to replace it, or choose another name",
    "\0 \0. Enter again: save it all the same.", "Enter hides these entries.", "Enter shows more entries.",
}  # fmt: skip
"""Keys of Textual's own lists, fields and buttons, and of folds: no keymap moves them."""
NO_KEYS = {"A ms", "B ms", "visits  peak (GB)  compile (s)", "compile (s)", "within (s)", "? ambiguous", "→ ← . ,"}
"""Units, a sign, and what the footer shows for keys that are not moved."""


def literal_keys(text: str) -> list[str]:
    return [found for pattern in LITERALS for found in re.findall(pattern, text, re.MULTILINE)]


@pytest.mark.parametrize(
    "text",
    ["then press r to run.", "Sessions (7) opens another", "not measured (Roofline, l)",
     "3 cells left, u resumes", "+2 columns →", "Enter: why.",
     "\0 of 1. Enter: why.", " · Enter: every figure", "O opens a trace", "; n measures it again", "l: busbw over size",
     "[ ] goes to a cell", "help (?) lists them", " · E keeps these cells", "↑↓ scroll · Esc close", "+ shows smaller"],
)  # fmt: skip
def test_a_literal_key_is_found(text: str) -> None:
    assert literal_keys(text)


def texts(path: Path) -> Iterator[str]:
    """The texts of a module as they are read, each expression in one as a NUL; without docstrings."""
    tree = ast.parse(path.read_text())
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


SOURCES = [path for path in Path(cs336_tui.tui.__path__[0]).rglob("*.py") if path.name != "keys.py"]


def test_no_text_in_the_source_names_a_key_literally() -> None:
    told = {
        f"{path.name}: {text!r}"
        for path in SOURCES
        for text in texts(path)
        if text.strip() not in OURS_TO_SAY | NO_KEYS and " " in text and literal_keys(text)
    }
    assert not told, "\n".join(sorted(told))


LETTERS = [letter for letter in map(chr, range(0x400, 0x530)) if letter.isalpha()]
"""Cyrillic: no text has one."""
MOVED = dict(zip(bindings_by_id(), LETTERS, strict=False))
EVERY_KEY = Found(Settings(keymap=MOVED), lines={"keymap.app.run": 1})
OF_A_FIELD = "Enter opens the list."
SESSIONS = {"mixed": mixed_session, "demo": demo, "race": race_events}


def test_every_key_can_be_moved_at_once() -> None:
    assert MOVED.keys() == bindings_by_id().keys()
    assert checked(EVERY_KEY, ["cs336-dark"]).problems == ()


@pytest.mark.parametrize(("session", "size"), [("none", WIDE), *((name, SMALL) for name in ("none", *SESSIONS))])
async def test_no_screen_names_a_key_that_was_moved(session: str, size: tuple[int, int], tmp_path: Path) -> None:
    log = log_of(SESSIONS[session](), tmp_path) if session in SESSIONS else None
    app = Cs336App(None if log else Benches(), replay=log, speed=0, session_dir=tmp_path, settings=EVERY_KEY)
    told: set[str] = set()
    async with app.run_test(size=size) as pilot:
        await until(pilot, "at its end" if log else f"press {MOVED['app.run']} to run" if size == WIDE else "NVIDIA")
        for tab in TABS.values():
            await press(pilot, MOVED[f"app.open_{tab.id}"], seen=lambda _, tab=tab: app.main.tab_at_focus == tab.id)
            view = MOVED.get(f"{tab.id}.view")
            for key in [MOVED["rows.down"], *([view] * 6 if view else [])]:
                shown = await press(pilot, key, seen=lambda _: nothing_in_background())
                assert f"{MOVED[f'app.open_{tab.id}']} {tab.label}" in shown
                told |= {f"{tab.id}: {row}" for row in shown.splitlines() if literal_keys(row.replace(OF_A_FIELD, ""))}
    assert not told, "\n".join(sorted(told))


async def test_a_text_that_a_thread_makes_names_moved_keys() -> None:
    found: list[str] = []
    async with on_screen(Cs336App(Benches(), settings=EVERY_KEY), lambda app: bool(app.keymap)) as (app, pilot):
        in_background(app, lambda: f"press {key_name('app.run')} in {tab_name('queue')}", found.append)
        await until(pilot, lambda _: bool(found))
    assert found == [f"press {MOVED['app.run']} in Queue ({MOVED['app.open_queue']})"]


def test_help_and_its_section_of_tabs_name_moved_keys() -> None:
    shown = {id: printed_key(key) for id, key in MOVED.items()}
    rows = ["".join(span.text for span in line) for line in help_page(400, replaying=True, keymap=MOVED).lines]
    assert not [row for row in rows if re.match(rf"({'|'.join(tab.key for tab in TABS.values())}) +\w+:", row)]
    for tab in TABS.values():
        assert [row for row in rows if row.startswith(f"{shown[f'app.open_{tab.id}']} ") and f"{tab.label}: " in row]


def test_no_line_of_help_names_a_key_literally() -> None:
    of_fields = ("preset", "recent", "help.search")
    told = [about for part in sections(replaying=True) for name, about in part.entries if name not in of_fields]
    assert [about for about in told if literal_keys(about)] == []


def test_texts_ask_for_bindings_and_tabs_that_there_are() -> None:
    asked = [call for path in SOURCES for call in re.findall(r"(key_name|tab_name)\(([^()]*)\)", path.read_text())]
    ids = {id for _, binding in every_binding() if (id := binding.id)}
    named = [id for function, of in asked if function == "key_name" for id in re.findall(r"[\"']([\w.]+)[\"']", of)]
    tabs = [id for function, of in asked if function == "tab_name" for id in re.findall(r"^[\"'](\w+)[\"']$", of)]
    assert len(named) > 30
    assert [id for id in named if id not in ids] == []
    assert len(tabs) > 8
    assert [id for id in tabs if id not in TABS] == []


@pytest.mark.parametrize("middle", range(6))
def test_a_window_holds_its_middle_fits_its_room_and_could_not_grow(middle: int) -> None:
    widths = [9, 12, 7, 10, 8, 11]

    def needed(first: int, end: int) -> int:
        return sum(widths[first:end]) + 2 * ((first > 0) + (end < len(widths)))

    for room in range(12, 80):
        first, end = window(widths, middle, room, 2)
        assert first <= middle < end
        if end - first > 1:
            assert needed(first, end) <= room
        grown = [(first - 1, end)] * (first > 0) + [(first, end + 1)] * (end < len(widths))
        assert all(needed(*more) > room for more in grown)


def bar(app: Cs336App) -> TabBar:
    return app.main.query_one(TabBar)


@pytest.mark.parametrize("width", [40, 60, 80])
async def test_left_and_right_go_through_all_tabs_and_the_open_one_is_named(width: int) -> None:
    async with on_screen(Cs336App(Benches()), size=(width, 24)) as (app, pilot):
        bar(app).focus()
        offered = [tab for tab in TABS.values() if tab.id != "race"]  # which a session without a race does not offer
        for tab in [*offered[1:], offered[0]]:
            await press(pilot, "right", seen=lambda _, tab=tab: f"{tab.key} {tab.label}" in bar(app).text)
            assert app.main.open_pane == tab.id
            assert len(bar(app).text) <= width
            assert bar(app).text.startswith("‹") == (tab.id != "configure" and "1 Configure" not in bar(app).text)
        await press(pilot, "left", seen=lambda _: app.main.open_pane == "precision")


async def test_a_click_on_a_tab_opens_it_and_one_on_an_arrow_the_next_that_is_not_in_sight() -> None:
    async with on_screen(Cs336App(Benches()), size=(80, 24)) as (app, pilot):
        await pilot.click("#tabs", offset=(bar(app).text.index("2 Live"), 0))
        await until(pilot, lambda _: app.main.open_pane == "live")
        await pilot.press("1")
        assert bar(app).text.endswith("│ 7 Sessions │›")
        await pilot.click("#tabs", offset=(len(bar(app).text) - 1, 0))
        await until(pilot, lambda _: app.main.open_pane == "compare")
        assert bar(app).text.startswith("‹│")
        await pilot.click("#tabs", offset=(0, 0))
        await until(pilot, lambda _: app.main.open_pane not in ("compare", "configure"))
