"""Scaling over ranks. Measured: step time and efficiency. Planned for many ranks: tables of limits and times, the
document for programs, and a figure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cs336_tui.analysis.effects import efficiency, one_rank_of, speed_up
from cs336_tui.analysis.fields import machine
from cs336_tui.analysis.grouping import telling
from cs336_tui.analysis.measures import MEASURES, Runs
from cs336_tui.analysis.merge import Result, ddof_of, grouped, pooled
from cs336_tui.analysis.scaling import (
    PASSES,
    STRATEGIES,
    Account,
    Device,
    Limit,
    PassTime,
    Plan,
    RankRow,
    Strategy,
    StrategyTime,
)
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.subjects.data_parallel import POOLED, ROWS_BY, SLOWEST, names, step_columns
from cs336_tui.export.subjects.layout import layout_column, measure_column, not_timed, tables_of
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writing.drawing import LOOKS, Drawing, plain_ticks
from cs336_tui.export.writing.tables import Column, Table, Value, attributes
from cs336_tui.stats.quantities import NONE, Notation, bandwidth, counted, gigabytes, percent, rate_text, scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NAMES: dict[Strategy, str] = {"dp": "DP", "fsdp": "FSDP", "tp": "TP", "fsdp+tp": "FSDP+TP"}
_BOUND = "†"
_LOOKS = dict(zip(NAMES, LOOKS, strict=False))


def limit_table(plan: Plan) -> Table:
    """A row a strategy: the most ranks of either pass that computation bounds, and the best split of the largest N."""

    def most(number: int | None) -> str:
        return "any" if number is None else str(number)

    columns: list[Column[Limit]] = [
        Column("strategy", left=True, read=lambda limit: NAMES[limit.strategy]),
        Column("forward", "forward, at most", show=most),
        Column("backward", "backward, at most", show=most),
        Column("most", "largest N", show=str),
        Column("real", "N real", show="{:.4g}".format),
        Column("split", "best split", left=True, text=lambda limit: _split_text(limit.split)),
    ]

    def record(limit: Limit) -> dict[str, Value]:
        return _settings(plan) | _limit_record(limit)

    caption, notes = f"Most ranks before communication bounds: {_title(plan)}", _limit_notes(plan)
    return Table.of(plan.limits, columns, record=record, caption=caption, footnotes=notes, label="plan-limits")


def rank_table(plan: Plan) -> Table:
    """A row a number of ranks: computation, each strategy's communication in either pass, and the fastest strategy."""
    found = [each for row in plan.rows for time in row.by_strategy.values() for each in (time.forward, time.backward)]
    times = scale([seconds * 1e9 for each in found for seconds in (each.compute_s, each.communication_s)])

    def compute(name: str, row: RankRow) -> str:
        return times.text(_pass(row.by_strategy["dp"], name).compute_s * 1e9)

    def communication(strategy: Strategy, name: str, row: RankRow) -> str:
        found = _pass(row.by_strategy[strategy], name)
        return times.text(found.communication_s * 1e9) + (_BOUND if found.bound == "communication" else "")

    columns: list[Column[RankRow]] = [Column("ranks", "N")]
    for name in PASSES:
        columns.append(Column(f"compute_{name}", name, rank=1, text=partial(compute, name), group="compute"))
    for strategy in STRATEGIES:
        group = NAMES[strategy]
        if strategy == "fsdp+tp":
            split = Column[RankRow]("split", "split", text=lambda row: _split_text(row.by_strategy["fsdp+tp"].split))
            columns.append(split._replace(group=group, left=True, rank=2))
        for name in PASSES:
            if (strategy, name) != ("dp", "forward"):  # it does not communicate
                text = partial(communication, strategy, name)
                columns.append(Column(f"{strategy}_{name}", name, text=text, group=group))
    columns.append(Column("fastest", left=True, read=lambda row: NAMES[row.fastest]))

    def record(row: RankRow) -> dict[str, Value]:
        found = _settings(plan) | {"ranks": row.ranks}
        for strategy, time in row.by_strategy.items():
            found |= {f"{strategy}_{key}": value for key, value in _time_record(time).items()}
        return found | {"fastest": row.fastest}

    caption = f"Communication by number of ranks ({times.unit}): {_title(plan)}"
    notes = (f"{_BOUND} communication takes longer than the computation of its pass", *_notes(plan))
    return Table.of(plan.rows, columns, record=record, caption=caption, footnotes=notes, label="plan")


