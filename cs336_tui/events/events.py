"""The events of a session, for the child's pipe, the log and every consumer. ``*_s`` are seconds, ``at`` is Unix time
in seconds, sizes are bytes. A cell is numbered within its session. `codec` writes and reads them, by tag ``type``."""

from typing import Literal

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import LeftOut, Tuning
from cs336_tui.events.audit import Audit
from cs336_tui.events.environment import Environment, GpuSample, HostSample
from cs336_tui.events.prediction import Prediction
from cs336_tui.events.reports import Report, ReportKind
from cs336_tui.stats.summaries import Summary

SCHEMA = 5
"""Version of the log's vocabulary; raised when an old reader would misread a new log."""

Stage = Literal["starting", "building", "compiling", "capturing", "warm-up", "measuring", "finishing"]
"""`compiling` is torch.compile's work before the first warm-up step, `capturing` a CUDA graph's."""
StepKind = Literal["warm-up", "measured"]
GRADIENT_SYNC = "gradient sync"
"""The phase after backward in which a user's container ends the communication of gradients."""
Status = Literal["ok", "oom", "failed", "killed", "cancelled"]


class _EventBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True, omit_defaults=True):
    at: float


class CellEvent(_EventBase, frozen=True):
    """An event of one cell."""

    cell: int


class SessionStarted(_EventBase, frozen=True):
    """First line of every log; `app` is the version of cs336-tui."""

    schema: int
    session: str
    app: str


class SessionResumed(_EventBase, frozen=True):
    """Another process opened the session again, or the one that stopped its race goes on with that; a cell that ran
    before has no result."""

    app: str


class SessionAnnotated(_EventBase, frozen=True):
    """The session got a name or a note; None leaves it, an empty text removes it."""

    name: str | None = None
    note: str | None = None


class EnvironmentRead(_EventBase, frozen=True):
    """The machine, for all cells that start from here on."""

    environment: Environment


class CellsQueued(_EventBase, frozen=True):
    """Cells that will run, in order, numbered from `first`; `command` repeats them headless. `ddof` holds for all stds
    from here on. `repeats` is the number of each cell's run of its spec, from 1; empty if all are 1. `reports` are made
    of the cells that end well. With `in_turns` two by two run in turns, in one process or in one each."""

    first: int
    specs: tuple[CellSpec, ...]
    command: str | None = None
    ddof: int = 1
    repeats: tuple[int, ...] = ()
    reports: tuple[str, ...] = ()
    in_turns: bool = False


class TuningStarted(_EventBase, frozen=True):
    """A race begins among these candidates, the starting point first; the cells of these specs that are queued from
    here on are its visits. `left_out` are combinations that are not tried. `limit_bytes` is the limit of a peak.
    `spent_s` of the budget are used already."""

    tuning: Tuning
    candidates: tuple[CellSpec, ...]
    left_out: tuple[LeftOut, ...] = ()
    limit_bytes: int | None = None
    spent_s: float = 0.0


class TuningEnded(_EventBase, frozen=True):
    """The race is over, for this reason."""

    reason: str


class QueueOrdered(_EventBase, frozen=True):
    """The waiting cells, in their new order."""

    cells: tuple[int, ...]


class CellSkipped(CellEvent, frozen=True):
    """A waiting cell will not run."""

    reason: str


class CellRequeued(CellEvent, frozen=True):
    """A cell that was skipped or is over waits again, last."""


