"""The attention benchmark as a user types it."""

from __future__ import annotations

from pathlib import Path

from tests.commands import call, call_bench

CELLS = (
    "--workload attention --head-dim 8,16 --context 32 --batch 2 --attention naive,sdpa --steps 3 --warmup 1".split()
)


def test_attention_is_benchmarked_and_its_tables_are_exported(tmp_path: Path) -> None:
    done = call_bench(*CELLS, "--device", "cpu", "--threads", "1", "--no-causal", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = call("export", "last", "--session-dir", str(tmp_path / "sessions"), "--layout", "attention", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    times, _, memory = shown.stdout.partition("Attention alone, memory before backward")
    assert "| naive: forward (ms) | naive: backward (ms) | sdpa: forward (ms) | sdpa: backward (ms) |" in times
    rows = [line.strip("| ").split("|") for line in memory.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip() for row in rows] == ["8", "16"]
    for row in rows:
        _, length, naive, naive_accounted, fused, fused_accounted = (text.strip() for text in row)
        assert (length, naive, fused) == ("32", naive_accounted, fused_accounted)
