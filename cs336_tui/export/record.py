"""Sessions as data: one record per finished cell, as JSON and CSV; the field names are a contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from cs336_tui.analysis.fields import OWN, shown_of
from cs336_tui.analysis.measures import MEASURES, Runs, energy_of
from cs336_tui.analysis.merge import Result, title_of
from cs336_tui.analysis.roofline import PeakLookup, work_of
from cs336_tui.analysis.tuning import race_of
from cs336_tui.config.spec import AXES, CellSpec, has_stand_ins, known_choices
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import EffectiveSettings, Stage, Status
from cs336_tui.events.peaks import PeakCache
from cs336_tui.export.subjects.tuning import race_document
from cs336_tui.export.writing.tables import attributes
from cs336_tui.export.writing.texts import csv_text, json_text, plain
from cs336_tui.export.writing.verdicts import judgement_of
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.summaries import Summary

RECORD_SCHEMA = 1


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one cell. Lists hold one value per step, seconds, oldest first; `phase_times_s` and
    `host_phase_times_s` are keyed by phase, the latter empty where the host's clock is the device's or for one phase.

    `stage` and `step` say how far it got when its status is not ``ok``.
    """

    cell: int
    spec: CellSpec
    repeat: int
    """Which run of its spec it is, from 1; of a visit of a race the round."""
    in_turns: bool
    """True if it ran step by step in turns with another cell, in one process."""
    environment: int | None
    """The machine that it ran on, as its place in the document's `environments`."""
    machine: str | None
    """Its name: of a job its node, else the host."""
    job: str | None
    """The job that ran it."""
    lanes: tuple[int, ...]
    """The lanes that it took; empty without lanes."""
    neighbours: tuple[int, ...]
    """Cells that ran at the same time on the same machine, in other lanes."""
    status: Status
    num_params: int | None
    num_params_without_head: int | None
    in_force: EffectiveSettings | None
    warmup_times_s: tuple[float, ...]
    step_times_s: tuple[float, ...]
    phase_times_s: dict[str, tuple[float, ...]]
    host_times_s: tuple[float, ...]
    host_phase_times_s: dict[str, tuple[float, ...]]
    rank_times_s: tuple[tuple[float, ...], ...]
    """Of several ranks: the measured steps of each. All other times are those of each step's slowest rank."""
    rank_sync_times_s: tuple[tuple[float, ...], ...]
    """Of several ranks with a phase gradient sync: that of each in the measured steps, with its wait for the others."""
    algbw_bytes_per_s: float | None
    """Of a collective: bytes of the whole array over the mean step time."""
    busbw_bytes_per_s: float | None
    """The same times the operation's factor, as nccl-tests has it."""
    summary: Summary | None
    skew: Summary | None
    """Of several ranks: over the measured steps, the time on the slowest rank less that on the fastest."""
    tokens_per_s: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_rss_bytes: int | None
    rank_peak_bytes: tuple[int | None, ...]
    """Of several ranks: the peak of each, allocated or, on the host, resident; other peaks are the largest rank's."""
    rank_nodes: tuple[str, ...]
    """Of ranks over several nodes: the node of each."""
    activation_peak_bytes: int | None
    """Of a memory report or a prediction, not of the timed steps."""
    activation_peak_basis: str | None
    """``recorded`` or ``predicted``."""
    num_alloc_retries: int | None
    failed_allocation_bytes: int | None
    stage: Stage | None
    step: int | None
    error: str | None
    verdicts: tuple[str, ...]
    """Those that hold, such as ``steady``; empty when the cell has no timings."""
    verdict_evidence: dict[str, str]
    """Of everything that was looked for: what shows that it holds or does not, or why that could not be known."""
    not_observable: tuple[str, ...]
    """Verdicts of which it could not be known whether they hold."""
    verdict_advice: dict[str, str]
    """The remedy for each of these, if there is one."""
    verdict_notes: tuple[str, ...]
    """Remarks that raise no doubt, such as spikes that were limited for the analysis alone."""
    warmup_advice: str | None
    interval_low_s: float | None
    """Of the 95 % confidence interval of the mean step time, as its `interval_high_s`."""
    interval_high_s: float | None
    interval_half_share: float | None
    """Half its width over the mean: 0.01 is ± 1 %."""
    interval_method: str | None
    effective_n: float | None
    """The number of independent steps that would fix the mean as well."""
    flops_per_step: int | None
    """Of the matrix products of the timed phases."""
    flops_per_s: float | None
    share_of_sheet_peak: float | None
    """Of the FLOP/s that the device's data sheet states for the precision in force."""
    share_of_measured_peak: float | None
    """Of the FLOP/s that the device was measured to reach in the precision in force."""
    measured_peak_doubt: str | None
    """Why that may be too low, or that it is wrong; empty where nothing speaks for it."""
    joules_per_step: float | None
    tokens_per_joule: float | None
    energy_unknown_because: str | None
    clock_before_mhz: int | None
    """SM clock in the last sample before the measured steps."""
    clock_after_mhz: int | None
    """SM clock in the last sample of the measured steps, or in the first after them."""
    lowest_clock_mhz: int | None
    """Of the samples of the measured steps."""
    persistence_mode: bool | None
    measured_for_s: float | None
    """From the beginning of the first measured step to the end of the last."""
    compile_s: float | None
    """The time of torch.compile before the first step."""
    compiled_graphs: int | None
    graph_breaks: tuple[str, ...]
    recompilations: int
    """The number of times that torch.compile compiled again during the steps."""
    capture_s: float | None
    """The time of capturing a CUDA graph before the first step."""
    until_first_step_s: float | None
    """From the start of its process until its first step began."""
    whole_run_s: float | None
    """From the start of its process to its end."""
    tokens_digest: str | None
    """Of the batch before the first step: two cells with the same digests began with the same tokens and weights."""
    weights_digest: str | None
    """Of the initial weights."""
    losses: tuple[float | None, ...]
    """Of the measured steps, where they are timed one by one; None for one that is not finite."""
    before_backward_bytes: int | None
    """In use by tensors between forward and backward, of an operation alone."""
    cpu_wait_s: float | None
    """The time that threads of the cell's process were ready meanwhile and had no core, added up."""


