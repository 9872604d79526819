"""The app as a user sees it: keys in, screen out."""

from pathlib import Path
from typing import Any

import pytest
from textual.events import Key
from textual.widgets import Input

from cs336_tui.events.events import CellFinished, ChildOutput, Notice
from cs336_tui.export.summary import summary_markdown
from cs336_tui.session.log import LogError
from cs336_tui.session.state import SessionState
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.background import SummaryAutosave
from cs336_tui.tui.configure.form import entry_axes
from cs336_tui.tui.help import VERDICTS, help_page
from cs336_tui.tui.tabs.live import LogPane
from cs336_tui.tui.tabs.results import ResultsPane
from tests.samples import START
from tests.tui.watched import SMALL, WIDE, Benches, a_step, demo, in_the_middle, on_screen, press, replaying, until


async def test_a_run_from_key_to_result(bench: Benches) -> None:
    async with on_screen(Cs336App(bench)) as (_, pilot):
        text = await until(pilot, "NVIDIA H100 80GB HBM3")
        assert bench.prepared
        assert "Choose on the left, then press r to run." in text
        assert "No results yet" in text
        text = await press(pilot, "r", seen="▶ running")
        assert "s Stop" in text
        assert "r Run" not in text.splitlines()[-1]
        bench.go_on.set()
        text = await until(pilot, lambda text: "r Run" in text.splitlines()[-1] and text.count("✓ ok") >= 3)
        assert "153.2" in text
        await until(pilot, lambda text: text.count("too-few-steps") >= 3)
    assert bench.closed
    (command,) = bench.commands
    assert command == (
        "cs336-tui bench --size tiny --context 128 --batch 4 --pass forward,forward+backward,train-step "
        "--precision fp32 --warmup 5 --steps 10 --device cuda:0 --edition 2026 --arch swiglu-rope "
        "--sync each-step --seed 0"
    )


async def test_a_run_that_cannot_begin_says_why_in_place(bench: Benches) -> None:
    async with on_screen(Cs336App(bench), "NVIDIA", notifications=True) as (app, pilot):
        bench.made[0].refuse = LogError("session log /x: Permission denied; choose another --session-dir")
        await press(pilot, "r", seen="Permission denied")
        assert "! session log /x: Permission denied" in await press(pilot, "5", seen="5 Log")
        assert not app.run_in_progress


PANES = {"1": "preset", "2": "measuring 6/10", "3": "utilisation 0–100 %", "4": "mean ms", "5": "demo data"}


@pytest.mark.parametrize("size", [SMALL, WIDE, (70, 24), (40, 25)])
async def test_number_keys_open_every_pane(size: tuple[int, int], tmp_path: Path) -> None:
    async with on_screen(replaying(demo(in_the_middle), tmp_path), size=size) as (_, pilot):
        for key, seen in PANES.items():
            await press(pilot, key, seen=seen)


@pytest.mark.parametrize(
    ("opens", "text"),
    [(["w"], "mine"), (["7", "O"], "x.json"), (["question_mark", "slash"], "rms"), (["colon"], "csv")],
)
async def test_what_is_typed_in_one_burst_goes_into_the_window_that_its_first_keys_open(
    opens: list[str], text: str
) -> None:
    async with on_screen(Cs336App()) as (app, pilot):
        for key in (*opens, *text):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda _: text in [each.value for each in app.screen.query(Input)])


async def test_resizing_down_and_up_survives(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(in_the_middle), tmp_path), size=(200, 60)) as (app, pilot):
        for width, height in ((120, 40), (80, 24), (60, 20), (40, 12), (20, 6), (5, 2), (1, 1), (76, 12), (120, 29)):
            await pilot.resize_terminal(width, height)
            for pane in ("configure", "live", "results", "log", "device"):
                await app.action_open(pane)
                await until(pilot, lambda text, height=height: len(text.splitlines()) == height)
        await pilot.resize_terminal(200, 60)
        await until(pilot, lambda text: "measuring 6/10" in text and "utilisation" in text)


