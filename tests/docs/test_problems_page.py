"""docs/problems.md beside the table of problems: each part has its row, and what the row names is in the export."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.problems import Material
from cs336_tui.config.problem import Problem
from cs336_tui.config.problems import PROBLEMS, problem_named
from cs336_tui.export.problems import export_problem
from tests.made_problems import problem_state

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


def newest(name: str) -> tuple[Problem, str]:
    return problem_named(name)


def test_every_problem_has_a_section_in_the_order_of_the_table() -> None:
    headings = re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    assert tuple(heading for heading in headings if heading not in OTHERS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_part_has_its_number_or_the_reason_why_a_person_must_do_it(name: str) -> None:
    problem, _ = newest(name)
    found = rows(name)
    assert list(found) == [part.letter for part in problem.parts]
    assert all(edition in section(name) for row in PROBLEMS if row.name == name for edition in row.editions)
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
    problem, edition = newest(name)
    states = [problem_state(problem, edition)]
    if any(part.preset for part in problem.parts):
        states += [problem_state(*newest(part.preset)) for part in problem.parts if part.preset]
    results = merge([(str(number), state) for number, state in enumerate(states)])
    exported = export_problem(name, Material(tuple(states), tuple(results)))
    for part in exported.sections:
        _, shown, _ = rows(name)[part.key]
        captions = " | ".join(table.caption for table in part.tables)
        for caption in re.findall(r"\*([^*]+)\*", shown):
            assert caption in captions, f"{name} ({part.key}): {captions}"
        named = r"(?:[Ff]igures?|and) (passes-by-size|step-times|context-length|memory-timeline|precision|busbw)"
        figures = re.findall(named, shown)
        for figure in figures:
            assert any(drawing.name.startswith(figure) for drawing in part.figures), f"{name} ({part.key}): {figure}"
        assert bool(figures) == bool(part.figures), f"{name} ({part.key})"
        other = re.match(r"as (\w+) \((\w)\)", shown)
        assert captions or part.figures or shown == "nothing"
        assert "*" in shown or figures or other or shown == "nothing" or shown.startswith("the same")
