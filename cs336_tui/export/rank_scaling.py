"""Step time and efficiency over the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cs336_tui.analysis.effects import efficiency, one_rank_of, speed_up
from cs336_tui.analysis.fields import machine
from cs336_tui.analysis.grouping import telling
from cs336_tui.analysis.measures import MEASURES, Runs
from cs336_tui.analysis.merge import Result, ddof_of, grouped, pooled
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.data_parallel import POOLED, ROWS_BY, SLOWEST, names, step_columns
from cs336_tui.export.layout import layout_column, measure_column, not_timed, tables_of
from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Column, Table
from cs336_tui.stats.quantities import NONE, Notation, percent

SCALING = {"per-rank": "Weak scaling", "global": "Strong scaling"}
_MEANS = {
    "per-rank": "weak scaling: each rank has a batch of its own; efficiency: T1 / Tn",
    "global": "strong scaling: all ranks divide one batch; efficiency: T1 / (n Tn)",
}
Ones = Mapping[tuple[CellSpec, str], float]
"""Mean step times of cells of one rank, by `beside`."""


def scaling_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.WriteUp.make`: a table for weak and one for strong scaling, in each a row for each
    wrapper and number of ranks, below the cells of one rank. Raises `TableError` where nothing is to be shown."""
    ones = times_of_one_rank(results)
    tables: list[Table] = []
    for kind, several in several_ranks(results).items():
        alike = set(map(beside, several))
        alone = [each for each in results if each.spec.ranks == 1 and beside(each) in alike]
        tables += _tables(kind, [*alone, *several], ones, Notation("ms", decimals))
    if not tables:
        raise TableError("layout scaling: no cell of several ranks; run some with --ranks 1,2,4 --parallel ddp")
    return tuple(tables)


def several_ranks(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Training steps and passes of several ranks by whose batch it is, without those that another cell took turns
    with."""
    kept = (r for r in results if r.spec.ranks > 1 and not r.spec.is_collective and not r.cell.in_turns)
    return grouped(kept, lambda result: result.spec.batch_is)


def beside(result: Result) -> tuple[CellSpec, str]:
    """Equal for a cell of several ranks and the one of one rank, on the same machine, beside which it scales."""
    return one_rank_of(result.spec), machine(result)


def times_of_one_rank(results: Sequence[Result]) -> Ones:
    """Mean step time of each cell of one rank."""
    alone = grouped((result for result in results if result.spec.ranks == 1), beside)
    found = {key: pooled(runs, ddof_of(runs)) for key, runs in alone.items()}
    return {key: one.mean_s for key, one in found.items() if one and one.mean_s}


def _tables(kind: str, kept: Sequence[Result], ones: Ones, notation: Notation) -> tuple[Table, ...]:
    columns = (
        *names(kept),
        *step_columns(notation),
        measure_column("tokens/s", MEASURES["tokens"], notation),
        _over_one("speed-up", ones, speed_up, "{:.2f}".format),
        _over_one("efficiency (%)", ones, lambda *of: 100 * efficiency(*of), lambda share: percent(share / 100)),
    )
    without = [each for each in kept if beside(each) not in ones]
    return tables_of(
        kept,
        columns,
        f"{SCALING[kind]}: step time and efficiency over ranks",
        (_MEANS[kind], SLOWEST, *_notes(kept, without), *not_timed(kept)),
        rows_by=ROWS_BY,
        apart=telling(kept, but=(*ROWS_BY, "batch-is", "backend", *POOLED)),
        places=POOLED,
        sort=_order(kept),
    )


def _order(kept: Sequence[Result]) -> Callable[[Runs], float]:
    """Wrappers as they were asked for, each by its number of ranks, one rank first."""
    ways = list(dict.fromkeys((each.spec.parallel, each.spec.optimizer) for each in kept if each.spec.ranks > 1))
    most = max(each.spec.ranks for each in kept) + 1

    def place(row: Runs) -> float:
        spec = row.first.spec
        return 0 if spec.ranks == 1 else (1 + ways.index((spec.parallel, spec.optimizer))) * most + spec.ranks

    return place


def _over_one(
    header: str, ones: Ones, figure: Callable[[CellSpec, float, float], float], show: Callable[[float], str]
) -> Column[Runs]:
    def read(row: Runs) -> float | None:
        one_s, found = ones.get(beside(row.first)), row.summary
        return figure(row.first.spec, one_s, found.mean_s) if one_s and found and found.mean_s else None

    return layout_column(header, read, lambda row: NONE if (value := read(row)) is None else show(value))


def _notes(kept: Sequence[Result], without: Sequence[Result]) -> Iterator[str]:
    yield "speed-up: tokens/s of all ranks over those of one"
    if without:
        yield "no cell of one rank of the same model and batch: add 1 to --ranks, such as --ranks 1,2,4"
    if any(each.spec.device == "cpu" for each in kept):
        yield "cpu: the ranks share the cores of one machine; separate devices scale differently"
