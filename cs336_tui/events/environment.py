"""The machine of a session: its versions and devices, the cells that it cannot run, which are left out of a preset, and
the samples of its GPUs, host and processes of ranks, which `DeviceSampled` holds. Sizes are bytes."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from cs336_tui.config.spec import AXES, CellSpec, SpecError, canonical_device
from cs336_tui.config.sweep import Sweep
from cs336_tui.stats.quantities import counted

_RANK_BYTES = 200_000_000
"""About the memory of a rank's process on a CPU that it shares with no other, without tensors."""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A device of torch's (``cpu``, ``mps``, ``cuda:N``), with its UUID in NVML's spelling and its total memory."""

    name: str
    label: str
    precisions: tuple[str, ...]
    memory_bytes: int | None = None
    uuid: str | None = None
    capability: str | None = None
    free_bytes: int | None = None
    """Bytes that a process can allocate there once it has a context; None if not known, as of GPUs like an earlier
    one."""
    attentions: tuple[str, ...] = ()
    """The reference model's kinds of attention that it can run; empty if not known."""
    cannot_compile: str | None = None
    """The reason why torch.compile cannot run here, one line; None without a known one."""

    @property
    def title(self) -> str:
        """``cuda:0 (NVIDIA H100 80GB HBM3)``; the label alone where it says the name, as ``CPU (AVX512)``."""
        return self.label if self.label.lower().startswith(self.name) else f"{self.name} ({self.label})"


def capability_pair(capability: str) -> tuple[int, int]:
    """``9.0`` as (9, 0)."""
    major, minor = map(int, capability.split("."))
    return major, minor


class TorchEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """torch's versions and devices, read in a child process."""

    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    threads: int | None = None
    """torch's default intra-op thread count."""
    devices: tuple[DeviceInfo, ...] = ()
    backends: tuple[str, ...] = ()
    """Backends of communication of this torch; empty if not known."""
    problems: tuple[str, ...] = ()
    """Missing or odd things, one line each."""


