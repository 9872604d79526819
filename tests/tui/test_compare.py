"""Comparing on the screen: pivots, two sides, cells in turns, warm-up and reference points."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cs336_tui.analysis.fields import PivotError
from cs336_tui.analysis.merge import Result, merge
from cs336_tui.events.events import Event
from cs336_tui.export.writing.verdicts import judged
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.tabs import compare_pages
from cs336_tui.tui.tabs.compare import ComparePane, reference_page, warmup_page
from cs336_tui.tui.tabs.compare_pages import (
    PivotChoice,
    as_text,
    from_text,
    pairs_page,
    pivot_page,
    turns_page,
)
from cs336_tui.tui.widgets.lines import width_of
from cs336_tui.tui.widgets.rows import Page
from tests.export.grids import merged
from tests.export.test_ab_tables import RANKS, A, a_round, flat, rounds_of
from tests.samples import a_spec, cell_end, cell_start, ranks_session, session_start, sized, state_of, steps
from tests.session.made import Cell, results_of, session_of
from tests.tui.kept_sessions import DEMO, keep
from tests.tui.watched import WIDE, Benches, absent, demo, on_screen, press, replaying, screen_text, text, until

STEADY_S, WARMING_S = [0.1 + 0.0001 * (step * 7 % 5) for step in range(30)], [0.3, 0.2, 0.15, *[0.1] * 27]
"""Times of a cell in no doubt, and of one that was still warming up."""


def measured_session(scale: float, **changes: object) -> list[Event]:
    """Forward at two contexts and three warm-up settings, `scale` times as slow as 0.1 s."""
    specs = [
        a_spec(context_length=context, warmup_steps=warmup, pass_="forward", **changes)
        for context in (128, 256)
        for warmup in (0, 1, 2)
    ]
    events = session_start(specs)
    for cell, spec in enumerate(specs):
        base = scale * 0.1 * spec.context_length / 128
        cold = [base * 9, *[base * 1.002] * 2]
        warmup, rest = cold[: spec.warmup_steps], cold[spec.warmup_steps : 1]
        events += [
            *cell_start(cell),
            *steps(cell, warmup, [*rest, *[base, base * 1.004, base * 0.996, base * 1.001] * 3]),
            cell_end(cell, peak_allocated_bytes=3_000_000_000),
        ]
    return events


async def opened(pilot, app: Cs336App) -> ComparePane:  # type: ignore[no-untyped-def]
    await until(pilot, lambda _: not app.run_in_progress)
    await pilot.press("8")
    pane = app.query_one(ComparePane)
    await until(pilot, lambda _: pane.has_focus and bool(pane.text))
    return pane


def shown_of(page: Page) -> list[str]:
    return text(list(page.rows)).splitlines()


@pytest.mark.parametrize("size", [WIDE, (40, 12)])
async def test_the_pivot_that_fits_is_there_at_once_and_keys_change_it(size: tuple[int, int], tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), "", size=size) as (app, pilot):
        pane = await opened(pilot, app)
        await until(pilot, "Mean step time")
        for seen in ("Std of step times", "Median step time", "Speed-up", "Peak allocated", "Tokens/s"):
            await press(pilot, "right", seen=seen)
        await press(pilot, "left", "left", seen="Speed-up")
        if size == WIDE:
            assert "1 (baseline)" in pane.text
            before = pane.text
            await press(pilot, "B", seen=lambda _: pane.text != before)
        await press(pilot, "X", "full_stop", "comma", seen="Speed-up")


async def test_rows_columns_and_cells_are_typed_and_what_is_wrong_is_said_in_place(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), "") as (app, pilot):
        pane = await opened(pilot, app)
        await press(pilot, "enter", seen="that vary")
        await press(pilot, "ctrl+u", *"device by pass", "enter", seen="every cell has cuda:0")
        await pilot.press("ctrl+u", *"size by pass where precision=fp32", "enter")
        seen = await until(pilot, lambda _: len(app.screen_stack) == 1)
        assert "precision fp32" in pane.text
        assert not absent(seen, "347.4", "▲ OOM")


def test_a_choice_is_typed_as_it_is_shown() -> None:
    results = merge([("s", state_of(measured_session(1.0)))])
    choice = from_text("warm-up by context where pass=forward and size=small", PivotChoice())
    assert choice.rows == ("warm-up",)
    assert choice.where == {"pass": "forward", "size": "small"}
    assert from_text(as_text(choice, results), PivotChoice()) == choice
    for wrong in ("size", "size by pass where x", ""):
        with pytest.raises(PivotError, match="expected"):
            from_text(wrong, PivotChoice())


def test_warm_up_settings_stand_side_by_side_as_arrays() -> None:
    page = warmup_page(merge([("s", state_of(measured_session(1.0)))]), WIDE[0])
    assert "raw step times" in text(list(page.heading))
    seen = "\n".join(shown_of(page))
    assert "[900.0] │ [100.0, 100.4, 99.6, 100.1, 100.0, " in seen
    assert "[900.0, 100.0, 100.4, 99.6, 100.1, 100.0, " in seen
    assert "first step 9× the median · steady after 1 step" in seen


async def test_two_sessions_are_compared_with_a_verdict_in_words(tmp_path: Path) -> None:
    keep(tmp_path, "2026-11-20T10-00-00-fast", measured_session(1.0))
    keep(tmp_path, "2026-11-20T11-00-00-slow", measured_session(1.5))
    async with on_screen(Cs336App(Benches(), session_dir=tmp_path), "NVIDIA") as (app, pilot):
        await press(pilot, "7", seen="2026-11-20 11:00")
        await until(pilot, lambda _: app.focused is not None and app.focused.id == "sessions")
        await pilot.press("home", "m", "down", "m")
        seen = await press(pilot, "8", seen="▲ slower")
        assert "1.5" in seen
        assert "██████████████ 0.67×" in seen, "the speed-up of A, which was marked first"
        pane = app.query_one(ComparePane)
        await until(pilot, lambda _: pane.has_focus)
        await press(pilot, "down", "enter", seen="slower, the whole")
        await press(pilot, "escape", "V", seen="session")
        assert "[" in pane.text or "±" in pane.text, "the two are merged into one pivot"


async def test_two_cells_are_compared(tmp_path: Path) -> None:
    async with on_screen(replaying(measured_session(1.0), tmp_path), "at its end") as (_, pilot):
        await press(pilot, "8", "v", seen="Mark two sessions")
        await press(pilot, "4", "home", "down", "m", "down", "down", "down", "m", seen="◆ B")
        assert not absent(await press(pilot, "8", seen="▼ faster"), "0.5", "in every pair, A | B: context: 128 | 256")


def test_pairs_keep_what_tells_them_apart_and_show_every_column_page_by_page() -> None:
    own = {"size": "custom", "d_model": 1280, "d_ff": 5120, "num_layers": 36, "num_heads": 20}
    cells = [Cell(a_spec(pass_="forward+backward", context_length=c, **own), [0.1] * 3) for c in (128, 256, 512)]
    a, b = merge([("a", session_of(*cells)), ("b", session_of(*cells))])[:3], results_of(*cells)
    pages = [text(list(pairs_page(a, b, 72, page).heading)).splitlines() for page in range(2)]
    assert pages[0][2] == "all pairs: batch 4, pass forward+backward, precision fp32, device"
    assert pages[0][-1].endswith("→")
    assert all("ctx" in page[-1] for page in pages), "each page tells the rows apart"
    for name in ("A ms", "B ms", "A / B", "interval"):
        assert any(name in page[-1] for page in pages), name


def test_ratios_of_pairs_align() -> None:
    cells = [Cell(a_spec(pass_="forward", context_length=c), [0.2] * 3) for c in (128, 256)]
    a, b = (
        results_of(*cells),
        results_of(cells[0]._replace(measured_s=[0.1] * 3), cells[1]._replace(measured_s=[0.3] * 3)),
    )
    rows = shown_of(pairs_page(a, b, 200))
    assert rows[0].index(" 2.000 ") == rows[1].index(" 0.667 ")


def test_a_side_in_doubt_is_marked_named_and_explained() -> None:
    a = merge([("a", session_of(Cell(a_spec(pass_="forward"), STEADY_S)))])
    b = merge([("b", session_of(Cell(a_spec(pass_="forward"), WARMING_S)))])
    page = pairs_page(a, b, 200)
    shown = shown_of(page)
    assert shown[0].count(" !") == 1
    assert shown[0].index("100.") < shown[0].index(" !")
    (said,) = [row for row in shown if row.startswith("! in doubt: ")]
    assert said.startswith("! in doubt: B small · context ")
    assert "forward · fp32: still-warming" in said
    assert "! B in doubt: still-warming: " in page.details[0]
    assert "1 run\n" in page.details[0]
    assert " !" not in shown_of(pairs_page(a, a, 200))[0]


@pytest.mark.parametrize("rows", [2, 1000])
def test_a_pivot_of_any_length_says_what_all_cells_share(rows: int) -> None:
    cells = [Cell(a_spec(pass_="forward", context_length=1 + row), [0.1, 0.1]) for row in range(rows)]
    page = pivot_page(PivotChoice(rows=("context",), columns=()), merge([("a", session_of(*cells))]), 200, judges=True)
    assert any("every cell: " in row for row in shown_of(page))


def test_each_page_of_a_pivot_tells_its_rows_apart() -> None:
    kinds = [("forward", "fp32", "off"), ("forward+backward", "bf16-mixed", "reduce-overhead")]
    cells = [
        Cell(
            a_spec(pass_=pass_, precision=precision, compile=compiled, warmup_steps=warmup, context_length=context),
            [0.1, 0.1],
        )
        for pass_, precision, compiled in kinds
        for warmup in (1, 5)
        for context in (64, 128, 256, 512, 1024)
    ]
    results = merge([("a", session_of(*cells))])
    choice = from_text("pass,precision,compile,warm-up by context", PivotChoice())
    for columns_page in range(2):
        page = pivot_page(choice, results, 80, columns_page)
        assert "warm-up" in text([page.heading[-1]])
        assert len({row[:60] for row in shown_of(page)[:4]}) == 4


def test_figures_in_doubt_are_marked_once_they_are_judged() -> None:
    cells = [
        Cell(a_spec(pass_="forward", context_length=context, precision=precision), STEADY_S)
        for precision in ("fp32", "bf16-mixed")
        for context in (128, 512)
    ]
    cells[-1] = cells[-1]._replace(measured_s=WARMING_S)
    results = merge([("a", session_of(*cells))])

    def shown(choice: PivotChoice, *, judges: bool = True) -> list[str]:
        return shown_of(pivot_page(choice, results, 200, judges=judges))

    choice = from_text("context by precision", PivotChoice())
    assert not any("!" in row for row in shown(choice, judges=False)), "not known yet"
    first, second = shown(choice)[:2]
    assert first.split()[0] == "128"
    assert "!" not in first
    assert second.rstrip().endswith(" !")
    assert second.count("!") == 1
    assert len(first.rstrip()) == len(second.rstrip().removesuffix(" !")), "figures end in the same column"
    (why,) = [row for row in shown(choice) if row.startswith("! in doubt: ")]
    assert not absent(why, "512", "still-warming")
    of_memory = from_text("context by precision", PivotChoice(value="memory"))
    assert not any("!" in row for row in shown(of_memory)), "memory is what it is"
    within = PivotChoice(rows=("context",), columns=(), where={"precision": "fp32"})
    assert any("512" in row for row in shown(within))
    assert not any("!" in row for row in shown(within)), "what is left out is in nobody's way"


def test_a_cell_whose_device_becomes_known_while_it_is_judged_is_in_no_ones_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(*devices: str) -> Sequence[Result]:
        cells = [Cell(a_spec(pass_="forward", device=device), WARMING_S) for device in devices]
        return merge([("a", session_of(*cells))])

    monkeypatch.setattr(compare_pages, "judged", lambda _: judged(of("cpu", "cuda:1")))
    page = pivot_page(PivotChoice(rows=("device",), columns=()), of("cpu", "cuda:0"), 200, judges=True)
    assert [row.endswith(" !") for row in map(str.rstrip, shown_of(page)[:2])] == [True, False]


async def test_the_pivot_marks_doubts_in_a_second_pass(tmp_path: Path) -> None:
    async with on_screen(replaying(measured_session(1.0), tmp_path), "") as (app, pilot):
        pane = await opened(pilot, app)
        await until(pilot, lambda _: " !" in pane.text)
        assert "! in doubt: " in pane.text
        await press(pilot, "right", seen=lambda _: "Std of step times" in pane.text and " !" in pane.text)


async def test_reference_points_come_with_their_caveats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    async with on_screen(replaying(demo(), tmp_path), "", notifications=True) as (app, pilot):
        await opened(pilot, app)
        seen = await press(pilot, "V", seen="small forward fp32")
        assert not absent(seen, "ms here", "published")
        await press(pilot, "E", seen="Keep as reference")
        await press(pilot, *"my box", "enter", seen="reference points kept")
        assert list((tmp_path / "data").rglob("*.csv"))


def test_reference_points_of_memory_and_kernels_stand_below_the_times() -> None:
    spec = a_spec(**sized("2.7B", "2025"), pass_="train-step")
    page = reference_page(results_of(Cell(spec, [0.9], peak=55_100_000_000)), 100)
    shown = "\n".join(shown_of(page))
    assert "Memory and kernels" in shown
    assert "2.7B train-step fp32, ctx 128, peak: 55.1 GB here\n  55.2 GB, here / there 1.00: public repository" in shown
    assert all(len(row) <= 100 for row in shown.splitlines())
    nothing = reference_page(results_of(Cell(a_spec(context_length=64), [0.9])), 100)
    assert "Memory and kernels" not in str(nothing)


async def test_without_results_each_view_says_so() -> None:
    async with on_screen(Cs336App(Benches()), "") as (app, pilot):
        await opened(pilot, app)
        await until(pilot, "nothing to pivot")
        measured = "No cell has been measured"
        for seen in ("Mark two sessions", "No cells of this session ran in turns", measured, measured):
            await press(pilot, "v", seen=seen)
        assert DEMO not in screen_text(app)


def turns_text(results: Sequence[Result], width: int = 78) -> str:
    page = turns_page(results, width)
    assert all(width_of(row) <= width for row in (*page.heading, *page.rows))
    return " ".join(text([*page.heading, *page.rows]).split())


@pytest.mark.parametrize("width", [78, 118, 198])
def test_exposed_communication_stands_above_the_rounds(width: int) -> None:
    rounds = rounds_of(*(a_round(1.25, base_s) for base_s in (0.010, 0.012, 0.011)), **RANKS)
    seen = turns_text(flat(rounds), width)
    assert not absent(seen, "Exposed communication of A: 3.1", "20.0 % of the step (")
    assert seen.index("Exposed") < seen.index("▲ A takes 1.25") < seen.index("round A ± std (ms)") < seen.index(" all ")
    assert "Differs, A | B: parallel: ddp | none." in seen
    other = turns_text(flat(rounds_of(a_round(1.03), a_round(1.03, 0.012))))
    assert "Exposed" not in other
    assert "A takes 1.03" in other


def test_without_turns_a_cell_of_several_ranks_has_the_command_that_tells_what_its_steps_wait_for() -> None:
    seen = turns_text(merged(state_of(ranks_session(4))))
    assert "No cells of this session ran in turns" in seen
    assert not absent(seen, "cs336-tui ab --a '--parallel ddp' --b '--parallel none'", "--ranks 4")
    assert not absent(seen, "exposed communication: n measures it here")
    one = turns_text([round_[0] for round_ in rounds_of(a_round(1.0))])
    assert A.ranks == 1
    assert "--parallel" not in one


async def test_a_key_of_the_turns_view_measures_exposed_communication(bench: Benches, tmp_path: Path) -> None:
    keep(tmp_path, "2026-11-20T10-00-00-many", ranks_session(4))
    async with on_screen(Cs336App(bench, session_dir=tmp_path), "NVIDIA") as (app, pilot):
        await press(pilot, "7", seen="2026-11-20 10:00")
        await press(pilot, "enter", seen="opened")
        await press(pilot, "8", "v", "v", seen="n measures it here")
        await pilot.press("n")
        await until(pilot, lambda _: len(app.live.state.cells) == 10)
        sides = [cell.spec.parallel for cell in app.live.state.cells.values()]
        assert sides.count("ddp") == sides.count("none") == 5
        bench.go_on.set()


def test_two_cells_that_differ_in_a_variant_say_in_which() -> None:
    a = merge([("a", session_of(Cell(a_spec(pass_="forward"), STEADY_S)))])
    b = merge([("b", session_of(Cell(a_spec(pass_="forward", attention="sdpa"), STEADY_S)))])
    page = pairs_page(a, b, 200)
    assert "attention" in text(list(page.heading))
    assert "naive | sdpa" in "".join(shown_of(page))
