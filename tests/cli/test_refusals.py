"""What cannot be is refused in one line, which names it and says what is allowed, before anything runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.commands import DIMS, SMALL, call

D, RUN = " ".join(DIMS), " ".join(SMALL)
TUNE = f"tune {D} --context 8 --batch 4 --device cpu --threads 1"
AB = "ab --a '' --size tiny --threads 1 --b"
OVER = "--over attention=naive,sdpa --over optimizer=adamw,adamw-for-loop --over checkpoint=0,1"
REFUSED = [
    ("bench --size huge", "huge", "tiny, small"),
    ("bench --size tiny --edition 1999", "1999", "2024"),
    ("bench --preset nope", "nope", "quick"),
    (f"bench {D} --num-heads 5", "d model 32", "multiple"),
    (f"bench {D} --d-model 6 --num-heads 2", "odd width 3", "even"),
    ("bench --context 0", "context length 0", "at least 1"),
    ("bench --batch -4", "batch size -4", "at least 1"),
    ("bench --steps 0", "measure steps 0", "at least 1"),
    ("bench --warmup -1", "warmup steps -1", "at least 0"),
    ("bench --pass sideways", "sideways", "forward+backward"),
    ("bench --precision fp12", "fp12", "bf16-mixed"),
    ("bench --precision tf32 --device cpu", "tf32", "fp32"),
    ("bench --device cuda:77", "cuda:77", "cpu"),
    ("bench --device tpu", "tpu", "cuda:N"),
    ("bench --context 128,x", "128,x", "whole numbers"),
    ("bench --d-model 64", "--d-ff", "missing"),
    ("bench -o no/such/folder/out.md", "no/such/folder", "folder"),
    ("bench --session-dir /dev/null/sessions", "/dev/null/sessions", "--session-dir"),
    ("bench --warmup auto,5", "auto stands alone"),
    ("bench --steps auto:3", "expected auto, or auto:MAX with the most steps, at least 20"),
    ("bench --interval 1%", "--interval is only used with --steps auto"),
    (f"bench {RUN} --in-process --timeout 1", "--timeout cannot end a cell that runs --in-process"),
    (f"bench {RUN} --in-process --ranks 2 --parallel ddp", "--ranks need processes of their own"),
    (f"bench {RUN} --launcher slurm --slurm account=", "expected KEY or KEY=VALUE"),
    (f"bench {RUN} --partition p", "--partition is for jobs; add --launcher slurm"),
    (f"bench {RUN} --detach", "--detach is for jobs"),
    (f"bench {RUN} --as array", "--as is for jobs"),
    (f"bench {RUN} --launcher local --slurm a=b", "--partition and --slurm are for --launcher slurm"),
    (f"bench {RUN} --launcher local --in-process", "--in-process"),
    ("watch last --format json --theme cs336-dark", "--theme is of the app, which does not open here; leave it out"),
    ("watch last --format json --low-bandwidth", "--low-bandwidth is of the app, which does not open here"),
    (f"{AB} '--precision bf16,fp32'", "--b", "comes to 2 cells", "precisions bf16,fp32"),
    (f"{AB} '--precision fp12'", "--b", "fp12", "bf16-mixed"),
    (f"{AB} '--preset nope'", "--b", "nope"),
    (f"{AB} '--precison fp32'", "'--b'", "--precison"),
    (f"{AB} '--context x'", "'--b'", "x", "whole numbers"),
    (f"{AB} fp32", "'--b'", "fp32", "unexpected"),
    (f'{AB} "--precision \'fp32"', "'--b'", "No closing quotation"),
    (f"{AB} '--threads 2'", "threads 1 and 2", "A and B need the same"),
    (f"{AB} '--steps auto'", "auto of B", "fixed"),
    (f"{TUNE} --over attention=naive", "these choices make one cell alone"),
    (f"{TUNE} --over colour", "over colour: expected one of"),
    (f"{TUNE} --over attention=bold", "attention bold: expected one of"),
    (f"{TUNE} --over attention --goal tokens/J", "the energy of cpu cannot be read"),
    (f"{TUNE} --over attention --budget 500ms", "budget 500ms: shorter than one visit"),
    (f"{TUNE} --over attention --budget 5", "expected a time such as 90s, 10m or 2h"),
    (f"{TUNE} --over attention --within 7", "expected memory such as 70GB, or a share"),
    (f"{TUNE} --over optimizer --pass forward", "over optimizer: changes nothing in pass forward"),
    (f"{TUNE} --over attention --steps auto", "visits of a race are repeats of one length"),
    (f"{TUNE} --over attention --warmup 1,2", "warmup 1,2: visits of a race are repeats of one length"),
    (f"{TUNE} --over attention --gpu H100", "--gpu is for a forecast; give --dry-run too"),
    (f"{TUNE} --over attention --dry-run --save-preset best", "saves the best of a race; leave out --dry-run"),
    (f"{TUNE} --over attention --save-preset a//b", "preset name 'a//b': expected letters"),
    ("tune --preset 2026/warmup", "the starting point is one cell; give one of these"),
    (f"{TUNE} {OVER} --dry-run --gpu H100 --within 200GB", "--device cpu is another device"),
    (f"tune --size tiny {OVER} --dry-run --gpu H100 --within 200GB", "within 200 GB: H100 SXM 80GB has 84.9 GB"),
    ("tune --over attention --trust", "--trust is for the log of a session; name it with --session"),
    ("estimate --trust", "--trust is for the log of a session; name it with --session"),
    ("plan --link 450GB/s", "--gpu"),
    ("plan --gpu H100 --link 450GB", "450GB/s"),
    ("plan --gpu H100 --link 450GB/s --ranks 4..2", "1..1024"),
    ("plan --gpu H100 --link 450GB/s --flops fast", "7e14"),
    ("plan --gpu T4 --link 1GB/s", "--flops"),
    ("plan --gpu L4", "--link"),
    ("kernels --device cpu --phase loss --format json", "--phase loss: JSON has every phase and part"),
    ("kernels --device cpu --part head --format json", "--part head: JSON has every phase and part"),
]


@pytest.mark.parametrize(("words", "says"), [(words, says) for words, *says in REFUSED])
def test_it_is_one_line_with_exit_code_2_and_nothing_is_written(words: str, says: list[str], tmp_path: Path) -> None:
    command, *more = shlex.split(words)
    done = call(command, "--session-dir", str(tmp_path / "sessions"), *more, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    for part in says:
        assert part in line
    assert not list(tmp_path.iterdir())
