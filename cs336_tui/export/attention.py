"""Attention alone: methods side by side over widths and sequence lengths, their times and what they hold in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.grouping import groups, telling
from cs336_tui.analysis.merge import Result, ddof_of, pooled
from cs336_tui.config.attention_accounting import Accounting, accounting_of
from cs336_tui.config.spec import PASSES, CellSpec
from cs336_tui.export.layout import Row, layout_column, setting, size_column, tables_of, time_column
from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Column, Table
from cs336_tui.export.verdicts import trust_notes
from cs336_tui.stats.quantities import NONE, Notation
from cs336_tui.stats.summaries import Summary

_ROWS = ("size", "context")
_BESIDE = ("attention", "compile", "pass")
"""The methods with a column."""
_UNUSED = ("edition", "arch", "vocab")
"""Fields that attention alone does not have."""
_MIB = 2**20


class Method(NamedTuple):
    """A way to compute attention."""

    attention: str
    compile: str

    @property
    def title(self) -> str:
        """Such as ``naive`` and ``naive, compiled``."""
        mode = "" if self.compile == "default" else f" {self.compile}"
        return self.attention + ("" if self.compile == "off" else f", compiled{mode}")


_BASE = Method("naive", "off")


def attention_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.Layout.make`: for each setting a table of step times, and one of the memory that is
    held before the backward where a pass has one. Raises `TableError` where nothing is to be shown."""
    kept = [result for result in results if result.spec.workload == "attention"]
    if not kept:
        raise TableError("layout attention: no cell of attention alone; run some with --workload attention")
    others = len(results) - len(kept)
    notes = (f"left out, as they are not of attention alone: {others} cells",) if others else ()
    apart = telling(kept, but=(*_ROWS, *_BESIDE, *_UNUSED))
    tables: list[Table] = []
    for members in groups(kept, apart).values():
        tables += _tables("times", members, apart, _times(members, Notation("ms", decimals)), notes)
        if any(_has_backward(result.spec) for result in members):
            tables += _tables("memory", members, apart, _memory(members), notes)
    return tuple(tables)


_CAPTIONS = {"times": "Attention alone, mean step time in ms", "memory": "Attention alone, memory before backward"}


def _tables(
    kind: str, members: Sequence[Result], apart: Sequence[str], columns: Iterable[Column[Row]], notes: Sequence[str]
) -> Iterator[Table]:
    said = (*(_time_notes if kind == "times" else _memory_notes)(members), *notes)
    heads = [layout_column("heads", lambda row: row.first.spec.num_heads)] * _has_heads(members)
    d = layout_column("d", lambda row: row.first.spec.head_dim)
    rows = (*heads, d, setting("sequence length", "context"), *columns)
    tables = tables_of(members, rows, _CAPTIONS[kind], said, rows_by=_ROWS, apart=apart, places=(*_BESIDE, *_UNUSED))
    # How far times can be trusted says nothing of memory.
    unsaid = frozenset(trust_notes(members) if kind == "memory" else ())
    for table in tables:
        yield msgspec.structs.replace(
            table,
            label="-".join(filter(None, (kind, table.label))),
            footnotes=tuple(note for note in table.footnotes if note not in unsaid),
        )


def _times(members: Sequence[Result], notation: Notation) -> Iterator[Column[Row]]:
    for method in _methods(members):
        passes = {result.spec.pass_ for result in members if _method(result.spec) == method}
        for pass_ in filter(passes.__contains__, PASSES):
            yield _time(method, pass_, notation)


def _time(method: Method, pass_: str, notation: Notation) -> Column[Row]:
    """The mean of a row's cells of one method and pass, with how many times as fast it is as the naive one."""

    def summary(row: Row, of: Method = method) -> Summary | None:
        return pooled(_cells(row, of, pass_), ddof_of(row.runs))

    def text(row: Row) -> str:
        found, base = summary(row), summary(row, _BASE)
        if method == _BASE or not (found and found.mean_s and base and base.mean_s):
            return mean.cell(row)
        return f"{mean.cell(row)} ({base.mean_s / found.mean_s:.2f}×)"

    header = f"{method.title}: {pass_} (ms)"
    mean = time_column(header, summary, "mean_s", notation, lambda row: _ending(_cells(row, method, pass_)))
    return mean._replace(text=text)


