"""Tables and data of the needs of cells, and of the largest cell that fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from cs336_tui.analysis.estimates import (
    Estimate,
    Unpredicted,
    duration_range,
    least_times,
    stream_derivation,
    timed_flops,
    total_s,
)
from cs336_tui.analysis.measures import allocated_bytes
from cs336_tui.analysis.targets import FIELD, Fit, Target, step_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.events.prediction import CATEGORIES, COMMUNICATION, Collective, Prediction
from cs336_tui.export.writing.footnotes import ACTIVATIONS_MEAN
from cs336_tui.export.writing.tables import Column, Source, Table, Value, as_text, attributes, cell_record
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import UNKNOWN, ByteUnit, counted, fixed_milliseconds, gigabytes, named

PREDICTED = (
    "predicted, not measured: bytes that the caching allocator hands out for tensors in a step after warm-up; "
    "GB = 10⁹ bytes, MiB = 2²⁰ bytes"
)
FLOPS = "FLOPs: multiplications and additions of the matrix products (2 m n k) of a step's timed phases"
CATEGORIES_MEAN = (
    "activations: saved by forward and loss for backward; buffers: the model's, such as causal mask and rotary "
    "tables, and the batch; temporary: freed within its phase, gradients of activations included"
)
COMMUNICATION_MEANS = (
    "communication: buckets of gradients, gathered weights and their whole gradients, buffers of collectives"
)
_MOST_DERIVED = 4
"""Most derivations of the residual stream under a table."""


class _Need(NamedTuple):
    """A prediction and the cell that it is for, which may be another one that needs the same."""

    prediction: Prediction
    spec: CellSpec
    estimate: Estimate | None = None


_Row = _Need | Unpredicted


class _Moment(NamedTuple):
    """A moment of a predicted step, and what memory is held for then."""

    need: _Row
    name: str
    phase: str
    by_category: dict[str, int]
    total: int


def _choice(key: str, attribute: str, title: str | None = None, *, left: bool = False) -> Column[_Row]:
    return Column(key, title, left, read=lambda row: getattr(row.spec, attribute))


def _amount(
    rank: int, key: str, title: str, show: Callable[[float], str], read: Callable[[Prediction], Value] | None = None
) -> Column[_Row]:
    """A figure of the prediction, by default its attribute `key`; None where there is no prediction."""
    value = read or (lambda found: getattr(found, key))

    def of_need(row: _Row) -> Value:
        return value(row.prediction) if isinstance(row, _Need) else None

    return Column(key, title, rank=rank, read=of_need, show=lambda value: UNKNOWN if value is None else show(value))


_AS_WRITTEN = "as written"
_VARIANTS: Column[_Row] = Column(
    "variants", "variant", left=True, read=lambda need: ", ".join(need.spec.variants) or _AS_WRITTEN
)
_CELL: tuple[Column[_Row], ...] = (
    Column("size", left=True, read=lambda need: need.spec.size_label),
    _choice("context", "context_length"),
    _choice("batch", "batch_size"),
    _choice("pass", "pass_", left=True),
    _choice("precision", "precision", left=True),
)
_MAY_VARY = (
    _choice("edition", "edition", left=True),
    _choice("arch", "arch", left=True),
    _choice("vocab", "vocab_size", "vocabulary"),
    _choice("warmup", "warmup_steps", "warm-up"),
    _VARIANTS,
)
_NEEDS: tuple[Column[_Row], ...] = (
    _amount(3, "num_params", "parameters (M)", lambda value: f"{value / 1e6:.2f}"),
    _amount(8, "num_params_without_head", "less head (M)", lambda value: f"{value / 1e6:.2f}"),
    _amount(2, "flops", "TFLOP per step", lambda flops: f"{flops / 1e12:.4g}", timed_flops),
    _amount(5, "forward_peak_bytes", "forward peak (GB)", gigabytes),
    _amount(6, "forward_end_bytes", "end of forward (GB)", gigabytes),
    _amount(0, "peak_bytes", "peak (GB)", gigabytes),
    _amount(4, "activation_peak_bytes", "activation peak (GB)", gigabytes),
    _amount(7, "residual_stream_bytes", "residual stream (MiB)", lambda value: f"{value / 2**20:.4g}"),
)


def _fit(row: _Row) -> str:
    if isinstance(row, Unpredicted):
        return f"not predicted: {row.why}"
    return row.estimate.fit if row.estimate else ""


def _time(row: _Row) -> str:
    return row.estimate.step_time if isinstance(row, _Need) and row.estimate else ""


_ANSWERS = (Column[_Row]("fits", left=True, text=_fit), Column[_Row]("time", "time per step", text=_time))


def estimate_table(cells: Sequence[Estimate | Unpredicted | Prediction]) -> Table:
    """A row a cell: what it is, what it needs; for a target, which all have or none, whether it fits and how long a
    step takes."""
    rows = [cell if isinstance(cell, Unpredicted) else _need_of(cell) for cell in cells]
    columns: list[Source[_Row]] = [*_cell_columns(rows), *_NEEDS]
    caption, label = "What cells need", "predictions"
    if target := _target_of(cells):
        columns += (_judged, *_ANSWERS)
        caption, label = f"{caption} on {target.name}", "estimates"
    return Table.of(rows, columns, caption=caption, footnotes=estimate_notes(cells), label=label)


def _target_of(cells: Sequence[Estimate | Unpredicted | Prediction]) -> Target | None:
    return next((cell.target for cell in cells if not isinstance(cell, Prediction)), None)


def category_table(cells: Sequence[Estimate | Prediction]) -> Table:
    """Memory by category, two rows a cell: at the end of its forward and at the peak of its step."""
    needs = [*map(_need_of, cells)]

    def size(category: str) -> Column[_Moment]:
        title = f"{category.replace('_', ' ')} (GB)"
        return Column(f"{category}_bytes", title, read=lambda m: m.by_category.get(category, 0), show=gigabytes)

    shown = max((need.prediction.categories for need in needs), key=len, default=CATEGORIES)
    columns: tuple[Source[_Moment], ...] = (
        *map(_of_need, _cell_columns(needs)),
        lambda m: {"moment": m.name, "phase": m.phase},
        Column("moment", left=True, text=lambda m: f"peak, in {m.phase}" if m.name == "peak" else m.name),
        *map(size, shown),
        Column("total_bytes", "total (GB)", read=lambda m: m.total, show=gigabytes),
    )
    rows: list[_Moment] = []
    for need in needs:
        of = need.prediction
        rows.append(_Moment(need, "end of forward", "forward", of.forward_end_by_category, of.forward_end_bytes))
        rows.append(_Moment(need, "peak", of.peak_phase, of.by_category, of.peak_bytes))
    notes = [PREDICTED, CATEGORIES_MEAN]
    if COMMUNICATION in shown:
        notes.append(COMMUNICATION_MEANS)
    notes += _notes_of(need.prediction for need in needs)
    return Table.of(rows, columns, caption="What memory is held for", footnotes=notes, label="predicted-memory")


class _Use(NamedTuple):
    """A collective of a cell's step, and its least time over the device's link, if that is known."""

    need: _Row
    collective: Collective
    least_s: float | None


def communication_table(estimates: Sequence[Estimate]) -> Table | None:
    """A row a collective operation of each cell's step; None if no cell communicates. All are for one target."""
    uses = [_Use(_need_of(each), used, time_s) for each in estimates for used, time_s in least_times(each)]
    if not uses:
        return None
    target = estimates[0].target
    unit = ByteUnit.for_largest(max(use.collective.bytes for use in uses))
    columns: list[Column[_Use]] = [
        *map(_of_need, _cell_columns([use.need for use in uses])),
        Column("op", "operation", left=True, read=lambda use: use.collective.op),
        Column("calls", read=lambda use: use.collective.calls),
        Column("bytes", unit.name, read=lambda use: use.collective.bytes, show=unit.figure),
    ]
    if target.link_bytes_per_s is not None:
        columns.append(Column("least_s", "at least (ms)", show=lambda time: fixed_milliseconds(time, 3)))
    power = "10⁹" if unit.name == "GB" else "10⁶"
    notes = [f"{unit.name}: bytes of the whole arrays ({power}), all calls of a step after the first"]
    if target.link_text:
        notes.append(f"at least: rings over links of {target.link_text}; without latency and overlap")
    else:
        notes.append("--link gives the least time, such as --link 450GB/s")
    caption = "What a rank communicates in a step"
    return Table.of(uses, columns, caption=caption, footnotes=notes, label="predicted-communication")