async def test_the_cursor_of_the_results_chooses_what_live_shows_and_enter_or_a_click_opens_it(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), "cell 19/19") as (app, pilot):
        text = await press(pilot, "4", "home", seen=lambda text: "cell 1/19" in text and "1–10 of 19" in text)
        assert "mean ms" in text
        assert "tokens/s" in text
        await press(pilot, "down", "down", seen="cell 3/19")
        assert "small · ctx 512 · train-step" in await press(pilot, "enter", seen="Measured steps, ms")
        await press(pilot, "escape", seen="4 Results")
        assert app.query_one(ResultsPane).cursor == 2
        await press(pilot, "home", seen="cell 1/19")
        await pilot.click("#results", offset=(20, 3))
        await until(pilot, "cell 2/19")
        await pilot.click("#results", offset=(20, 3))
        await until(pilot, "Measured steps, ms")


async def test_the_log_tells_how_a_cell_in_the_middle_of_a_sweep_failed(tmp_path: Path) -> None:
    def died(at: float) -> CellFinished:
        why = "signal 9: memory of the host ran out"
        return CellFinished(at=at, cell=3, status="killed", stage="measuring", step=2, error=why)

    events = [died(event.at) if isinstance(event, CellFinished) and event.cell == 3 else event for event in demo()]
    async with on_screen(replaying(events, tmp_path), "cell 19/19", size=(200, 60)) as (_, pilot):
        text = await press(pilot, "5", seen="✗ process killed while measuring, at step 3")
        assert "   4 signal 9: memory of the host ran out" in text
        assert "▶ large · ctx 512 · forward · fp32" in text
        assert "signal 9" in await press(pilot, "4", "home", "down", "down", "down", "enter", seen="Cell 4")


async def test_the_log_follows_until_somebody_scrolls_and_forgets_its_oldest_rows(bench: Benches) -> None:
    async with on_screen(Cs336App(bench), "1 Configure", size=SMALL) as (app, pilot):
        app.take(app.live, [ChildOutput(at=START, cell=None, text="".join(f"line {i} [b]x\n" for i in range(100)))])
        assert "line 99 [b]x" in await press(pilot, "5", seen="line 99")
        await press(pilot, "pageup", "pageup", seen=lambda text: "line 99" not in text)
        app.take(app.live, [Notice(at=START, text="news")])
        await pilot.pause()
        app.query_one(LogPane).show(app.shown.log, app.shown.path)
        assert "! news" not in app.query_one(LogPane).text
        await press(pilot, "end", seen="! news")
        app.take(app.live, [ChildOutput(at=START, cell=None, text="x\n" * 20_000)])
        await until(pilot, "  · x")
        assert len(app.shown.log) == 5000


async def test_nothing_is_painted_when_nothing_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(replaying(demo(in_the_middle), tmp_path, refresh_hz=100)) as (app, pilot):
        await until(pilot, lambda _: bool(app.state.cells) and not app.run_in_progress and app.judging.is_settled)
        await until(pilot, lambda _: not app.stale)
        updates: list[object] = []
        display = app._display
        monkeypatch.setattr(app, "_display", lambda screen, update: updates.append(update) or display(screen, update))
        await pilot.pause(0.2)
        app.paint()
        await pilot.pause(0.2)
        assert updates == []