def _time_notes(members: Sequence[Result]) -> Iterator[str]:
    yield "d: width of a query, a key and a value; times: mean ms a step"
    if len(_methods(members)) > 1 and _BASE in _methods(members):
        yield "in parentheses: how many times as fast as naive attention that is not compiled"


def _memory(members: Sequence[Result]) -> Iterator[Column[Row]]:
    """The memory that each method held, and after the last method of an attention what was to be expected of it."""
    with_backward = [result for result in members if _has_backward(result.spec)]
    methods = _methods(with_backward)
    for number, method in enumerate(methods):
        yield _held(method)
        last = number + 1 == len(methods) or methods[number + 1].attention != method.attention
        of_attention = [result for result in with_backward if result.spec.attention == method.attention]
        if last and _accounting(of_attention[0]) is not None:
            yield _accounted(method.attention)


def _held(method: Method) -> Column[Row]:
    def found(row: Row) -> int | None:
        endings = (run.cell.finished for run in _cells(row, method) if run.cell.finished)
        return next((ending.before_backward_bytes for ending in endings if ending.before_backward_bytes), None)

    def otherwise(row: Row) -> str:
        return _ending([run for run in _cells(row, method) if _has_backward(run.spec)])

    return size_column(f"{method.title}: held (MiB)", found, _MIB, _mebibytes, otherwise)


def _accounted(attention: str) -> Column[Row]:
    def found(row: Row) -> int | None:
        runs = [run for run in row.runs if run.spec.attention == attention]
        accounting = _accounting(max(runs, key=lambda run: bool(_computed_by(run)))) if runs else None
        return accounting.bytes if accounting else None

    return size_column(f"{attention}: accounted (MiB)", found, _MIB, _mebibytes)


def _memory_notes(members: Sequence[Result]) -> Iterator[str]:
    yield "d: width of a query, a key and a value; 1 MiB is 2²⁰ bytes"
    seen_by = _SEEN[members[0].spec.device.partition(":")[0]]
    yield f"held: {seen_by}, after forward and loss of a step that was not timed"
    expected = [(member.spec.attention, _accounting(member)) for member in members]
    yield from dict.fromkeys(f"accounted, {name}: {found.in_words}" for name, found in expected if found)
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
    "cpu": "tensors, by what torch's CPU allocator gave and took",
    "cuda": "tensors and cuBLAS's workspace, as torch's CUDA allocator counts them",
    "mps": "tensors, as torch's Metal allocator counts them",
}


def _method(spec: CellSpec) -> Method:
    return Method(spec.attention, spec.compile)


def _methods(members: Sequence[Result]) -> list[Method]:
    """In the order of their fields: naive first, and what is not compiled before what is."""
    return list(dict.fromkeys(_method(found[0].spec) for found in groups(members, ("attention", "compile")).values()))


def _has_heads(members: Iterable[Result]) -> bool:
    return any(member.spec.num_heads > 1 for member in members)


def _has_backward(spec: CellSpec) -> bool:
    return "backward" in spec.pass_


def _cells(row: Row, method: Method, pass_: str | None = None) -> list[Result]:
    return [run for run in row.runs if _method(run.spec) == method and pass_ in (None, run.spec.pass_)]


def _ending(runs: Sequence[Result]) -> str:
    """Why there is no number: ``OOM``, or nothing was run or seen."""
    return next((run.ending for run in runs if run.ending), NONE)


def _mebibytes(size: int) -> str:
    """In 3 significant digits from 1 MiB on, and no whole MiB rounded away."""
    value = size / _MIB
    return f"{value:.{3 if value < 1 else max(0, 3 - len(str(int(value))))}f}"
