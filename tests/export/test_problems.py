"""Exports of problems: every part has its tables and figures, or one line that says why not."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.problems import Material, progress_of
from cs336_tui.config.presets import preset
from cs336_tui.config.problem import Problem
from cs336_tui.config.problems import every_problem, problem_named
from cs336_tui.config.spec import recorded_spec
from cs336_tui.config.tuning import Over
from cs336_tui.events.events import Event, ReportFinished
from cs336_tui.events.kernel_report import KINDS, KernelReport
from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.problems import Exported, export_problem, figures_for, tables_of
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import Section
from cs336_tui.session.state import SessionState
from tests.analysis.racing import Made
from tests.export.grids import grid
from tests.export.html_reader import Reader
from tests.export.keeping import csv_rows, kept
from tests.made_kernels import a_kernel_report
from tests.made_memory import a_memory_report
from tests.made_problems import problem_state
from tests.samples import LAPTOP, START, a_spec, report_events, session_start, state_of
from tests.strategies import any_event

EVERY = list(every_problem())


def results_of(*states: SessionState) -> tuple[Result, ...]:
    return merge([(f"session {number}", state) for number, state in enumerate(states)])


def exported(name: str, *states: SessionState) -> Exported:
    return export_problem(name, Material(states, results_of(*states)))


def of_recordings(*reports: KernelReport | MemoryReport) -> SessionState:
    """A session of these reports alone."""
    return state_of([*session_start([report.spec for report in reports]), *report_events(*reports)])


def sections_of(name: str, *states: SessionState) -> dict[str, Section]:
    """Its parts by letter, by default of what its preset runs."""
    found = exported(name, *(states or [problem_state(*problem_named(name))]))
    return {section.key: section for section in found.sections}


@pytest.mark.parametrize("edition", ["2025", "2026"])
def test_a_forward_is_no_data_for_a_leaderboard(edition: str) -> None:
    state = grid([a_spec(pass_="forward")])
    problem, _ = problem_named(f"{edition}/leaderboard")
    assert progress_of(problem, edition, [state], results_of(state)).mark == ""


@pytest.mark.parametrize(("edition", "problem"), EVERY, ids=lambda each: each if isinstance(each, str) else each.name)
def test_what_the_preset_runs_answers_every_part(edition: str, problem: Problem) -> None:
    state = problem_state(problem, edition)
    states = [state]
    if problem.name == "benchmarking_script":  # its part c is another preset
        states.append(problem_state(problem_named(f"{edition}/warmup")[0], edition))
    found, material = exported(f"{edition}/{problem.name}", *states), Material(tuple(states), results_of(*states))
    assert [section.key for section in found.sections] == [part.letter for part in problem.parts]
    for part, section in zip(problem.parts, found.sections, strict=True):
        assert not any("in this session" in line for line in section.lines), section.heading
        assert bool(section.tables or section.figures) == bool(part.answers)
        assert (f"for a person: {part.person}" in section.lines) == bool(part.person)
        for answer in part.answers:
            made = figures_for(answer, material) if answer.source == "figure" else tables_of(answer, material)
            assert made, f"{section.heading}: {answer}"
        for table in section.tables:
            assert table.rows
            assert all(len(row) == len(table.columns) for row in table.rows)
            assert table.caption.startswith(problem.name)
    assert progress_of(problem, edition, [state], results_of(state)).cells_done == len(
        {msgspec.structs.replace(cell.spec, device="cpu") for cell in state.cells.values()}
    )


@pytest.mark.parametrize(("edition", "problem"), EVERY, ids=lambda each: each if isinstance(each, str) else each.name)
def test_a_part_without_data_names_the_command_in_one_line(edition: str, problem: Problem) -> None:
    state = SessionState()
    found = export_problem(f"{edition}/{problem.name}", Material((state,), ()))
    for part, section in zip(problem.parts, found.sections, strict=True):
        assert section.heading == (f"({part.letter}) {part.asks}" if part.letter else part.asks)
        assert not section.tables
        assert not section.figures
        lines = [line for line in section.lines if not line.startswith(("for a person", "by calculation"))]
        assert (f"by calculation: {part.command}" in section.lines) == bool(part.command)
        command = f"cs336-tui bench --preset {problem.preset(edition, part)}"
        assert lines == ([f"nothing of this is in this session: {command}"] if part.answers else [])
        if problem.is_measured:
            preset(problem.preset(edition, part))
    progress = progress_of(problem, edition, [state], [])
    assert (progress.mark, progress.text, progress.cells_done) == ("", "", 0)


ANSWERS: dict[str, tuple[str, str]] = {
    "steps of 15, 15.1, 15.2 and 15 ms, a third of them in each phase": ("2026/benchmarking_script", "b"),
    "tables of several cells are one that tells them apart": ("nsys_profile", "e"),
    "columns that a part does not ask for are left out": ("nsys_profile", "a"),
    "rows that a part does not ask for, too": ("nsys_profile", "c"),
    "and ranges": ("flame_graph", "c"),
    "a tensor of the residual stream, also at the handout's context": ("2026/memory_profiling", "d"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_answers_of_what_a_preset_runs(case: str, snapshot: SnapshotAssertion) -> None:
    problem, part = ANSWERS[case]
    assert kept(*sections_of(problem)[part].tables) == snapshot


def test_recordings_are_told_apart_in_a_table_of_all_and_so_are_their_phases(snapshot: SnapshotAssertion) -> None:
    specs = [recorded_spec(name, "cuda:0") for name in ("a.json", "b.json")]
    reports = [msgspec.structs.replace(a_kernel_report(), spec=spec, prediction=None) for spec in specs]
    assert kept(*sections_of("nsys_profile", of_recordings(*reports))["c"].tables) == snapshot


def test_notes_of_one_table_for_several_cells_say_of_which() -> None:
    state = problem_state(*problem_named("2026/memory_profiling"))
    (report, *_) = state.contents(MemoryReport)
    noted = msgspec.structs.replace(report, note="it was cut short", allocator_peak_bytes=report.peak_bytes + 10**7)
    state.apply(ReportFinished(at=START, report=0, status="ok", content=noted))
    notes = exported("memory_profiling", state).sections[0].tables[0].footnotes
    assert not [note for note in notes if "the allocator itself counts" in note]  # a column of another table
    (note,) = [note for note in notes if "cut" in note]
    assert note.endswith(": it was cut short")
    assert str(noted.spec.context_length) in note


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_has_every_part_in_order(format_: str) -> None:
    problem, edition = problem_named("2025/memory_profiling")
    found = exported("memory_profiling", problem_state(problem, edition))
    text = found.render(format_, "out/figures")
    assert text.endswith("\n")
    places = [text.find(part.asks) for part in problem.parts]
    if format_ == "csv":
        rows = csv_rows(text)
        assert list(dict.fromkeys(row["part"] for row in rows)) == [part.letter for part in problem.parts]
        assert all(row["note"] or row["table"] for row in rows)
    elif format_ == "json":
        parts = json.loads(text)["parts"]
        assert [part["part"] for part in parts] == [part.letter for part in problem.parts]
        assert parts[0]["figures"][0].startswith("out/figures/memory-timeline-")
        assert parts[1]["tables"][0]["rows"]
    else:
        assert places == sorted(places)
        assert min(places) > 0
        assert text.count("out/figures/memory-timeline-") == len(found.figures) > 0


def test_html_is_one_page_that_opens_alone_and_escapes() -> None:
    state = grid([a_spec(size="<b>&")], times=lambda _: [0.1, 0.2])
    text = exported("end_to_end", state).render("html", None)
    assert Reader(text).unclosed == []
    assert text.startswith("<!DOCTYPE html>")
    assert "<b>&" not in text
    assert "&lt;b&gt;&amp;" in text


def test_a_note_stands_below_the_first_table_that_has_it_and_figures_have_names_of_their_own() -> None:
    found = exported("nsys_profile", problem_state(*problem_named("2026/nsys_profile")))
    notes = [line for line in found.render("markdown", None).splitlines() if line.startswith("- ")]
    assert len(notes) == len(set(notes)) > 0
    assert not [line for line in found.without_notes.render("markdown", None).splitlines() if line.startswith("- ")]
    found = exported("benchmarking_script", problem_state(*problem_named("2026/benchmarking_script")))
    names = [drawing.name for drawing in found.figures]
    assert len(names) == len(set(names)) > 0


def test_progress_tells_other_sizes_from_what_was_asked_for() -> None:
    problem, edition = problem_named("2026/end_to_end")
    whole = problem_state(problem, edition)
    assert progress_of(problem, edition, [whole], results_of(whole)).mark == "✓"
    tiny = grid([a_spec()], times=lambda _: [0.1, 0.2])
    progress = progress_of(problem, edition, [tiny], results_of(tiny))
    assert (progress.mark, progress.cells_done, progress.cells) == ("◐", 0, 60)
    assert progress.text == "0 of 60 cells · in part"
    elsewhere = grid([a_spec(device="mps")], times=lambda _: [0.1, 0.2], environment=LAPTOP)
    assert progress_of(problem, edition, [elsewhere], results_of(elsewhere)).mark == "◐"


def test_a_recording_answers_what_it_holds() -> None:
    report = msgspec.structs.replace(a_kernel_report(), spec=recorded_spec("trace.json.gz", "cuda:0"), prediction=None)
    (table, *_) = sections_of("nsys_profile", of_recordings(report))["c"].tables
    assert table.records
    assert {record["kind"] for record in table.records} <= set(KINDS)
    groups = tuple(msgspec.structs.replace(each, phase="recording") for each in report.groups)
    whole = msgspec.structs.replace(report, groups=groups, phase_spans_ns={"recording": report.span_ns})
    (line, _) = sections_of("nsys_profile", of_recordings(whole))["a"].lines
    assert line.startswith("nothing of this is in this session"), "phases are not known"


def test_a_snapshot_of_others_counts_as_fp32_for_the_peaks_and_largest_allocations() -> None:
    report = a_memory_report(spec=recorded_spec("inference.pickle", "cuda:0"), prediction=None)
    found = sections_of("memory_profiling", of_recordings(report))
    assert found["b"].tables[-1].records[0]["peak_bytes"] == report.peak_bytes
    assert found["e"].tables
    assert not found["c"].tables


@given(st.lists(any_event, max_size=25), st.sampled_from(EVERY))
def test_any_session_has_an_export_of_every_problem(events: list[Event], which: tuple[str, Problem]) -> None:
    edition, problem = which
    state = state_of(events)
    found = export_problem(f"{edition}/{problem.name}", Material((state,), results_of(state)))
    for format_ in FORMATS:
        assert found.render(format_, None).endswith("\n")
    progress = progress_of(problem, edition, [state], results_of(state))
    assert progress.cells_done <= progress.cells


def test_visits_of_a_race_answer_nothing_and_a_profile_of_a_visited_candidate_does() -> None:
    made = Made((Over("attention", ("naive", "sdpa")),))
    made.round(1, (1.0, 0.9))
    problem, edition = problem_named("2026/benchmarking_script")
    assert progress_of(problem, edition, [made.state], results_of(made.state)).mark == ""
    found = exported("2026/benchmarking_script", made.state)
    assert not found.tables
    assert not found.figures
    assert found.sections[1].lines[0] == (
        "nothing of this is in this session, where visits of a race do not count: "
        "cs336-tui bench --preset 2026/benchmarking_script"
    )
    problem, edition = problem_named("2026/nsys_profile")
    report = a_kernel_report(made.candidates[1])
    made.tell(*report_events(report, first=9, at=made.at))
    assert progress_of(problem, edition, [made.state], results_of(made.state)).mark == "◐"
    parts = sections_of("2026/nsys_profile", made.state)
    assert {record["timed_s"] for record in parts["b"].tables[0].records} == {None}
