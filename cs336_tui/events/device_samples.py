"""A sample of the GPUs, the host and the processes of ranks: what `DeviceSampled` holds. Sizes are bytes."""

import msgspec


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
