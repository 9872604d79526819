"""The view of the Kernels tab over all cells: each part of a cell's step, profiled beside timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cs336_tui.analysis.fields import FIELDS, NUMBERS, values
from cs336_tui.analysis.grouping import shared
from cs336_tui.analysis.kernel_cells import CellPart
from cs336_tui.events.kernel_report import FUSED
from cs336_tui.export.kernel_cells import cell_keys, difference, notes, results_of, softmax, timed, yes_no
from cs336_tui.export.tables import Column, Value, known
from cs336_tui.stats.quantities import MILLISECONDS, counted, scale, time_text
from cs336_tui.tui import format
from cs336_tui.tui.widgets.columns import Sheet, shown_table
from cs336_tui.tui.widgets.lines import Line, labelled, line, wrapped

_ALWAYS = ("size", "context", "pass", "recording")
_NAME_WIDTH = 14
_LABEL = 23


def cells_sheet(parts: Sequence[CellPart]) -> Sheet:
    """A row for each part of each cell; the top kernel takes the rest. Settings that all share stand above."""
    results = results_of(parts)
    named = cell_keys(results)
    keys = [key for key in named if len(values(results, key)) > 1]
    times = scale(part.profiled.kernel_ns for part in parts if part.profiled)
    columns: tuple[Column[CellPart], ...] = (
        *map(_setting, keys),
        Column("part", left=True, text=lambda part: _short(part.part)),
        Column("timed", "timed ms", rank=1, text=_mean),
        Column("kernel_ns", f"kernels {times.unit}", read=_profiled("kernel_ns"), show=times.text),
        Column("difference", "- timed %", rank=2, text=lambda part: _percent(part, part.kernel_difference_s)),
        Column("span_ns", f"first to last {times.unit}", rank=9, read=_profiled("span_ns"), show=times.text),
        Column("span_difference", "- timed %", rank=10, text=lambda part: _percent(part, part.span_difference_s)),
        Column("matmul_share", "matmul %", rank=5, read=_profiled("matmul_share"), show=_share),
        Column("softmax", "softmax %", rank=6, text=lambda part: softmax(part).removesuffix(" %")),
        Column("optimizer_share", "optimizer %", rank=7, read=_profiled("optimizer_share"), show=_share),
        Column("same", "same as forward", left=True, rank=8, text=lambda part: yes_no(part.same_as_forward)),
        Column("top_share", "top %", rank=3, read=_profiled("top", "share"), show=_share),
        Column("instances", "×", rank=4, read=_profiled("top", "instances"), show=known("{}", format.NOT_YET)),
        Column("short", "top kernel", left=True, read=_profiled("top", "short"), show=_name),
    )
    titles = tuple(str(place) for place in range(len(parts)))
    same = [f"{FIELDS[key].title} {FIELDS[key].show(results[0])}" for key in named if key not in keys]
    same += filter(None, [shared(results, but=named)])
    lead = f"Every row: {format.plain(', '.join(same))}" if same else ""
    return Sheet(shown_table(parts, columns, notes(parts)), lead, keys=titles, rest=_NAME_WIDTH)


def detail(part: CellPart, width: int) -> list[Line]:
    """All figures of a part of a cell's step, and its top kernel in full."""
    found = part.profiled
    lines: list[Line] = [line((format.plain(f"{part.result.spec.title} · {part.part}"), "title")), ()]

    def said(label: str, text: str) -> None:
        lines.extend(labelled(label, format.plain(text), width, _LABEL))

    if found:
        kernels_ns, span_ns = found.kernel_ns, found.span_ns
        said("kernels", f"{time_text(kernels_ns)} in {counted(found.instances, 'launch')} or calls")
        said("from first to last", time_text(span_ns) if span_ns is not None else "unknown over several phases")
    said("timed", timed(part) + (f" ms (n={part.timed.n})" if part.timed and part.timed.mean_s is not None else ""))
    if found:
        for label, less_timed in (("kernels", part.kernel_difference_s), ("first to last", part.span_difference_s)):
            if less_timed is not None:
                said(f"{label} - timed", difference(part, less_timed).replace(", ", " ms, "))
        shares = {
            "matrix multiply": found.matmul_share,
            "softmax": found.softmax_share,
            "optimizer": found.optimizer_share,
        }
        for label, share in shares.items():
            said(label, FUSED if share is None else f"{share * 100:.1f} %")
    if found and (top := found.top):
        lines += [(), line(("Top kernel", "title")), *wrapped(top.name, width, "strong", "  ")]
        said("time", f"{time_text(top.total_ns)}, {top.share * 100:.1f} %, {counted(top.instances, 'time')}")
        if part.same_as_forward is not None:
            said("as in forward", "the same kernel" if part.same_as_forward else "another kernel")
    return lines


def _setting(key: str) -> Column[CellPart]:
    field, title = FIELDS[key], "ctx" if key == "context" else FIELDS[key].title
    rank = 0 if key in _ALWAYS else 6
    return Column(key, title, key not in NUMBERS, rank, text=lambda part: _short(field.show(part.result)))


def _short(name: str) -> str:
    """``fwd+bwd``: passes and parts leave room for the rest."""
    return format.SHORT_PASSES.get(name, name)


def _profiled(*names: str) -> Callable[[CellPart], Value]:
    """Reads an attribute of what was profiled; None where there is none."""

    def read(part: CellPart) -> Value:
        found: Any = part.profiled
        for name in names:
            found = getattr(found, name) if found is not None else None
        return found  # type: ignore[no-any-return]

    return read


def _name(short: str | None) -> str:
    return format.NOT_YET if short is None else format.plain(short)


def _mean(part: CellPart) -> str:
    if part.timed is None or part.timed.mean_s is None:
        return timed(part)
    return MILLISECONDS.of(part.timed, "mean_s")


def _percent(part: CellPart, difference_s: float | None) -> str:
    of_timed = part.of_timed(difference_s)
    return format.NOT_YET if of_timed is None else f"{of_timed * 100:+.1f}"


def _share(share: float | None) -> str:
    return format.NOT_YET if share is None else f"{share * 100:.1f}"