class Environment(TorchEnvironment, frozen=True, kw_only=True):
    """Versions and devices of the machine of a session. Holds no secret of the process environment."""

    host: str
    os: str
    cpu: str
    cpu_count: int
    memory_bytes: int
    python: str
    app: str
    driver: str | None = None
    start_method: str | None = None
    """Start of children: forkserver or spawn."""

    @property
    def faults(self) -> tuple[str, ...]:
        """The problems but for a missing driver, which is usual: pip's torch for Linux is built for CUDA."""
        return tuple(problem for problem in self.problems if "no NVIDIA driver" not in problem)

    def device(self, name: str) -> DeviceInfo | None:
        return next((d for d in self.devices if d.name == name), None)

    def others_of(self, spec: CellSpec, ranks_here: int | None = None) -> tuple[DeviceInfo, ...]:
        """The GPUs of its ranks, or of those here, but for the first: those that follow the spec's."""
        kind, _, index = spec.device.partition(":")
        names = (f"{kind}:{int(index) + rank}" for rank in range(1, ranks_here or spec.ranks)) if index else ()
        return tuple(found for name in names if (found := self.device(name)))

    def resolve(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Device names: ``auto`` is the best here (CUDA, else MPS, else CPU), ``every`` all, the CPU first."""
        order = sorted(self.devices, key=lambda d: ("cuda", "mps", "cpu").index(d.name.partition(":")[0]))
        best = order[0].name if order else "cpu"
        every = tuple(device.name for device in reversed(order)) or (best,)
        found: list[str] = []
        for name in devices:
            found += every if name == "every" else (best if name == "auto" else canonical_device(name),)
        return tuple(found)

    def check(self, spec: CellSpec, ranks_here: int | None = None) -> None:
        """Raise `SpecError` when this machine lacks the cell's device or the device one of its choices."""
        if problem := self.refusal(spec, ranks_here):
            raise problem

    def refusal(self, spec: CellSpec, ranks_here: int | None = None) -> SpecError | None:
        """The error of a cell that this machine cannot run, of ranks over nodes as many as are here."""
        values = {field: (getattr(spec, field),) for field in AXES}
        if ranks_here:
            values["ranks"] = (ranks_here,)
        return next(self.refusals(spec.device, values), None)

    def refusals(self, name: str, values: Mapping[str, Iterable[object]]) -> Iterator[SpecError]:
        """Errors for a device that is not here, or for those of these values, by the field of a spec, that it lacks."""
        info = self.device(name)
        if info is None:
            have = ", ".join(d.name for d in self.devices) or "none that torch can use"
            yield SpecError("device", name, f"this machine has {have}")
            return
        for field, axis in AXES.items():
            for value in values[field] if axis.lacks else ():
                if axis.lacks and (why := axis.lacks(value, info)):
                    yield SpecError(axis.name, value, why)
        several = [ranks for ranks in values["ranks"] if isinstance(ranks, int) and ranks > 1]
        if several:
            yield from self._refusals_of_ranks(name, several, values["backend"])

    def _refusals_of_ranks(self, name: str, ranks: Iterable[int], backends: Iterable[object]) -> Iterator[SpecError]:
        """Errors for several ranks from this device on: each needs a GPU or memory of its own, and all a backend."""
        kind, _, index = name.partition(":")
        most, why = 0, ""
        if kind == "cpu" and self.memory_bytes:
            most = max(self.memory_bytes // _RANK_BYTES, 1)
            why = f"each is a process of about {_RANK_BYTES / 1e9:g} GB, and there is room for {most} here"
        elif kind == "cuda":
            most = sum(device.name.startswith("cuda") for device in self.devices) - int(index)
            some = f"{'is' if most == 1 else 'are'} {counted(max(most, 0), 'GPU')} from {name} on"
            why = f"each has a GPU of its own, and there {some}; or choose cpu"
        for number in ranks if why else ():
            if number > most:
                yield SpecError("ranks", number, why)
        for backend in backends if self.backends else ():
            needed = ("nccl" if kind == "cuda" else "gloo") if backend == "auto" else backend
            if needed not in self.backends:
                have = ", ".join(self.backends)
                yield SpecError("backend", needed, f"this torch was built without it; it has {have}")


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pid: int
    name: str | None = None
    memory_bytes: int | None = None


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU as NVML sees it; each field is None when this device or driver does not report it."""

    uuid: str | None = None
    name: str | None = None
    memory_used_bytes: int | None = None
    """Used by all processes, without the driver's own reserve if the driver tells it."""
    memory_total_bytes: int | None = None
    utilisation: float | None = None
    """Share of time in which any kernel ran, 0 to 1, over the last 1/6 to 1 s."""
    power_w: float | None = None
    """Average over the last second on recent GPUs, the instant on older ones."""
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_reasons: tuple[str, ...] | None = None
    """Clock-event reasons in force, by name; empty when none."""
    energy_j: float | None = None
    """Cumulative since the driver was loaded."""
    persistence_mode: bool | None = None
    """True if the driver stays loaded, and clocks stay set, while nobody uses the GPU."""
    other_processes: tuple[GpuProcess, ...] | None = None
    """Processes on the GPU that are not this app's; None if PIDs cannot be told apart, as in most containers."""
    processes_age_s: float | None = None
    """Maximum time between reading `other_processes`, which is rarer, and `at`; None without a list, in old logs."""


class RankSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The process of one rank; None once it has ended, `cores` at first, too."""

    pid: int
    rss_bytes: int | None = None
    cores: float | None = None
    """Used since the last sample."""


class HostSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The host as psutil sees it; `cpu` is the busy share of all cores, 0 to 1."""

    cpu: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    child_rss_bytes: int | None = None
    """Resident memory of the running cell's process, of several ranks the largest; None between cells."""
    child_cores: float | None = None
    """Cores that the running cell's processes used since the last sample; None between cells and at first."""
    beside_cores: float | None = None
    """Cores that the processes of cells in other lanes used since the last sample; None without such, and at first."""
    steal: float | None = None
    """Share of all cores' time since the last sample that the hypervisor gave to others, 0 to 1; None if unknown."""
    load_1m: float | None = None
    cpu_count: int | None = None
    ranks: tuple[RankSample, ...] = ()
    """Those of the running cell, in their order; empty for one rank, between cells, in old logs."""


LEFT_OUT = {axis.field: axis.sweep for axis in AXES.values() if axis.lacks} | {"ranks": "ranks"}
"""Fields of a cell that a device, or their number, may lack a value of, each with the field of a sweep that holds its
values."""


def without_impossible(
    sweep: Sweep, environment: Environment, fields: Collection[str] = tuple(LEFT_OUT)
) -> tuple[Sweep, tuple[str, ...]]:
    """The sweep, its devices resolved, without values of these `fields` that no cell can have here; and why."""
    problems = {spec: environment.refusal(spec) for spec in sweep.cells()}
    changes: dict[str, Any] = {}
    said: list[str] = []
    for field in filter(fields.__contains__, LEFT_OUT):
        values: dict[str, SpecError] = {}
        for value in getattr(sweep, LEFT_OUT[field]):
            found = [problem for spec, problem in problems.items() if getattr(spec, field) == value]
            why = next((problem for problem in found if problem and problem.field == field), None)
            if why and all(found):
                values[value] = why
        kept = tuple(value for value in getattr(sweep, LEFT_OUT[field]) if value not in values)
        if values and kept:
            changes[LEFT_OUT[field]] = kept
            said += [f"left out: {why}" for why in values.values()]
    return msgspec.structs.replace(sweep, **changes), tuple(said)


def possible_here(sweep: Sweep, environment: Environment, fields: Collection[str]) -> tuple[Sweep, tuple[str, ...]]:
    """As `without_impossible`, with its devices named as they were; what is wrong otherwise stays, to be shown."""
    try:
        resolved = sweep.with_devices(environment.resolve(sweep.devices))
        found, said = without_impossible(resolved, environment, fields)
    except SpecError:
        return sweep, ()
    return msgspec.structs.replace(found, devices=sweep.devices), said


def fields_of_preset(preset: str | None, choices: Mapping[str, object]) -> tuple[str, ...]:
    """Fields whose values come from the preset and may be left out, as `choices`, by the sweep's fields, name none."""
    return tuple(field for field, values in LEFT_OUT.items() if preset and not choices.get(values))
