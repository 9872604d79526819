"""Progress of sessions on the handouts' problems: data that answers are made of, and cells of the presets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from cs336_tui.analysis.fields import FIELDS, varies
from cs336_tui.analysis.merge import Result, measured, without_visits
from cs336_tui.config.presets import all_presets
from cs336_tui.config.problem import Answer, Pairs, Problem
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import REPORTS, MemoryReport, Report
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import counted

MADE_OF: Mapping[str, type[Report]] = {
    "kernels-over-cells": KernelReport,
    "memory-timeline": MemoryReport,
    "flame-graph": KernelReport,
    "residual-stream": MemoryReport,
}
"""The contents of reports that tables and figures are made of, whose names do not say so."""


class Material(NamedTuple):
    """Sessions and their cells, and reports on the `wanted` ones. `ddof` is that of kernels' stds; with `published`
    layouts have the names and the order of rows of published tables."""

    states: tuple[SessionState, ...]
    results: tuple[Result, ...]
    wanted: Callable[[CellSpec], bool] = lambda _: True
    ddof: int = 1
    published: bool = False

    def where(self, pairs: Pairs) -> Material:
        """The cells that have these values, each one of several with commas."""
        return self._replace(results=tuple(result for result in self.results if _has(result, pairs)))

    def reports(self, kind: type[Report], pairs: Pairs) -> list[Report]:
        return [each for state in self.states for each in state.contents(kind) if self.wants(each.spec, pairs)]

    def wants(self, spec: CellSpec, pairs: Pairs) -> bool:
        return self.wanted(spec) and _has(Result(0, "", self.states[0], CellState(0, spec)), pairs)


_MAY_BE_UNKNOWN = ("workload", "pass")
"""Fields that count as they are asked for where nobody knows them, as of what others recorded; a precision counts as
fp32."""


def _has(result: Result, pairs: Pairs) -> bool:
    for key, text in pairs:
        value, wanted = FIELDS[key].show(result), text.split(",")
        at_least = [int(each[:-1]) for each in wanted if each.endswith("+")]  # ``2+`` is 2 or more
        is_wanted = value in wanted or (value.isdigit() and any(int(value) >= least for least in at_least))
        may_be = not value and (key in _MAY_BE_UNKNOWN or (key, text) == ("precision", "fp32"))
        if not (is_wanted or may_be):
            return False
    return True


def is_answered(answer: Answer, material: Material) -> bool:
    """True if there is what it is made of. Renders nothing."""
    chosen = material.where(answer.where)
    if answer.over and not varies(measured(chosen.results), answer.over):
        return False
    kind, _, table = answer.name.partition("/")
    content = REPORTS[kind].content if answer.source == "report" else None
    made_of = MADE_OF.get(table) or MADE_OF.get(kind) or content
    return bool(material.reports(made_of, answer.where) if made_of else measured(chosen.results))


def editions_of(results: Iterable[Result]) -> tuple[str, ...]:
    """The editions of cells, each once."""
    return tuple(dict.fromkeys(result.spec.edition for result in results))


class Progress(NamedTuple):
    """Progress of sessions on a problem: letters of the parts that there are data for, for some of what they show,
    for nothing of it, and of those that are a person's; and how many of its presets' cells are over."""

    done: tuple[str, ...]
    begun: tuple[str, ...]
    missing: tuple[str, ...]
    persons: tuple[str, ...]
    cells_done: int
    cells: int

    @property
    def mark(self) -> str:
        """``✓`` all that was asked for, ``◐`` some of it, as other sizes, empty nothing."""
        if self.done and not (self.begun or self.missing) and self.cells_done == self.cells:
            return "✓"
        return "◐" if self.done or self.begun else ""

    @property
    def text(self) -> str:
        """Such as ``3 of 18 cells · data for a b, c in part``; empty if there is nothing."""
        if not self.mark:
            return ""
        have = [f"data for {' '.join(self.done)}".removesuffix(" for ")] if self.done else []
        have += [f"{' '.join(self.begun)} in part".lstrip()] if self.begun else []
        return f"{self.cells_done} of {counted(self.cells, 'cell')} · {', '.join(have)}"


def progress_of(problem: Problem, edition: str, states: Sequence[SessionState], results: Sequence[Result]) -> Progress:
    """The progress of these sessions on the problem; visits of a race, few steps each, are none. Renders nothing."""
    results = without_visits(results)
    material = Material(tuple(states), results)
    found: dict[str, list[str]] = {"done": [], "begun": [], "missing": [], "persons": []}
    for part in problem.parts:
        answered = [is_answered(answer, material) for answer in part.answers]
        word = "persons" if not answered else "done" if all(answered) else "begun" if any(answered) else "missing"
        found[word].append(part.letter)
    sweeps = tuple(sweeps_of(problem, edition).values())
    letters = {word: tuple(each) for word, each in found.items()}
    progress = Progress(**letters, cells_done=0, cells=sum(map(len, sweeps)))
    if not (progress.done or progress.begun):
        return progress
    asked = _cells_of(sweeps)
    over = {_wherever(result.spec) for result in results if result.cell.is_over and result.cell.status != "cancelled"}
    return progress._replace(cells_done=len(asked & over), cells=len(asked))


def sweeps_of(problem: Problem, edition: str) -> dict[str, Sweep]:
    """The presets that a problem's command runs, each with its sweep; none of one that is calculated."""
    if not problem.is_measured:
        return {}
    found = all_presets()
    name = problem.preset(edition)
    return {each: found.find(each).sweep for each in (name, *found.find(name).also)}


@lru_cache(maxsize=64)
def _cells_of(sweeps: tuple[Sweep, ...]) -> frozenset[Hashable]:
    return frozenset(_wherever(cell) for sweep in sweeps for cell in sweep.with_devices(("cpu",)).cells())


_TELLING = tuple(
    field for field, axis in AXES.items() if field == "size" or (field != "device" and axis.compared != "name")
)


def _wherever(spec: CellSpec) -> Hashable:
    """Equal for the same cell on any device, with any number of steps."""
    return tuple(getattr(spec, field) for field in _TELLING)
