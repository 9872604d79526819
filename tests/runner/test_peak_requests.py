"""Peak measurements queued among cells, in real children."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from cs336_tui.events.events import CellFinished, CellStarted, Event
from cs336_tui.events.peaks import DevicePeak, PeakError
from cs336_tui.runner.bench import Bench
from tests.samples import a_spec

TINY = a_spec(size="custom", d_model=16, d_ff=32, num_layers=1, num_heads=2, vocab_size=50, context_length=8,
              device="cpu", pass_="forward", warmup_steps=1, measure_steps=3)  # fmt: skip


def test_a_peak_comes_before_the_cells_that_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    happened: list[str] = []
    found: list[DevicePeak | PeakError] = []

    def sink(events: object) -> None:
        for event in events:  # type: ignore[attr-defined]
            note(event)

    def note(event: Event) -> None:
        if isinstance(event, CellStarted | CellFinished):
            happened.append(type(event).__name__)

    def tell(peak: DevicePeak | PeakError) -> None:
        happened.append("peak")
        found.append(peak)

    bench = Bench(sink, session_dir=tmp_path, device_interval_s=0)
    bench.prepare()
    try:
        bench.add([(TINY, 1), (TINY, 2)])
        bench.ask_peak("cpu", "tf32", 1, tell)  # is refused at once, by a real child
        bench.work()
        bench.ask_peak("cpu", "tf32", 1, tell)
        bench.work()
    finally:
        bench.close()
    assert happened == ["peak", *["CellStarted", "CellFinished"] * 2, "peak"]
    assert "tf32" in str(found[0])
    assert len(found) == 2


def test_a_stop_ends_a_peak_that_is_being_measured_and_those_that_wait(tmp_path: Path) -> None:
    found: list[DevicePeak | PeakError] = []
    bench = Bench(lambda _: None, session_dir=tmp_path, device_interval_s=0)
    bench.prepare()
    try:
        bench.probe()
        bench.ask_peak("cpu", "fp32", 1, found.append)
        at_work = threading.Thread(target=bench.work)
        at_work.start()
        while not bench.queue.busy:
            time.sleep(0.01)
        bench.ask_peak("cpu", "bf16", 1, found.append)
        bench.cancel()
        at_work.join(30)
        assert not at_work.is_alive()
    finally:
        bench.close()
    assert len(found) == 2
    assert str(found[0]) == str(found[1]) == "it was stopped"


def test_closing_ends_a_peak_that_is_being_measured(tmp_path: Path) -> None:
    found: list[DevicePeak | PeakError] = []
    bench = Bench(lambda _: None, session_dir=tmp_path, device_interval_s=0)
    bench.prepare()
    bench.probe()
    bench.ask_peak("cpu", "fp32", 1, found.append)
    bench.ask_peak("cpu", "bf16", 1, found.append)
    at_work = threading.Thread(target=bench.work)
    at_work.start()
    while not bench.queue.busy:
        time.sleep(0.01)
    bench.close()
    at_work.join(30)
    assert not at_work.is_alive()
    assert len(found) == 2
    assert str(found[-1]) == "it was stopped"