class Lane(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lane runs one cell at a time on a device of its own, on a CPU on cores of its own. Numbered within its session,
    from 0."""

    lane: int
    device: str
    cores: tuple[int, ...] = ()
    """Of a lane on a CPU: the cores that its cells are pinned to; empty: any."""
    machine: str = ""
    """The machine of a lane of a job; empty: that of the session."""
    job: str = ""
    """The job that opened it; empty: the session itself."""


class LanesOpened(_EventBase, frozen=True):
    """Cells that start from here on run in lanes, side by side. Lanes that were open stay so."""

    lanes: tuple[Lane, ...]


class LaneSetAside(_EventBase, frozen=True):
    """A lane runs no more cells; the one that it ran is queued again."""

    lane: int
    reason: str


JobStage = Literal["pending", "running", "over"]


class JobSubmitted(_EventBase, frozen=True):
    """A job that runs cells of this session without a screen. It writes a log of its own, `job`.jsonl in the folder of
    jobs beside the session. Older logs have jobs of ``ssh``."""

    job: str
    """Names the job within its session."""
    launcher: Literal["slurm", "ssh", "local"]
    id: str
    """The launcher's own name, such as Slurm's ``12_3``."""
    cells: tuple[int, ...]
    where: str = ""
    """Partition or machine."""
    nodes: int = 1
    """Each writes a log of its own."""


class JobChanged(_EventBase, frozen=True):
    """The state of a job, as its launcher tells it. `reason` is why it waits or how it ended, in the launcher's words
    and ours."""

    job: str
    stage: JobStage
    reason: str = ""
    node: str = ""


class CellStarted(CellEvent, frozen=True):
    """A cell runs. One that had run before starts anew; its former steps stay in the log."""

    pid: int | None = None
    device: str | None = None
    """The device that it runs on, where that is not the one of its spec as it was queued."""
    lanes: tuple[int, ...] = ()
    """The lanes that it takes, one for each rank; empty without lanes."""
    job: str | None = None
    """The job that runs it."""


class StageChanged(CellEvent, frozen=True):
    stage: Stage


class EffectiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Effective settings, read back from torch after setting them, never echoed from the spec."""

    matmul_precision: str
    """torch's float32 matmul precision: highest, high or medium."""
    allow_tf32: bool | None = None
    """True if cuBLAS may use TF32 for float32 matmuls; None off CUDA."""
    parameter_dtype: str = "float32"
    autocast_dtype: str | None = None
    float8: str | None = None
    """The float8 formats of matrix products and the number of linear layers with them; None without."""
    logits_dtype: str | None = None
    """dtype of the steps' output; None until `CellFinished`."""
    grad_scaler: bool = False
    optimizer: str | None = None
    threads: int | None = None
    interop_threads: int | None = None
    attention: str | None = None
    """The model's attention."""
    compiler: str | None = None
    """torch.compile's backend and the settings of its mode; None without torch.compile."""
    allocator: str | None = None
    """The allocator of the device's memory and its settings."""
    variables: tuple[str, ...] | None = None
    """Those that change step times (`config.processes`), as ``NAME=value``; None in old logs."""
    flushed: str | None = None
    """The treatment of the device's cache before each measured step; None if nothing was asked for, in old logs."""
    cache_folder: str | None = None
    """The user's own folder of compile caches, of a run that is to end in time; None: a new one, empty."""
    device_name: str | None = None
    model_revision: str | None = None
    """Revision of an imported model's source; None for the built-in one."""


class ModelBuilt(CellEvent, frozen=True):
    num_params: int
    num_params_without_head: int
    in_force: EffectiveSettings


class ModelPrepared(CellEvent, frozen=True):
    """torch.compile, which made `graphs` of the model, or a CUDA graph's capture is done before the first step."""

    compile_s: float | None = None
    """From the first call of the compiled model until no call compiled any more."""
    graphs: int = 0
    graph_breaks: tuple[str, ...] = ()
    """The reasons of graph breaks, a line each."""
    capture_s: float | None = None


class StepsTimed(CellEvent, frozen=True):
    """Consecutive finished steps of one kind, oldest first; `first` counts from 0 within it. `times_s` is the wall time
    between two synchronisations (per step of the window in pipelined mode), `phases_s` each phase's device time;
    `host_s` and `host_phases_s` the host's time to enqueue step and phases, on a device with its own clock."""

    kind: StepKind
    first: int
    times_s: tuple[float, ...]
    phases_s: dict[str, tuple[float, ...]] = {}
    host_s: tuple[float, ...] = ()
    host_phases_s: dict[str, tuple[float, ...]] = {}
    rank_times_s: tuple[tuple[float, ...], ...] = ()
    """Of several ranks: the times of each; `times_s` and all others are then those of each step's slowest rank."""
    rank_sync_s: tuple[tuple[float, ...], ...] = ()
    """Of several ranks with a phase `GRADIENT_SYNC`: that of each. The rank that comes to it last waits for none."""


class Autotuned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An autotuner's choice among several configurations of a kernel, or among kernels of a product."""

    by: Literal["triton", "inductor"]
    kernel: str
    chosen: str
    key: str = ""
    """The inputs for which it was chosen."""
    times_s: dict[str, float] = {}
    """By the autotuner, the fastest first; empty if it keeps none."""


class CellFinished(CellEvent, frozen=True):
    """A cell is over. `stage`, `step` and `phase` (forward, ...) are those that failed unless its status is ``ok``."""

    status: Status
    error: str | None = None
    stage: Stage | None = None
    step: int | None = None
    phase: str | None = None
    logits_dtype: str | None = None
    """dtype of the steps' output; None if no step was finished."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_rss_bytes: int | None = None
    num_alloc_retries: int | None = None
    before_backward_bytes: int | None = None
    """Used by tensors of attention between forward and backward, in a step of its own after the measured ones."""
    recompilations: int = 0
    """Number of compilations by torch.compile within warm-up and measured steps."""
    failed_allocation_bytes: int | None = None
    """The size that could not be allocated, if torch tells."""
    others_bytes: int | None = None
    """Bytes that other processes held of the device then, if torch tells."""
    unusable: str | None = None
    """The user's own code, as in the spec, that cannot be used in any cell; None for any other failure."""
    warmup_steps_done: int = 0
    measured_for_s: float | None = None
    """From the beginning of the first measured step to the end of the last."""
    cpu_wait_s: float | None = None
    """Run queue delay of the cell's threads meanwhile, added up; None if the system does not tell."""
    longest_cpu_wait_s: float | None = None
    """The largest delay of one of these threads; a step waits for its slowest thread."""
    usable_cores: int | None = None
    """Cores that the cell's process may run on; None if the system does not tell."""
    autotuned: tuple[tuple[Autotuned, ...], ...] = ()
    """The choices of autotuners in each rank; empty where no rank has any."""
    remarks: tuple[str, ...] = ()
    """Notes on its number, such as why an automatic number of steps ended."""
    summary: Summary | None = None
    """Of the measured steps, ddof 1, if the cell's process lived to tell it; spares a reader the steps."""
    skew: Summary | None = None
    """Of several ranks: the skew of the measured steps, ddof 1; None for one rank."""
    rank_peak_bytes: tuple[int | None, ...] = ()
    """Of several ranks: the peak of each; `peak_allocated_bytes` and its like are those of the largest."""
    rank_nodes: tuple[str, ...] = ()
    """Of ranks over several nodes: the node of each."""
    job_over: bool = False
    """True if its job ended and left it without a result; resuming the session runs it."""
    audit: Audit | None = None
    """The cell's own checks of its number; None in old logs, and with ``--check off``."""
    tokens_digest: str | None = None
    """Of the batch before the first step; None in old logs, as the next."""
    weights_digest: str | None = None
    """Of the initial weights: of the first and last numbers of each parameter."""
    losses: tuple[float | None, ...] = ()
    """Of the measured steps, where they are timed one by one; None for one that is not finite."""


class CellMeasured(CellEvent, frozen=True):
    """All that a cell measured, before its checks: its `end` if its process does not live to tell another. No log has
    it."""

    end: CellFinished


class CellsPredicted(_EventBase, frozen=True):
    """Predictions of cells; each names its spec. `failed` are specs without one, for the reason `why` (one line).
    `elsewhere`: the compute capability of a GPU that need not be here, if the predictions are for one."""

    predictions: tuple[Prediction, ...] = ()
    failed: tuple[CellSpec, ...] = ()
    why: str = ""
    elsewhere: tuple[int, int] | None = None


class ReportStarted(_EventBase, frozen=True):
    """A report of a spec begins, numbered within its session; `cell` is the session's cell that it is about, if any."""

    report: int
    kind: ReportKind
    spec: CellSpec
    cell: int | None = None
    job: str | None = None
    """The job that makes it."""


class ReportStage(_EventBase, frozen=True):
    """The stage of a report, such as ``warm-up``."""

    report: int
    stage: str


class ReportFinished(_EventBase, frozen=True):
    """A report is over, with its `content` if its status is ``ok``."""

    report: int
    status: Status
    error: str | None = None
    content: Report | None = None


class ChildOutput(_EventBase, frozen=True):
    """Text that a cell's process wrote to its standard output or standard error."""

    cell: int | None
    text: str


class DeviceSampled(_EventBase, frozen=True):
    """The device and host. `gpu` is None without NVML, has only `uuid` and `name` once lost; `why` says why."""

    host: HostSample
    gpu: GpuSample | None = None
    why: str | None = None
    other_gpus: tuple[GpuSample, ...] = ()
    """Those of the running cell's further ranks, in their order; `gpu` is the first rank's."""
    cells: tuple[int, ...] = ()
    """The cells that it is about, where several run side by side; empty: all that run."""
    machine_gpus: tuple[GpuSample, ...] = ()
    """All GPUs of the machine in NVML's order, each followed by its MIG instances. Empty: not read with this sample, as
    they are read more rarely, or there is only one."""


class Notice(_EventBase, frozen=True):
    """A line for people that belongs to no cell's result."""

    text: str


class SessionEnded(_EventBase, frozen=True):
    reason: Literal["finished", "cancelled", "interrupted"]


Event = (
    SessionStarted | SessionResumed | SessionAnnotated | EnvironmentRead | CellsQueued | TuningStarted | TuningEnded
    | QueueOrdered | CellSkipped | CellRequeued | LanesOpened | LaneSetAside | JobSubmitted | JobChanged | CellStarted
    | StageChanged | ModelBuilt | ModelPrepared | StepsTimed | CellFinished | CellMeasured
    | CellsPredicted | ReportStarted | ReportStage | ReportFinished | ChildOutput | DeviceSampled | Notice
    | SessionEnded
)  # fmt: skip
