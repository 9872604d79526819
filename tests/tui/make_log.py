"""Writes the demo session: SYNTHETIC data shaped like a session on an H100, for tests and screenshots.

No such run took place; the figures follow from a crude model of the hardware. Run it to rewrite the file:

    python -m tests.tui.make_log
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from cs336_tui.config.choices import command_of
from cs336_tui.config.order import relative_work
from cs336_tui.config.spec import PRECISIONS, CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import DeviceInfo, Environment, GpuSample, HostSample
from cs336_tui.events.events import (
    CellFinished,
    CellsQueued,
    CellStarted,
    ChildOutput,
    DeviceSampled,
    EffectiveSettings,
    EnvironmentRead,
    Event,
    ModelBuilt,
    Notice,
    SessionEnded,
    SessionStarted,
    StageChanged,
    StepsTimed,
)

DEMO_LOG = Path(__file__).parents[1] / "data" / "demo-session.jsonl"
STARTED_AT = 1_795_183_422.0
"""2026-11-20 14:03:42 UTC."""
SESSION = "2026-11-20T14-03-42-demo"

SWEEP = Sweep(
    sizes=("small", "large", "xl"),
    contexts=(512,),
    passes=("forward", "forward+backward", "train-step"),
    precisions=("fp32", "bf16-mixed"),
    devices=("cuda:0",),
)
TOO_LARGE = Sweep(sizes=("10B",), contexts=(512,), passes=("train-step",), devices=("cuda:0",))

ENVIRONMENT = Environment(
    host="demo",
    os="Linux 6.8",
    cpu="demo CPU",
    cpu_count=26,
    memory_bytes=225 * 10**9,
    python="3.12.3",
    app="0.1.0",
    torch="2.13.0",
    cuda="13.0",
    cudnn="9.12",
    driver="580.65.06",
    threads=26,
    start_method="forkserver",
    devices=(
        DeviceInfo(name="cpu", label="demo CPU", precisions=("fp32", "bf16-mixed", "bf16"), memory_bytes=225 * 10**9),
        DeviceInfo(
            name="cuda:0",
            label="NVIDIA H100 80GB HBM3",
            precisions=PRECISIONS,
            memory_bytes=85_017_755_648,
            uuid="GPU-00000000-0000-0000-0000-000000000000",
            capability="9.0",
        ),
    ),
)


class _Machine:
    """Keeps the time, the energy counter and the dice; every event comes from here."""

    def __init__(self) -> None:
        self.now = STARTED_AT
        self.dice = random.Random(336)
        self.energy_j = 1_000_000.0
        self.sampled_at = self.now - 1.0

    def pass_time(self, seconds: float, used: float, busy: float, rss: int | None) -> Iterator[Event]:
        """Let time pass, with a device sample every half second; `used` bytes of GPU memory, `busy` 0 to 1."""
        end = self.now + seconds
        while self.sampled_at + 0.5 <= end:
            self.sampled_at = max(self.sampled_at + 0.5, self.now)
            power = 70 + busy * 560 + self.dice.uniform(-6, 6)
            self.energy_j += power * 0.5
            gpu = GpuSample(
                uuid=ENVIRONMENT.devices[1].uuid,
                name="NVIDIA H100 80GB HBM3",
                memory_used_bytes=int(used + 0.6e9),
                memory_total_bytes=85_520_809_984,
                utilisation=round(min(busy, 1.0), 2),
                power_w=round(power, 1),
                power_limit_w=700.0,
                temperature_c=round(38 + busy * 27),
                sm_clock_mhz=1980 if power < 600 else 1755,
                memory_clock_mhz=2619,
                clock_reasons=("software power cap",) if power > 600 else (),
                energy_j=round(self.energy_j, 1),
                persistence_mode=True,
                other_processes=(),
            )
            host = HostSample(
                cpu=round(0.04 + self.dice.uniform(0, 0.02), 3),
                memory_used_bytes=18 * 10**9,
                memory_total_bytes=225 * 10**9,
                child_rss_bytes=rss,
                child_cores=None if rss is None else 1.0,
                steal=0.0,
                load_1m=1.2,
                cpu_count=26,
            )
            yield DeviceSampled(at=round(self.sampled_at, 3), host=host, gpu=gpu)
        self.now = round(end, 6)


def _parameters(spec: CellSpec) -> tuple[int, int]:
    body = spec.num_layers * (4 * spec.d_model**2 + 3 * spec.d_model * spec.d_ff + 2 * spec.d_model) + spec.d_model
    table = spec.vocab_size * spec.d_model
    return body + 2 * table, body + table


def _cell(machine: _Machine, cell: int, spec: CellSpec) -> Iterator[Event]:
    params, without_head = _parameters(spec)
    flops_per_s = {"fp32": 42e12, "bf16-mixed": 300e12}[spec.precision]
    forward = (
        2.2 * relative_work(spec) / {"forward": 1, "forward+backward": 3, "train-step": 3}[spec.pass_] / flops_per_s
    )
    forward += 0.9e-3 * spec.num_layers / 12
    phases = {"forward": forward}
    if spec.pass_ != "forward":
        phases |= {"loss": 0.35e-3, "backward": forward * 2.05}
    if spec.pass_ == "train-step":
        phases = {"zero_grad": 0.05e-3, **phases, "optimizer": params * 28 / 2.6e12}
    states = {"forward": 1, "forward+backward": 2, "train-step": 4}[spec.pass_]
    peak = int(
        params * 4 * states
        + spec.tokens_per_step * spec.num_layers * (34 * spec.d_model + 5 * 4 * spec.num_heads * 512)
    )
    rss = 1_900_000_000

    yield CellStarted(at=machine.now, cell=cell, pid=4000 + cell)
    yield from machine.pass_time(0.4, 0.5e9, 0.0, rss)
    yield StageChanged(at=machine.now, cell=cell, stage="building")
    yield from machine.pass_time(0.3 + params / 6e9, params * 4, 0.1, rss)
    if peak > 85e9:
        text = f"CUDA out of memory. Tried to allocate {peak / 2**34:.2f} GiB. GPU 0 has a total capacity of 79.19 GiB"
        yield ChildOutput(at=machine.now, cell=cell, text=f"torch.OutOfMemoryError: {text}\n")
        yield CellFinished(
            at=machine.now, cell=cell, status="oom", error=text, stage="warm-up", step=0, peak_rss_bytes=rss,
            peak_allocated_bytes=79_300_000_000, peak_reserved_bytes=80_100_000_000,
        )  # fmt: skip
        return
    mixed = spec.precision == "bf16-mixed"
    in_force = EffectiveSettings(
        matmul_precision="highest",
        allow_tf32=False,
        autocast_dtype="bfloat16" if mixed else None,
        logits_dtype="bfloat16" if mixed else "float32",
        optimizer="AdamW" if spec.pass_ == "train-step" else None,
        threads=26,
        attention="naive (scores materialised)",
        variables=(),
        device_name="NVIDIA H100 80GB HBM3",
    )
    yield ModelBuilt(
        at=machine.now, cell=cell, num_params=params, num_params_without_head=without_head, in_force=in_force
    )
    for kind, stage, steps in (
        ("warm-up", "warm-up", spec.warmup_steps),
        ("measured", "measuring", spec.measure_steps),
    ):
        yield StageChanged(at=machine.now, cell=cell, stage=stage)
        began_at = machine.now
        for step in range(steps):
            slow = (2.8 if step == 0 else 1 + 0.05 / (step + 1)) if kind == "warm-up" else 1.0
            real = {name: value * slow * machine.dice.gauss(1, 0.003) for name, value in phases.items()}
            total = sum(real.values()) + 60e-6
            yield from machine.pass_time(total, peak, 0.99, rss)
            yield StepsTimed(
                at=machine.now,
                cell=cell,
                kind=kind,
                first=step,
                times_s=(round(total, 7),),
                phases_s={name: (round(value, 7),) for name, value in real.items()},
                host_s=(round(forward * 0.3 + 2e-3, 7),),
            )
    measured_for = machine.now - began_at
    yield StageChanged(at=machine.now, cell=cell, stage="finishing")
    yield from machine.pass_time(0.15, peak, 0.2, rss)
    yield CellFinished(
        at=machine.now,
        cell=cell,
        status="ok",
        peak_allocated_bytes=peak,
        peak_reserved_bytes=int(peak * 1.04),
        peak_rss_bytes=rss,
        num_alloc_retries=0,
        warmup_steps_done=spec.warmup_steps,
        measured_for_s=round(measured_for, 6),
        cpu_wait_s=0.0,
    )


def demo_events() -> Iterator[Event]:
    """A session of two runs: a sweep that succeeds and a cell that does not fit."""
    machine = _Machine()
    yield SessionStarted(at=machine.now, schema=1, session=SESSION, app="0.1.0")
    yield EnvironmentRead(at=machine.now, environment=ENVIRONMENT)
    yield Notice(at=machine.now, text="demo data: this session is synthetic, no such run took place")
    first = 0
    for sweep in (SWEEP, TOO_LARGE):
        specs = sweep.cells()
        yield CellsQueued(at=machine.now, first=first, specs=specs, command=command_of(sweep))
        for cell, spec in enumerate(specs, first):
            yield from _cell(machine, cell, spec)
        first += len(specs)
        yield from machine.pass_time(2.0, 0.1e9, 0.0, None)
    yield SessionEnded(at=machine.now, reason="finished")


if __name__ == "__main__":
    DEMO_LOG.write_bytes(b"".join(map(to_line, demo_events())))
