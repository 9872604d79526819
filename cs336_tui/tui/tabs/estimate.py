"""The Estimate tab: what each cell will need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message

from cs336_tui.analysis.estimates import Estimate, stream_text
from cs336_tui.analysis.targets import Target
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.gpus import UnknownGpu, find_gpu, known_gpus
from cs336_tui.events.prediction import MemoryBlock, Prediction
from cs336_tui.export.tables import Column, Table
from cs336_tui.stats import quantities
from cs336_tui.tui import format
from cs336_tui.tui.dialogs.questions import AskText, problem_of
from cs336_tui.tui.dialogs.window import Reader
from cs336_tui.tui.titles import cell_columns, told_variants, unique_names
from cs336_tui.tui.widgets.columns import shown_table, table_lines
from cs336_tui.tui.widgets.lines import Line, Lines, Span, bar, facts, labelled, line, wrapped
from cs336_tui.tui.widgets.rows import Rows

_LABEL = 16
_INDENT = " " * _LABEL
_WORTH_A_WORD = 5 * 10**5
"""Least bytes of a category that a low screen names."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BAR = 20
"""Most columns of a bar."""


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
        Column("step_time", "a step", rank=7,
               text=lambda row: row.estimate.step_time if row.estimate else format.NOT_YET),
    ))  # fmt: skip