def estimate_notes(cells: Sequence[Estimate | Unpredicted | Prediction]) -> Iterator[str]:
    """The meaning of estimates, and their basis for the one target, if there is one; a line each."""
    estimates, target = [cell for cell in cells if isinstance(cell, Estimate)], _target_of(cells)
    predictions = [_need_of(cell).prediction for cell in cells if not isinstance(cell, Unpredicted)]
    if target:
        yield target_note(target)
    yield PREDICTED
    yield FLOPS
    yield ACTIVATIONS_MEAN
    derived = list(dict.fromkeys(filter(None, map(stream_derivation, predictions))))
    if derived:
        yield f"residual stream, a tensor: {named(derived, _MOST_DERIVED, last='; and ')}"
    if target and any(estimate.spec.ranks > 1 for estimate in estimates):
        together = "; all of them together must fit" if target.shares_memory else ""
        yield f"several ranks: memory and FLOPs are of one{together}"
    if checked := [check_bytes(each) for each in predictions if each.spec.check != "off"]:
        yield f"the check after the steps needs {gigabytes(max(checked))} GB, in pieces; --check off leaves it out"
    for basis, number in Counter(estimate.basis for estimate in estimates).items():
        of = f" of {counted(number, 'cell')}" if number < len(estimates) else ""
        yield f"time per step{of}: {basis}"
    judged = [cell for cell in cells if not isinstance(cell, Prediction)]
    if len(judged) > 1:
        yield sweep_note(judged)
    yield from _notes_of(predictions)


