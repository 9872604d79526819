"""Verdicts, energy and utilisation follow from what the simulated devices do; verdicts are silent where they do nothing
of the kind. What the host's verdicts say depends on the machine that simulates, so they are left out."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from cs336_tui.runner.pipes import beside
from tests.simgpu import board
from tests.simgpu.cells import TINY, Bench, Window, bench

DEVICES = ("quiet", "throttled", "capped", "shared", "shifted", "two levels", "wave")
"""What happens to each."""
FOREIGN_PID = 4_000_000
"""Of no process here."""
STEADY = "--pass forward --cuda-graph step --sync pipelined --warmup 3 --steps 90 --device-interval 0.1".split()
"""Steps that depend on the device alone: each is one launch, and the host is ahead by a full queue, which lasts longer
than a busy machine stops it."""
STEP_NS = 30_000_000
PERIOD_S = 0.55
DOUBTS = {
    "still-warming", "drifting", "two-levels", "periodic", "quantised", "outliers", "too-few-steps", "throttled",
    "launch-bound", "allocator-retry", "slowed-by-settings",
}  # fmt: skip
"""Verdicts that do not depend on the machine that simulates."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A cell on each device."""
    folder = tmp_path_factory.mktemp("verdicts")
    throttled, capped, shared, shifted, two_levels, wave = board.board_at(folder / "board").devices[1:7]
    throttled.sm_mhz, throttled.reasons = board.FULL_MHZ / 2, board.HARDWARE_THERMAL
    capped.sm_mhz, capped.reasons = 0.9 * board.FULL_MHZ, board.POWER_CAP
    shared.foreign_pid, shared.foreign_bytes = FOREIGN_PID, 3 * 2**30
    coin = random.Random(0)
    names = ",".join(f"cuda:{number}" for number in range(len(DEVICES)))

    def go_on(over: threading.Event) -> None:
        """Change the clocks of three devices every few milliseconds: once half of a cell's work is launched, by tosses
        of a coin, and as a wave with some noise."""
        while not over.wait(0.005):
            shifted.sm_mhz = (0.95 if shifted.busy_total > 50 * STEP_NS else 1) * board.FULL_MHZ
            two_levels.sm_mhz = coin.choice((0.9, 1)) * board.FULL_MHZ
            swing = 0.05 * math.cos(2 * math.pi * time.monotonic() / PERIOD_S)
            wave.sm_mhz = (0.95 + swing) * coin.gauss(1, 0.004) * board.FULL_MHZ

    with beside("clocks", go_on):
        knobs = {"DEVICES": len(DEVICES), "KERNEL_US": 300, "GEMM_US": 300, "QUEUE": 4}
        return bench(folder, *TINY, *STEADY, "--device", names, **knobs)


def on(made: Bench, device: str) -> dict[str, Any]:
    return made.runs[DEVICES.index(device)]


@pytest.mark.parametrize(
    ("device", "verdicts"),
    [
        ("quiet", {"steady"}),
        ("throttled", {"steady", "throttled"}),
        ("capped", {"steady"}),
        ("shared", {"steady"}),
        ("shifted", {"drifting"}),
        ("two levels", {"two-levels"}),
        ("wave", {"periodic"}),
    ],
)
def test_a_verdict_holds_where_its_cause_was_simulated_and_nowhere_else(
    made: Bench, device: str, verdicts: set[str]
) -> None:
    run = on(made, device)
    told = {*run["verdicts"]} & (DOUBTS | {"steady"})
    if device == "wave":  # its first launches, which fill the queue, have one clock; a busy machine holds the clock
        told -= {"still-warming", "drifting", "outliers"}
    assert told == verdicts, run["verdict_evidence"]
    assert not {*run["not_observable"]} & DOUBTS


def test_only_the_device_with_another_process_is_said_to_be_shared(made: Bench) -> None:
    for device in DEVICES:
        evidence = on(made, device)["verdict_evidence"]["contended"]
        assert ("on the GPU" in evidence and str(FOREIGN_PID) in evidence) == (device == "shared"), evidence


