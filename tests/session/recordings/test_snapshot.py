"""Memory snapshots as reports: real ones held against their own segments and events, and small ones made by hand."""

import gzip
import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cs336_tui.analysis.memory import Timeline, activation_peak
from cs336_tui.events.prediction import ALL_CATEGORIES
from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.subjects.memory import memory_document, memory_tables
from cs336_tui.export.subjects.memory_peaks import CellPeaks, peaks_table
from cs336_tui.session.recordings import recording, safe_pickle, snapshot
from cs336_tui.session.recordings.recording import Opening, OpeningCancelled
from tests.session.recordings import recordings
from tests.session.recordings.recordings import cells_if_any, cells_of, refusal
from tests.session.recordings.test_snapshot_blocks import BASE, MIB, a_segment, an_event

TRAINING, INFERENCE = "medium-256-training", "medium-256-inference"


def real_path(name: str) -> Path:
    return recordings.recording(f"{name}.memory-snapshot.pickle")


def content_of(name: str) -> Any:
    return pickle.loads(real_path(name).read_bytes())


def reports_of(path: Path, opening: Opening | None = None) -> list[MemoryReport]:
    found = [cell.report for cell in cells_of(path, opening)]
    assert all(isinstance(report, MemoryReport) for report in found)
    return found  # type: ignore[return-value]


def report_of(path: Path, opening: Opening | None = None) -> MemoryReport:
    (report,) = reports_of(path, opening)
    return report


def made(tmp_path: Path, *traces: list[dict[str, Any]], segments: Any = (), **more: Any) -> Path:
    path = tmp_path / "made.pickle"
    path.write_bytes(pickle.dumps({"segments": list(segments), "device_traces": list(traces)} | more))
    return path


@pytest.mark.parametrize("name", [TRAINING, INFERENCE])
def test_live_bytes_are_those_of_the_trace_end_as_the_segments_and_begin_with_what_lived_before(name: str) -> None:
    content, report = content_of(name), report_of(real_path(name))
    (trace,) = content["device_traces"]
    at_end = {b["address"]: b["size"] for s in content["segments"] for b in s["blocks"] if b["state"] != "inactive"}
    born: set[int] = set()
    freed_of_before = 0
    for event in trace:
        if event["action"] == "alloc":
            born.add(event["addr"])
        elif event["action"] == "free_requested" and event["addr"] not in born:
            freed_of_before += event["size"]
        elif event["action"] == "free_requested":
            born.remove(event["addr"])
    kept_of_before = sum(size for address, size in at_end.items() if address not in born)
    live = Timeline(report).live_total
    assert live[-1] == sum(at_end.values()) == sum(segment["allocated_size"] for segment in content["segments"])
    # A rest in a block from before shows in its segment alone: less than 1 MiB, of blocks of more than 1 MiB.
    assert 0 <= live[0] - kept_of_before - freed_of_before < 6 * MIB
    signs = {"alloc": 1, "free_completed": -1}
    changes = [signs[event["action"]] * event["size"] for event in trace if event["action"] in signs]
    requested = list(accumulate(changes))
    assert report.events == len(changes) + 1
    assert report.peak_bytes == live.max()
    assert report.peak_bytes == pytest.approx(live[-1] - requested[-1] + max(requested), abs=4 * MIB)


def test_the_phases_of_a_real_training_step_are_found() -> None:
    report = report_of(real_path(TRAINING))
    assert [span.phase for span in report.phases] == ["forward", "loss", "backward", "optimizer"]
    optimizer = report.phases[-1]
    (begin, end) = content_of(TRAINING)["external_annotations"]
    (trace,) = content_of(TRAINING)["device_traces"]
    inside = [event["action"] for event in trace if begin["time_us"] <= event["time_us"] <= end["time_us"]]
    assert optimizer.end - optimizer.first == sum(action != "free_completed" for action in inside)


def test_stacks_of_python_alone_tell_the_same_phases_and_uses(tmp_path: Path) -> None:
    """As recorded with ``stacks="python"``, where autograd's own thread has no frames."""
    content = content_of(TRAINING)
    for event in content["device_traces"][0]:
        event["frames"] = [frame for frame in event["frames"] if frame["filename"].endswith(".py")]
    path = tmp_path / "python.pickle"
    path.write_bytes(pickle.dumps(content | {"external_annotations": []}))
    alone, whole = report_of(path), report_of(real_path(TRAINING))
    assert alone.phases == whole.phases
    assert alone.categories == whole.categories


