"""Cells of several ranks with real processes: what they train, which rank is blamed, that nothing is left."""

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from cs336_tui.config.processes import lives
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.events.events import ChildOutput, Notice
from cs336_tui.runner import ranks
from cs336_tui.worker.workload.building import build
from tests.runner.running import Running
from tests.watching import PATIENCE_S, endless_spec, small_spec
from tests.worker.measure.trace_overlap import times_in_trace

CODE = Path(__file__).parent / "ranks"
RIGHT = ("none", "ddp", "ddp:1KB", "zero1", "fsdp2", "adapters:get_ddp", "adapters:get_ddp_individual_parameters")
WRONG = {
    "adapters:Sums": r"rank \d: .* gradient of .* by [13] of its norm.* 21 of 21 .* all are [24] times as large",
    "adapters:Forgets": r"rank \d: .* gradient of layers\.0\.attention_norm\.weight .* of its norm.* 1 of 21",
    "adapters:StartsUnequal": r"rank [123]: .* before the first optimizer step .* differs from rank 0's by .* its norm",
}
OWN_SYNC = ("forward", "loss", "backward", "gradient sync", "optimizer")


def shared_spec(parallel: str, **changes: object) -> CellSpec:
    given = {"ranks": 2, "num_layers": 2, "pass_": "train-step", "model_path": (str(CODE),)}
    return small_spec(**given | changes, parallel=parallel)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("ranks"))
    yield made
    made.bench.close()


def children_of_cells() -> list[psutil.Process]:
    """The fork server's processes."""
    return [each for each in psutil.Process().children(recursive=True) if each.ppid() != os.getpid()]


def test_every_right_way_trains_what_one_process_does(runner: Running):
    cells = dict(zip(RIGHT, runner.run(*map(shared_spec, RIGHT)), strict=True))
    assert {way: cell.finished.error for way, cell in cells.items() if cell.status != "ok"} == {}
    for cell in cells.values():
        slowest = [max(times) for times in zip(*cell.times.rank_s, strict=True)]
        assert cell.step_times_s == slowest
        assert len(slowest) == 3
        assert len(cell.finished.rank_peak_bytes) == 2
    assert tuple(cells["adapters:get_ddp"].phase_times_s)[-5:] == OWN_SYNC
    assert "gradient sync" in cells["adapters:get_ddp_individual_parameters"].phase_times_s
    assert "gradient sync" not in cells["ddp"].phase_times_s
    assert cells["ddp"].times.rank_sync_s == []
    own = cells["adapters:get_ddp"].times
    assert [len(syncs_s) for syncs_s in own.rank_sync_s] == [3, 3]
    for syncs_s, steps_s in zip(own.rank_sync_s, own.rank_s, strict=True):
        assert all(0 < sync_s < step_s for sync_s, step_s in zip(syncs_s, steps_s, strict=True))


def test_every_form_of_ones_own_trains_what_one_process_does(runner: Running):
    toy = {"model": "adapters:Toy"}
    fp32, bf16, buckets, sharded, *others = runner.run(
        shared_spec("adapters:get_fsdp"),
        shared_spec("adapters:get_fsdp_in_bf16", precision="bf16-mixed"),
        shared_spec("adapters:get_ddp_bucketed:1KB", accumulate=2, batch_size=2),
        shared_spec("ddp", optimizer="adapters:get_sharded_optimizer"),
        shared_spec("adapters:Zero3"),
        shared_spec("adapters:AsUnderTorchrun", optimizer="adapters:BareOptimizer", **toy),
        shared_spec("adapters:get_ddp_bucketed:1KB", **toy),
    )
    cells = (fp32, bf16, buckets, sharded)
    assert [cell.finished.error for cell in (*cells, *others) if cell.status != "ok"] == []
    assert len({cell.num_params for cell in cells}) == 1
    assert {cell.in_force.parameter_dtype for cell in cells} == {"float32"}
    assert all("gradient sync" in cell.phase_times_s for cell in (fp32, bf16, buckets))