def check_bytes(prediction: Prediction) -> int:
    """Bytes of a check of the results, which follows the measured steps: what a step keeps, the step's gradients, the
    reference's in float32, and the activations of one sequence."""
    spec, held = prediction.spec, prediction.by_category
    kept = sum(held[name] for name in ("parameters", "optimizer_state", "buffers"))
    gradients = 0 if spec.pass_ in WITHOUT_BACKWARD else held["parameters"] + 4 * prediction.num_params
    return kept + gradients + (prediction.activation_peak_bytes or 0) // max(spec.rank_batch_size, 1)


def sweep_note(cells: Sequence[Estimate | Unpredicted]) -> str:
    """The number of cells that fit, and the time of all their steps."""
    estimates = [cell for cell in cells if isinstance(cell, Estimate)]
    unpredicted = len(cells) - len(estimates)
    too_large = sum(estimate.fits is False for estimate in estimates)
    counts = ((unpredicted, "not predicted"), (too_large, "too large"))
    left_out = ", ".join(f"{number} {what}" for number, what in counts if number)
    total, fits_none = counted(len(cells), "cell"), too_large + unpredicted == len(cells)
    lost = f"of {total} {left_out}" if unpredicted else f"{too_large} of {total} do not fit"
    if fits_none:
        return lost if unpredicted else f"none of {total} fits"
    fitting = f"{lost}; the others" if unpredicted or too_large else "all cells"
    return f"{fitting}, warm-up and measured steps: {duration_range(*total_s(estimates))}"


def target_note(target: Target) -> str:
    """The device and what must fit on it."""
    free = f"{gigabytes(target.free_bytes)} of {gigabytes(target.capacity_bytes)} GB free ({target.source})"
    context = f"{target.context_bytes / 2**30:g} GiB of it are assumed for the process itself, beside tensors"
    peaks = f"; peaks from: {target.gpu.source}" if target.gpu else ""
    return f"{target.name}: {free}; {context}{peaks}"


def _judged(row: _Row) -> dict[str, Value]:
    names = ("needed_bytes", "fits", "tight", "margin_bytes", "low_s", "high_s", "basis")
    found = row if isinstance(row, Unpredicted) else row.estimate
    if found is None:
        return {}
    target = {"device": found.target.name, **attributes(found.target, "free_bytes", "capacity_bytes")}
    why = {"not_predicted": row.why if isinstance(row, Unpredicted) else None}
    return target | attributes(found if isinstance(found, Estimate) else None, *names) | why


def _need_of(cell: Estimate | Prediction) -> _Need:
    return _Need(cell, cell.spec) if isinstance(cell, Prediction) else _Need(cell.prediction, cell.spec, cell)


def _cell_columns(rows: Sequence[_Row]) -> tuple[Column[_Row], ...]:
    """The columns that name a cell, and those whose values differ or are unusual."""
    shown = list(_CELL)
    for column in _MAY_VARY:
        found = {column.value(row) for row in rows}
        if len(found) > 1 or (column is _VARIANTS and found not in (set(), {_AS_WRITTEN})):
            shown.append(column)
    return tuple(shown)


def _of_need(column: Column[_Row]) -> Column[Any]:
    """The column of what has a need."""
    return Column(column.key, column.title, column.left, read=lambda item: column.value(item.need), show=column.show)


def _notes_of(predictions: Iterable[Prediction]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.note for each in predictions if each.note))