def mark(row: EstimateRow) -> Span:
    """The mark at the end of a row: whether the cell fits."""
    found = row.estimate
    if row.refused:
        return Span("✗ not on it", "bad")
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
    lines += labelled("residual stream", f"{stream_text(prediction)} a tensor", width)
    besides = f"the peak and {format.size(target.context_bytes)} of the process itself"
    role = "bad" if found.fits is False else "caution" if found.tight else "good" if found.fits else "muted"
    lines += labelled("device", f"{target_text(target)} ({target.source})", width)
    lines += labelled("needs", f"{format.size(found.needed_bytes)}: {besides}", width)
    lines += labelled("fits", found.fit, width, role=role)
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
    work = line(f"{quantities.count(prediction.num_params)} parameters"), line(flops(sum(prediction.flops.values())))
    return [
        facts(
            peak, [*([line(f"activation peak {format.fine_size(apart)}")] if apart is not None else []), *work], width
        ),
        facts(
            line(found.fit),
            [*([line(f"residual stream {quantities.mebibytes(stream)} MiB")] if stream else []), *categories],
            width,
        ),
    ]


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
    lines = [
        (),
        line((f"{'peak':<{_LABEL}}", "muted"), (f"{format.size(peak)} in {prediction.peak_phase}", "strong"), measured),
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


def _allocation(block: MemoryBlock, width: int) -> list[Line]:
    site = block.site
    shape = "×".join(map(str, block.shape)) if block.shape is not None else ""
    part = " ".join(filter(None, (site.range or site.op, "(backward)" if site.backward else "")))
    tensor = " ".join(filter(None, (block.dtype, shape)))
    text = " · ".join(filter(None, (block.category.replace("_", " "), part, tensor, site.frame)))
    (_, *first), *rest = labelled("", text, width, label_width=12)
    return [(Span(f"{_amount(block.bytes):>10}  ", "strong"), *first), *rest]


_BESIDE_FROM = 150
"""Width from which the detail is beside the list."""
_BELOW_FROM = 30
"""Height from which the detail is below the list."""

Whose = Literal["chosen", "session"]


class Estimated(NamedTuple):
    """The contents of the tab."""

    rows: tuple[EstimateRow, ...]
    whose: Whose
    """The cells of Configure's choices, or those of the session."""
    target: str = ""
    """The device, in words."""
    elsewhere: bool = False
    """True if the device is a GPU that the user named."""
    why_none: str = ""
    waiting: str = ""
    """The state of missing predictions, in words."""
    total: str = ""
    """The time of all cells that fit; empty if unknown."""
    part: str = ""
    """Which cells have a row, in words; empty if all have."""
    can_switch: bool = False
    """True if the choices and the session both have cells."""


class EstimateList(Rows):
    """The list, with the keys of the tab: a list's keys come before its pane's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Details", id="estimate.detail"),
        Binding("g", "gpu", "Another GPU", id="estimate.gpu"),
        Binding("v", "switch", "Choices or session", id="estimate.switch"),
    ]
    can_switch = False

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return self.can_switch if action == "switch" else True

    def action_gpu(self) -> None:
        def entered(name: str | None) -> None:
            if name is not None:
                self.post_message(EstimatePane.GpuNamed(name or None))

        names = ", ".join(gpu.name for gpu in known_gpus())
        about = f"Whether the cells fit a GPU that need not be here; empty: this machine.\nKnown: {names}"

        def check(name: str) -> str:
            return problem_of(lambda: name and find_gpu(name), UnknownGpu)

        self.app.push_screen(AskText("GPU", about, check=check), entered)

    def action_switch(self) -> None:
        self.post_message(EstimatePane.Switched())


class EstimatePane(Container):
    """The list, and the detail of the cell under the cursor: beside or below it, or in a window on Enter."""

    class GpuNamed(Message):
        """Estimate for this GPU; None: the machine's own devices."""

        def __init__(self, name: str | None) -> None:
            super().__init__()
            self.name = name

    class Switched(Message):
        """The user wants the other cells: the session's instead of Configure's, or back."""

    def __init__(self, *, id: str | None = "estimate") -> None:
        super().__init__(id=id)
        self._shown, self._has_detail = Estimated((), "chosen"), False
        self._list = EstimateList(id="estimate-list")
        self._detail = Lines(id="estimate-detail")

    def compose(self) -> ComposeResult:
        yield self._list
        yield self._detail

    @property
    def text(self) -> str:
        return f"{self._list.text}\n{self._detail.text}"

    def on_resize(self, event: events.Resize) -> None:
        beside, tall = event.size.width >= _BESIDE_FROM, event.size.height >= _BELOW_FROM
        self._has_detail = beside or tall
        self.set_class(beside, "-beside")
        self.set_class(tall and not beside, "-below")

    def show(self, estimated: Estimated) -> None:
        """Paint; the cursor stays on its row."""
        if not self.is_mounted:
            return
        if estimated.can_switch != self._list.can_switch:
            self._list.can_switch = estimated.can_switch
            self.refresh_bindings()
        if estimated.whose != self._shown.whose:
            self._list.cursor = 0
        self._shown = estimated
        self._paint()

    def _paint(self) -> None:
        shown, rows = self._shown, self._list
        width = rows.content_size.width
        cells = "Configure's choices" if shown.whose == "chosen" else "The session's cells"
        title = line(
            (f"{cells}{', ' if shown.part else ' '}", "title"),
            (f"{shown.part} " if shown.part else "", "caution"),
            (f"for {shown.target} " if shown.target else "", "caution" if shown.elsewhere else "text"),
            (f"· {shown.total} " if shown.total else "", "strong"),
        )
        if shown.rows:
            marks = [mark(row) for row in shown.rows]
            roles = ["text" if row.estimate else "muted" for row in shown.rows]
            names, *lines = table_lines(table(shown.rows), width, marks, roles=roles)
            rows.fill(lines, [title, *([] if self._has_detail else self._brief()), names])
        else:
            rows.fill((), [title, (), *wrapped(shown.why_none, width, "muted")])
        if self._has_detail:
            self._detail.paint(self._written(self._detail.content_size.width))

    def _brief(self) -> list[Line]:
        """Two lines on the cell under the cursor; always two, so that the list does not jump."""
        if self._list.content_size.height < 7:
            return []
        found = brief(self._current, self._list.content_size.width) if self._current else []
        return found or [line((self._shown.waiting, "muted")), ()]

    @property
    def _current(self) -> EstimateRow | None:
        rows = self._shown.rows
        return rows[min(self._list.cursor, len(rows) - 1)] if rows else None

    def _written(self, width: int) -> list[Line]:
        return detail(self._current, width, self._shown.waiting) if self._current else []

    @on(Rows.Moved)
    def _moved(self, event: Rows.Moved) -> None:
        event.stop()
        self._paint()

    @on(Rows.Chosen)
    def _chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        if self._current:
            self.app.push_screen(Reader("Estimate", self._written))
