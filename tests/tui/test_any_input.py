"""The terminal: any keys, clicks and pastes at any time, after which the app goes on and restores it; and partial
updates, which leave the same screen as a full one."""

import asyncio
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import msgspec
import pyte
import pytest
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Button, Input

from benchmarks import fuzz_keys
from benchmarks.reporting import app as app_command
from cs336_tui.events.events import StepsTimed
from cs336_tui.session import store
from cs336_tui.session.log import LogReader
from cs336_tui.tui import terminal
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.compositor import Drawn, TightUpdate, _Piece
from cs336_tui.tui.controllers.commands import Palette
from cs336_tui.tui.dialogs.export import ExportDialog
from cs336_tui.tui.dialogs.windows import ChoiceList, Confirm, ThemeList
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.terminal import Parser
from tests.samples import DEMO_LOG, mixed_session
from tests.terminal import Terminal
from tests.tui.kept_sessions import DEMO, MIXED, keep
from tests.tui.watched import SMALL, WIDE, Benches, comes, demo, log_of, on_screen, press, replaying, until


def heard(data: str) -> list[str]:
    """Keys, clicks and sizes parsed from a terminal's bytes."""
    return [event.key if isinstance(event, events.Key) else type(event).__name__ for event in Parser().feed(data)]


@pytest.mark.parametrize(
    "codes",
    ["\x1b[99999999999u", "\x1b[1114112u", "\x1b[55296u", "\x1b[97;;99999999999u", "\x1b[97;5;1114112:5u",
     "\x1b[48;0;0;0;0t", "\x1b[48;99999;99999;1;1t"],
)  # fmt: skip
def test_a_code_that_is_no_key_and_no_size_is_left_out(codes: str) -> None:
    assert heard(f"a{codes}b") == ["a", "b"]


def test_a_mouse_is_heard_of_after_a_terminal_said_that_it_has_no_size() -> None:
    assert heard("\x1b[48;0;0;0;0t\x1b[<0;5;5Mx")[-1] == "x"
    assert heard("\x1b[<0;5;5M") == ["MouseDown"]


def test_input_is_waited_for_without_end_unless_a_key_has_begun() -> None:
    parser = Parser()
    assert parser.waits_s is None
    assert [*parser.feed("\x1b")] == []
    assert parser.waits_s is not None
    assert [*parser.feed("[A")] != []
    assert parser.waits_s is None


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_a_double_click_beside_a_window_closes_it_and_nothing_else(size: tuple[int, int]) -> None:
    async with on_screen(Cs336App(Benches()), size=size) as (app, pilot):
        for _ in range(3):
            await pilot.press("colon")
            await comes(pilot, lambda: isinstance(app.screen, Palette) and app.screen.is_mounted)
            await pilot.click(offset=(0, size[1] - 1), times=2)
            await comes(pilot, lambda: len(app.screen_stack) == 1)


async def test_two_answers_at_once_are_one_answer() -> None:
    answers: list[bool | None] = []
    async with on_screen(Cs336App(Benches()), size=SMALL) as (app, pilot):
        dialog = Confirm("Really?", yes="Yes", no="No")
        app.push_screen(dialog, answers.append)
        await comes(pilot, lambda: dialog.is_mounted)
        dialog.dismiss(True)
        dialog.dismiss(False)
        await pilot.pause()
        assert (answers, len(app.screen_stack)) == ([True], 1)
        dialog = Confirm("And now?", yes="Yes", no="No")
        app.push_screen(dialog, answers.append)
        await comes(pilot, lambda: dialog.is_mounted)
        for button in ("#no", "#yes"):
            dialog.query_one(button, Button).press()
        await pilot.pause()
        assert (answers, len(app.screen_stack)) == ([True, False], 1)


async def test_keys_that_come_with_the_one_that_opens_a_window_are_for_the_window() -> None:
    async with on_screen(Cs336App(Benches())) as (app, pilot):
        before = app.theme
        for key in ("colon", "t", "h"):  # as one read of a slow connection brings them
            app.post_message(events.Key(key, {"colon": ":"}.get(key, key)))
        await comes(pilot, lambda: isinstance(app.screen, Palette))
        await until(pilot, lambda text: "th" in text)
        assert app.theme == before


@pytest.mark.parametrize(("keys", "opened"), [("i g", "GpuPick"), ("4 down enter", "Reader"), ("l enter", "Reader")])
async def test_keys_that_come_with_the_one_that_opens_a_tab_are_for_it(keys: str, opened: str, tmp_path: Path) -> None:
    async with on_screen(replaying(mixed_session(), tmp_path), "at its end", size=SMALL) as (app, pilot):
        for key in keys.split():
            app.post_message(events.Key(key, None))
        await comes(pilot, lambda: type(app.screen).__name__ == opened)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keep(tmp_path, MIXED, mixed_session())
    keep(tmp_path, DEMO, demo())
    return tmp_path


