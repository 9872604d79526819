"""The texts of the Estimate tab: its list, and everything predicted of a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cs336_tui.analysis.estimates import Estimate, least_times, stream_text
from cs336_tui.analysis.targets import Fit, Target
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import MemoryBlock, Prediction
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.stats import quantities
from cs336_tui.tui import format
from cs336_tui.tui.format import cell_columns, told_variants, unique_names
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.widgets.columns import shown_table
from cs336_tui.tui.widgets.lines import Line, Span, bar, facts, labelled, line, wrapped

_LABEL = 16
_INDENT = " " * _LABEL
_WORTH_A_WORD = 5 * 10**5
"""Least bytes of a category that a low screen names."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BAR = 20
"""Most columns of a bar."""


class Largest(NamedTuple):
    """The largest batch that fits; as long as it is looked for, the batch that is tried, or why there is none."""

    fit: Fit | None = None
    tries: int = 0
    problem: str = ""

    @property
    def brief(self) -> str:
        if self.fit is None:
            return "?" if self.problem else f"… {self.tries or ''}".rstrip()
        return "none" if self.fit.largest is None else str(self.fit.largest)

    @property
    def words(self) -> str:
        fit = self.fit
        if fit is None:
            return self.problem or f"looking: batch {self.tries} is being predicted"
        parts = [f"{fit.largest}: peak {format.size(fit.found.peak_bytes)}"] if fit.found else ["none fits"]
        if fit.following and fit.next_spec:
            parts.append(f"{fit.next_spec.batch_size} needs {format.size(fit.following.device_bytes)}")
        elif fit.spec:
            parts.append("no larger batch is tried")
        known = fit.found or fit.following
        counted = known is not None and known.reserved_bytes is not None
        reserve = "" if counted else "without the allocator's reserve: "
        return f"{', '.join(parts)}; {reserve}a slightly smaller batch is safer"


class EstimateRow(NamedTuple):
    """A cell of the list."""

    spec: CellSpec
    estimate: Estimate | None
    measured_bytes: int | None = None
    """The allocator's peak, if the cell has run."""
    refused: str = ""
    """Why the device cannot run it; empty if it can."""
    unpredictable: str = ""
    """Why its needs could not be predicted; empty if they could."""
    largest: Largest | None = None
    """The largest batch that fits, once it is looked for."""


def table(rows: Sequence[EstimateRow]) -> Table:
    """The list, with columns of variants and of measured peaks if there are any."""

    def needs(key: str, title: str, rank: int, show: Callable[[Prediction], str]) -> Column[EstimateRow]:
        return Column(key, title, rank=rank,
                      text=lambda row: show(row.estimate.prediction) if row.estimate else format.NOT_YET)  # fmt: skip

    def measured(row: EstimateRow) -> str:
        return "" if row.measured_bytes is None else quantities.gigabytes(row.measured_bytes)

    variants = {key: unique_names(shown) for key, shown in told_variants(row.spec for row in rows).items()}
    ranks = {"context": 3, "batch": 8, "pass": 1, "precision": 4, "device": 9}
    some_measured = any(row.measured_bytes is not None for row in rows)
    return shown_table(rows, (
        *cell_columns(lambda row: row.spec, ranks, variants, recorded=all(row.spec.recording for row in rows)),
        needs("num_params", "params", 6, lambda found: quantities.count(found.num_params)),
        needs("flops", "TFLOP", 5, lambda found: f"{sum(found.flops.values()) / 1e12:.3g}"),
        needs("peak_bytes", "peak GB", 0, lambda found: quantities.gigabytes(found.peak_bytes)),
        needs("activation_peak_bytes", "activations GB", 4,
              lambda found: quantities.gigabytes(found.activation_peak_bytes)),
        *([Column[EstimateRow]("measured", rank=2, text=measured)] if some_measured else []),
        *([Column[EstimateRow]("largest", "largest batch", text=lambda row: row.largest.brief if row.largest else "")]
          if any(row.largest for row in rows) else []),
        Column("step_time", "a step", rank=7,
               text=lambda row: row.estimate.step_time if row.estimate else format.NOT_YET),
    ))  # fmt: skip


