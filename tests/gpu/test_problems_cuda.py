"""Problems of the handouts on a real CUDA GPU: small variants of presets, and what their exports hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import call

SMALL = "--size small --batch 1 --warmup 2 --steps 5 --device cuda".split()


def parts_of(name: str, folder: Path, *words: str) -> dict[str, dict[str, Any]]:
    """The parts of a problem's export after its preset was run, by their letters."""
    where = ["--session-dir", str(folder)]
    ran = call("bench", "--preset", f"2026/{name}", *SMALL, *words, *where, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    shown = call("export", "last", "--problem", name, "--format", "json", *where, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    parts = json.loads(shown.stdout)["parts"]
    assert not [note for part in parts for note in part["notes"] if "in this session" in note]
    return {part["part"]: part for part in parts}


def test_kernels_of_forward_stand_beside_its_timed_mean(tmp_path: Path) -> None:
    parts = parts_of("nsys_profile", tmp_path, "--context", "128,256")
    (forward,) = parts["a"]["tables"]
    assert {row["activity"] for row in forward["rows"]} == {"kernels"}
    for row in forward["rows"]:
        assert 0 < row["kernel_ns"] <= row["span_ns"]
        assert row["timed_s"] > 0
    attention = parts["e"]["tables"][0]["rows"]
    assert all(row["matmul_ns"] > 0 and row["softmax_ns"] > 0 for row in attention)


def test_peaks_are_the_allocators(tmp_path: Path) -> None:
    parts = parts_of("memory_profiling", tmp_path, "--context", "64,128", "--precision", "fp32,bf16-mixed")
    peaks = next(table for table in parts["b"]["tables"] if "Peak memory by phase" in table["caption"])
    for row in peaks["rows"]:
        assert row["allocator_bytes"] == pytest.approx(row["step_bytes"], rel=0.02)
    assert len(parts["b"]["tables"][0]["rows"]) == 4, "two passes at two contexts"
