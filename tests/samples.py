"""Sessions as events, made up but plausible, for tests of their consumers."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from cs336_tui.config.spec import CellSpec, dims_of
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import DeviceInfo, Environment, GpuSample, HostSample, RankSample
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import AgreementReport, OomReport, PrecisionReport, Report, ReportKind
from cs336_tui.session.state import fold
from cs336_tui.stats.summaries import Summary, summarize

START = 1_790_000_000.0
DEMO_LOG = Path(__file__).parent / "data" / "demo-session.jsonl"
"""Unix time at which every sample session starts."""

_HOST = {"host": "gpu-box", "os": "Linux 6.8", "cpu": "Some CPU 9000", "cpu_count": 64, "memory_bytes": 512 * 10**9}
_VERSIONS = {"python": "3.12.4", "app": "0.1.0", "torch": "2.13.0", "cuda": "12.8", "driver": "580.65"}
_GPU = {"label": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_029_158_912, "uuid": "GPU-0", "capability": "9.0"}
ENVIRONMENT = Environment(
    **_HOST,
    **_VERSIONS,
    threads=32,
    start_method="forkserver",
    devices=(
        DeviceInfo(name="cpu", label="Some CPU 9000", precisions=("fp32", "bf16-mixed", "bf16")),
        DeviceInfo(name="cuda:0", precisions=("fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"), **_GPU),
    ),
)

LAPTOP = msgspec.structs.replace(
    ENVIRONMENT,
    host="laptop",
    cuda=None,
    driver=None,
    devices=(
        DeviceInfo(name="cpu", label="Some Laptop CPU", precisions=("fp32",)),
        DeviceInfo(name="mps", label="Some Laptop GPU", precisions=("fp32",)),
    ),
)
HEADER = ev.SessionStarted(at=0.0, schema=ev.SCHEMA, session="s", app="0.1.0")
"""The first line of a log whose session and times do not matter."""


def sized(size: str, edition: str = "2026") -> dict[str, Any]:
    """Fields of a spec that a named size decides."""
    return {"size": size, "edition": edition, **msgspec.structs.asdict(dims_of(size, edition))}


def a_spec(**changes: Any) -> CellSpec:
    """A cell of size `small` on the first GPU, with `changes`."""
    cell = {"arch": "swiglu-rope", "context_length": 128, "batch_size": 4, "pass_": "forward+backward"}
    run = {"precision": "fp32", "device": "cuda:0", "warmup_steps": 2, "measure_steps": 4}
    return CellSpec(**sized("small") | cell | run | changes)


def session_start(
    specs: Iterable[CellSpec], ddof: int = 1, environment: Environment | None = ENVIRONMENT
) -> list[ev.Event]:
    """The events before the first cell."""
    events: list[ev.Event] = [ev.SessionStarted(at=START, schema=ev.SCHEMA, session="sample", app="0.1.0")]
    if environment:
        events.append(ev.EnvironmentRead(at=START + 1, environment=environment))
    command = "cs336-tui bench --size small --context 128"
    return [*events, ev.CellsQueued(at=START + 2, first=0, specs=tuple(specs), command=command, ddof=ddof)]


def cell_start(cell: int, precision: str = "highest") -> list[ev.Event]:
    """A cell up to its built model."""
    at = START + 10 * (cell + 1)
    return [
        ev.CellStarted(at=at, cell=cell, pid=1000 + cell),
        ev.StageChanged(at=at + 0.1, cell=cell, stage="building"),
        ev.ModelBuilt(
            at=at + 0.5,
            cell=cell,
            num_params=128_634_624,
            num_params_without_head=120_954_624,
            in_force=ev.EffectiveSettings(
                matmul_precision=precision, allow_tf32=False, logits_dtype="float32", threads=32, variables=()
            ),
        ),
    ]


def steps(cell: int, warmup_s: Iterable[float] = (), measured_s: Iterable[float] = ()) -> Iterator[ev.Event]:
    """One event per step, with phases `forward` (a third) and `backward` (the rest)."""
    at = START + 10 * (cell + 1) + 1
    for kind, stage, times in (("warm-up", "warm-up", warmup_s), ("measured", "measuring", measured_s)):
        yield ev.StageChanged(at=at, cell=cell, stage=stage)
        for first, time_s in enumerate(times):
            at += time_s
            phases = {"forward": (time_s / 3,), "backward": (time_s * 2 / 3,)}
            yield ev.StepsTimed(
                at=at, cell=cell, kind=kind, first=first, times_s=(time_s,), phases_s=phases, host_s=(time_s / 10,)
            )


def ranks_session(ranks: int = 4, measured: int = 3, *, is_over: bool = True) -> list[ev.Event]:
    """Two cells on the CPU, of one rank and of several: rank r takes r ms more than 100 in each step, the last rank 10
    ms more in the last."""
    shared = {"device": "cpu", "pass_": "train-step", "warmup_steps": 1, "measure_steps": measured}
    events = session_start([a_spec(**shared), a_spec(ranks=ranks, parallel="ddp", **shared)])
    events += [*cell_start(0), *steps(0, [0.1], [0.1] * measured), cell_end(0, peak_rss_bytes=900_000_000)]
    events += cell_start(1)
    for kind, stage, count in (("warm-up", "warm-up", 1), ("measured", "measuring", measured)):
        events.append(ev.StageChanged(at=START + 21, cell=1, stage=stage))
        for first in range(count):
            is_last = kind == "measured" and first == measured - 1
            each = [0.1 + rank / 1e3 + (0.01 if is_last and rank == ranks - 1 else 0) for rank in range(ranks)]
            names = ("zero_grad", "forward", "loss", "backward", "gradient sync", "optimizer")
            phases = {name: (each[-1] / len(names),) for name in names}
            times = {"times_s": (each[-1],), "rank_times_s": tuple((time_s,) for time_s in each)}
            events.append(ev.StepsTimed(at=START + 22, cell=1, kind=kind, first=first, phases_s=phases, **times))
    if is_over:
        peaks = tuple(10**9 + rank * 10**7 for rank in range(ranks))
        events.append(cell_end(1, peak_rss_bytes=peaks[-1], rank_peak_bytes=peaks))
    return events


def ranks_sampled(ranks: int, *, on_gpus: bool) -> ev.DeviceSampled:
    """The device while the cell of `ranks_session` runs: each rank's process, and with `on_gpus` each one's GPU, the
    last of them with lower clocks."""
    gpus = [
        a_gpu(
            f"GPU-{rank}", 1 - rank / 100, memory_used_bytes=(40 + rank) * 10**9, power_w=600.0 + rank,
            temperature_c=61.0, memory_clock_mhz=2619, clock_reasons=("power cap",) if rank == ranks - 1 else (),
        )
        for rank in range(ranks if on_gpus else 0)
    ]  # fmt: skip
    each = tuple(RankSample(pid=4000 + rank, rss_bytes=10**9 + rank * 10**7, cores=0.25) for rank in range(ranks))
    host = HostSample(
        cpu=0.98, memory_used_bytes=24 * 10**9, memory_total_bytes=512 * 10**9, child_rss_bytes=each[-1].rss_bytes,
        load_1m=8.1, cpu_count=64, ranks=each,
    )  # fmt: skip
    at, gpu = START + 22, gpus[0] if gpus else None
    why = None if on_gpus else "no NVIDIA driver library (NVML) on this machine"
    return ev.DeviceSampled(at=at, host=host, gpu=gpu, other_gpus=tuple(gpus[1:]), why=why)


def without_gaps(events: Iterable[ev.Event]) -> Iterator[ev.Event]:
    """The events of a session in which nothing takes time but steps and compiling, and waiting for a notice."""
    at, before = START, START
    for event in events:
        match event:
            case ev.StepsTimed():
                at += sum(event.times_s)
            case ev.ModelPrepared():
                at += event.compile_s or 0.0
            case ev.Notice():
                at += event.at - before
        before = event.at
        yield msgspec.structs.replace(event, at=at)


def cell_end(cell: int, status: str = "ok", **more: Any) -> ev.Event:
    return ev.CellFinished(at=START + 10 * (cell + 1) + 9, cell=cell, status=status, **more)


def summary_of(measured_s: Iterable[float]) -> Summary:
    """The summary that a cell's process sends with its end."""
    return summarize(measured_s)