def mark(row: EstimateRow) -> Span:
    """The mark at the end of a row: whether the cell fits."""
    found = row.estimate
    if row.refused:
        return Span("✗ unsupported", "bad")
    if found is None and row.unpredictable:
        return Span("! unknown", "caution")
    if found is None or found.fits is None:
        return Span(format.NOT_YET if found is None else "? n/a", "muted")
    if not found.fits:
        return Span("✗ does not fit", "bad")
    return Span("! tight", "caution") if found.tight else Span("✓ fits", "good")


def flops(count: int) -> str:
    """``2.31 TFLOP``, ``48.0 GFLOP``, ``524 kFLOP``."""
    factor, prefix = next((pair for pair in _PREFIXES if count >= pair[0]), _PREFIXES[-1])
    shown = count / factor
    return f"{shown:.{max(0, 2 - len(str(int(shown))) + 1)}f} {prefix}FLOP"


def detail(row: EstimateRow, width: int, waiting: str = "") -> list[Line]:
    """Everything predicted of a cell; `waiting` if there is no prediction yet."""
    lines = wrapped(row.spec.title, width, "title", "  ")
    lines += wrapped(f"✗ {row.refused}", width, "bad") if row.refused else []
    if row.estimate is None and row.unpredictable:
        return lines + wrapped(f"! not predicted: {row.unpredictable}", width, "caution")
    if row.estimate is None:
        return lines + wrapped(waiting, width, "muted")
    found, prediction, target = row.estimate, row.estimate.prediction, row.estimate.target
    headless = f"{prediction.num_params_without_head:,} less the head"
    lines += labelled("parameters", f"{prediction.num_params:,} ({headless})", width)
    by_phase = " · ".join(f"{name} {flops(value)}" for name, value in prediction.flops.items() if value)
    lines += labelled("FLOPs a step", f"{flops(sum(prediction.flops.values()))}: {by_phase}", width)
    lines += labelled("a step takes", f"{found.step_time}, {found.basis}", width)
    lines += _memory(row, prediction, width)
    lines += _communication(found, width)
    lines += labelled("residual stream", f"{stream_text(prediction)} a tensor", width)
    besides = f"the peak and {format.size(target.context_bytes)} of the process itself"
    if row.spec.ranks > 1:
        besides += (
            f", {row.spec.ranks} times, as ranks share it" if target.shares_memory else ", on a GPU for each rank"
        )
    role = "bad" if found.fits is False else "caution" if found.tight else "good" if found.fits else "muted"
    lines += labelled("device", f"{target_text(target)} ({target.source})", width)
    lines += labelled("needs", f"{format.size(found.needed_bytes)}: {besides}", width)
    lines += labelled("fits", found.fit, width, role=role)
    lines += labelled("largest batch", row.largest.words, width) if row.largest else []
    if prediction.note:
        lines += [(), *wrapped(prediction.note, width, "caution")]
    if prediction.largest:
        lines += [(), line(("largest allocations at the peak", "title"))]
        lines += [row for block in prediction.largest for row in _allocation(block, width)]
    return lines


def brief(row: EstimateRow, width: int) -> list[Line]:
    """The prediction in two lines, for a low screen; what has no room is left out."""
    if row.estimate is None or row.refused:
        why = format.plain(row.unpredictable) if not row.refused else ""
        return [line((f"! not predicted: {why}", "caution")), ()] if why else []
    found, prediction = row.estimate, row.estimate.prediction
    stream, apart = prediction.residual_stream_bytes, prediction.activation_peak_bytes
    categories = [
        line((f"{name.replace('_', ' ')} {format.fine_size(size)}", "muted"))
        for name, size in sorted(prediction.by_category.items(), key=lambda item: -item[1])
        if size >= _WORTH_A_WORD
    ]
    peak = line((f"peak {format.fine_size(prediction.peak_bytes)} in {prediction.peak_phase}", "strong"))
    work = [line(f"{quantities.count(prediction.num_params)} parameters"), line(flops(sum(prediction.flops.values())))]
    if apart is not None:
        work.insert(0, line(f"activation peak {format.fine_size(apart)}"))
    needs: list[Line] = []
    if times_s := [time_s for _, time_s in least_times(found)]:
        needs.append(line(f"communicates {_amount(sum(used.bytes for used in prediction.communication))}"))
        if None not in times_s:
            needs.append(line(f"in at least {sum(filter(None, times_s)) * 1e3:.3g} ms"))
    if stream:
        needs.append(line(f"residual stream {quantities.mebibytes(stream)} MiB"))
    return [facts(peak, work, width), facts(line(found.fit), [*needs, *categories], width)]


