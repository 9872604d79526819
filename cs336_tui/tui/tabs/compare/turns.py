"""The page of Compare on cells that were timed in turns: each round, and the communication that a step waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cs336_tui.analysis.ab import Turns, runs_in_turns, turns_of
from cs336_tui.analysis.effects import NO_COMMUNICATION
from cs336_tui.analysis.merge import Result
from cs336_tui.export.subjects.comparison import exposed_words, turns_table
from cs336_tui.export.subjects.data_parallel import in_turns_command
from cs336_tui.tui import format
from cs336_tui.tui.tabs.status import OUTCOMES
from cs336_tui.tui.widgets.columns import table_lines
from cs336_tui.tui.widgets.lines import Line, line, wrapped
from cs336_tui.tui.widgets.rows import Page

_TITLE = ("Two cells in turns", "title")
_EXAMPLE = 'cs336-tui ab --a "--precision bf16-mixed" --b "--precision fp32"'


def turns_page(results: Sequence[Result], width: int, columns_page: int = 0) -> Page:
    """All that ran in turns, a part each; `columns_page` as of `pairs_page`. Judging the cells takes long: call it on a
    thread."""
    runs = runs_in_turns(results)
    if not runs:
        return Page((line(_TITLE),), tuple(_without(results, width)))
    rows = [row for rounds in runs for row in (*_part(rounds, width, columns_page), ())]
    return Page((line(_TITLE, (" · A / B: below 1 A is faster", "muted")),), tuple(rows[:-1]))


def _part(rounds: Sequence[tuple[Result, Result]], width: int, columns_page: int) -> Iterator[Line]:
    turns = turns_of(rounds)
    table = turns_table(turns, [each for both in rounds for each in both])
    for name, side in (("A", turns.a), ("B", turns.b)):
        yield from wrapped(f"{name}: {format.plain(side.spec.title)}", width, "title", "   ")
    yield from _result(turns, width)
    roles = ["text"] * (len(table.rows) - 1) + ["strong"]
    yield from table_lines(table, width, roles=roles, page=columns_page, binding="compare.columns").lines
    yield from wrapped(f"Differs, A | B: {'; '.join(turns.differs) or 'nothing'}.", width, "muted", "  ")


def _result(turns: Turns, width: int) -> Iterator[Line]:
    if turns.exposed:
        words = exposed_words(turns.exposed, turns.level)
        yield from wrapped(f"{words[0].upper()}{words[1:]}.", width, "strong", "  ")
    mark = OUTCOMES[turns.outcome]
    yield from wrapped(f"{mark.text.split()[0]} {turns.explanation}", width, mark.role, "  ")


def _without(results: Sequence[Result], width: int) -> Iterator[Line]:
    yield from wrapped(
        "No cells of this session ran in turns. Turns alternate two cells step by step, so that drift cancels:",
        width,
        "muted",
    )
    yield from wrapped(_EXAMPLE, width, "strong", "  ")
    shared = (each.spec for each in results if each.spec.ranks > 1 and each.spec.parallel != NO_COMMUNICATION)
    if (spec := next(shared, None)) and spec.pass_ == "train-step":
        yield ()
        yield from wrapped(f"How long a step of {spec.title} waits for communication:", width, "muted", "  ")
        yield from wrapped(in_turns_command(spec), width, "strong", "  ")
