"""The table of problems: its presets run what its answers are made of, its names are found as people spell them; and
docs/problems.md beside it: each part has its row, and what the row names is in the export."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.problems import Material
from cs336_tui.cli.main import cli
from cs336_tui.config.presets import bundled, preset
from cs336_tui.config.problems import PROBLEMS, every_problem, problem_named, problem_of_preset
from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import ASKED_REPORTS
from cs336_tui.export.problems import export_problem
from tests.made_problems import problem_state

EVERY = list(every_problem())
LETTERS = {
    "memory_profiling": {"2024": "abcde", "2025": "abcde", "2026": "abcdef"},
    "ddp_overlap_individual_parameters_benchmarking": {"2024": "abc", "2025": "ab", "2026": "ab"},
    "ddp_bucketed_benchmarking": {"2024": "ab", "2025": "ab"},
    "optimizer_state_sharding_accounting": {"2024": "abc", "2025": "abc", "2026": "abc"},
}


def test_the_parts_are_the_handouts() -> None:
    for name, editions in LETTERS.items():
        for edition, letters in editions.items():
            problem, _ = problem_named(f"{edition}/{name}")
            assert "".join(part.letter for part in problem.parts) == letters
    for problem in PROBLEMS:
        letters = [part.letter for part in problem.parts]
        assert letters == sorted(set(letters))
        assert all(part.answers or part.person for part in problem.parts)
        assert len(letters) == 1 or all(letters)


def test_what_is_calculated_has_a_command_that_runs() -> None:
    calculated = [problem for _, problem in EVERY if not problem.is_measured]
    assert {problem.name for problem in calculated} == {
        "communication_accounting", "data_parallel_calcs", "fsdp_calcs", "tp_calcs", "fsdp_tp_calcs"
    }  # fmt: skip
    for command in {part.command for problem in calculated for part in problem.parts} - {""}:
        program, name, *words = shlex.split(command)
        assert (program, name) == ("cs336-tui", "plan")
        found = CliRunner().invoke(cli, ["plan", *words, "--format", "json"])
        assert found.exit_code == 0, found.output
        if "--mesh" in words:
            assert json.loads(found.output)["accounting"]
            continue
        (made,) = json.loads(found.output)["plans"]
        assert ("--shared-link" in words) == made["shared_link"]


@pytest.mark.parametrize(("edition", "problem"), EVERY, ids=lambda each: each if isinstance(each, str) else each.name)
def test_its_preset_runs_what_its_answers_are_made_of(edition: str, problem) -> None:  # type: ignore[no-untyped-def]
    names = {each.name for each in bundled()}
    for part in problem.parts if problem.is_measured else ():
        name = problem.preset(edition, part)
        assert name in names
        sweeps = [preset(each).sweep for each in (name, *preset(name).also)]
        assert edition in {sweep.edition for sweep in sweeps}
        reports = {report for sweep in sweeps for report in sweep.reports}
        for answer in part.answers:
            kind = (
                "memory"
                if answer.name in ("memory-timeline", "rank-memory")
                else answer.name.partition("/")[0].partition("-over")[0]
            )
            assert kind in reports or kind not in ASKED_REPORTS


@pytest.mark.parametrize(
    ("name", "editions", "found"),
    [
        ("nsys_profile", (), ("nsys_profile", "2026")),
        ("warm-up", (), ("warmup", "2026")),
        ("warmup", ("2024",), ("warmup", "2024")),
        ("Memory Profiling", ("2025", "2026"), ("memory_profiling", "2025")),
        ("2025/nsys_profile", ("2026",), ("nsys_profile", "2025")),
        ("function_call_table", ("2026",), ("function_call_table", "2024")),
        ("gradient_checkpointing", ("2024",), ("gradient_checkpointing", "2026")),
        ("2025/all_reduce", (), ("distributed_communication_single_node", "2025")),
    ],
)
def test_a_problem_is_found_by_its_name_or_its_presets(
    name: str, editions: tuple[str, ...], found: tuple[str, str]
) -> None:
    problem, edition = problem_named(name, editions)
    assert (problem.name, edition) == found
    assert problem_of_preset(problem.preset(edition)) == problem.name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "nothing",
            "problem nothing: expected one of benchmarking_script, warmup, end_to_end, ",
        ),
        ("2024/nsys_profile", "problem 2024/nsys_profile: expected one of benchmarking_script, warmup, function_call"),
        ("1999/warmup", "problem 1999/warmup: did you mean warmup?"),
        ("", "problem : expected one of"),
    ],
)
def test_an_unknown_problem_is_one_line_with_the_known_ones(name: str, says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        problem_named(name)


PAGE = (Path(__file__).parents[2] / "docs" / "problems.md").read_text(encoding="utf-8")
NAMES = tuple(dict.fromkeys(row.name for row in PROBLEMS))
OTHERS = ("Not here",)


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def rows(name: str) -> dict[str, list[str]]:
    """The cells of each part's row by its letter, empty for a problem of one part."""
    lines = [line for line in section(name).splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first.replace("–", ""): rest for first, *rest in cells}


def test_every_problem_has_a_section_in_the_order_of_the_table() -> None:
    headings = re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    assert tuple(heading for heading in headings if heading not in OTHERS) == NAMES
    assert len(EVERY) == len({(edition, row.name) for edition, row in EVERY})


@pytest.mark.parametrize("name", NAMES)
def test_every_part_has_its_number_or_the_reason_why_a_person_must_do_it(name: str) -> None:
    problem, _ = problem_named(name)
    found = rows(name)
    assert list(found) == [part.letter for part in problem.parts]
    editions = {edition for edition, row in EVERY if row.name == name}
    assert {*re.findall(r"\b202\d\b", section(name).partition("|")[0])} == editions
    for part in problem.parts:
        asked, shown, person = found[part.letter]
        assert asked
        assert (shown == "nothing") == (not part.answers)
        if part.person:
            assert person != "–", part
        else:
            assert person == "–" or person.startswith("2024:"), part


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_figures_that_the_page_names_are_in_the_export(name: str) -> None:
    problem, edition = problem_named(name)
    states = [problem_state(problem, edition)]
    if any(part.preset for part in problem.parts):
        states += [problem_state(*problem_named(part.preset)) for part in problem.parts if part.preset]
    results = merge([(str(number), state) for number, state in enumerate(states)])
    exported = export_problem(name, Material(tuple(states), tuple(results)))
    for part in exported.sections:
        _, shown, _ = rows(name)[part.key]
        captions = " | ".join(table.caption for table in part.tables)
        for caption in re.findall(r"\*([^*]+)\*", shown):
            assert caption in captions, f"{name} ({part.key}): {captions}"
        names = "passes-by-size|step-times|context-length|memory-timeline|precision|busbw|flame-graph"
        named = rf"(?:[Ff]igures?|and) ({names})"
        figures = re.findall(named, shown)
        for figure in figures:
            assert any(drawing.name.startswith(figure) for drawing in part.figures), f"{name} ({part.key}): {figure}"
        assert bool(figures) == bool(part.figures), f"{name} ({part.key})"
        other = re.match(r"as (\w+) \((\w)\)", shown)
        assert captions or part.figures or shown == "nothing"
        assert "*" in shown or figures or other or shown == "nothing" or shown.startswith("the same")
