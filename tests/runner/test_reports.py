"""Reports made in real children between cells, and messages about those that fail."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cs336_tui.analysis.agreement import agreement, agreement_key
from cs336_tui.config.spec import SpecError
from cs336_tui.events.codec import to_line
from cs336_tui.events.events import CellFinished, CellStarted, Event, ReportFinished, ReportStage, ReportStarted
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import PrecisionReport, RankMemoryReport
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.cells import CellRunner
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.resume import WantedReports
from cs336_tui.runner.trust import Trust
from cs336_tui.session.load import load
from cs336_tui.session.log import FILES_SUFFIX, LogReader
from cs336_tui.session.store import delete, describe
from tests.made_predictions import MadePredictor
from tests.made_ranks import a_rank_memory_report
from tests.runner.running import Running, Start, resume
from tests.watching import Watch, endless_spec, small_spec


@pytest.fixture
def watch(running: Running) -> Watch:
    return running.watch


@pytest.fixture
def bench(running: Running) -> Bench:
    return running.bench


def test_the_prediction_of_a_rank_memory_report_has_minutes_and_is_a_stage_of_it() -> None:
    spec = small_spec(pass_="train-step", ranks=2, parallel="fsdp2")
    predictor, recorded, stop = MadePredictor(), list[Event](), StopSignal()
    recorder: Any = SimpleNamespace(record=recorded.extend)
    watch, predictions = cast("Any", None), cast("Any", SimpleNamespace(predictor=predictor))
    runner = CellRunner(None, recorder, watch, predictions, stop, Trust(), check_fit=False, nvtx=False)
    end = ReportFinished(at=1.0, report=3, status="ok", content=a_rank_memory_report(spec))
    for own, limit_s in (({}, 600.0), ({"model": "mine:LM"}, None)):  # None: the predictor's own for a user's code
        asked = msgspec.structs.replace(spec, **own)
        recorded.clear()
        runner._with_prediction([msgspec.structs.replace(end, content=a_rank_memory_report(asked))])
        stage, finished = recorded
        assert (stage.report, stage.stage) == (3, "predicting")
        assert isinstance(finished.content, RankMemoryReport)
        assert finished.content.prediction is not None
        assert predictor.within_s == limit_s
    stop.close()


def logged(bench: Bench, *kinds: type) -> list[Event]:
    return [event for event in LogReader(bench.log_path) if isinstance(event, kinds)]


def test_a_report_is_made_recorded_and_read_back_once_for_each_number_of_threads(bench: Bench) -> None:
    for threads in (1, 1, 2):
        bench.ask_report("precision", small_spec(threads=threads))
    bench.work()
    reports = load(bench.log_path).reports.values()
    told = [(each.status, each.kind, each.content.spec.threads) for each in reports]
    assert told == [("ok", "precision", 1), ("ok", "precision", 2)]
    assert all(isinstance(report.content, PrecisionReport) for report in reports)
    assert len(logged(bench, ReportStarted)) == len(load(bench.log_path).contents(PrecisionReport)) == 2
    assert logged(bench, ReportStage)
    with pytest.raises(SpecError, match="this machine has"):
        bench.ask_report("kernels", small_spec(device="cuda:7"))


def test_logits_and_gradients_of_two_processes_agree_and_are_no_report_on_a_cell(bench: Bench) -> None:
    base = small_spec(pass_="train-step", batch_size=2)
    keys = [agreement_key(base, base), agreement_key(msgspec.structs.replace(base, attention="sdpa"), base)]
    for key in keys:
        bench.ask_report("agreement", key)
    bench.work()
    state = load(bench.log_path)
    first, second = (report.content for report in state.reports.values())
    assert [first.spec, second.spec] == keys
    found = agreement(second, first)
    assert found.agrees
    assert found.logits
    assert found.logits.whole > 0
    assert describe(state, bench.log_path).reports == 0
    assert state.reports_on_cells == ()


def test_a_report_comes_between_cells_and_never_within_one(running: Running, bench: Bench) -> None:
    specs = [small_spec(), small_spec(context_length=16)]
    running.begin(endless_spec(), *specs)
    pid = running.once_measuring()
    bench.ask_report("precision", specs[0], cell=1)
    assert [asked.kind for asked in bench.queue.asked] == ["precision"]
    os.kill(pid, signal.SIGKILL)
    running.finish()
    order = [type(event).__name__ for event in logged(bench, CellStarted, CellFinished, ReportStarted, ReportFinished)]
    cell, report = ["CellStarted", "CellFinished"], ["ReportStarted", "ReportFinished"]
    assert order == [*cell, *report, *cell, *cell]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_report_whose_process_dies_is_told_and_the_next_is_made(bench: Bench, watch: Watch, number: int) -> None:
    bench.ask_report("kernels", small_spec())
    bench.ask_report("precision", small_spec())
    disturbed = threading.Event()

    def disturb(event: Event) -> None:
        if isinstance(event, ReportStage) and event.report == 0 and not disturbed.is_set():
            disturbed.set()
            child = _children()[-1]
            os.kill(child, number)

    watch.on_event = disturb
    bench.work()
    first, second = load(bench.log_path).reports.values()
    assert first.status == ("killed" if number is signal.SIGKILL else "failed")
    assert first.error
    assert second.status == "ok"


def test_a_stop_ends_the_report_and_those_that_wait(bench: Bench, watch: Watch) -> None:
    bench.ask_report("kernels", small_spec())
    bench.ask_report("precision", small_spec())
    watch.on_event = lambda event: (
        threading.Thread(target=bench.cancel).start() if isinstance(event, ReportStage) else None
    )
    bench.work()
    (only,) = load(bench.log_path).reports.values()
    assert only.status == "cancelled"
    assert bench.queue.asked == ()


def test_reports_of_a_resumed_session_go_on_counting_and_one_that_was_broken_off_hides_none(
    start: Start, bench: Bench
) -> None:
    bench.ask_report("precision", small_spec())
    bench.work()
    bench.close()
    with bench.log_path.open("ab") as log:  # as if the app had died
        log.write(to_line(ReportStarted(at=1.0, report=1, kind="precision", spec=small_spec())))
    state = load(bench.log_path)
    assert state.reports[1].status == "cancelled"
    assert state.report_of("precision", small_spec()).content is not None
    again = start(session=bench.session).bench
    again.resume()
    again.ask_report("precision", small_spec(context_length=16))
    again.work()
    again.close()
    assert sorted(load(bench.log_path).reports) == [0, 1]


def test_a_report_asked_for_with_cells_is_due_once_whatever_repeats_them() -> None:
    forward, train = small_spec(pass_="forward"), small_spec(pass_="train-step")
    cells = [forward, train, small_spec(pass_="train-step", d_model=64, d_ff=128)] * 2
    wanted = WantedReports()
    wanted.want(range(len(cells)), ("kernels", "precision"))
    for number, spec in enumerate(cells):
        wanted.ended_well(number, spec)
    # Of dtypes the smallest model tells what the others do, in the pass that has most phases.
    found = [(report.kind, report.spec) for report in wanted.take()]
    assert sorted(found, key=str) == sorted([*(("kernels", spec) for spec in cells[:3]), ("precision", train)], key=str)
    for number, spec in enumerate(cells):
        wanted.ended_well(number, spec)
    assert wanted.take() == ()


def test_a_resumed_session_makes_the_reports_that_were_asked_for(tmp_path: Path, bench: Bench) -> None:
    bench.add([(small_spec(), 1), (small_spec(context_length=16), 1), (small_spec(), 2)], "a command", ("kernels",))
    bench.queue.skip([1], "so that two are left")
    bench.work()
    bench.close()
    ends = [type(each) for each in LogReader(bench.log_path) if isinstance(each, CellFinished | ReportStarted)]
    assert ends == [CellFinished, CellFinished, ReportStarted]
    assert [report.spec for report in load(bench.log_path).reports.values()] == [small_spec()]
    cut = tmp_path / "cut.jsonl"  # as if it had been killed before the report began
    lines = bench.log_path.read_text().splitlines(keepends=True)
    cut.write_text("".join(line for line in lines if '"Report' not in line and '"SessionEnded' not in line))
    assert resume(cut)[0] == ()
    assert [(each.kind, each.spec, each.status) for each in load(cut).reports.values()] == [
        ("kernels", small_spec(), "ok")
    ]


def test_a_stop_takes_the_reports_back(running: Running, bench: Bench) -> None:
    bench.add([(small_spec(), 1), (endless_spec(), 1)], "a command", ("kernels",))
    running.on_a_thread(bench.work)
    running.watch.until(lambda state: state.cells and state.cells[0].is_over)
    bench.cancel()
    running.finish()
    assert not running.watch.of(ReportStarted)


FULL = """
import torch
from torch import nn

