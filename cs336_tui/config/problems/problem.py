"""The declaration of a handout's measuring problem: its parts, and the tables and figures that answer each."""

from __future__ import annotations

from typing import Literal, NamedTuple

Pairs = tuple[tuple[str, str], ...]
Source = Literal["results", "phases", "layout", "pivot", "report", "figure"]


class Answer(NamedTuple):
    """Tables or figures of a session. `name` is of a layout, of a pivot as ``ROWS:COLUMNS VALUE``, for a speed-up with
    `` over FIELD=VALUE``, of a report as ``KIND`` or ``KIND/TABLE``, of a figure; figures and tables are named by how
    their names begin."""

    source: Source
    name: str = ""
    where: Pairs = ()
    """Of these cells alone, as ``--where`` takes them; of a number ``2+`` is 2 or more."""
    rows: Pairs = ()
    """Of a report's table the rows whose records have these values."""
    but: Pairs = ()
    """Of a report's table the rows whose records have none of these values."""
    context: int = 0
    """The handout's context length, where an answer needs it and no cell may have it."""
    columns: tuple[str, ...] = ()
    """Columns of a table, by their keys, beside those that tell cells apart; empty: all."""
    most: int = 0
    """Rows of each of a report's tables at most; 0: all."""
    over: str = ""
    """The field in which cells must differ, as without that it says nothing."""


class Part(NamedTuple):
    """A part of a problem. `letter` is empty if there is one only."""

    letter: str
    asks: str
    """The question, in a few words."""
    answers: tuple[Answer, ...] = ()
    person: str = ""
    """The reason why a person must do it, or the rest of it."""
    preset: str = ""
    """The preset's name without its edition, if it is not the problem's."""
    command: str = ""
    """The command that answers it by calculation, without cells."""


class Problem(NamedTuple):
    """A problem of one edition or several. `gpu` is what a GPU is needed for; empty if the CPU does as well."""

    name: str
    editions: tuple[str, ...]
    title: str
    parts: tuple[Part, ...]
    gpu: str = "times of a GPU"
    preset_name: str = ""
    """The preset's name without its edition, if it is another one."""

    @property
    def is_measured(self) -> bool:
        """True if cells answer any part of it; else it has no preset."""
        return any(part.answers for part in self.parts)

    def preset(self, edition: str, part: Part | None = None) -> str:
        """The preset that runs it, or what a part of it needs."""
        return f"{edition}/{(part.preset if part else '') or self.preset_name or self.name}"
