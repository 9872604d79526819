"""Kernels of all cells as one table: each part of a cell's step profiled and timed, its top kernel, its shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cs336_tui.analysis.fields import FIELDS, NUMBERS, device_label
from cs336_tui.analysis.grouping import ALWAYS, SHARED, TELLING, shared, telling
from cs336_tui.analysis.kernel_cells import CellPart
from cs336_tui.analysis.merge import Result, measured
from cs336_tui.events.kernel_report import FUSED, KernelReport
from cs336_tui.export.subjects.kernel_use import OF_RUNS, RUNS_NOTE, steps_note, time_column
from cs336_tui.export.subjects.results_columns import data_value
from cs336_tui.export.writing.footnotes import provenance_notes
from cs336_tui.export.writing.tables import Column, Table, Value, attributes, cell_record, known
from cs336_tui.export.writing.verdicts import doubt_word
from cs336_tui.stats.quantities import MILLISECONDS, NONE, tenth_percent

PROFILED_NOTES = (
    "timed: mean ± std of the measured steps, without a profiler; of a part of a step, of its phases' device time",
    "kernels: the sum of the kernels' times in one profiled step",
    "first to last: from the first kernel's start to the last one's end, idle time included; –: several phases short "
    "of the whole step",
    "- timed: the profiled time minus the timed mean, and that as a share of the timed mean",
)
_RECORDED_NOTES = tuple(note.replace("in one profiled step", "of the part") for note in PROFILED_NOTES[1:3])
SHARES_NOTE = (
    "shares are of the part's kernel time. softmax: attention's softmax, forward and backward (by kind of kernel "
    "where no range names it); optimizer: kernels of the optimizer step and zero_grad"
)
SAME_NOTE = "same as forward: the top kernel has the full name of forward's in the same profile"
_BESIDE_TIMED = frozenset(("timed_s", "kernel_difference_s", "span_difference_s"))
"""Columns that only cells with timed steps can fill."""


def kernel_cells_table(parts: Sequence[CellPart]) -> Table:
    """A row for each part of a cell's step: forward, forward and backward, the whole step. A cell without a profile has
    its rows too, with dashes."""
    results = results_of(parts)
    keys = cell_keys(results)

    def beside_timed(key: str, title: str) -> Column[CellPart]:
        title += " - timed (ms, %)"
        return Column(key, title, text=lambda part: difference(part, getattr(part, key)), short="- timed")

    columns: list[Column[CellPart]] = [
        *map(_setting, keys),
        Column("part", left=True),
        Column("timed_s", "timed (ms)", text=timed, short="timed ms"),
        Column("times", left=True, show=_dashed),
        time_column("kernel_ns", "kernels"),
        time_column("kernel_std_ns", "± of kernels", 9),
        beside_timed("kernel_difference_s", "kernels"),
        time_column("span_ns", "first to last", 5),
        time_column("span_std_ns", "± of first to last", 10),
        beside_timed("span_difference_s", "first to last"),
        Column("top_short", "top kernel", left=True, show=_dashed),
        Column("top_instances", "its instances", rank=6, show=_dashed, short="top ×"),
        Column("top_share", "its share", rank=2, show=tenth_percent, short="top"),
        Column("matmul_share", "matrix multiply", rank=3, show=tenth_percent, short="matmul"),
        Column("softmax_share", "softmax", rank=4, text=softmax),
        Column("optimizer_share", "optimizer", rank=7, show=tenth_percent),
        Column("same_as_forward", "same as forward", rank=8, left=True, show=_SAME.__getitem__),
    ]
    caption = "Kernels of all cells"
    if not any(part.profiled and part.profiled.runs for part in parts):
        columns = [column for column in columns if column.key not in OF_RUNS]
    if is_recorded(parts):
        columns = [column for column in columns if column.key not in _BESIDE_TIMED]
    else:
        caption += ": profiled beside timed"
    below = [*notes(parts), *provenance_notes(results, std=bool(measured(results)))]
    if same := shared(results, keys, SHARED):
        below.insert(0, f"every row: {same}")

    def doubt(part: CellPart) -> str:
        return doubt_word([part.result]) if part.timed else ""

    label = "kernels-over-cells"
    return Table.of(parts, columns, record=_record, caption=caption, footnotes=below, label=label, doubt=doubt)


def results_of(parts: Sequence[CellPart]) -> list[Result]:
    """The results that the parts are of, each once."""
    return list({id(part.result): part.result for part in parts}.values())


def is_recorded(parts: Sequence[CellPart]) -> bool:
    """True if all of them were recorded elsewhere, where no step was timed."""
    return all(part.result.cell.spec.recording for part in parts)


def cell_keys(results: Sequence[Result]) -> tuple[str, ...]:
    """The fields that name the cells: of recordings their name alone, and whatever else tells some apart."""
    recorded = [bool(result.spec.recording) for result in results]
    always = (*ALWAYS * (not all(recorded)), *["recording"] * any(recorded))
    return (*always, *telling(results, but=always, among=TELLING))


def notes(parts: Sequence[CellPart]) -> Iterator[str]:
    """The meaning of the columns, what was counted where, and the cells without a profile."""
    yield from (*(_RECORDED_NOTES if is_recorded(parts) else PROFILED_NOTES), SHARES_NOTE)
    if any(part.same_as_forward is not None for part in parts):
        yield SAME_NOTE
    if any(softmax(part) == FUSED for part in parts):
        yield f"{FUSED}: one kernel does products and softmax together; their times cannot be separated"
    reports = [part.report for part in parts if part.report]
    if any(each.runs for each in reports):
        yield RUNS_NOTE
    yield from dict.fromkeys(f"{each.spec.title}: {steps_note(each)}" for each in reports if each.spec.recording)
    yield from dict.fromkeys(map(_seen_on, reports))
    yield from dict.fromkeys(f"{each.spec.title}: {each.note}" for each in reports if each.note)
    lost = dict.fromkeys((each.result.spec.title, each.profile) for each in parts if each.profile not in ("", "ok"))
    for title, ending in lost:
        yield f"{title}: no profile, its report {_ENDINGS.get(ending, ending)}"
    if any(not part.profile for part in parts):
        yield "cells without a profile have dashes: bench --reports kernels, or n in the Kernels tab, makes one"


def _seen_on(report: KernelReport) -> str:
    counted = "kernels, copies and fills of the GPU" if report.activity == "kernels" else "operators by self time"
    if report.spec.recording:
        return f"recorded on {report.device_name}: all that was recorded, kernels without copies and fills"
    return f"profiled on {report.device_name}, torch {report.torch}: {counted}"


def _setting(key: str) -> Column[CellPart]:
    field = FIELDS[key]
    return Column(key, field.title, key not in NUMBERS, text=lambda part: field.show(part.result))


def difference(part: CellPart, difference_s: float | None) -> str:
    """A difference to the timed mean, as ``-0.210, -1.3 %``."""
    if difference_s is None:
        return NONE
    of_timed = part.of_timed(difference_s)
    return f"{difference_s * 1e3:+.3f}" + ("" if of_timed is None else f", {of_timed * 100:+.1f} %")


def timed(part: CellPart) -> str:
    """Mean and std in ms; of a cell without timings why, and a dash where the part was not timed."""
    if part.timed is None or part.timed.mean_s is None:
        return part.result.ending if part.result.cell.cell >= 0 and part.result.ending else NONE
    return MILLISECONDS.mean_and_std(part.timed)


def softmax(part: CellPart) -> str:
    """The share of softmax, or why there is none."""
    if part.profiled is None:
        return NONE
    return FUSED if part.profiled.softmax_share is None else tenth_percent(part.profiled.softmax_share)


_SAME = {None: NONE, True: "yes", False: "no"}
_dashed = known("{}", NONE)
_ENDINGS = {"oom": "ran out of memory", "killed": "was killed", "cancelled": "was stopped"}


def _record(part: CellPart) -> dict[str, Value]:
    result, found = part.result, part.profiled
    return {
        "session": result.session,
        **cell_record(result.spec),
        "device_name": part.report.device_name if part.report else device_label(result),
        "warmup": data_value("warmup", FIELDS["warmup"].show(result)),
        "part": part.part,
        "profile": part.profile or "none",
        "activity": part.report.activity if part.report else None,
        **attributes(found, "kernel_ns", "kernel_std_ns", "span_ns", "span_std_ns", "instances"),
        "times": (found.times if found else "") or None,
        **attributes(part.timed, timed_s="mean_s", timed_std_s="std_s", timed_n="n"),
        "kernel_difference_s": part.kernel_difference_s,
        "kernel_difference_share": part.of_timed(part.kernel_difference_s),
        "span_difference_s": part.span_difference_s,
        "span_difference_share": part.of_timed(part.span_difference_s),
        **attributes(found and found.top, "name", "short", "total_ns", "instances", "share", prefix="top_"),
        **attributes(found, "matmul_share", "softmax_share", "optimizer_share"),
        "same_as_forward": part.same_as_forward,
    }
