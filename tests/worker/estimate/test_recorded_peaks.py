"""Predicted peaks of the course's model against memory snapshots and peaks that others took on a GPU."""

from pathlib import Path
from typing import Any

import pytest

from cs336_tui.analysis.published import published
from cs336_tui.session.recordings import safe_pickle
from cs336_tui.worker.estimate.predict import predict
from tests.samples import a_spec, sized

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT.parent / "shared" / "recordings"
WORKSPACE = 8_519_680
SMALL_WORKSPACE = (8, 0)
"""A compute capability with cuBLAS workspaces of that size, as the snapshots hold."""

COURSE = {"model": "tests.worker.estimate.course_like:CourseLike", "model_path": (str(ROOT),)}
LOSS = "tests.worker.estimate.course_like:cross_entropy"
TRAINING = {"pass_": "train-step", "optimizer": "adamw-for-loop", "loss": LOSS}


def recorded(name: str) -> tuple[int, int]:
    """Peak bytes of the allocator while it was recorded, and the number of cuBLAS's workspaces in them."""
    found = safe_pickle.load((RECORDINGS / f"medium-256-{name}.memory-snapshot.pickle").read_bytes())
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    at_end = [block["size"] for block in blocks if block["state"].startswith("active")]
    (trace,) = [trace for trace in found["device_traces"] if trace]
    signs = {"alloc": 1, "free_completed": -1}
    totals = [0]
    for event in trace:
        totals.append(totals[-1] + signs.get(event["action"], 0) * event["size"])
    return sum(at_end) - totals[-1] + max(totals), at_end.count(WORKSPACE)


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings of real GPUs are not here")
@pytest.mark.parametrize(
    ("name", "more", "gigabytes"),
    [("inference", {"pass_": "inference"}, 1.796), ("training", TRAINING, 9.112)],
)
def test_the_courses_model_is_predicted_within_1_5_percent(
    name: str, more: dict[str, Any], gigabytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    spec = a_spec(**sized("medium", "2025"), context_length=256, **COURSE, **more)
    peak, workspaces = recorded(name)
    assert peak == pytest.approx(gigabytes * 1e9, rel=0.0005)
    predicted = predict(spec, capability=SMALL_WORKSPACE)
    assert predicted.peak_bytes == pytest.approx(peak, rel=0.015)
    assert (predicted.workspaces, predicted.workspace_bytes) == (workspaces, WORKSPACE)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_published_peaks_of_the_courses_model_are_predicted(precision: str) -> None:
    """The forward on an A800. The reference model needs less, by what its softmax and SiLU do not keep."""
    choices: dict[str, Any] = {
        **sized("xl", "2026"), "context_length": 512, "batch_size": 4, "pass_": "forward", "precision": precision,
        "device": "cuda:0",
    }  # fmt: skip
    cell = ("A800 80GB", "xl", 512, "forward", precision)
    (there,) = (
        row.peak_bytes
        for row in published()
        if row.peak and (row.device, row.size, row.context, row.pass_, row.precision) == cell
    )
    predicted = predict(a_spec(**choices, **COURSE), capability=SMALL_WORKSPACE).peak_bytes
    assert predicted == pytest.approx(there, rel=0.001)
    if precision == "fp32":
        exponentials, sigmoids = 4 * 32 * 512 * 512 * 4, 4 * 512 * 10240 * 4
        ours = predict(a_spec(**choices), capability=SMALL_WORKSPACE).peak_bytes
        assert predicted - ours == pytest.approx(32 * (exponentials + sigmoids), rel=0.01)