def test_what_a_real_step_holds_memory_for_is_told_where_it_can_be() -> None:
    """Gradients and the optimizer's two moments are as large as the parameters, whose number is known."""
    report = report_of(real_path(TRAINING))
    timeline = Timeline(report)
    at_end = timeline.at(report.events - 1).by_category
    parameters = 423_183_360 * 4
    assert at_end["gradients"] == pytest.approx(parameters, rel=0.01)
    assert at_end["optimizer_state"] == pytest.approx(2 * parameters, rel=0.01)
    assert at_end["unknown"] == pytest.approx(parameters, rel=0.02)
    assert at_end["activations"] == 41_943_040 + 512  # variables of the script still hold logits and loss
    assert at_end["temporary"] == 0
    assert set(timeline.categories) == {"gradients", "optimizer_state", "activations", "temporary", "unknown"}


def test_a_place_is_an_operation_and_the_users_own_innermost_line() -> None:
    report = report_of(real_path(TRAINING))
    sites = {(site.op, site.frame, site.phase, site.backward) for site in report.sites}
    assert ("where", "model.py:430 scaled_dot_product_attention", "forward", False) in sites
    assert ("exp", "nn_utils.py:13 log_softmax", "loss", False) in sites
    assert ("bmm", "", "backward", True) in sites
    assert ("sqrt", "optimizer.py:80 step", "optimizer", False) in sites
    assert not [frame for _, frame, _, _ in sites if "module.py" in frame or "einops" in frame]


# Made by hand.

FORWARD = [{"name": "_call_impl", "filename": "/x/site-packages/torch/nn/modules/module.py", "line": 1}]
BACKWARD = [{"name": "backward", "filename": "/x/site-packages/torch/_tensor.py", "line": 1}]
STEP = [{"name": "step", "filename": "/x/site-packages/torch/optim/adamw.py", "line": 1}]
STATE = [{"name": "_init_group", "filename": "/x/site-packages/torch/optim/adamw.py", "line": 1}]
ZERO_GRAD = [{"name": "zero_grad", "filename": "/x/site-packages/torch/optim/optimizer.py", "line": 1}]
USER = [{"name": "main", "filename": "/home/me/train.py", "line": 7}]
LIVE = (512, "active_allocated")
FREE = (512, "inactive")


def categories(report: MemoryReport) -> list[str]:
    return [ALL_CATEGORIES[place] for place in report.categories]


def test_the_life_of_a_block_tells_its_use(tmp_path: Path) -> None:
    trace = [
        an_event("alloc", 0, 512, frames=[*FORWARD, *USER]),  # freed in backward
        an_event("alloc", 512, 512, frames=[*FORWARD, *USER]),  # freed at once
        an_event("free_requested", 512, 512, frames=[*FORWARD, *USER]),
        an_event("alloc", 1024, 512, frames=[*BACKWARD, *USER]),  # kept
        an_event("free_requested", 0, 512, frames=[]),  # autograd's own thread has no frames of Python
        an_event("alloc", 1536, 512, frames=[*STATE, *STEP, *USER]),
        an_event("alloc", 2048, 512, frames=[*STEP, *USER]),  # freed at once
        an_event("free_requested", 2048, 512, frames=[*STEP, *USER]),
        an_event("free_requested", 1024, 512, frames=[*ZERO_GRAD, *USER]),
        an_event("free_requested", 2560, 512, frames=[*ZERO_GRAD, *USER]),  # a gradient from before
    ]
    segment = a_segment(0, 2 * MIB, FREE, FREE, FREE, LIVE, FREE, FREE, LIVE)
    report = report_of(made(tmp_path, trace, segments=[segment]))
    assert [(span.phase, span.first, span.end) for span in report.phases] == [
        ("forward", 1, 4), ("backward", 4, 6), ("optimizer", 6, 9), ("zero_grad", 9, 11)
    ]  # fmt: skip
    found = dict(zip(zip(report.born, report.died, strict=True), categories(report), strict=True))
    assert found == {
        (0, 10): "gradients", (0, -1): "unknown", (1, 5): "activations", (2, 3): "temporary", (4, 9): "gradients",
        (6, -1): "optimizer_state", (7, 8): "temporary",
    }  # fmt: skip
    assert report.forward_end_bytes == 3 * 512
    report = report_of(made(tmp_path, trace[:1], segments=[a_segment(0, 2 * MIB, LIVE)]))
    assert categories(report) == ["unknown"], "forward without a backward has no activations"


def test_a_forward_alone_does_not_tell_its_activations(tmp_path: Path) -> None:
    kept = [an_event("alloc", place, 512, frames=FORWARD) for place in (0, 512)]
    alone = report_of(made(tmp_path, kept, segments=[a_segment(0, 2 * MIB, LIVE, LIVE)]))
    assert [span.phase for span in alone.phases] == ["forward"]
    assert activation_peak(alone) is None
    phases, *_ = memory_tables(alone)
    assert phases.records[0]["activations_bytes"] is None
    assert any(note.startswith("activations are not known: no backward") for note in phases.footnotes)
    followed = [*kept, an_event("alloc", 1024, 512, frames=BACKWARD)]
    path = made(tmp_path, followed, segments=[a_segment(0, 2 * MIB, LIVE, LIVE, LIVE)])
    assert activation_peak(report_of(path)) == 1024