WARMUP_S = (0.4123, 0.1611)
MEASURED_S = (0.1531, 0.1529, 0.1537, 0.1531)


def mixed_session() -> list[ev.Event]:
    """Four cells: one good, one out of memory while warming up, one crashed while building, one never started."""
    specs = (
        a_spec(),
        a_spec(size="xl", d_model=2560, d_ff=10240, num_layers=32, num_heads=32),
        a_spec(context_length=256),
        a_spec(context_length=512),
    )
    return [
        *session_start(specs),
        *cell_start(0),
        *steps(0, WARMUP_S, MEASURED_S),
        cell_end(0, peak_allocated_bytes=3_512_000_000, peak_reserved_bytes=4_000_000_000, peak_rss_bytes=900_000_000),
        *cell_start(1),
        *steps(1, (0.9,)),
        cell_end(1, "oom", error="CUDA out of memory: tried to allocate 2 GiB", stage="warm-up", step=1),
        ev.CellStarted(at=START + 30, cell=2, pid=1002),
        ev.StageChanged(at=START + 30.1, cell=2, stage="building"),
        ev.ChildOutput(
            at=START + 30.2, cell=2, text="Fatal Python error: Segmentation fault\n\x1b[31mat line ```7```\x1b[0m\n"
        ),
        cell_end(2, "failed", error="the process crashed with SIGSEGV (Segmentation fault)", stage="building", step=0),
        ev.Notice(at=START + 40, text="GPU clock | lowered *twice*"),
        ev.SessionEnded(at=START + 41, reason="cancelled"),
    ]