def _pass(time: StrategyTime, name: str) -> PassTime:
    return time.forward if name == "forward" else time.backward


def _split_text(split: tuple[int, int]) -> str:
    return f"{split[0]} × {split[1]}"


def _title(plan: Plan) -> str:
    spec = plan.spec
    what = "one feed-forward layer of " if plan.part == "ffn" else ""
    batch = f"batch {spec.batch_size} × context {spec.context_length}"
    speed = f"{rate_text(plan.device.flops_per_s)}, {bandwidth(plan.device.bytes_per_s)} GB/s"
    return f"{what}{spec.size_label}, {batch} in all, {speed} a device"


def _limit_notes(plan: Plan) -> Iterator[str]:
    yield "largest N: neither forward nor backward takes longer to communicate than to compute; DP's forward is silent"
    yield "N real: the same if ranks need not be whole, as the formulas have it"
    yield "best split: ranks that share the batch × ranks that share each product"
    yield from plan.sources
    work = plan.work
    yield (
        f"weights {gigabytes(work.weight_bytes)} GB, forward {work.forward_flops / 1e12:.4g} TFLOP, "
        f"backward {work.backward_flops / 1e12:.4g} TFLOP, "
        f"{counted(work.all_reduces, 'all-reduce')} of {gigabytes(work.activation_bytes)} GB a pass under TP"
    )


def _notes(plan: Plan) -> Iterator[str]:
    yield "the whole batch stays the same; communication overlaps computation; rings; latency and memory are left out"
    yield (
        "FSDP's and TP's communication share a link: their times add up"
        if plan.device.shared_link
        else "FSDP's and TP's communication overlap each other, each at the whole bandwidth"
    )
    spec = plan.spec
    largest = max((row.ranks for row in plan.rows), default=0)
    if largest > spec.batch_size:
        yield f"N above {spec.batch_size}: under DP and FSDP a rank has less than one sequence of the batch"
    heads = spec.num_heads if plan.part == "model" else spec.d_ff
    if largest > heads:
        yield f"TP above {heads}: more ranks than {'heads' if plan.part == 'model' else 'columns of the weights'}"


def _settings(plan: Plan) -> dict[str, Value]:
    spec = plan.spec
    return {
        "size": spec.size_label,
        "part": plan.part,
        "batch": spec.batch_size,
        "context": spec.context_length,
        **attributes(spec, "d_model", "d_ff", "num_layers"),
        **attributes(plan.device, "flops_per_s", link_bytes_per_s="bytes_per_s"),
        **{f"{name.replace('-', '_')}_bytes_per_s": rate for name, rate in plan.device.by_operation.items()},
        **attributes(plan.work, "forward_flops", "backward_flops", "weight_bytes", "activation_bytes", "all_reduces"),
        "shared_link": plan.device.shared_link,
    }


def account_table(spec: CellSpec, device: Device, found: Iterable[Account]) -> Table:
    """A row a quantity: its part of the problem, its derivation and its value."""
    scales = {"bytes": ("GB", 1e9), "FLOPs": ("TFLOP", 1e12)}

    def value(each: Account) -> str:
        if math.isinf(each.value):
            return "none"
        if each.unit in scales:
            unit, per = scales[each.unit]
            return f"{each.value / per:,.4g} {unit}"
        return f"{math.ceil(each.value):,} {each.unit}"

    def record(each: Account) -> dict[str, Value]:
        return each._asdict() | {"value": None if math.isinf(each.value) else each.value}

    columns: list[Column[Account]] = [
        *(Column[Account](key, left=True) for key in ("part", "quantity", "derivation")),
        Column("value", text=value),
    ]
    caption = (
        f"Memory and communication of {spec.num_layers} blocks of two linear layers, {spec.tokens_per_step} tokens"
    )
    notes = (
        f"C {rate_text(device.flops_per_s)}, W {bandwidth(device.bytes_per_s)} GB/s a link",
        "weights, gradients and optimizer state in fp32, activations and communication in bf16; GB is 10⁹ bytes",
    )
    return Table.of(found, columns, record=record, caption=caption, footnotes=notes, label="accounting")


def _limit_record(limit: Limit) -> dict[str, Value]:
    found = attributes(limit, "strategy", "forward", "backward", "most", "real")
    return found | attributes(limit.split, best_data_ranks="data", best_tensor_ranks="tensor")


_OF_PASS = ("compute_s", "weights_s", "activations_s", "communication_s", "bound")


