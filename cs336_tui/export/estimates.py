"""What cells will need, as tables: with a device what it means there, without one the predictions themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from cs336_tui.analysis.estimates import Estimate, Target, duration_range, timed_flops, total_s
from cs336_tui.analysis.fields import size_label
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import CATEGORIES, Prediction
from cs336_tui.export.tables import Align, Column, Table, Value
from cs336_tui.stats.quantities import gigabytes

PREDICTED = (
    "predicted, not measured: what a caching allocator hands out for tensors, in a step after warm-up; "
    "GB = 10⁹ bytes, MiB = 2²⁰ bytes"
)
FLOPS = "FLOPs: multiplications and additions of the matrix products (2 m n k) of a step's timed phases"
CATEGORIES_MEAN = (
    "activations: what forward and loss leave for backward; buffers: those of the model, such as causal mask and "
    "rotary tables, and the batch; temporary: what is let go within its phase, gradients of activations included"
)


class _Row(NamedTuple):
    """A prediction and the cell that it is for, which may be another one that needs the same."""

    prediction: Prediction
    spec: CellSpec


class _Source(NamedTuple):
    """A column: its header, what it shows, and the same as data, under its name there."""

    header: str
    show: Callable[[_Row], str]
    name: str
    read: Callable[[_Row], Value]
    align: Align = "right"


def _choice(header: str, name: str, attribute: str, align: Align = "right") -> _Source:
    return _Source(
        header,
        lambda row: str(getattr(row.spec, attribute)),
        name,
        lambda row: getattr(row.spec, attribute),
        align,
    )


def _amount(header: str, name: str, show: Callable[[float], str]) -> _Source:
    def read(row: _Row) -> int:
        found: int = getattr(row.prediction, name)
        return found

    return _Source(header, lambda row: show(read(row)), name, read)


_AS_WRITTEN = "as written"


def _variant(spec: CellSpec) -> str:
    return ", ".join(spec.variants) or _AS_WRITTEN


_VARIANTS = _Source("variant", lambda row: _variant(row.spec), "variants", lambda row: _variant(row.spec), "left")
_CELL = (
    _Source("size", lambda row: size_label(row.spec), "size", lambda row: size_label(row.spec), "left"),
    _choice("context", "context", "context_length"),
    _choice("batch", "batch", "batch_size"),
    _choice("pass", "pass", "pass_", "left"),
    _choice("precision", "precision", "precision", "left"),
)
_MAY_VARY = (
    _choice("edition", "edition", "edition", "left"),
    _choice("arch", "arch", "arch", "left"),
    _choice("vocabulary", "vocab", "vocab_size"),
    _choice("warm-up", "warmup", "warmup_steps"),
    _VARIANTS,
)


_NEEDS = (
    _amount("parameters (M)", "num_params", lambda value: f"{value / 1e6:.2f}"),
    _amount("less head (M)", "num_params_without_head", lambda value: f"{value / 1e6:.2f}"),
    _Source(
        "TFLOP per step",
        lambda row: f"{timed_flops(row.prediction) / 1e12:.4g}",
        "flops",
        lambda row: timed_flops(row.prediction),
    ),
    _amount("forward peak (GB)", "forward_peak_bytes", gigabytes),
    _amount("end of forward (GB)", "forward_end_bytes", gigabytes),
    _amount("peak (GB)", "peak_bytes", gigabytes),
    _amount("residual stream (MiB)", "residual_stream_bytes", lambda value: f"{value / 2**20:.4g}"),
)


def estimate_table(estimates: Sequence[Estimate], caption: str = "") -> Table:
    """A row a cell: what it is, what it needs, whether it fits and how long a step takes. All are for one target."""
    rows = [_Row(estimate.prediction, estimate.spec) for estimate in estimates]
    sources = (*_cell_sources(rows), *_NEEDS)
    device = f" on {estimates[0].target.name}" if estimates else ""
    return Table(
        columns=(*_columns(sources), Column("fits", left=True), Column("time per step")),
        rows=tuple(
            (*_shown(sources, row), estimate.verdict, estimate.step_time)
            for row, estimate in zip(rows, estimates, strict=True)
        ),
        records=tuple(_record(sources, row) | _judged(each) for row, each in zip(rows, estimates, strict=True)),
        caption=caption or f"What cells need{device}",
        footnotes=tuple(estimate_notes(estimates)),
        label="estimates",
    )


def category_table(estimates: Sequence[Estimate], caption: str = "") -> Table:
    """What memory is held for, two rows a cell: at the end of its forward and at the peak of its step."""
    return _category_table([_Row(estimate.prediction, estimate.spec) for estimate in estimates], caption)


def prediction_tables(predictions: Sequence[Prediction]) -> tuple[Table, Table]:
    """Predictions without a device: what cells need, and what for."""
    rows = [_Row(prediction, prediction.spec) for prediction in predictions]
    sources = (*_cell_sources(rows), *_NEEDS)
    needs = Table(
        columns=_columns(sources),
        rows=tuple(_shown(sources, row) for row in rows),
        records=tuple(_record(sources, row) for row in rows),
        caption="What cells need",
        footnotes=(PREDICTED, FLOPS, *_notes_of(rows)),
        label="predictions",
    )
    return needs, _category_table(rows)


def _category_table(rows: Sequence[_Row], caption: str = "") -> Table:
    sources = _cell_sources(rows)
    texts: list[tuple[str, ...]] = []
    records: list[dict[str, Value]] = []
    for row in rows:
        found = row.prediction
        for moment, phase, total, by_category in (
            ("end of forward", "forward", found.forward_end_bytes, found.forward_end_by_category),
            ("peak", found.peak_phase, found.peak_bytes, found.by_category),
        ):
            sizes = [by_category.get(category, 0) for category in CATEGORIES]
            when = f"peak, in {phase}" if moment == "peak" else moment
            texts.append((*_shown(sources, row), when, *map(gigabytes, sizes), gigabytes(total)))
            sized = {f"{category}_bytes": size for category, size in zip(CATEGORIES, sizes, strict=True)}
            records.append(_record(sources, row) | {"moment": moment, "phase": phase} | sized | {"total_bytes": total})
    categories = (Column(f"{category.replace('_', ' ')} (GB)") for category in CATEGORIES)
    return Table(
        columns=(*_columns(sources), Column("moment", left=True), *categories, Column("total (GB)")),
        rows=tuple(texts),
        records=tuple(records),
        caption=caption or "What memory is held for",
        footnotes=(PREDICTED, CATEGORIES_MEAN, *_notes_of(rows)),
        label="predicted-memory",
    )


def estimate_notes(estimates: Sequence[Estimate]) -> Iterator[str]:
    """What the numbers of estimates for one target mean and rest on, a line each."""
    if estimates:
        yield target_note(estimates[0].target)
    yield PREDICTED
    yield FLOPS
    for basis, number in Counter(estimate.basis for estimate in estimates).items():
        of = f" of {number} cell{'s' if number > 1 else ''}" if number < len(estimates) else ""
        yield f"time per step{of}: {basis}"
    if len(estimates) > 1:
        yield sweep_note(estimates)
    yield from _notes_of([_Row(estimate.prediction, estimate.spec) for estimate in estimates])


def sweep_note(estimates: Sequence[Estimate]) -> str:
    """How many cells fit, and how long all steps of those that do will take."""
    too_large = sum(estimate.fits is False for estimate in estimates)
    fitting = f"{too_large} of {len(estimates)} cells do not fit; the others" if too_large else "all cells"
    if too_large == len(estimates):
        return f"none of {len(estimates)} cells fits"
    return f"{fitting}, warm-up and measured steps: {duration_range(*total_s(estimates))}"


def target_note(target: Target) -> str:
    """The device and what must fit on it."""
    free = f"{gigabytes(target.free_bytes)} of {gigabytes(target.capacity_bytes)} GB free ({target.source})"
    context = f"{target.context_bytes / 2**30:g} GiB of it are assumed for the process besides its tensors"
    peaks = f"; peaks from: {target.gpu.source}" if target.gpu else ""
    return f"{target.name}: {free}; {context}{peaks}"


def _judged(estimate: Estimate) -> dict[str, Value]:
    target = estimate.target
    return {
        "device": target.name,
        "free_bytes": target.free_bytes,
        "capacity_bytes": target.capacity_bytes,
        "needed_bytes": estimate.needed_bytes,
        "fits": estimate.fits,
        "tight": estimate.tight,
        "margin_bytes": estimate.margin_bytes,
        "low_s": estimate.low_s,
        "high_s": estimate.high_s,
        "basis": estimate.basis,
    }


def _cell_sources(rows: Sequence[_Row]) -> tuple[_Source, ...]:
    """What names a cell, and what else tells these apart."""
    return (*_CELL, *(source for source in _MAY_VARY if _is_telling(source, rows)))


def _is_telling(source: _Source, rows: Sequence[_Row]) -> bool:
    """Whether the column is to be shown: its values differ, or the one that all have is not as usual."""
    found = {source.read(row) for row in rows}
    return len(found) > 1 or (source is _VARIANTS and found not in (set(), {_AS_WRITTEN}))


def _columns(sources: Iterable[_Source]) -> tuple[Column, ...]:
    return tuple(Column(source.name, source.header, source.align == "left") for source in sources)


def _shown(sources: Iterable[_Source], row: _Row) -> tuple[str, ...]:
    return tuple(source.show(row) for source in sources)


def _record(sources: Iterable[_Source], row: _Row) -> dict[str, Value]:
    return {source.name: source.read(row) for source in sources}


def _notes_of(rows: Iterable[_Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.prediction.note for row in rows if row.prediction.note))