async def test_only_the_changed_columns_of_a_step_are_painted(bench: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_screen(Cs336App(bench), "NVIDIA") as (app, pilot):
        await press(pilot, "r", seen="▶ running")
        app.take(app.live, [a_step(0, 0.1532)])
        await until(pilot, "153.2")
        written: list[str] = []
        display = app._display

        def count(screen: Any, update: Any) -> None:
            if hasattr(update, "render_segments"):
                written.append(update.render_segments(app.console))
            display(screen, update)

        monkeypatch.setattr(app, "_display", count)
        app.take(app.live, [a_step(0, 0.1533, first=1)])
        await until(pilot, "n=2")
        assert 0 < len("".join(written)) < 3000
        bench.go_on.set()


def test_the_help_tells_of_each_choice_in_the_form_and_parts_names_from_what_they_mean() -> None:
    rows = ["".join(span.text for span in line) for line in help_page(400, replaying=False).lines]
    for axis in entry_axes():
        if axis.tip:
            assert any(axis.tip in row for row in rows), axis.field
    assert [name for name in VERDICTS if not any(row.partition(" ")[0] == name for row in rows)] == []


async def test_bad_user_themes_are_told_once_and_the_app_goes_on(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("colors = 3")
    async with on_screen(Cs336App(user_theme_dir=tmp_path, theme="nowhere"), notifications=True) as (app, pilot):
        assert "theme nowhere: expected one of" in (await until(pilot, "bad.toml")).replace("\n", " ")
        assert app.theme == "cs336-dark"


async def test_keys_are_letters_while_typing(bench: Benches) -> None:
    async with on_screen(Cs336App(bench), "NVIDIA") as (app, pilot):
        app.query(Input).first().focus()
        await pilot.press("r", "q", "1")
        await pilot.pause()
        assert not app.run_in_progress
        assert app.is_running
        assert not bench.commands


async def test_quitting_asks_while_cells_run(bench: Benches) -> None:
    async with on_screen(Cs336App(bench), size=SMALL) as (app, pilot):
        await press(pilot, "r", seen="cell 1/3")
        await press(pilot, "q", seen="Cells are still running")
        await press(pilot, "escape", seen="cell 1/3")
        await pilot.press("q", "q")
        await pilot.pause()
        assert not app.is_running
    assert bench.closed


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
async def test_an_idle_app_quits_at_once(key: str, bench: Benches) -> None:
    async with on_screen(Cs336App(bench), "", SMALL) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running
    assert bench.closed


async def test_the_summary_file_is_kept_from_the_first_cell_on(bench: Benches, tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    async with on_screen(Cs336App(bench, summary_path=path), size=SMALL) as (app, pilot):
        app.take(app.live, demo(lambda event: isinstance(event, CellFinished)))
        await until(pilot, lambda _: path.exists())
        app.take(app.live, [a_step(1, 0.4567), CellFinished(at=START, cell=1, status="ok")])
    assert "456.7" in path.read_text()
    assert bench.closed


@pytest.mark.parametrize(("earlier", "writes"), [(None, 2), ("earlier", 1)])
def test_an_earlier_summary_is_replaced_only_at_the_end(
    earlier: str | None, writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "summary.md", list[int]()

    def counted(state: SessionState) -> str:
        made.append(len(state.finished_cells))
        return summary_markdown(state)

    monkeypatch.setattr("cs336_tui.export.summary.summary_markdown", counted)
    if earlier:
        path.write_text(earlier)
    autosave = SummaryAutosave(path, pytest.fail)
    for _ in range(2):
        autosave.take(demo(lambda event: isinstance(event, CellFinished)))
    autosave.close(timeout_s=60)
    assert len(made) == writes
    assert path.read_text().startswith("# ")


def test_why_an_earlier_summary_was_not_replaced_is_known_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("earlier")
    autosave = SummaryAutosave(path, lambda _: None)
    autosave.take(demo(lambda event: isinstance(event, CellFinished)))
    path.unlink()
    path.mkdir()
    autosave.close(timeout_s=60)
    assert "is a directory" in autosave.problem


async def test_an_earlier_summary_stays_where_nothing_was_run(bench: Benches, tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("earlier")
    async with on_screen(Cs336App(bench, summary_path=path), size=SMALL):
        pass
    assert path.read_text() == "earlier"


async def test_a_summary_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.mkdir()
    async with on_screen(Cs336App(summary_path=path), notifications=True) as (app, pilot):
        app.take(app.live, demo(lambda event: isinstance(event, CellFinished)))
        await until(pilot, "is a directory")