class CellWithoutResult(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that waits, runs or was skipped; `reason` says why it was skipped."""

    cell: int
    spec: CellSpec
    repeat: int
    status: Literal["queued", "running", "skipped"]
    reason: str | None = None


class SessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``--format json``. `environment` is the machine as it was read last, `environments` are all that
    cells ran on."""

    schema: int
    session: str | None
    name: str
    note: str
    commands: tuple[str, ...]
    environment: Environment | None
    environments: tuple[Environment, ...]
    race: dict[str, Any] | None
    """As ``tune --format json`` has it; None without one."""
    runs: tuple[RunRecord, ...]
    without_result: tuple[CellWithoutResult, ...]


_OF_CELL = ("cell", "spec", "repeat", "in_turns", "num_params", "num_params_without_head", "in_force", "job", "lanes")
_OF_END = (
    "status", "rank_peak_bytes", "rank_nodes", "num_alloc_retries", "failed_allocation_bytes", "stage", "step", "error",
    "tokens_digest", "weights_digest", "losses", "measured_for_s", "recompilations", "before_backward_bytes",
    "cpu_wait_s",
)  # fmt: skip
_MEASURES = {measure.data: measure.read for measure in MEASURES.values() if measure.recorded}
_OTHERS = [(key, float | None) for key in _MEASURES if key not in RunRecord.__struct_fields__]
_Record = cast(
    "type[RunRecord]", msgspec.defstruct("RunRecord", _OTHERS, bases=(RunRecord,), frozen=True, kw_only=True)
)
"""A record with every measure, also those that it has no field of its own for."""
_OF_SURROUNDINGS = ("clock_before_mhz", "clock_after_mhz", "lowest_clock_mhz", "persistence_mode")


def record_of(result: Result, peaks: PeakLookup, environment: int | None = None) -> RunRecord:
    """The record of a cell that is over; `peaks` finds what was measured of its device. Raises ValueError for a cell
    that is not over."""
    cell = result.cell
    finished = cell.finished
    if finished is None:
        raise ValueError(f"cell {cell.cell} is {cell.status}, not over")
    judgement, runs = judgement_of(cell, result.state), Runs.of(result, peaks)
    interval, prepared = judgement.interval if judgement else None, cell.prepared
    own = attributes(cell, *_OF_CELL)
    if result.spec.is_collective:  # as logs of before counted its message
        own |= {"num_params": None, "num_params_without_head": None}
    own |= attributes(finished, *_OF_END) | attributes(cell.surroundings, *_OF_SURROUNDINGS)
    own |= {key: read(runs) for key, read in _MEASURES.items()}
    return _Record(
        **own,
        **attributes(judgement, "warmup_advice"),
        **attributes(interval, "effective_n", interval_low_s="low", interval_high_s="high"),
        **attributes(interval, "half_share", "method", prefix="interval_"),
        **attributes(work_of(result), flops_per_step="flops"),
        **attributes(runs.point and runs.point.measured, measured_peak_doubt="doubt"),
        **attributes(runs.activations, "basis", prefix="activation_peak_"),
        **attributes(prepared, "capture_s"),
        environment=environment,
        machine=result.state.machine_of(cell),
        neighbours=tuple(sorted(cell.neighbours)),
        warmup_times_s=tuple(cell.warmup_times_s),
        step_times_s=tuple(cell.step_times_s),
        phase_times_s={name: tuple(times) for name, times in cell.phase_times_s.items()},
        host_times_s=tuple(cell.times.host_s),
        host_phase_times_s={name: tuple(times) for name, times in cell.times.host_phases_s.items()},
        rank_times_s=tuple(map(tuple, cell.times.rank_s)),
        rank_sync_times_s=tuple(map(tuple, cell.times.rank_sync_s)),
        summary=cell.full_summary(result.state.ddof),
        skew=finished.skew.with_ddof(result.state.ddof) if finished.skew else None,
        verdicts=judgement.names if judgement else (),
        verdict_evidence={check.name: check.evidence for check in judgement.checks} if judgement else {},
        not_observable=tuple(check.name for check in judgement.not_observable) if judgement else (),
        verdict_advice={check.name: check.advice for check in judgement.holding if check.advice} if judgement else {},
        verdict_notes=judgement.notes if judgement else (),
        energy_unknown_because=energy_of(cell).why or None,
        compiled_graphs=prepared.graphs if prepared and prepared.compile_s is not None else None,
        graph_breaks=prepared.graph_breaks if prepared else (),
    )


def document_of(
    state: SessionState, cells: Sequence[CellState] | None = None, peaks: PeakLookup | None = None
) -> SessionDocument:
    """The session's cells, or the chosen ones of them, in the order in which they were queued.

    `peaks` finds what was measured of a device, by default in the user's cache.
    """
    measured_peaks, title = peaks or PeakCache().get, title_of(state)
    environments: dict[Environment, int] = {}
    runs: list[RunRecord] = []
    rest: list[CellWithoutResult] = []
    for cell in state.cells.values() if cells is None else cells:
        if cell.is_over:
            machine = cell.environment
            place = environments.setdefault(machine, len(environments)) if machine else None
            runs.append(record_of(Result(0, title, state, cell), measured_peaks, place))
        else:
            status = cell.status if cell.status in ("running", "skipped") else "queued"
            said = attributes(cell, "cell", "spec", "repeat", reason="skipped_because")
            rest.append(CellWithoutResult(status=status, **said))
    return SessionDocument(
        schema=RECORD_SCHEMA,
        **attributes(state.started, "session"),
        **attributes(state, "name", "note", "environment"),
        commands=tuple(state.commands),
        environments=tuple(environments),
        race=race_document(race, state.cells) if (race := race_of(state)) else None,
        runs=tuple(runs),
        without_result=tuple(rest),
    )


_FIRST = ("cell", "status")
_BY_PHASE = ("phase_times_s", "host_phase_times_s")
_BY_RANK = "rank_times_s"
_NESTED = ("spec", "summary", "in_force", "skew", _BY_RANK, *_BY_PHASE)
_SKEWS = {f"skew_{name}": name for name in ("mean_s", "std_s", "min_s", "max_s")}
_TEXTS = ("verdict_evidence", "verdict_advice")
"""Texts by name; ``name: text`` in CSV."""
_PAIRS = tuple(field for field, axis in AXES.items() if axis.widget == "pairs")
"""Pairs of a name and its value; ``name=value`` in CSV."""
_OF_MODEL = ("edition", "arch", "attention", "norm")
"""Settings that a user's model may decide itself."""
_MACHINE = ("host", "app", "python", "torch", "cuda", "driver")
_COLUMNS = (
    *_FIRST,
    *CellSpec.__struct_encode_fields__,
    *Summary.__struct_encode_fields__,
    *(name for name in _Record.__struct_encode_fields__ if name not in (*_FIRST, *_NESTED, "environment")),
    *_SKEWS,
    *(f"in_force_{name}" for name in EffectiveSettings.__struct_encode_fields__),
    *_MACHINE,
)


def to_json(*documents: SessionDocument) -> str:
    """One session as ``{"schema": 1, "environment": {...}, "runs": [...]}``, several as ``{"schema": 1, "sessions":
    [...]}``; what is unknown is null, never NaN."""
    found: Any = documents[0] if len(documents) == 1 else {"schema": RECORD_SCHEMA, "sessions": documents}
    if any(has_stand_ins(run.spec) for document in documents for run in document.runs):
        found = _without_stand_ins(found)
    return json_text(found)


def _without_stand_ins(found: Any) -> Any:
    """The documents as plain data, without choices that are not known."""
    if isinstance(found, list | tuple):
        return [_without_stand_ins(each) for each in found]
    if isinstance(found, dict):
        return {key: _without_stand_ins(value) for key, value in found.items()}
    if isinstance(found, CellSpec):
        return known_choices(found)
    if isinstance(found, Environment) and not found.cpu_count:  # of a recording
        return {key: _without_stand_ins(value) or None for key, value in msgspec.structs.asdict(found).items()}
    return _without_stand_ins(msgspec.structs.asdict(found)) if isinstance(found, msgspec.Struct) else found


def to_csv(*documents: SessionDocument) -> str:
    """One row per finished cell, fields named as in the JSON; times in seconds, sizes in bytes. The rows of several
    sessions begin with the session's id.

    Lists (``*_times_s``, of a value per step, verdicts, and texts such as ``verdict_evidence`` and ``graph_breaks``)
    are written as `csv_text` does. A text that a spreadsheet would take for a formula has an apostrophe before it
    (`as_data`). What a model of the user's decides itself, such as its attention, is ``own``.
    """
    first = ("session",) if len(documents) > 1 else ()
    runs = [(document, run) for document in documents for run in document.runs]
    rows: list[dict[str, Any]] = []
    for document, run in runs:
        # The session's machine where that of the cell was not noted.
        environment = document.environment if run.environment is None else document.environments[run.environment]
        machine = {name: getattr(environment, name, None) for name in _MACHINE}
        rows.append(dict.fromkeys(first, document.session or "") | _row(run) | machine)
    phases = dict.fromkeys(
        _phase_column(field, phase) for field in _BY_PHASE for _, run in runs for phase in getattr(run, field)
    )
    ranks = max((len(run.rank_times_s) for _, run in runs), default=0)
    return csv_text((*first, *_COLUMNS, *phases, *map(_rank_column, range(ranks))), rows)


def _row(run: RunRecord) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(run)
    spec, summary, in_force, skew, by_rank, *by_phase = (row.pop(name) for name in _NESTED)
    spec = known_choices(run.spec)
    del row["environment"]
    row |= {name: [f"{of}: {text}" for of, text in row[name].items()] for name in _TEXTS}
    row |= {name: skew[of] for name, of in _SKEWS.items()} if skew else {}
    row |= {_rank_column(rank): times for rank, times in enumerate(by_rank)}
    row |= spec | (summary or {}) | {name: OWN for name in _OF_MODEL if shown_of(run.spec, name) == OWN}
    row |= {name: [f"{of}={value}" for of, value in spec[name] or ()] for name in _PAIRS}
    row |= {f"in_force_{name}": value for name, value in (in_force or {}).items()}
    for field, phases in zip(_BY_PHASE, by_phase, strict=True):
        row |= {_phase_column(field, phase): times for phase, times in phases.items()}
    return row


def _phase_column(field: str, phase: str) -> str:
    """``phase_forward_times_s``, ``host_phase_forward_times_s``."""
    return field.replace("times_s", f"{plain(phase)}_times_s")


def _rank_column(rank: int) -> str:
    return f"rank_{rank}_times_s"