def test_wrong_ones_of_other_forms_are_named_with_their_rank_and_place(runner: Running):
    sends = r"^rank \d: ranks send one another arrays of unequal sizes in finish_gradient_sync\w+ \(adapters.py:\d+\);"
    wrong = {
        shared_spec("ddp", model="adapters:HasUnused"): "a step gives parameter unused no gradient, and DDP waits",
        shared_spec("adapters:get_fsdp_that_sums"): "by 1 of its norm",
        shared_spec("ddp", optimizer="adapters:Keeps"): "after one step parameter token_embedding.weight differs",
        shared_spec("ddp", optimizer="adapters:LeavesOut"): "left parameter token_embedding.weight as it was",
        shared_spec("ddp", optimizer="adapters:MovesNothing"): "left all parameters as they were",
        shared_spec("adapters:Breaks"): r"^rank 1: KeyError: 'bucket 7' \(adapters.py:\d+ in finish_grad",
        shared_spec("adapters:get_ddp_bucketed"): "write adapters:get_ddp_bucketed:25MB",
        shared_spec("fsdp2", model="adapters:Unlike"): r"parameter weight: shape \(65, 64\), on rank 0 shape \(64, ",
        shared_spec("adapters:SendsUnequal"): sends,
    }
    cells = runner.run(*wrong)
    for cell, why in zip(cells, wrong.values(), strict=True):
        assert cell.status == "failed"
        assert re.search(why, cell.finished.error)
    printed = "".join(event.text for event in runner.watch.of(ChildOutput) if event.cell == cells[5].cell)
    assert "[rank 1] KeyError: 'bucket 7'" in printed


def test_what_drops_is_compared_without_and_time_ends_all_ranks_alike(runner: Running):
    dims = {"precision": "fp16-mixed", "measure_steps": 1000, "steps_for": 0.1}
    cell, *wrong = runner.run(
        shared_spec("zero1", dropout=0.1, **dims),
        shared_spec("adapters:Sums", dropout=0.1),
        shared_spec("adapters:Sums", model="adapters:Drops"),
    )
    assert (cell.status, sum(cell.step_times_s) >= 0.1) == ("ok", True)
    assert len({len(times) for times in cell.times.rank_s}) == 1
    assert all("differs from that of one process on the whole batch by 1 " in each.finished.error for each in wrong)
    assert not [event for event in runner.watch.of(Notice) if "not compared" in event.text]


def test_timer_do_bench_has_of_each_repetition_the_slowest_rank(runner: Running):
    before = len(runner.watch.of(Notice))
    by_time = {"timer": "do_bench", "warmup_for": 0.01, "steps_for": 0.1, "warmup_steps": 99, "measure_steps": 99}
    timed, counted = runner.run(
        shared_spec("ddp", **by_time), shared_spec("ddp", timer="do_bench", warmup_steps=1, measure_steps=4)
    )
    for cell in (timed, counted):
        assert cell.status == "ok"
        assert len(cell.times.rank_s) == 2
        assert cell.step_times_s == [max(step) for step in zip(*cell.times.rank_s, strict=True)]
    assert len(counted.step_times_s) == 4
    notices = [event.text for event in runner.watch.of(Notice)[before:] if "steps ran ahead" in event.text]
    assert len(notices) == 1
    assert f"so {len(timed.warmup_times_s)} warm-up step" in notices[0]
    assert f"{len(timed.step_times_s)} measured step" in notices[0]


def test_what_cannot_be_compared_says_so_once_and_runs(runner: Running):
    for model, why in (("Draws", "the model draws random numbers"), ("HasNoRoomAlone", "one alone has no room")):
        before = len(runner.watch.of(Notice))
        (cell,) = runner.run(shared_spec("ddp", model=f"adapters:{model}"))
        assert cell.status == "ok"
        said = [event.text for event in runner.watch.of(Notice)[before:]]
        assert [why in text for text in said if "not compared" in text] == [True]