class Fitted(NamedTuple):
    """The result of one search, and how the largest that fits and the next larger one went where they were run."""

    asked: CellSpec
    fit: Fit
    target: Target
    ran: CellState | None = None
    ran_next: CellState | None = None


def fit_table(results: Sequence[Fitted]) -> Table:
    """A row a cell; all are searched by the same."""
    by = results[0].fit.by
    other = "context" if by == "batch" else "batch"

    def tokens(row: Fitted) -> int | None:
        return row.fit.spec.tokens_per_step if row.fit.spec else None

    def following(row: Fitted) -> str:
        return as_text(_next(row)) if row.fit.next_spec else f"not tried (limit {row.fit.limit})"

    columns: list[Column[Fitted]] = [
        Column("size", left=True, text=lambda row: " · ".join((row.asked.size_label, *row.asked.variants))),
        Column(other),
        Column("pass", left=True),
        Column("precision", left=True),
        Column("device", rank=5, left=True),
        Column("largest", f"largest {by}", show=lambda value: "none" if value is None else str(value)),
        Column("tokens", "tokens per step", rank=3, read=tokens),
        Column("peak_bytes", "peak (GB)", show=gigabytes),
        Column("activation_peak_bytes", "activation peak (GB)", rank=4, show=gigabytes),
        Column("next", f"next larger {by}", text=following),
        Column("next_peak_bytes", "its peak (GB)", rank=2, show=gigabytes),
    ]
    if any(result.ran for result in results):
        columns.append(Column("outcome", left=True, text=_outcome))
    caption, notes = f"The largest {by} that fits", _notes(results)
    return Table.of(results, columns, record=_fit_record, caption=caption, footnotes=notes, label="fit")


def fit_document(result: Fitted) -> dict[str, Any]:
    """One result as data: bytes, None for what there is not."""
    return {"asked": result.asked, "spec": result.fit.spec} | _fit_record(result)


def _next(result: Fitted) -> int | None:
    found: int | None = getattr(result.fit.next_spec, FIELD[result.fit.by], None)
    return found


def _fit_record(result: Fitted) -> dict[str, Value]:
    fit, target = result.fit, result.target
    return {
        **cell_record(result.asked),
        "device": target.name,
        **attributes(fit, "by", "largest"),
        **attributes(fit.found, "peak_bytes", "activation_peak_bytes"),
        "next": _next(result),
        **attributes(fit.following, "peak_bytes", prefix="next_"),
        **attributes(target, "free_bytes", "capacity_bytes", "context_bytes"),
        **attributes(fit, "limit", "predictions"),
        **attributes(result.ran, "status"),
        "measured_peak_bytes": _measured(result.ran),
        **attributes(result.ran_next, "status", prefix="next_"),
        "next_measured_peak_bytes": _measured(result.ran_next),
    }


def _outcome(result: Fitted) -> str:
    if result.ran is None:
        return "not run"
    said: str = "ran" if result.ran.status == "ok" else result.ran.status
    if (measured := _measured(result.ran)) is not None:
        said += f", peak allocated {gigabytes(measured)} GB"
    if after := result.ran_next:
        how = {"ok": " ran too", "oom": ": out of memory"}.get(after.status, f": {after.status}")
        said += f"; {getattr(after.spec, FIELD[result.fit.by])}{how}"
    return said


def _measured(cell: CellState | None) -> int | None:
    return allocated_bytes(cell) if cell else None


def _notes(results: Sequence[Fitted]) -> Iterator[str]:
    by = results[0].fit.by
    yield from {result.target.name: target_note(result.target) for result in results}.values()
    yield PREDICTED
    yield ACTIVATIONS_MEAN
    for step in sorted({step_of(result.asked, by) for result in results} - {1}):
        yield f"{by}s are tried in multiples of {step}"
    if any(result.fit.found and result.fit.found.reserved_bytes is None for result in results):
        yield (
            f"the largest leaves no room for memory that the allocator reserves but does not use: a {by} a little "
            f"smaller is safer; --confirm runs it"
        )
    else:
        yield f"the largest needs all the room there is: a {by} a little smaller is safer; --confirm runs it"
    for result in results:
        room = result.target.room_bytes(result.asked.ranks)
        if result.fit.largest is None and result.fit.following and room is not None:
            short = result.fit.following.needed_of(room) - room
            smallest = getattr(result.fit.next_spec, FIELD[by])
            asked = result.asked
            title = ", ".join((asked.size_label, asked.pass_, asked.precision, *asked.variants))
            yield f"{title}: not even {by} {smallest} fits, by {gigabytes(short)} GB"
