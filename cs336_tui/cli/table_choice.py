"""The table that the options of `export` ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from cs336_tui.analysis.comparison import compare
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.pivot import pivot
from cs336_tui.export.catalogue import axes_of
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.reference import reference_tables
from cs336_tui.export.subjects.comparison import comparison_table
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.tables import Table
from cs336_tui.export.writing.verdicts import trust_notes
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import Notation, Unit


class TableChoice(NamedTuple):
    """The table that was asked for, and how it is to be written; without a choice the results."""

    pivot_on: str | None = None
    value: str | None = None
    baseline: Sequence[str] = ()
    layout: str | None = None
    columns: Sequence[str] | None = None
    reference: bool = False
    compare: bool = False
    report: str | None = None
    ranges: Sequence[str] = ()
    problem: str | None = None
    unit: Unit | None = None
    digits: int | None = None
    caption: str = ""
    style: str | None = None
    with_index: bool = True

    def check(self, format_: str) -> None:
        """Raise `click.UsageError` for choices that exclude each other, or that say nothing in this format."""
        self._check_alone()
        self._check_style(format_)
        data = format_.upper()
        if format_ not in ("csv", "json"):
            return
        if self.unit or self.digits is not None:
            option = f"--unit {self.unit}" if self.unit else f"--digits {self.digits}"
            raise click.UsageError(f"{option}: {data} keeps every number unrounded, in base units; leave it out")
        if self.caption and (format_ == "csv" or self.is_plain):
            raise click.UsageError(f"--caption: {data} has no caption here; leave it out")

    def _check_style(self, format_: str) -> None:
        if self.style and format_ != "markdown":
            raise click.UsageError(f"--style {self.style} writes markdown, not {format_}; leave one of the two out")
        if self.style and (self.unit or self.digits is not None):
            option = f"--unit {self.unit}" if self.unit else f"--digits {self.digits}"
            raise click.UsageError(
                f"{option}: --style {self.style} has six significant digits in base units; leave it out"
            )
        if not (self.style or self.with_index):
            raise click.UsageError("--no-index needs --style pandas, which alone has an index")

    def _check_alone(self) -> None:
        given = self._given
        if len(given) > 1:
            raise click.UsageError(f"{given[0]} and {given[1]} make different tables; use one of them")
        if (self.value or self.baseline) and not self.pivot_on:
            raise click.UsageError("--value and --baseline need --pivot ROWS:COLUMNS")
        if self.ranges and self.report != "kernels":
            raise click.UsageError(f"--range {self.ranges[0]} needs --report kernels")
        own = self.report or self.problem
        if self.unit and (self.layout or own):
            raise click.UsageError(f"--unit {self.unit}: {given[0]} has fixed units; leave it out")
        if self.digits is not None and own:
            raise click.UsageError(f"--digits {self.digits}: {given[0]} has fixed digits; leave it out")
        if self.caption and own:
            raise click.UsageError(
                f"--caption: {given[0]} makes several tables, each with a caption of its own; leave it out"
            )

    @property
    def _given(self) -> list[str]:
        """The options that were given of those that choose a table."""
        names = ("layout", "columns", "reference", "compare", "report", "problem")
        given = [f"--{name}" for name in names if getattr(self, name)]
        return ["--pivot", *given] if self.pivot_on else given

    @property
    def is_plain(self) -> bool:
        """True if nothing but the results was asked for."""
        return not self._given

    def tables(self, results: Sequence[Result], states: Sequence[SessionState]) -> Sequence[Table]:
        """The chosen tables of these sessions. Raises the errors of the tables, or `click.UsageError`."""
        notation = Notation(self.unit or "ms", self.digits)
        if self.pivot_on:
            rows, columns = axes_of(self.pivot_on, results)
            made = pivot(results, rows, columns, self.value or "mean", pairs_of("--baseline", self.baseline) or None)
            return [pivot_table(made, results, notation=notation, caption=self.caption)]
        if self.layout:
            published = self.style is not None
            return layout_tables(results, self.layout, decimals=self.digits, caption=self.caption, published=published)
        if self.reference:
            return reference_tables(results, states=states, notation=notation, caption=self.caption)
        if self.compare:
            a, b = _sides(results)
            doubts, found = trust_notes(results), compare(a, b)
            return [comparison_table(found, notation=notation, caption=self.caption, doubts=doubts, sides=(a, b))]
        return [results_table(results, columns=self.columns, notation=notation, caption=self.caption)]


def _sides(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """The cells of the first session and those of the second."""
    if {result.source for result in results} != {0, 1}:
        raise click.UsageError("--compare takes two different sessions that both have the chosen cells")
    a, b = ([result for result in results if result.source == number] for number in (0, 1))
    return a, b


def pairs_of(option: str, given: Sequence[str]) -> Mapping[str, str]:
    """``KEY=VALUE`` texts of an option as keys and values. Raises `click.UsageError` for others."""
    pairs: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise click.UsageError(f"{option} {text}: expected KEY=VALUE, such as precision=fp32")
        if key in pairs:
            raise click.UsageError(f"{option} {text}: {key} is given twice")
        pairs[key] = value
    return pairs