def test_a_compiled_step_is_compared_too(runner: Running):
    ways = ("ddp", "adapters:WrongWhenCompiled")
    right, wrong = runner.run(
        *(shared_spec(way, model="adapters:Plain", num_layers=1, compile="default") for way in ways)
    )
    assert (right.status, right.finished.error) == ("ok", None)
    assert right.prepared.graph_breaks == ()  # those of torch's own wrapper are no one's to mend
    assert (wrong.status, wrong.prepared.graphs > 0) == ("failed", True)
    assert "differs from that of one process on the whole batch" in wrong.finished.error


def test_nothing_of_the_comparison_is_alive_when_the_timed_model_is_built(runner: Running):
    ways = ("fsdp2", "ddp", "zero1", "ddp:1MB", "adapters:get_ddp", "adapters:get_fsdp")
    cells = runner.run(*(shared_spec(way, model="adapters:BuiltAlone") for way in ways))
    assert {way: cell.finished.error for way, cell in zip(ways, cells, strict=True) if cell.status != "ok"} == {}


def test_memory_of_each_rank_by_use_round_optimizer_steps(runner: Running):
    ways = ("ddp", "zero1", "fsdp2", "adapters:get_ddp")
    found = {way: runner.memory(shared_spec(way)) for way in ways}
    whole = (
        sum(parameter.numel() for parameter in build(shared_spec("none"), torch.device("cpu")).model.parameters()) * 4
    )
    for way, report in found.items():
        assert {moment.rank for moment in report.moments} == {0, 1}
        moments = {(each.step, each.moment): [] for each in report.moments}
        assert list(moments) == [
            (0, "initialised"),
            *((step, moment) for step in (1, 3) for moment in ("after forward", "before optimizer", "after optimizer")),
        ]
        for each in report.moments:
            moments[each.step, each.moment].append(each)
            assert each.rest_bytes == 0
            assert each.live_bytes <= each.peak_bytes

        def uses(step: int, moment: str, use: str, moments: dict = moments) -> list[int]:
            return [each.by_category[use] for each in moments[step, moment]]

        shares = 2 if way == "fsdp2" else 1
        sharded = 1 if way in ("ddp", "adapters:get_ddp") else 2
        assert uses(0, "initialised", "parameters") == pytest.approx([whole / shares] * 2, rel=0.05)
        assert uses(0, "initialised", "gradients") == uses(1, "before optimizer", "optimizer_state") == [0, 0]
        assert uses(1, "before optimizer", "gradients") == pytest.approx([whole / shares] * 2, rel=0.05)
        buckets = whole if way in ("ddp", "zero1") else 0
        for step, moment in ((0, "initialised"), (3, "after optimizer")):
            assert uses(step, moment, "communication") == pytest.approx([buckets] * 2, abs=100)
        assert uses(3, "after forward", "activations") > uses(3, "before optimizer", "activations") > [0, 0]
        assert sum(uses(3, "after optimizer", "optimizer_state")) == pytest.approx(4 * whole / sharded, rel=0.02)

        if "adapters" not in way:
            predicted = report.prediction.phases
            ends = {"loss": "after forward", "backward": "before optimizer", "optimizer": "after optimizer"}
            for name, moment in ends.items():
                counted = max(sum(each.by_category.values()) for each in moments[3, moment])
                assert predicted[name].end_bytes == pytest.approx(counted, rel=0.01)


GATHERED = [
    ("token_embedding, final_norm, head", "forward"), ("layers.0", "forward"), ("layers.1", "forward"),
    ("layers.1", "backward"), ("layers.0", "backward"),
]  # fmt: skip