def test_without_stacks_there_is_one_phase_and_nothing_is_guessed(tmp_path: Path) -> None:
    trace = [an_event("alloc", 0, 512), an_event("alloc", 512, 512), an_event("free_requested", 0, 512)]
    report = report_of(made(tmp_path, trace, segments=[a_segment(0, 2 * MIB, FREE, LIVE)]))
    assert [(span.phase, span.first, span.end, span.peak_bytes) for span in report.phases] == [
        ("recording", 1, 4, 1024)
    ]
    assert categories(report) == ["unknown", "unknown"]
    assert "no stacks were recorded" in report.note


@pytest.mark.parametrize(("more", "phase"), [({}, "optimizer"), ({"forward": ("optim*step",)}, "forward")])
def test_annotations_tell_phases_and_ranges(tmp_path: Path, more: dict[str, tuple[str, ...]], phase: str) -> None:
    names = [("START", "Optimizer.step#SGD.step", 10), ("START", "inner", 20), ("END", "inner", 30)]
    annotations = [{"stage": stage, "name": name, "device": 0, "time_us": at} for stage, name, at in names]
    trace = [an_event("alloc", place * 512, 512, time_us=at) for place, at in enumerate((5, 15, 25, 35))]
    path = made(tmp_path, trace, segments=[a_segment(0, 2 * MIB, *[LIVE] * 4)], external_annotations=annotations)
    report = report_of(path, Opening(phases=more))
    assert [(span.phase, span.first) for span in report.phases] == [("recording", 1), (phase, 2)]
    assert [report.sites[place].range for place in report.site_of] == ["", "", "inner", ""]


def test_stacks_of_allocations_alone_do_not_make_frees_a_backward(tmp_path: Path) -> None:
    """As recorded with ``context="alloc"``."""
    trace = [
        an_event("alloc", 0, 512, frames=[*FORWARD, *USER]),
        an_event("free_requested", 0, 512),
        an_event("alloc", 0, 512, frames=[]),
        an_event("free_requested", 0, 512),
    ]
    report = report_of(made(tmp_path, trace))
    assert [(span.phase, span.first) for span in report.phases] == [("forward", 1), ("backward", 3)]


def test_metadata_of_the_user_is_a_phase_or_a_range(tmp_path: Path) -> None:
    trace = [
        an_event("alloc", 512 * place, 512, user_metadata=text) for place, text in enumerate(("forward", "mlp", ""))
    ]
    report = report_of(made(tmp_path, trace, segments=[a_segment(0, 2 * MIB, *[LIVE] * 3)]))
    assert [(span.phase, span.first) for span in report.phases] == [("forward", 1)]
    assert [report.sites[place].range for place in report.site_of] == ["", "mlp", ""]


def test_segments_alone_are_a_moment_and_each_device_is_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "segments.pickle"
    path.write_bytes(pickle.dumps([a_segment(0, 2 * MIB, LIVE, FREE, LIVE)]))
    report = report_of(path)
    assert (report.events, report.peak_bytes, report.phases) == (1, 1024, ())
    segment = a_segment(0, 2 * MIB, LIVE)
    path = made(tmp_path, [], [an_event("alloc", 0, 512)], segments=[segment | {"device": 1}, segment | {"device": 3}])
    found = reports_of(path)
    assert [(report.spec.device, report.events) for report in found] == [("cuda:1", 2), ("cuda:3", 1)]
    assert "the moment of the snapshot" in found[1].note


def test_a_compressed_snapshot_opens(tmp_path: Path) -> None:
    plain = made(tmp_path, [an_event("alloc", 0, 512)])
    packed = tmp_path / "made.pickle.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert report_of(packed).bytes == report_of(plain).bytes == (512,)


def test_more_bytes_than_any_memory_a_bomb_and_too_large_a_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path, [an_event("alloc", at * 2**50, 2**50) for at in range(9)])
    assert "larger than any memory" in refusal(path)
    with monkeypatch.context() as patch:
        patch.setattr(safe_pickle, "MOST_BYTES", path.stat().st_size - 1)
        assert "too large" in refusal(path)
    monkeypatch.setattr(recording, "INFLATED", 1 << 16)
    path.write_bytes(gzip.compress(b"\x80\x04" + b"N" * 2_000_000 + b"."))
    assert "MB once decompressed" in refusal(path)


ALLOC = {"action": "alloc", "addr": BASE, "size": [1]}


