"""The kernel report has each launch of the simulated device, with its name and its times."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.simgpu.cells import TINY_MODEL, Profiled, Work, covered_ns, profile

SHAPES = {
    "kernels longer than their launches": {"KERNEL_US": 200, "GEMM_US": 300, "TABLE": "softmax=900,reduce=500"},
    "kernels shorter than their launches": {"KERNEL_US": 3, "GEMM_US": 5},
}


def gaps_ns(work: Sequence[Work]) -> list[int]:
    """The gaps between pieces of work."""
    gaps, reached = [], min(each.begin_ns for each in work)
    for each in sorted(work, key=lambda each: each.begin_ns):
        if each.begin_ns > reached:
            gaps.append(each.begin_ns - reached)
        reached = max(reached, each.end_ns)
    return gaps


def readable(mangled: Sequence[str]) -> list[str]:
    """Names as C++ has them."""
    done = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def like(ns: float, pieces: int = 1) -> Any:
    """A time, or a sum of them, as the profiler converts it to its own clock."""
    return pytest.approx(ns, rel=1e-4, abs=2 * pieces)


def check(profiled: Profiled) -> None:
    report, (step,) = profiled
    gaps, count = gaps_ns(step.work), len(step.work)
    assert report["launches"] == count
    assert report["total_ns"] == like(sum(each.ns for each in step.work), count)
    assert report["span_ns"] == like(max(each.end_ns for each in step.work) - min(each.begin_ns for each in step.work))
    assert report["busy_ns"] == like(covered_ns(step.work), count)
    told = report["gaps"]
    assert told["count"] == len(gaps)
    assert told["total_ns"] == like(sum(gaps), count)
    assert told["median_ns"] == like(median(gaps) if gaps else 0)
    assert [each["ns"] for each in told["largest"]] == [like(ns) for ns in sorted(gaps, reverse=True)[:10]]
    truth: dict[str, list[int]] = {}
    for name, each in zip(readable([each.name for each in step.work]), step.work, strict=True):
        truth.setdefault(name, []).append(each.ns)
    found: dict[str, list[int]] = {}
    for group in report["groups"]:
        name = group["name"].partition(" (")[0] if group["name"].startswith("Memcpy") else group["name"]
        found.setdefault(name, []).extend(group["durations_ns"])
    assert found.keys() == truth.keys()
    for name, durations in found.items():
        assert sorted(durations) == [like(ns) for ns in sorted(truth[name])], name
    assert step.work[-1].launched_ns - step.work[0].launched_ns < report["host_ns"] < step.began_ns - step.after_ns


@pytest.mark.parametrize("shape", SHAPES)
def test_a_report_has_the_devices_launches(shape: str, tmp_path: Path) -> None:
    words = "--pass inference,forward,backward,train-step --attention naive,tests.simgpu.two_streams:attention"
    made = profile(tmp_path, "--device", "cuda:0", *TINY_MODEL, *words.split(), **SHAPES[shape])
    assert len(made) == 8
    for profiled in made:
        check(profiled)
