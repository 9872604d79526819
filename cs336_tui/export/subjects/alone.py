"""Attention or a norm alone: methods side by side over widths and lengths, their times, bandwidth and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.grouping import groups, telling
from cs336_tui.analysis.measures import Runs
from cs336_tui.analysis.merge import Result
from cs336_tui.config.flops import NORM_MOVES, Accounting, accounting_of, least_bytes
from cs336_tui.config.spec import AXES, PASSES, CellSpec
from cs336_tui.export.subjects.layout import layout_column, part_column, setting, size_column, tables_of
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.export.writing.verdicts import trust_notes
from cs336_tui.stats.quantities import NONE, Notation, counted

_ROWS = {"attention": ("size", "context"), "norm": ("size", "context", "batch")}
"""Fields of the rows, by workload."""
_BESIDE = ("attention", "norm", "compile", "pass")
"""The methods with a column."""
_UNUSED = ("edition", "arch", "vocab")
"""Fields that an operation alone does not have."""
_D = {"attention": "d: width of a query, a key and a value", "norm": "d: width of a row; rows: batch × context length"}
_MIB = 2**20


class Method(NamedTuple):
    """A way to compute the operation."""

    name: str
    compile: str

    @property
    def title(self) -> str:
        """Such as ``naive`` and ``naive, compiled``."""
        mode = "" if self.compile == "default" else f" {self.compile}"
        return self.name + ("" if self.compile == "off" else f", compiled{mode}")


_BASES = {workload: Method(AXES[workload].default, "off") for workload in _ROWS}
"""The methods with which the others are compared."""


def tables_alone(workload: str, results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `subjects.layout.WriteUp.make`: for each setting a table of step times, of a norm one of its
    bandwidth, and one of the memory that is held before the backward where a pass has one. Raises `TableError` where
    nothing is to be shown."""
    kept = [result for result in results if result.spec.workload == workload]
    if not kept:
        raise TableError(f"layout {workload}: no cell of {workload} alone; run some with --workload {workload}")
    others = len(results) - len(kept)
    notes = (f"left out, as they are not of {workload} alone: {counted(others, 'cell')}",) if others else ()
    apart = telling(kept, but=(*_ROWS[workload], *_BESIDE, *_UNUSED))
    tables, notation = list[Table](), Notation("ms", decimals)
    for members in groups(kept, apart).values():
        times = [_time(method, pass_, notation) for method, pass_ in _timed(members)]
        tables += _tables("times", members, apart, times, notes)
        if workload == "norm":
            bandwidths = [_bandwidth(method, pass_) for method, pass_ in _timed(members)]
            tables += _tables("bandwidth", members, apart, bandwidths, notes)
        if any(_has_backward(result.spec) for result in members):
            tables += _tables("memory", members, apart, _memory(members), notes)
    return tuple(tables)


_CAPTIONS = {"times": "mean step time in ms", "bandwidth": "bandwidth in GB/s", "memory": "memory before backward"}


def _tables(
    kind: str, members: Sequence[Result], apart: Sequence[str], columns: Iterable[Column[Runs]], notes: Sequence[str]
) -> Iterator[Table]:
    workload = members[0].spec.workload
    below = (_D[workload], *_notes(kind, members), *notes)
    heads = [layout_column("heads", lambda row: row.first.spec.num_heads)] * _has_heads(members)
    d = layout_column("d", lambda row: row.first.spec.head_dim)
    length = setting("sequence length", "context")
    if workload == "norm":
        length = layout_column("rows", lambda row: row.first.spec.tokens_per_step)
    caption, shown = f"{workload.capitalize()} alone, {_CAPTIONS[kind]}", (*heads, d, length, *columns)
    places = (*_BESIDE, *_UNUSED)
    tables = tables_of(members, shown, caption, below, rows_by=_ROWS[workload], apart=apart, places=places)
    # How far times can be trusted says nothing of memory.
    unsaid = frozenset(trust_notes(members) if kind == "memory" else ())
    for table in tables:
        kept, label = tuple(note for note in table.footnotes if note not in unsaid), filter(None, (kind, table.label))
        yield msgspec.structs.replace(table, label="-".join(label), footnotes=kept)


def _timed(members: Sequence[Result]) -> Iterator[tuple[Method, str]]:
    """Each method with each of its passes."""
    for method in _methods(members):
        passes = {result.spec.pass_ for result in members if _method(result.spec) == method}
        yield from ((method, pass_) for pass_ in filter(passes.__contains__, PASSES))


def _is(method: Method, pass_: str | None = None) -> Callable[[Result], bool]:
    return lambda run: _method(run.spec) == method and pass_ in (None, run.spec.pass_)


def _mean_s(row: Runs, method: Method, pass_: str) -> float | None:
    part = row.only(_is(method, pass_))
    return part.mean_s if part else None


def _time(method: Method, pass_: str, notation: Notation) -> Column[Runs]:
    """The mean of a row's cells of one method and pass, with how many times as fast it is as the base."""
    mean = part_column(f"{method.title}: {pass_} (ms)", "mean", notation, _is(method, pass_))

    def text(row: Runs) -> str:
        base = _BASES[row.spec.workload]
        mean_s, base_s = _mean_s(row, method, pass_), _mean_s(row, base, pass_)
        return mean.cell(row) + (f" ({base_s / mean_s:.2f}×)" if method != base and mean_s and base_s else "")

    return mean._replace(text=text)