def test_only_the_capped_device_is_said_to_be_capped(made: Bench) -> None:
    for device in DEVICES:
        notes = " ".join(on(made, device)["verdict_notes"])
        assert ("software power cap in" in notes) == (device == "capped")


def test_clocks_and_the_steps_that_follow_from_them(made: Bench) -> None:
    quiet, throttled, capped = (on(made, device) for device in ("quiet", "throttled", "capped"))
    assert (quiet["lowest_clock_mhz"], throttled["lowest_clock_mhz"], capped["lowest_clock_mhz"]) == (1980, 990, 1782)
    assert throttled["summary"]["median_s"] == pytest.approx(2 * quiet["summary"]["median_s"], rel=1e-3)
    assert capped["summary"]["median_s"] == pytest.approx(quiet["summary"]["median_s"] / 0.9, rel=1e-3)
    assert "every" in on(made, "wave")["verdict_evidence"]["periodic"]


IDLE_W, BUSY_W = 90, 650
NEAR = 0.03
"""Share of the energy that lies within the time of a reading, on a busy machine."""


def busy_share(windows: Sequence[Window], begin_ns: float, end_ns: float) -> float:
    work = [each for window in windows for each in window.work]
    return sum(max(0.0, min(w.end_ns, end_ns) - max(w.begin_ns, begin_ns)) for w in work) / (end_ns - begin_ns)


def measuring_ns(made: Bench, cell: int) -> tuple[float, float]:
    """When a cell measured, on the simulation's clock."""
    ahead_s = time.time() - time.monotonic()
    stages = {e["stage"]: e["at"] for e in made.events if e["type"] == "StageChanged" and e["cell"] == cell}
    return (stages["measuring"] - ahead_s) * 1e9, (stages["finishing"] - ahead_s) * 1e9


def check_power(made: Bench, run: dict[str, Any]) -> None:
    """Energy and utilisation are those of the device's busy time."""
    begin_ns, end_ns = measuring_ns(made, run["cell"])
    share = busy_share(made.windows[run["cell"]], begin_ns, end_ns)
    watts = IDLE_W + (BUSY_W - IDLE_W) * share
    assert run["joules_per_step"] == pytest.approx(watts * run["summary"]["mean_s"], rel=NEAR)
    ahead_s = time.time() - time.monotonic()
    told = [
        event["gpu"]["utilisation"]
        for event in made.events
        if event["type"] == "DeviceSampled" and begin_ns + 3e8 < (event["at"] - ahead_s) * 1e9 < end_ns
    ]
    assert fmean(told) == pytest.approx(share, abs=NEAR)


@pytest.mark.parametrize("device", ["quiet", "throttled", "wave"])
def test_power_of_a_device_that_is_always_busy(made: Bench, device: str) -> None:
    check_power(made, on(made, device))


def test_short_kernels_are_launch_bound_and_their_device_is_partly_idle(tmp_path: Path) -> None:
    words = "--pass forward,train-step --steps 2s --device-interval 0.1".split()
    made = bench(tmp_path, *TINY, *words, KERNEL_US=3, GEMM_US=3)
    for run in made.runs:
        assert "launch-bound" in run["verdicts"], run["verdict_evidence"]["launch-bound"]
        check_power(made, run)


def test_a_host_that_waits_for_room_in_a_full_queue_is_not_launch_bound(tmp_path: Path) -> None:
    words = "--pass forward,forward+backward,train-step --steps 12".split()
    made = bench(tmp_path, *TINY, *words, KERNEL_US=450, GEMM_US=600, QUEUE=16)
    for run in made.runs:
        evidence = run["verdict_evidence"]["launch-bound"]
        assert "launch-bound" not in run["verdicts"], evidence
        host_s, step_s = fmean(run["host_times_s"]), run["summary"]["mean_s"]
        assert ("waited for room" in evidence) == (host_s >= 0.9 * step_s), evidence
    assert any("waited for room" in run["verdict_evidence"]["launch-bound"] for run in made.runs)