async def test_keys_typed_at_once_wait_for_the_list_of_sessions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = store.folder_sessions

    def slowly(directory: Path) -> list[Path]:
        time.sleep(0.3)
        return read(directory)

    monkeypatch.setattr(store, "folder_sessions", slowly)
    async with on_screen(Cs336App(Benches(), session_dir=folder), size=SMALL) as (app, pilot):
        for key in ("7", "down", "enter"):
            app.post_message(events.Key(key, None))
        await comes(pilot, lambda: app.shown is not app.live)
        assert app.shown.path == folder / f"{MIXED}.jsonl"


async def test_keys_do_not_wait_long_for_a_list_of_sessions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_be_read, read = threading.Event(), store.folder_sessions
    monkeypatch.setattr(store, "folder_sessions", lambda directory: may_be_read.wait(20) and read(directory))
    monkeypatch.setattr(terminal, "OPENED_WITHIN_S", 0.1)
    async with on_screen(Cs336App(Benches(), session_dir=folder), size=SMALL) as (app, pilot):
        for key in ("7", "4"):
            app.post_message(events.Key(key, None))
        await comes(pilot, lambda: app.main.open_pane == "results")
        assert not may_be_read.is_set()
        may_be_read.set()


async def test_a_theme_asked_for_before_ours_are_loaded_is_one_of_a_list_with_the_present_one() -> None:
    async with on_screen(Cs336App(Benches()), size=(80, 24)) as (app, pilot):
        app.themes.names, before = (), app.theme
        app.action_choose_theme()
        await comes(pilot, lambda: isinstance(app.screen, ThemeList) and app.screen.is_mounted)
        await pilot.press("escape")
        await comes(pilot, lambda: len(app.screen_stack) == 1)
        assert app.theme == before


async def test_a_list_that_has_no_room_has_no_pages() -> None:
    async with on_screen(Cs336App(Benches()), size=(1, 1)) as (app, pilot):
        app.push_screen(ChoiceList("Presets", [("a", "b")] * 50))
        await comes(pilot, lambda: isinstance(app.screen, ChoiceList) and app.screen.is_mounted)
        for key in ("pagedown", "pageup", "end", "pageup"):
            await pilot.press(key)
        assert app.is_running


@pytest.mark.parametrize("size", [(1, 1), SMALL, WIDE])
async def test_a_pane_may_be_painted_before_it_has_a_size(size: tuple[int, int], tmp_path: Path) -> None:
    async with on_screen(replaying(mixed_session(), tmp_path), size=size) as (app, pilot):
        await comes(pilot, lambda: len(app.state.cells) == 4)
        for pane in TABS:
            app.main.open(pane)
            app.paint()  # before anything of the pane is there
            await asyncio.sleep(0)
            app.paint()
            await comes(pilot, lambda pane=pane: app.main.query_one(f"#{pane}").is_mounted)
            assert app.is_running, pane


async def test_the_name_of_a_session_leads_no_export_out_of_its_folder(tmp_path: Path) -> None:
    first, *rest = mixed_session()
    log = log_of([msgspec.structs.replace(first, session="../../\x1b[2Jetc/passwd"), *rest], tmp_path)  # type: ignore[arg-type]
    async with on_screen(Cs336App(replay=log, speed=0), "at its end") as (app, pilot):
        await pilot.press("e")
        await comes(pilot, lambda: isinstance(app.screen, ExportDialog))
        assert isinstance(app.screen, ExportDialog)
        name = Path(app.screen.query_one("#name", Input).value)
        assert name.parent == Path()
        assert "\x1b" not in name.name
        assert app.screen.path == Path.cwd() / name


async def test_a_screen_that_is_not_drawn_in_time_is_waited_for_by_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    wait = asyncio.wait

    async def at_most(tasks: list[asyncio.Task[bool]], timeout: float | None = None) -> object:
        waits.append(timeout)
        return await wait(tasks, timeout=0.01)

    async def never(_: Screen[None]) -> bool:
        return await asyncio.Event().wait()

    app = Cs336App(Benches())
    async with app.run_test(size=WIDE):
        with monkeypatch.context() as patched:
            patched.setattr(Screen, "wait_for_refresh", never)
            patched.setattr(asyncio, "wait", at_most)
            await app.laid_out()
            await app.laid_out()
        assert len(waits) == 1


@pytest.mark.timeout(60)
def test_an_app_that_is_left_while_ctrl_s_is_typed_ends(tmp_path: Path) -> None:
    """Once the terminal has its usual settings, Ctrl+S holds what is written to it."""
    with fuzz_keys.an_app(tmp_path, ["--replay", str(log_of(mixed_session(), tmp_path)), "--speed", "0"]) as terminal:
        terminal.until_bytes(b"\x1b[?1049h")
        fuzz_keys.taken(terminal)
        fuzz_keys.send(terminal, fuzz_keys.QUIT)

        def type_on() -> None:
            while not terminal.is_over:
                fuzz_keys.send(terminal, (b"j" * 60 + b"\x13") * 8)

        threading.Thread(target=type_on, daemon=True).start()
        terminal.wait(20)
        assert fuzz_keys.problem_of(terminal, tmp_path) == ""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", fuzz_keys.MODES)
def test_thousands_of_inputs(mode: str) -> None:
    """The same ones each time; ``python -m benchmarks.fuzz_keys`` plays as many others as one likes."""
    played = fuzz_keys.MODES[mode](2000, f"{mode} 4", batch=500)
    assert played.problem == ""
    assert played.inputs >= 2000