def _time_record(time: StrategyTime) -> dict[str, Value]:
    found: dict[str, Value] = {"data_ranks": time.split.data, "tensor_ranks": time.split.tensor, "time_s": time.time_s}
    for name in PASSES:
        found |= attributes(_pass(time, name), *_OF_PASS, prefix=f"{name}_")
    return found


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan as data, in bytes, seconds and FLOPs; a limit of None is any number of ranks."""
    rows = [
        attributes(row, "ranks", "fastest")
        | {"strategies": {name: _time_record(time) for name, time in row.by_strategy.items()}}
        for row in plan.rows
    ]
    limits = [_limit_record(limit) for limit in plan.limits]
    return _settings(plan) | {"sources": list(plan.sources), "limits": limits, "rows": rows}


def plan_figure(plan: Plan) -> Drawing:
    """Time over number of ranks, both logarithmic, a panel each for forward and backward: computation as a line, each
    strategy's communication as one. Where this is above, communication bounds."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        ranks = [row.ranks for row in plan.rows]
        for axis, name in zip(axes, PASSES, strict=True):
            compute = [_pass(row.by_strategy["dp"], name).compute_s * 1e3 for row in plan.rows]
            axis.plot(ranks, compute, color="#333333", linewidth=2, label="computation")
            for strategy in STRATEGIES:
                sent = [(row.ranks, _pass(row.by_strategy[strategy], name).communication_s * 1e3) for row in plan.rows]
                seen = [point for point in sent if point[1] > 0]
                if seen:
                    colour, marker = _LOOKS[strategy]
                    markersize = 7 if strategy == "dp" else 4  # its backward lies under that of FSDP
                    label = f"{NAMES[strategy]} communication"
                    axis.plot(*zip(*seen, strict=True), color=colour, marker=marker, markersize=markersize, label=label)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_title(name)
            axis.set_xlabel("ranks")
            plain_ticks(axis.yaxis)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes[0].set_ylabel("time on a rank (ms)")
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)

    size = re.sub(r"[^\w.]+", "-", plan.spec.size_label)
    name = f"plan-{size}-ctx{plan.spec.context_length}-{plan.part}"
    return Drawing(name, f"Computation and communication\n{_title(plan)}", (9, 4.6), draw)


SCALING = {"per-rank": "Weak scaling", "global": "Strong scaling"}
_MEANS = {
    "per-rank": "weak scaling: each rank has a batch of its own; efficiency: T1 / Tn",
    "global": "strong scaling: all ranks divide one batch; efficiency: T1 / (n Tn)",
}
Ones = Mapping[tuple[CellSpec, str], float]
"""Mean step times of cells of one rank, by `beside`."""


def scaling_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `subjects.layout.WriteUp.make`: a table for weak and one for strong scaling, in each a row for each
    wrapper and number of ranks, below the cells of one rank. Raises `TableError` where nothing is to be shown."""
    ones, notation = times_of_one_rank(results), Notation("ms", decimals)
    tables: list[Table] = []
    for kind, several in several_ranks(results).items():
        alike = set(map(beside, several))
        kept = [*(each for each in results if each.spec.ranks == 1 and beside(each) in alike), *several]
        columns = (
            *names(kept),
            *step_columns(notation),
            measure_column("tokens/s", MEASURES["tokens"], notation),
            _over_one("speed-up", ones, speed_up, "{:.2f}".format),
            _over_one("efficiency (%)", ones, lambda *of: 100 * efficiency(*of), lambda share: percent(share / 100)),
        )
        tables += tables_of(
            kept,
            columns,
            f"{SCALING[kind]}: step time and efficiency over ranks",
            (_MEANS[kind], SLOWEST, *_measured_notes(kept, ones), *not_timed(kept)),
            rows_by=ROWS_BY,
            apart=telling(kept, but=(*ROWS_BY, "batch-is", "backend", *POOLED)),
            places=POOLED,
            sort=_order(kept),
        )
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


def _measured_notes(kept: Sequence[Result], ones: Ones) -> Iterator[str]:
    yield "speed-up: tokens/s of all ranks over those of one"
    if any(beside(each) not in ones for each in kept):
        yield "no cell of one rank of the same model and batch: add 1 to --ranks, such as --ranks 1,2,4"
    if any(each.spec.device == "cpu" for each in kept):
        yield "cpu: the ranks share the cores of one machine; separate devices scale differently"