class Full(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)

    def forward(self, tokens):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. Process 4242 has HELD memory in use. Including "
            "non-PyTorch memory, this process has 1.75 GiB memory in use."
        )
"""


@pytest.mark.parametrize(("held", "larger"), [("6.00 GiB", "oom"), ("1.00 MiB", "skipped")])
def test_a_cell_for_which_others_left_no_room_says_nothing_of_larger_ones(
    held: str, larger: str, bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "taken.py").write_text(FULL.replace("HELD", held))
    fields = {"model": "taken:Full", "model_path": (str(tmp_path),), "warmup_steps": 0}
    bench.run([small_spec(**fields, batch_size=size) for size in (2, 4)], "a command")
    cells = load(bench.log_path).cells
    assert [cell.status for cell in cells.values()] == ["oom", larger]
    ended = cells[0].finished
    assert (ended.error or "").startswith("process 4242 held ")


def test_an_explanation_is_of_the_cell_that_is_asked_about(start: Start) -> None:
    specs = [small_spec(context_length=context, warmup_steps=0, measure_steps=1) for context in (1 << 20, 1 << 19)]
    running = start(skip_after_oom=False, check_fit=False)
    running.run(*specs)
    tried = running.bench
    tried.close()
    again = start(session=tried.session).bench
    again.resume()
    first = load(tried.log_path).cells[0]
    again.ask_report("oom", first.spec, cell=0)
    again.work()
    again.close()
    content = next(reversed(load(tried.log_path).reports.values())).content
    assert content.request_bytes == first.finished.failed_allocation_bytes
    assert content.request_bytes


def test_what_has_no_room_on_the_host_by_prediction_is_not_tried_but_explained_and_no_report_is_made_of_it(
    bench: Bench,
) -> None:
    spec = small_spec(context_length=1 << 20)
    bench.ask_report("kernels", spec)
    bench.add([(spec, 1)], "a command", ("precision",))
    bench.work()
    state = load(bench.log_path)
    assert state.cells[0].status == "oom"
    assert "by prediction it needs" in state.cells[0].finished.error
    assert not logged(bench, CellStarted)
    found = [(report.kind, report.cell, report.status) for report in state.reports.values()]
    assert found == [("kernels", None, "oom"), ("oom", 0, "ok")]
    assert "not tried" in state.reports[0].error
    assert state.prediction_of(spec) is not None


def test_a_trace_that_cannot_be_saved_costs_the_report_nothing_else(bench: Bench) -> None:
    bench.log_path.with_suffix(FILES_SUFFIX).write_text("in the way")
    bench.ask_report("kernels", small_spec())
    bench.work()
    (report,) = load(bench.log_path).reports.values()
    assert isinstance(report.content, KernelReport), report.error
    assert report.content.trace is None
    assert "trace could not be saved" in report.content.note


def test_a_trace_is_a_file_of_its_session_that_is_deleted_with_it(bench: Bench) -> None:
    bench.ask_report("kernels", small_spec())
    bench.work()
    bench.close()
    folder = bench.log_path.with_suffix(FILES_SUFFIX)
    assert list(folder.iterdir())
    delete(bench.log_path)
    assert not folder.exists()


def test_predictions_of_the_sessions_cells_are_in_its_log(bench: Bench, watch: Watch) -> None:
    spec, other = small_spec(), small_spec(context_length=16)
    bench.predict([spec, other])
    watch.until(lambda state: len(state.predictions) == 2)
    bench.run([spec], "a command")
    state = load(bench.log_path)
    assert state.prediction_of(spec) is not None
    assert state.prediction_of(other) is None


def _children() -> list[int]:
    """The processes that work for this one, youngest last: children of the fork server."""
    import psutil

    found = [p for p in psutil.Process().children(recursive=True) if not p.children()]
    return [p.pid for p in sorted(found, key=lambda p: p.create_time())]