WIDTH, HEIGHT = 120, 40


def shown(terminal: pyte.Screen) -> list[list[tuple[str, str, str]]]:
    """Character, foreground and background of every cell of an emulated terminal."""
    rows = (terminal.buffer[y] for y in range(HEIGHT))
    return [[(row[x].data, row[x].fg, row[x].bg) for x in range(WIDTH)] for row in rows]


def meant(app: Cs336App) -> list[list[tuple[str, str, str]]]:
    """Character, foreground and background of every cell that the app wants to show."""

    def cells(segment: Segment) -> list[tuple[str, str, str]]:
        style = segment.style
        both = (style.color, style.bgcolor)
        colors = [color.get_truecolor().hex.removeprefix("#") if color else "default" for color in both]
        return [(char, colors[0], colors[1]) for char in segment.text]

    strips = app.screen._compositor.render_strips()
    return [[cell for segment in strip for cell in cells(segment)] for strip in strips]


async def test_a_session_of_partial_updates_leaves_the_screen_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.Stream(terminal)
    app = Cs336App()
    app.console._color_system = ColorSystem.TRUECOLOR
    async with on_screen(app, "Nothing has run yet", size=(WIDTH, HEIGHT)) as (_, pilot):
        partial = 0

        def emulate(_: Any, update: Any) -> None:
            nonlocal partial
            if update is not None:
                partial += isinstance(update, TightUpdate)
                stream.feed(update.render_segments(app.console).replace("\n", "\r\n"))

        monkeypatch.setattr(app, "_display", emulate)
        app.screen.refresh()
        await until(pilot, "Nothing has run yet")
        for number, event in enumerate(LogReader(DEMO_LOG)):
            app.take(app.live, [event])
            if number % 7 == 0 or isinstance(event, StepsTimed):
                await pilot.pause()
                app.paint()
            if number == 120:
                break
        await press(pilot, "5", "4", "down", seen="small")
        wanted, seen = meant(app), shown(terminal)
        # A blank has no visible foreground.
        differ = [
            (x, y, w, s)
            for y in range(HEIGHT)
            for x, (w, s) in enumerate(zip(wanted[y], seen[y], strict=True))
            if (w[0], w[2]) != (s[0], s[2]) or (w[0] != " " and w[1] != s[1] and s[0] != " ")
        ]
        assert not [d for d in differ if d[2][0] != " " or d[3][0] != " "][:5]
        assert partial > 30


def drawn(*texts: str) -> tuple[str, list[str]]:
    """The last text as a terminal shows it, and all that was written, where one row showed the texts in turn."""
    terminal, onto, console = pyte.Screen(WIDTH, 1), Drawn(), Console(color_system="truecolor")
    stream, written = pyte.Stream(terminal), []
    for text in texts:
        update = TightUpdate([_Piece(0, 0, Strip([Segment(text.ljust(20))]))])
        update.onto = onto
        written.append(update.render_segments(console))
        stream.feed(written[-1])
    return "".join(terminal.buffer[0][x].data for x in range(20)).rstrip(), written


def test_only_what_differs_is_written_and_nothing_where_nothing_does() -> None:
    assert drawn("step 1 of 10", "step 2 of 10") == ("step 2 of 10", [ANY, "\x1b[1;6H\x1b[0m2\x1b[0m"])
    assert drawn("step 1 of 10", "step 1 of 10")[1][1] == ""
    assert "\x1b[2" not in drawn("\x1b[2Jstep\x07", "step")[1][0]


@pytest.mark.parametrize("word", ["漢字", "e\u0301", "漢e\u0301"])
def test_a_row_with_characters_of_other_widths_is_written_whole(word: str) -> None:
    before, after = f"{word} 1 of 10", f"{word} 2 of 10"
    shown, (_, second) = drawn(before, after)
    assert "2 of 10" in shown
    assert f"\x1b[1;1H\x1b[0m{after}" in second
    assert "漢" not in drawn(before, "step 2 of 10")[0]


def test_nothing_is_written_beyond_a_terminal_that_became_smaller_than_the_layout() -> None:
    pieces = [_Piece(y, x, Strip([Segment("edge")])) for y, x in ((0, 6), (0, 10), (1, 0))]
    update = TightUpdate(pieces)
    update.size = Size(8, 1)
    assert update.render_segments(Console(color_system="truecolor")) == "\x1b[1;7H\x1b[0med\x1b[0m"


def test_a_key_and_another_size_draw_the_whole_screen_anew(tmp_path: Path) -> None:
    """The terminal may show something else than was written: it cuts what is written beyond its new size."""
    with closing(Terminal([*app_command(), "--session-dir", str(tmp_path)], columns=80, rows=24)) as terminal:
        terminal.until("Quit")  # the last row
        for again in (lambda: terminal.send("\x0c"), lambda: terminal.resize(78, 24)):
            terminal.look(lambda screen: screen.erase_in_display(2))
            again()
            terminal.until(lambda text: "cs336-tui" in text and "Quit" in text)