def test_kernels_of_each_rank_tell_communication_beside_compute(runner: Running):
    for way, operation in (("ddp", "gloo:all_reduce"), ("fsdp2", "gloo:all_gather"), ("none", "")):
        runner.bench.ask_report("kernels", shared_spec(way))
        runner.bench.work()
        content = list(runner.watch.state.reports.values())[-1].content
        assert [each.rank for each in content.ranks] == [0, 1]
        assert len({each.trace for each in content.ranks}) == 2
        for each in content.ranks:
            assert bool(each.communication_ns) == (way != "none")
            assert operation in each.operations or not operation
            assert times_in_trace(each.trace) == pytest.approx(
                [time_ns / 1e3 for time_ns in (each.communication_ns, each.compute_ns, each.overlapped_ns)], abs=1
            )
            assert 0 < each.compute_ns <= each.span_ns
            assert [(it.module, it.pass_) for it in each.all_gathers] == (GATHERED if way == "fsdp2" else [])
            for it in each.all_gathers:
                assert 0 <= it.alone_ns <= it.end_ns - it.begin_ns
                assert 0 <= it.waited_ns <= max(it.end_ns - it.ready_ns, 0)


def test_a_rank_that_fails_is_named_in_a_report_too_and_one_that_several_do_not_have_is_refused(runner: Running):
    with pytest.raises(SpecError, match="a report of precision is of one rank"):
        runner.bench.ask_report("precision", shared_spec("ddp"))
    runner.bench.trust.name(spec := shared_spec("adapters:RunsOut"))
    runner.bench.ask_report("memory", spec)
    runner.bench.work()
    ended = list(runner.watch.state.reports.values())[-1]
    assert (ended.status, ended.error) == ("oom", "rank 0: no memory for it")


def test_four_ranks_train_what_one_process_does(runner: Running):
    dims = {"ranks": 4, "batch_size": 8, "batch_is": "global", "accumulate": 2}
    cells = runner.run(*(shared_spec(way, **dims) for way in ("zero1", "fsdp2")))
    assert [cell.status for cell in cells] == ["ok", "ok"]
    assert [len(cell.times.rank_s) for cell in cells] == [4, 4]
    assert all("accumulation" in cell.phase_times_s for cell in cells)


@pytest.mark.parametrize("ranks", [2, 4])
def test_wrong_wrappers_fail_before_anything_is_timed(runner: Running, ranks: int):
    cells = dict(zip(WRONG, runner.run(*(shared_spec(way, ranks=ranks) for way in WRONG)), strict=True))
    for way, cell in cells.items():
        assert (cell.status, cell.step_times_s, cell.warmup_times_s) == ("failed", [], [])
        assert re.search(WRONG[way], cell.finished.error)


def test_a_rank_out_of_memory_is_an_out_of_memory_of_the_cell(runner: Running):
    ended, after = runner.run(shared_spec("adapters:RunsOut"), shared_spec("ddp"))
    assert (ended.status, ended.finished.error) == ("oom", "rank 0: no memory for it")
    assert after.status in ("ok", "skipped")


def test_an_error_is_told_before_the_group_is_left_which_may_wait_for_ranks(
    runner: Running, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ranks, "SILENCE_S", 20.0)
    spec = shared_spec("adapters:NeverLeaves")
    (cell,) = runner.run(spec)
    runner.bench.ask_report("memory", spec)
    runner.bench.work()
    turns = runner.turns(spec, shared_spec("none"), rounds=1)
    for ended in (cell.finished, list(runner.watch.state.reports.values())[-1], turns[0].finished):
        assert (ended.status, ended.error.partition(" (")[0]) == ("failed", "rank 1: KeyError: 'bucket 7'")


def test_a_killed_rank_is_named_and_the_next_cell_runs(runner: Running):
    endless = endless_spec(ranks=3, parallel="ddp", pass_="train-step")
    number = len(runner.cells)
    runner.begin(endless, small_spec())
    first = runner.once_measuring(number)
    others = [each for each in children_of_cells() if each.pid != first]
    killed_at = time.monotonic()
    os.kill(max(each.pid for each in others), signal.SIGKILL)
    runner.watch.until(lambda state: state.cells[number].is_over)
    assert time.monotonic() - killed_at < 2.0
    runner.finish()
    cell, after = runner.cells[number:]
    assert cell.status == "killed"
    assert cell.finished.error.startswith("rank 2: the process was ended by SIGKILL")
    assert after.status == "ok"
    assert not any(lives(each.pid) for each in others)


