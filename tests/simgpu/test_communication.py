"""Communication that a step waits for, and communication beside compute, are those of the simulated streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from tests.simgpu.cells import TINY_MODEL, Window, Work, command, covered_ns, profile, truth

WARMUP, STEPS, ROUNDS = 3, 3, 2
MODEL = [*TINY_MODEL, *"--num-layers 1 --device cuda".split()]


class Shared(NamedTuple):
    """How ranks share a step, and how slow kernels and links are: the more ranks, the later this machine launches."""

    ranks: int
    parallel: str
    kernel_us: int
    gbs: float
    step: str = "train-step"

    @property
    def knobs(self) -> dict[str, object]:
        """Data are real, for ranks compare weights and gradients before they are timed."""
        times = {"KERNEL_US": self.kernel_us, "GEMM_US": self.kernel_us, "NCCL_GBS": self.gbs}
        return {"DEVICES": self.ranks, "COMPUTE": 1, "QUEUE": 5000, **times}


SHARED = [
    Shared(2, "ddp", 1000, 0.003),
    Shared(2, "fsdp2", 2000, 0.006),
    Shared(4, "ddp:50KB", 1500, 0.0015),
    Shared(8, "ddp", 2500, 0.002, "forward+backward"),
]


def is_communication(work: Work) -> bool:
    return work.name.startswith("nccl")


def computes(work: Sequence[Work]) -> list[Work]:
    return [each for each in work if not is_communication(each) and not each.name.startswith("Mem")]


def alone_ns(work: Sequence[Work]) -> int:
    """Time in which communication runs and no kernel computes."""
    compute = computes(work)
    return covered_ns([*compute, *filter(is_communication, work)]) - covered_ns(compute)


class Step(NamedTuple):
    """A rank's step, from its first event after the barrier to the return of its wait for the device."""

    begin_ns: int
    end_ns: int
    work: tuple[Work, ...]

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def communicates(self) -> bool:
        return any(map(is_communication, self.work))


def step_of(window: Window) -> Step:
    """A barrier waits for its stream; that of torch 2.6 for the device, so that the window begins behind it."""
    barrier = next((place for place, each in enumerate(window.work) if is_communication(each)), len(window.work))
    behind_it = (wait for wait in window.within if wait[0] > barrier)
    launched, returned_ns = next(behind_it, (0, window.after_ns))
    work = window.work[launched:]
    begin_ns = next(moment_ns for moment_ns in window.events_ns if moment_ns > returned_ns)
    return Step(begin_ns, window.returned_ns or max(each.end_ns for each in work), work)


def steps_of(path: Path, ranks: int) -> list[list[Step]]:
    """The measured steps of all rounds in order, of each those of all ranks."""
    rounds: list[list[list[Step]]] = []
    processes = [[window for window in windows if len(window.work) > 100] for windows in truth(path).values()]
    for windows in filter(None, processes):
        timed = [step_of(window) for window in windows[-2 * (WARMUP + STEPS) :]][2 * WARMUP :]
        if not rounds or len(rounds[-1]) == ranks:
            rounds.append([])
        rounds[-1].append(timed)
    return [list(step) for each in rounds for step in zip(*each, strict=True)]


@pytest.mark.parametrize("shared", SHARED, ids=lambda shared: f"{shared.ranks} ranks, {shared.parallel}")
def test_exposed_communication_is_what_the_streams_had_exposed(shared: Shared, tmp_path: Path) -> None:
    counts = f"--ranks {shared.ranks} --warmup {WARMUP} --steps {STEPS} --rounds {ROUNDS} --format json"
    sides = ["--a", f"--parallel {shared.parallel}", "--b", "--parallel none"]
    folder = ["--session-dir", str(tmp_path / "sessions")]
    what = [*sides, *MODEL, "--pass", shared.step, *counts.split(), "--check", "off"]
    done = command(tmp_path, "ab", *folder, *what, **shared.knobs)
    assert done.returncode == 0, done.stderr[-4000:]
    (told,) = (row for row in json.loads(done.stdout)["rows"] if row["exposed_s"] is not None)
    steps = steps_of(tmp_path / "truth", shared.ranks)
    assert len(steps) == 2 * STEPS * ROUNDS
    communicating = [step for step in steps if step[0].communicates]
    silent = [step for step in steps if not step[0].communicates]
    step_ns, silent_ns = (
        fmean(max(rank.ns for rank in step) for step in several) for several in (communicating, silent)
    )
    exposed_ns = step_ns - silent_ns
    assert exposed_ns > 0.1 * step_ns
    alone = fmean(min(alone_ns(rank.work) for rank in step) for step in communicating)
    assert exposed_ns > 0.9 * alone, "a wrapper's own kernels come on top"
    assert told["exposed_s"] * 1e9 == pytest.approx(exposed_ns, rel=0.02)
    assert told["exposed_low_s"] * 1e9 <= exposed_ns <= told["exposed_high_s"] * 1e9
    assert told["exposed_share"] == pytest.approx(exposed_ns / step_ns, rel=0.02)


@pytest.mark.parametrize("parallel", ["ddp:50KB", "fsdp2"])
def test_a_report_has_each_ranks_communication_beside_compute(parallel: str, tmp_path: Path) -> None:
    words = f"--pass train-step --ranks 2 --parallel {parallel}".split()
    ((report, steps),) = profile(tmp_path, *MODEL, *words, **Shared(2, parallel, 300, 0.02).knobs)
    for rank, step in zip(report["ranks"], steps, strict=True):
        own, compute = [*filter(is_communication, step.work)], computes(step.work)
        assert sum(rank["operations"].values()) == len(own)
        assert rank["communication_ns"] == pytest.approx(covered_ns(own), rel=1e-4)
        assert rank["compute_ns"] == pytest.approx(covered_ns(compute), rel=1e-4)
        exposed_ns = rank["communication_ns"] - rank["overlapped_ns"]
        assert exposed_ns == pytest.approx(alone_ns(step.work), rel=0.001)