def target_text(target: Target) -> str:
    """A device and its memory in words."""
    some = target.free_bytes not in (None, target.capacity_bytes)
    free = f", {format.size(target.free_bytes)} free" if some else ""
    return f"{format.plain(target.name)}: {format.size(target.capacity_bytes, 'memory unknown')}{free}"


def _amount(size: int) -> str:
    """Bytes as ``1.07 GB``, ``515 MB`` or ``0.12 MB``."""
    decimals = (size < 10**8) + (size < 10**7)
    return format.size(size) if size >= 10**9 else f"{size / 1e6:.{decimals}f} MB"


def _memory(row: EstimateRow, prediction: Prediction, width: int) -> list[Line]:
    """Peak and end of forward by category, each with its share of the peak as a bar."""
    peak, end = prediction.peak_bytes, prediction.forward_end_bytes
    measured = ""
    if row.measured_bytes:
        measured = f" · measured {format.size(row.measured_bytes)} ({(peak / row.measured_bytes - 1) * 100:+.1f} %)"
    room = max(min(_BAR, width - _LABEL - 24), 0)
    of_each = " of each rank" if row.spec.ranks > 1 else ""
    lines = [
        (),
        line(
            (f"{'peak':<{_LABEL}}", "muted"),
            (f"{format.size(peak)} in {prediction.peak_phase}{of_each}", "strong"),
            measured,
        ),
        line((f"{'':<{_LABEL}}{'at the peak':>11} {'':<{room}} {'end of forward':>15}", "muted")),
    ]
    for name in prediction.categories:
        at_peak, at_end = prediction.by_category.get(name, 0), prediction.forward_end_by_category.get(name, 0)
        if at_peak or at_end:
            label = (f"{name.replace('_', ' '):<{_LABEL}}", "muted")
            share = (bar(at_peak / peak if peak else 0, room), "memory")
            lines.append(line(label, f"{_amount(at_peak):>11} ", share, f" {_amount(at_end):>15}"))
    lines.append(line(f"{'in all':<{_LABEL}}{format.size(peak):>11} {'':<{room}} {format.size(end):>15}"))
    if prediction.forward_peak_bytes != peak:
        alone = f"forward alone peaks at {format.size(prediction.forward_peak_bytes)}"
        lines.append(line((_INDENT + alone, "muted")))
    if prediction.activation_peak_bytes is not None:
        apart = f"activations alone peak at {format.size(prediction.activation_peak_bytes)}"
        lines.append(line((f"{_INDENT}{apart} in {prediction.activation_peak_phase}", "muted")))
    return [*lines, ()]


def _communication(estimate: Estimate, width: int) -> list[Line]:
    """Calls and bytes of the collectives of a rank in a step, a line an operation, and the least time of all."""
    found = least_times(estimate)
    if not found:
        return []
    lines: list[Line] = []
    for used, time_s in found:
        least = f", at least {quantities.fixed_milliseconds(time_s, 3)} ms" if time_s is not None else ""
        text = f"{used.op} {quantities.counted(used.calls, 'call')}, {_amount(used.bytes)}{least}"
        lines += labelled("" if lines else "communication", text, width)
    link = estimate.target.link_text
    unknown = f"unknown; {key_name('estimate.link')} sets it"
    lines += labelled("link", f"{link}; rings, without latency" if link else unknown, width)
    return [*lines, ()]


def _allocation(block: MemoryBlock, width: int) -> list[Line]:
    site = block.site
    shape = "×".join(map(str, block.shape)) if block.shape is not None else ""
    part = " ".join(filter(None, (site.range or site.op, "(backward)" if site.backward else "")))
    tensor = " ".join(filter(None, (block.dtype, shape)))
    text = " · ".join(filter(None, (block.category.replace("_", " "), part, tensor, site.frame)))
    (_, *first), *rest = labelled("", text, width, label_width=12)
    return [(Span(f"{_amount(block.bytes):>10}  ", "strong"), *first), *rest]
