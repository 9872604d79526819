"""Clocks that a user's code replaces change no number of a cell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from tests.worker.measure.cells import PLAIN, run, small_spec

CLOCKS = ("perf_counter", "monotonic", "process_time", "thread_time", "time")
REPLACES = f"""{PLAIN}
import time

for name in {CLOCKS}:
    setattr(time, name, lambda real=getattr(time, name): real() / 1000)
torch.cuda.synchronize = torch.cuda.Event = torch.cuda.current_stream = None
"""
PACKAGE = Path(__file__).parents[3] / "cs336_tui"


def test_a_model_that_replaces_every_clock_is_timed_as_any_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "replaces_clocks.py").write_text(REPLACES)
    wall, exact = time.time, time.perf_counter
    for name in CLOCKS:
        monkeypatch.setattr(time, name, getattr(time, name))  # to be put back
    for name in ("synchronize", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))
    began_at, began = wall(), exact()
    report = run(small_spec(model="replaces_clocks:Plain", model_path=(str(folder),), measure_steps=20))
    ended_at, took_s = wall(), exact() - began
    assert time.perf_counter is not exact
    finished = report.finished
    assert (finished.status, finished.error) == ("ok", None)
    assert finished.measured_for_s is not None
    assert sum(report.times_s()) <= finished.measured_for_s <= took_s
    assert [event.at for event in report.events if not began_at <= event.at <= ended_at] == []


@pytest.mark.parametrize("inner", ["worker/measure", "worker/ranks", "worker/workload", "runner/device"])
def test_clocks_are_bound_before_a_users_code_is_imported(inner: str) -> None:
    late = [path.name for path in (PACKAGE / inner).rglob("*.py") if "\nimport time\n" in path.read_text()]
    assert late == []