def test_a_rank_that_hangs_is_named_with_what_the_others_wait_in(runner: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks, "SILENCE_S", 4.0)  # long enough to get there on a busy machine
    (cell,) = runner.run(shared_spec("adapters:Hangs", ranks=3))
    assert cell.status == "killed"
    assert cell.finished.error.startswith("rank 2 hangs in forward (adapters.py:")
    assert cell.finished.error.count("waits in finish_gradient_synchronization (adapters.py:") == 2
    assert re.search(r"; silent for \d\.?\d* s$", cell.finished.error)


def test_ranks_that_run_until_their_timeout_do_not_hang(runner: Running):
    runner.bench.timeout_s = 2.0
    try:
        (cell,) = runner.run(endless_spec(ranks=2, parallel="none"))
    finally:
        runner.bench.timeout_s = None
    assert cell.step_times_s
    assert (cell.status, cell.finished.error) == ("killed", "no result within the per-cell timeout of 2 s")


def test_a_stop_leaves_no_rank(runner: Running):
    number = len(runner.cells)
    runner.begin(endless_spec(ranks=2, parallel="ddp", pass_="train-step"))
    runner.once_measuring(number)
    ranks = children_of_cells()
    assert runner.bench.cancel()
    runner.finish()
    assert runner.cells[number].status == "cancelled"
    assert not any(lives(each.pid) for each in ranks)


def test_two_ways_take_turns_on_the_same_ranks(runner: Running):
    a, b, *rest = runner.turns(shared_spec("ddp"), shared_spec("none"), rounds=2)
    assert [cell.status for cell in (a, b, *rest)] == ["ok"] * 4
    for cell in (a, b):
        assert cell.in_turns
        assert cell.pid == a.pid
        assert cell.step_times_s == [max(times) for times in zip(*cell.times.rank_s, strict=True)]
        assert (len(cell.times.rank_s), len(cell.step_times_s)) == (2, 3)


def test_steps_in_turns_that_go_by_time_end_on_every_rank_alike(runner: Running):
    timed = {"steps_for": 0.2, "measure_steps": 10_000}
    a, b = runner.turns(shared_spec("zero1", **timed), shared_spec("fsdp2", **timed), rounds=1)
    assert (a.status, b.status) == ("ok", "ok")
    assert len(a.step_times_s) == len(b.step_times_s)


def test_a_wrong_side_ends_its_round_and_is_named(runner: Running):
    a, b = runner.turns(shared_spec("none"), shared_spec("adapters:Sums"), rounds=1)
    assert (a.status, b.status) == ("failed", "failed")
    assert "B failed, which ended the round" in a.finished.error
    assert "21 of 21" in b.finished.error


def test_a_rank_killed_in_turns_ends_both_sides_and_is_named(runner: Running):
    number = len(runner.cells)
    sides = (endless_spec(ranks=2, parallel=way, pass_="train-step") for way in ("ddp", "none"))
    runner.on_a_thread(runner.turns, *sides, 1)
    first = runner.once_measuring(number)
    os.kill(max(each.pid for each in children_of_cells() if each.pid != first), signal.SIGKILL)
    runner.finish()
    for cell in runner.cells[number:]:
        assert cell.status == "killed"
        assert cell.finished.error.startswith("rank 1: the process was ended by SIGKILL")


def test_cells_of_several_benches_at_once_do_not_clash_and_remove_their_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    several = [Running(tmp_path / f"sessions-{number}") for number in range(4)]
    threads = [each.begin(shared_spec("ddp"), shared_spec("fsdp2")) for each in several]
    for thread in threads:
        thread.join(PATIENCE_S)
    files = [path.name for path in tmp_path.rglob("*") if path.suffix in (".meeting", ".stacks")]
    for each in several:
        each.bench.close()
    ended = [cell.finished.error or cell.status for each in several for cell in each.watch.state.cells.values()]
    assert (ended, files) == (["ok"] * 8, [])