@pytest.mark.parametrize(
    "value",
    [
        *([], 7, {}, print, {"model": {"weight": [1.0, 2.0]}}),
        *({"segments": segments} for segments in (3, [3], [{"address": 1, "total_size": 2, "blocks": 3}])),
        {"segments": [{}], "device_traces": []},
        *({"segments": [], "device_traces": traces} for traces in ([3], [], [[7]], [[]] * 5000, [[ALLOC]])),
    ],
)
def test_another_pickle_is_refused_in_one_line(tmp_path: Path, value: object) -> None:
    path = tmp_path / "other.pickle"
    path.write_bytes(pickle.dumps(value))
    assert refusal(path)


def test_odd_values_of_frames_and_annotations_do_not_matter(tmp_path: Path) -> None:
    frames: list[Any] = [None, 3, {}, {"name": 1, "filename": None}, {"name": "\udc80\x1b", "filename": "/a/b.py"}]
    trace = [an_event("alloc", 0, 512, frames=frames, time_us="x"), {"action": ["alloc"]}, {}]
    report = report_of(made(tmp_path, trace, external_annotations=[3, {"name": 4}, {"name": "x", "time_us": None}]))
    assert report.sites[report.site_of[0]].frame == "b.py ?\x1b"


odd = (
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats()
    | st.text(max_size=5)
    | st.just([])
    | st.just({})
)


def fields(**usual: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A dict with these fields; now and then one is missing or odd."""
    whole = st.fixed_dictionaries(usual)
    some = st.fixed_dictionaries({}, optional={name: each | odd for name, each in usual.items()})
    return st.integers(0, 19).flatmap(lambda chance: whole if chance else some)


sizes, addresses = st.integers(0, 2**30), st.integers(0, 2**40)
frames = st.lists(fields(name=st.sampled_from(["f", "backward", "_call_impl"]), filename=st.text(), line=sizes) | odd)
actions = st.sampled_from(
    ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"]
)
snapshots = fields(
    segments=st.lists(
        fields(
            device=st.integers(0, 3), address=addresses, total_size=sizes, is_expandable=st.booleans(),
            blocks=st.lists(fields(size=sizes, state=st.just("active_allocated"), address=addresses, frames=frames)),
        )
    ),
    device_traces=st.lists(
        st.lists(fields(action=actions, addr=addresses, size=sizes, device_free=sizes, frames=frames, time_us=sizes))
    ),
    allocator_settings=fields(
        roundup_power2_divisions=st.dictionaries(st.text(max_size=3), sizes), max_split_size=sizes
    ),
    external_annotations=st.lists(fields(stage=st.sampled_from(["START", "END"]), name=st.text(), time_us=addresses)),
)  # fmt: skip


@given(snapshots)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_plain_snapshot_opens_or_is_refused_in_one_line(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "any.pickle"
    path.write_bytes(pickle.dumps(content))
    for cell in cells_if_any(path):
        report = cell.report
        live = Timeline(report).live_total
        assert live.min() >= 0
        assert (int(live.max()), len(live)) == (report.peak_bytes, report.events)
        msgspec.json.encode(report)


def test_a_cut_snapshot_is_refused(tmp_path: Path) -> None:
    whole = real_path(INFERENCE).read_bytes()
    path = tmp_path / "cut.pickle"
    for share in (0.001, 0.5, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert "damaged" in refusal(path)


def test_reading_can_be_cancelled_while_blocks_are_followed() -> None:
    path = real_path(TRAINING)

    def cancel(done: int, total: int) -> None:
        if done == total:
            raise OpeningCancelled

    with pytest.raises(OpeningCancelled):
        snapshot.read(path, Opening(cancel), path.name)


def test_tables_of_a_recording_say_so_and_leave_out_what_is_not_known() -> None:
    report = report_of(real_path(TRAINING))
    peaks = peaks_table([CellPeaks.recorded(report)])
    assert [column.key for column in peaks.columns] == [
        "recording", "device", "forward_bytes", "backward_bytes", "optimizer_bytes", "step_bytes", "activations_bytes"
    ]  # fmt: skip
    phases, held_for, largest = memory_tables(report)
    told = [note for table in (peaks, phases, held_for, largest) for note in table.footnotes]
    assert not [note for note in told if "warm-up" in note]
    assert {row[0] for row in held_for.rows} == {
        "gradients", "optimizer state", "activations", "temporary", "unknown", "all"
    }  # fmt: skip
    assert "before the recording" in {cell for row in largest.rows for cell in row}
    document = memory_document(report)
    assert (document["peak_bytes"], document["peak_phase"]) == (report.peak_bytes, "loss")
    assert sum(document["by_category"].values()) == report.peak_bytes
