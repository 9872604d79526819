"""Predicted peaks against memory snapshots that others took of the course's model on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cs336_tui.session.recordings import safe_pickle
from cs336_tui.worker.estimate.predict import predict
from tests.samples import a_spec, sized

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT.parent / "shared" / "recordings"
WORKSPACE = 8_519_680
SMALL_WORKSPACE = (8, 0)
"""A compute capability with cuBLAS workspaces of that size, as the snapshots hold."""

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings of real GPUs are not here")


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


@pytest.mark.parametrize(
    ("name", "more", "gigabytes"),
    [
        ("inference", {"pass_": "inference"}, 1.796),
        (
            "training",
            {
                "pass_": "train-step",
                "optimizer": "adamw-for-loop",
                "loss": "tests.worker.estimate.course_like:cross_entropy",
            },
            9.112,
        ),
    ],
)
def test_the_courses_model_is_predicted_within_1_5_percent(
    name: str, more: dict[str, Any], gigabytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    spec = a_spec(
        **sized("medium", "2025"),
        context_length=256,
        model="tests.worker.estimate.course_like:CourseLike",
        model_path=(str(ROOT),),
        **more,
    )
    peak, workspaces = recorded(name)
    assert peak == pytest.approx(gigabytes * 1e9, rel=0.0005)
    predicted = predict(spec, capability=SMALL_WORKSPACE)
    assert predicted.peak_bytes == pytest.approx(peak, rel=0.015)
    assert (predicted.workspaces, predicted.workspace_bytes) == (workspaces, WORKSPACE)