def _bandwidth(method: Method, pass_: str) -> Column[Runs]:
    """The least bytes of a step in its mean time."""

    def found(row: Runs) -> float | None:
        mean_s = _mean_s(row, method, pass_)
        return least_bytes(_cells(row, method, pass_)[0].spec) / mean_s / 1e9 if mean_s else None

    def text(row: Runs) -> str:
        value = found(row)
        return _ending(_cells(row, method, pass_)) if value is None else f"{value:.3g}"

    return layout_column(f"{method.title}: {pass_} (GB/s)", found, text)


def _memory(members: Sequence[Result]) -> Iterator[Column[Runs]]:
    """The memory that each method held, and after the last method of an attention what was to be expected
    of it."""
    with_backward = [result for result in members if _has_backward(result.spec)]
    methods = _methods(with_backward)
    for number, method in enumerate(methods):
        yield _held(method)
        last = number + 1 == len(methods) or methods[number + 1].name != method.name
        alike = [result for result in with_backward if result.spec.method == method.name]
        if last and _accounting(alike[0]) is not None:
            yield _accounted(method.name)


def _held(method: Method) -> Column[Runs]:
    def found(row: Runs) -> int | None:
        endings = (run.cell.finished for run in _cells(row, method) if run.cell.finished)
        return next((ending.before_backward_bytes for ending in endings if ending.before_backward_bytes), None)

    def otherwise(row: Runs) -> str:
        return _ending([run for run in _cells(row, method) if _has_backward(run.spec)])

    return size_column(f"{method.title}: held (MiB)", found, _MIB, _mebibytes, otherwise)


def _accounted(name: str) -> Column[Runs]:
    def found(row: Runs) -> int | None:
        runs = [run for run in row.runs if run.spec.method == name]
        accounting = _accounting(max(runs, key=lambda run: bool(_computed_by(run)))) if runs else None
        return accounting.bytes if accounting else None

    return size_column(f"{name}: accounted (MiB)", found, _MIB, _mebibytes)


def _notes(kind: str, members: Sequence[Result]) -> Iterator[str]:
    """The meaning of one kind of table."""
    spec = members[0].spec
    match kind:
        case "times":
            yield "times: mean ms a step"
            base = _BASES[spec.workload]
            if len(_methods(members)) > 1 and base in _methods(members):
                yield f"in parentheses: how many times as fast as {base.name} that is not compiled"
        case "bandwidth":
            passes = {member.spec.pass_ for member in members}
            moved = ", ".join(f"{moves} in {pass_}" for pass_, moves in NORM_MOVES.items() if pass_ in passes)
            yield f"bandwidth: what must be read or written, in tensors of the rows' size ({moved}), over the mean time"
            yield "1 GB is 10⁹ bytes"
        case "memory":
            yield "1 MiB is 2²⁰ bytes"
            yield f"held: {_SEEN[spec.device.partition(':')[0]]}, after forward and loss of an untimed step"
            expected = [(member.spec.method, _accounting(member)) for member in members]
            accounted = dict.fromkeys(f"accounted, {name}: {found.in_words}" for name, found in expected if found)
            yield from accounted
            if accounted:
                letters = f"B: sequences, {'H: heads, ' * _has_heads(members)}T: tokens of one, K: d"
                yield f"{letters}; accounted as written, without scalars; compiled code may hold less"


def _accounting(result: Result) -> Accounting | None:
    """Of the kernel that torch really chose, where that was left to it and it chose the one that is not fused."""
    spec = result.spec
    if spec.attention == "sdpa" and "math" in _computed_by(result):
        spec = msgspec.structs.replace(spec, attention="math")
    return accounting_of(spec)


def _computed_by(result: Result) -> str:
    """The way in which attention was computed; empty of a cell that never came so far."""
    in_force = result.cell.in_force
    return (in_force.attention if in_force else None) or ""


_SEEN = {
    "cpu": "tensors, by the allocations and frees of torch's CPU allocator",
    "cuda": "tensors and cuBLAS's workspace, as torch's CUDA allocator counts them",
    "mps": "tensors, as torch's Metal allocator counts them",
}


def _method(spec: CellSpec) -> Method:
    return Method(spec.method, spec.compile)


def _methods(members: Sequence[Result]) -> list[Method]:
    """In the order of their fields: the base first, and what is not compiled before what is."""
    fields = (members[0].spec.workload, "compile") if members else ()
    return list(dict.fromkeys(_method(found[0].spec) for found in groups(members, fields).values()))


def _has_heads(members: Iterable[Result]) -> bool:
    return any(member.spec.num_heads > 1 for member in members)


def _has_backward(spec: CellSpec) -> bool:
    return "backward" in spec.pass_


def _cells(row: Runs, method: Method, pass_: str | None = None) -> list[Result]:
    return list(filter(_is(method, pass_), row.runs))


def _ending(runs: Sequence[Result]) -> str:
    """Why there is no number: ``OOM``, or nothing was run or seen."""
    return next((run.ending for run in runs if run.ending), NONE)


def _mebibytes(size: int) -> str:
    """In 3 significant digits from 1 MiB on, and no whole MiB rounded away."""
    value = size / _MIB
    return f"{value:.{3 if value < 1 else max(0, 3 - len(str(int(value))))}f}"