state_of = fold


_KINDS: dict[type, ReportKind] = {
    KernelReport: "kernels", PrecisionReport: "precision", OomReport: "oom", AgreementReport: "agreement",
}  # fmt: skip


def report_events(
    *made: Report, first: int = 0, cell: int | None = None, at: float = START + 100
) -> Iterator[ev.Event]:
    """The events of these reports, numbered from `first`."""
    for number, content in enumerate(made, first):
        kind = _KINDS.get(type(content), "memory")
        yield ev.ReportStarted(at=at, report=number, kind=kind, spec=content.spec, cell=cell)
        yield ev.ReportFinished(at=at, report=number, status="ok", content=content)


def write_log(path: Path, events: Iterable[ev.Event]) -> Path:
    """A log of these events."""
    path.write_bytes(b"".join(map(to_line, events)))
    return path


def machine_of_gpus(gpus: int, host: str = "gpu-box") -> Environment:
    """`ENVIRONMENT` with so many GPUs."""
    cpu, gpu = ENVIRONMENT.devices
    each = (msgspec.structs.replace(gpu, name=f"cuda:{n}", uuid=f"GPU-{host}-{n}") for n in range(gpus))
    return msgspec.structs.replace(ENVIRONMENT, host=host, devices=(cpu, *each))


def a_gpu(uuid: str, busy: float = 1.0, **changes: Any) -> GpuSample:
    """A sample of a GPU that is `busy`, from 0 to 1."""
    memory = {"memory_used_bytes": int(2e9 + busy * 40e9), "memory_total_bytes": 85_029_158_912}
    power = {"power_w": 70 + busy * 530, "power_limit_w": 700.0, "temperature_c": 38 + busy * 24}
    clocks = {"sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "clock_reasons": (), "other_processes": ()}
    named = {"uuid": uuid, "name": "NVIDIA H100 80GB HBM3", "utilisation": busy}
    return GpuSample(**named | memory | power | clocks | changes)


def _one_in_lanes(
    cell: int, at: float, lanes: tuple[int, ...], measured: int, *, host: str = "gpu-box", **started: Any
) -> list[ev.Event]:
    """A cell that started in its lanes at a time, and timed so many steps of 0.1 s; with a sample of its GPUs."""
    events: list[ev.Event] = [
        ev.CellStarted(at=at, cell=cell, pid=1000 + cell, lanes=lanes, **started),
        *(msgspec.structs.replace(event, at=at + 0.5) for event in cell_start(cell)[1:]),
    ]
    for event in steps(cell, (0.15, 0.1) if measured else (0.15,), (0.1 + cell / 1e3,) * measured):
        at = max(at + 0.1, at + 0.6)
        events.append(msgspec.structs.replace(event, at=at))
        gpus = [a_gpu(f"GPU-{host}-{lane}", 0.9 - lane / 100) for lane in lanes or (0,)]
        sampled = HostSample(cpu=0.2, child_rss_bytes=10**9, load_1m=8.2, cpu_count=64)
        events.append(ev.DeviceSampled(at=at, host=sampled, gpu=gpus[0], other_gpus=tuple(gpus[1:]), cells=(cell,)))
    return events


def lanes_session(lanes: int = 8, cells: int = 20, *, ranks: int = 1, set_aside: int | None = None) -> list[ev.Event]:
    """Cells in lanes, a GPU each. As many as there are lanes are over, one of them out of memory; as many run, a few
    seconds apart; the others wait. With several `ranks` the first cell that runs has them and takes as many lanes. The
    lane `set_aside` has failed."""
    specs = [a_spec(context_length=64 * (1 + n % 8), pass_=("forward", "train-step")[n % 2]) for n in range(cells)]
    parallel = "ddp" if ranks > 1 else "none"
    specs[lanes] = a_spec(ranks=ranks, parallel=parallel, pass_="train-step") if ranks > 1 else specs[lanes]
    events = session_start(specs, environment=machine_of_gpus(lanes))
    events.append(ev.LanesOpened(at=START + 2, lanes=tuple(ev.Lane(lane=n, device=f"cuda:{n}") for n in range(lanes))))
    for n in range(lanes):
        at = START + 3 + n
        events += _one_in_lanes(n, at, (n,), 4, device=f"cuda:{n}")
        status = "oom" if n == 2 else "ok"
        events.append(ev.CellFinished(at=at + 7, cell=n, status=status, summary=summarize((0.1 + n / 1e3,) * 4)))
    if set_aside is not None:
        events.append(ev.LaneSetAside(at=START + 19, lane=set_aside, reason="CUDA error: device lost, twice"))
    free = [lane for lane in range(lanes) if lane != set_aside]
    cell = lanes
    while free:
        taken = tuple(free[: ranks if cell == lanes else 1])
        free = free[len(taken) :]
        measured = min(cell - lanes, 4)
        events += _one_in_lanes(cell, START + 20 + cell - lanes, taken, measured, device=f"cuda:{taken[0]}")
        cell += 1
    return sorted(events, key=lambda event: event.at)


def jobs_session() -> list[ev.Event]:
    """Six cells on two nodes of Slurm, a job each: one over, one failed, two run, one waits, one was never told of."""
    events = session_start([a_spec(context_length=64 * (1 + n)) for n in range(6)], environment=None)
    events += [
        ev.JobSubmitted(at=START + 3, job=f"{n + 1}", launcher="slurm", id=f"7_{n}", cells=(n,), where="ci")
        for n in range(6)
    ]
    for n, node in enumerate(("n1", "n2", "n1", "n2")):
        at = START + 4 + n
        events.append(ev.JobChanged(at=at, job=f"{n + 1}", stage="running", node=node))
        events.append(ev.EnvironmentRead(at=at, environment=machine_of_gpus(1, node)))
        events += _one_in_lanes(n, at, (), 4 if n < 3 else 2, host=node, device="cuda:0", job=f"{n + 1}")
    events.append(ev.CellFinished(at=START + 20, cell=0, status="ok", summary=summarize((0.1,) * 4)))
    events.append(ev.JobChanged(at=START + 20, job="1", stage="over", reason="COMPLETED", node="n1"))
    gone = "job 7_1 was killed on n2: TIMEOUT, its limit of 0:30 was reached"
    events.append(ev.CellFinished(at=START + 21, cell=1, status="killed", error=gone))
    events.append(ev.JobChanged(at=START + 21, job="2", stage="over", reason="TIMEOUT", node="n2"))
    events.append(ev.JobChanged(at=START + 22, job="5", stage="pending", reason="Resources"))
    events.append(ev.JobChanged(at=START + 22, job="6", stage="pending", reason="Priority"))
    return sorted(events, key=lambda event: event.at)
