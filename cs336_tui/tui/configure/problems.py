"""The list of presets: the handouts' problems first, each with what the shown session has of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cs336_tui.analysis.merge import merge, title_of
from cs336_tui.analysis.problems import Progress, progress_of
from cs336_tui.config.presets import Preset
from cs336_tui.config.problem import Problem
from cs336_tui.config.problems import every_problem
from cs336_tui.session.state import SessionState

OTHERS = "Other presets"


class Listed(NamedTuple):
    """A preset in the list, and the heading that it stands below."""

    preset: Preset
    heading: str
    about: str


def listed(presets: Sequence[Preset], state: SessionState | None) -> tuple[Listed, ...]:
    """The presets in the list's order: the first, then those of problems, the newest edition first, then the others."""
    rest = {preset.name: preset for preset in presets}
    first = [Listed(rest.pop(preset.name), "", preset.about) for preset in presets[:1]]
    problems = list(_of_problems(rest, state))
    for each in problems:
        del rest[each.preset.name]
    return (*first, *problems, *(Listed(preset, OTHERS, preset.about) for preset in rest.values()))


def _of_problems(presets: dict[str, Preset], state: SessionState | None) -> Iterator[Listed]:
    results = merge([(title_of(state), state)]) if state else ()
    for edition, problem in every_problem():
        if found := presets.get(problem.preset(edition)):
            progress = progress_of(problem, edition, [state], results) if state and results else None
            yield Listed(found, f"Problems of {edition}", _about(problem, progress))


def _about(problem: Problem, progress: Progress | None) -> str:
    letters = " ".join(part.letter for part in problem.parts if part.letter)
    what = f"{problem.title}{f' ({letters})' if letters else ''}"
    return f"{what}\n  {progress.mark} {progress.text}" if progress and progress.mark else what


def headings(choices: Sequence[Listed]) -> dict[int, str]:
    """The headings by the place of the first choice below each."""
    found: dict[str, int] = {}
    for place, each in enumerate(choices):
        found.setdefault(each.heading, place)
    return {place: heading for heading, place in found.items() if heading}
