"""A user's processes end with their cell, however it ends, and a copy of the child is not counted as one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.config.processes import lives
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, Event, Notice, StageChanged
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.prediction_cache import PredictionCache
from cs336_tui.runner.predictor import PredictionError, Predictor
from cs336_tui.runner.supervise import Supervisor
from tests.commands import COMMAND
from tests.watching import PATIENCE_S, Watch, ample_timeout_s, is_gone, small_spec, wait_gone

MODEL = """
import os, signal, subprocess, sys, time
from pathlib import Path
import torch
from torch import nn

def start(*command, **options):
    tell(subprocess.Popen(command, **options).pid)

def spin():
    if not (pid := os.fork()):
        while True:
            pass
    tell(pid)

def tell(pid):
    with open(PIDS, "a") as file:
        file.write(f"{pid}\\n")

class LM(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.head = nn.Linear(d_model, vocab_size)
        AT_START

    def forward(self, tokens):
        IN_FORWARD
        return self.head(self.embed(tokens))
"""
LEAVES = """
        start("sleep", "3001")
        start("sleep", "3002", start_new_session=True)
        spin()
"""
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="only there somebody takes orphans in")


class Own:
    """A folder with a model that starts processes, and their pids."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pids = path / "pids"

    def spec(self, at_start: str = LEAVES, in_forward: str = "pass", **changes: Any) -> CellSpec:
        text = MODEL.replace("AT_START", at_start).replace("IN_FORWARD", in_forward)
        (self.path / "mine.py").write_text(text.replace("PIDS", repr(str(self._pids))))
        return small_spec(model="mine:LM", model_path=(str(self.path),), check="off", **changes)

    def pids(self) -> list[int]:
        """Pids of the processes started so far."""
        pids = [int(line) for line in self._pids.read_text().split()]
        assert pids
        return pids


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    made = Own(tmp_path)
    yield made
    for pid in [int(line) for line in made._pids.read_text().split()] if made._pids.exists() else []:
        if not is_gone(pid):  # of a test that failed
            os.kill(pid, signal.SIGKILL)


@LINUX_ONLY
@pytest.mark.parametrize(
    ("in_forward", "status"),
    [
        ("pass", "ok"),
        ("os._exit(7)", "failed"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("signal.signal(15, signal.SIG_IGN); time.sleep(1e6)", "killed"),
    ],
)
def test_what_a_cell_left_is_gone_when_the_next_one_begins(own, running, in_forward, status):
    bench, watch = running.bench, running.watch
    if "sleep" in in_forward:
        bench.run((small_spec(),), "a command")
        bench.timeout_s = ample_timeout_s(watch.state.cells[0], at_least=5.0)
    number = len(watch.state.cells)
    alive_at_end: list[list[int]] = []

    def at_end(event: Event) -> None:
        if isinstance(event, CellFinished):
            alive_at_end.append([pid for pid in own.pids() if not is_gone(pid)])
            bench.timeout_s = None  # the next cell, which hangs in nothing, may take its time

    watch.on_event = at_end
    bench.run((own.spec(in_forward=in_forward), small_spec()), "a command")
    first, second = (watch.state.cells[each].finished for each in (number, number + 1))
    assert len(own.pids()) == 3
    assert alive_at_end == [[], []]
    assert (first.status, second.status) == (status, "ok")
    assert first.remarks[-1].startswith("ended 3 processes that the cell had left: ")
    assert first.remarks[-1].endswith("sleep")
    assert not second.remarks
    assert [event.text for event in watch.of(Notice) if "had left" in event.text] == [
        f"cell {number + 1}: {first.remarks[-1]}"
    ]


@LINUX_ONLY
def test_what_a_process_left_behind_has_started_and_keeps_up_ends_too(own, running):
    keeps_up = "sleep 3003 & echo $! >> PIDS; while true; do sleep 0.01; done"
    running.run(own.spec(f'start("sh", "-c", "{keeps_up}".replace("PIDS", PIDS), start_new_session=True)'))
    assert running.statuses == ["ok"]
    assert all(map(is_gone, own.pids()))


@LINUX_ONLY
def test_what_rounds_reports_and_predictions_leave_is_gone_after_them(own, running, tmp_path):
    bench, watch = running.bench, running.watch
    spec = own.spec()
    bench.run_ab(spec, small_spec(), 1, "cs336-tui ab")
    assert len(own.pids()) == 3
    assert all(map(is_gone, own.pids()))
    assert all("ended 3 processes" in cell.finished.remarks[-1] for cell in watch.state.cells.values())
    bench.ask_report("precision", spec)
    bench.work()
    assert len(own.pids()) > 3
    assert all(map(is_gone, own.pids()))
    assert any("that the report had left" in event.text for event in watch.of(Notice))
    before = len(own.pids())
    predictor = Predictor(bench._launcher, cache=PredictionCache(tmp_path / "cache"))
    predictor.predict([spec])
    predictor.close()
    assert len(own.pids()) > before
    assert all(map(is_gone, own.pids()))


@LINUX_ONLY
def test_a_child_that_works_is_let_be_when_another_one_ends(launcher):
    specs = (small_spec(measure_steps=10_000_000), small_spec())
    working, other = (launcher.start_cell(cell, spec)[0].child for cell, spec in enumerate(specs))
    watch = Watch()
    Supervisor(other, [1], watch, StopSignal()).run()
    other.close()
    assert working.process.is_alive()
    assert not watch.of(Notice)
    working.close()


@LINUX_ONLY
def test_a_cell_that_is_stopped_leaves_nothing(own, running):
    bench, watch = running.bench, running.watch
    running.begin(own.spec(measure_steps=10_000_000))
    running.once_measuring()
    assert not any(map(is_gone, own.pids()))
    bench.close()
    running.finish()
    assert watch.state.cells[0].status == "cancelled"
    assert all(map(is_gone, own.pids()))


@LINUX_ONLY
def test_nothing_is_left_when_the_app_is_killed(own, tmp_path):
    own.spec(LEAVES + f"        open({str(tmp_path / 'fifo')!r}, 'w').write('ready')")
    options = "--model mine:LM --size tiny --pass forward --steps 100000 --device cpu".split()
    command = [COMMAND, "bench", *options, "--model-path", tmp_path, "--session-dir", tmp_path]
    os.mkfifo(tmp_path / "fifo")
    app = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert (tmp_path / "fifo").read_text() == "ready"
    pids = own.pids()
    assert not any(map(is_gone, pids))
    app.kill()
    app.wait()
    assert all(map(wait_gone, pids))


def test_a_spawned_child_ends_what_it_started_before_it_ends(own, tmp_path):
    launcher = Launcher(tmp_path)
    launcher.prepare()
    launcher.method = "spawn"
    cases = {
        "ok": {},
        # Whatever it had started cannot be known any more, and must not be waited for.
        "failed": {"in_forward": "os._exit(7)"},
        "killed": {"in_forward": "time.sleep(1e6)"},
    }
    for status, options in cases.items():
        launcher.trust.name(spec := own.spec(**options))
        child = launcher.start_cell(0, spec)[0].child
        watch = Watch()
        if status == "killed":
            watch.on_event = lambda event, end=child.terminate: end() if _is_warming_up(event) else None
        Supervisor(child, [0], watch, StopSignal(), timeout_s=PATIENCE_S).run()
        child.close()
        (end,) = watch.of(CellFinished)
        assert end.status == status
        if status != "failed":
            assert end.remarks[-1].startswith("ended 3 processes that the cell had left: ")
            assert all(map(is_gone, own.pids()[-3:]))


def _is_warming_up(event: Event) -> bool:
    return isinstance(event, StageChanged) and event.stage == "warm-up"


@pytest.mark.parametrize("copies", ["os.fork()", "os.fork() or sys.exit(3)", "pid = os.fork()\n        1 / bool(pid)"])
def test_a_copy_that_comes_back_does_and_tells_nothing(own, running, copies):
    bench, watch = running.bench, running.watch
    bench.run((own.spec(copies),), "a command")
    (end,) = watch.of(CellFinished)
    assert end.status == "ok"
    assert len(watch.state.cells[0].step_times_s) == 3


def test_copies_that_work_for_a_model_live(own, running):
    loader = (
        "self.loader = iter(torch.utils.data.DataLoader(range(1000), num_workers=2, multiprocessing_context='fork'))"
    )
    bench, watch = running.bench, running.watch
    bench.run((own.spec(loader, in_forward="next(self.loader)", measure_steps=20),), "a command")
    assert watch.state.cells[0].finished.error is None
    assert len(watch.state.cells[0].step_times_s) == 20


# Predictions of code that hangs


def test_a_prediction_that_hangs_is_given_up_and_the_others_are_made(own, running):
    bench, watch = running.bench, running.watch
    hangs_at_16 = "if d_model == 16:\n            spin()\n            time.sleep(1e6)"
    hangs, other = (own.spec(hangs_at_16, d_model=d_model) for d_model in (16, 32))
    bench.add([(spec, 1) for spec in (hangs, other)])
    began = time.monotonic()
    bench.predict_now([own.spec(hangs_at_16, d_model=64)], lambda _said: None)
    bench.timeout_s = limit_s = 2 + round(3 * (time.monotonic() - began))  # enough for one that does not hang
    said: list[str] = []
    bench.predict_now([hangs, other], said.append)
    assert said == [f"predicting {spec.title}" for spec in (hangs, other)]
    assert watch.state.prediction_of(hangs) is None
    assert watch.state.prediction_of(other) is not None
    assert any(f"not computed within {limit_s} s" in event.text for event in watch.of(Notice))
    assert all(map(is_gone, own.pids()))


def test_a_stop_ends_predictions_and_the_cells_that_wait(own, running):
    bench, watch = running.bench, running.watch
    os.mkfifo(own.path / "fifo")
    hangs = f"open({str(own.path / 'fifo')!r}, 'w').write('ready')\n        time.sleep(1e6)"
    specs = [own.spec(hangs, context_length=length) for length in (8, 16)]
    bench.add([(each, 1) for each in specs])
    said: list[str] = []
    running.on_a_thread(bench.predict_now, specs, said.append)
    assert (own.path / "fifo").read_text() == "ready"
    bench.cancel()
    running.finish(PATIENCE_S / 4)
    assert len(said) == 1
    assert {cell.status for cell in watch.state.cells.values()} == {"cancelled"}


def test_what_took_too_long_once_is_not_waited_for_again(own, tmp_path, launcher):
    predictor = Predictor(launcher, cache=PredictionCache(tmp_path / "cache"), own_code_within_s=lambda: 2.0)
    spec = own.spec("tell(os.getpid()); time.sleep(1e6)")
    launcher.trust.name(spec)
    for _ in range(2):
        with pytest.raises(PredictionError, match=r"· LM: no prediction: not computed within 2 s"):
            predictor.predict([spec])
    assert len(own.pids()) == 1
    assert all(map(is_gone, own.pids()))
    predictor.close()


def test_children_of_others_are_no_leftovers(own, running):
    beside = subprocess.Popen(["sleep", "3004"])
    try:
        running.run(own.spec())
        assert lives(beside.pid)
    finally:
        beside.kill()
        beside.wait()
