"""What cannot be is refused in one line, which names it and says what is allowed, before anything runs."""

import shlex
from pathlib import Path

import pytest

from tests.commands import DIMS, SMALL, call

D, RUN = " ".join(DIMS), " ".join(SMALL)
MESSAGE = "--workload collective --size 1MB --device cpu"
TUNE = f"tune {D} --context 8 --batch 4 --device cpu --threads 1"
AB = "ab --a '' --size tiny --threads 1 --b"
OVER = "--over attention=naive,sdpa --over optimizer=adamw,adamw-for-loop --over checkpoint=0,1"
REFUSED = [
    ("bench --precision tf32 --device cpu", "tf32", "fp32"),
    ("bench --device cuda:77", "cuda:77", "cpu"),
    ("bench -o no/such/folder/out.md", "no/such/folder", "folder"),
    ("bench --session-dir /dev/null/sessions", "/dev/null/sessions", "--session-dir"),
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
    (f"{AB} '--attention naive,sdpa'", "--b comes to 2 cells (attentions naive,sdpa)"),
    (f"{AB} '--preset nope'", "--b", "nope"),
    (f"{AB} '--precison fp32'", "'--b'", "--precison"),
    (f"{AB} fp32", "'--b'", "fp32", "unexpected"),
    (f'{AB} "--precision \'fp32"', "'--b'", "No closing quotation"),
    (f"{AB} '--threads 2'", "threads 1 and 2", "A and B need the same"),
    (f"{AB} '--steps auto'", "auto of B", "fixed"),
    (f"{TUNE} --over attention --budget 500ms", "budget 500ms: shorter than one visit"),
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
    ("estimate --gpu H300", "GPU H300: did you mean H100 SXM 80GB, "),
    ("estimate --gpu frobnicate", "GPU frobnicate: expected one of H100", "`cs336-tui estimate --gpu list` lists them"),
    ("estimate --gpu V100 --precision bf16", "precision bf16: V100 ", " can do fp32, fp16-mixed\n"),
    ("estimate --gpu T4 --precision fp32,tf32", "precision tf32: T4 ", " can do fp32, fp16-mixed\n"),
    ("estimate --gpu H100 --device cpu", "--device cpu is another device"),
    ("estimate --device cuda:77", "device cuda:77: this machine has cpu", "; use --gpu NAME"),
    ("fit --batch 4,8", "--batch 4,8: fit finds the batch; give one value to start from, or none"),
    ("fit --by context --context 1,2", "--context 1,2: fit finds the context"),
    ("fit --gpu H100 --confirm", "--confirm runs on this machine and --gpu H100 names a GPU elsewhere"),
    ("plan --link 450GB/s", "--gpu"),
    ("plan --gpu H100 --link 450GB", "450GB/s"),
    ("plan --gpu H100 --link 450GB/s --ranks 4..2", "1..1024"),
    ("plan --gpu H100 --link 450GB/s --flops fast", "7e14"),
    ("plan --gpu T4 --link 1GB/s", "--flops"),
    ("plan --gpu L4", "--link"),
    *(
        (f"{command} {MESSAGE}", "workload collective: a collective has no model, so there is no ")
        for command in ("kernels", "memory", "precision", "estimate", "fit")
    ),
    (f"ab --a '{MESSAGE}' --b '{MESSAGE}'", "--a: collectives are not run in turns; cs336-tui comm --repeats"),
    ("comm --dtype fp16", "dtype fp16: a message is fp32 or bf16"),
    ("problems nsys_profil", "problem nsys_profil: did you mean nsys_profile?\n"),
    ("benhc", "no command 'benhc'; did you mean bench?\n"),
    ("profile", "no command 'profile'; did you mean kernels, which profiles, or open, which reads a profile?\n"),
    *(
        (words, f"no command {words!r}; did you mean {meant}?\n")
        for words, meant in (
            ("run", "bench"),
            ("benchmark", "bench"),
            ("bnech", "bench"),
            ("history", "sessions"),
            ("ls", "sessions"),
            ("sesions", "sessions"),
            ("diff", "compare"),
            ("comapre", "compare"),
            ("memroy", "memory"),
            ("kernal", "kernels"),
            ("plot", "export"),
            ("predict", "estimate"),
            ("resme", "resume"),
            ("rm", "delete"),
            ("expotr", "export"),
            ("stats", "show"),
        )
    ),
    *((words, f"no command {words!r}; `cs336-tui --help` lists them\n") for words in ("start", "replay", "zzz")),
    ("config gett", "no command 'gett'; did you mean get?\n"),
    ("bench --preset nsys_profil", "preset nsys_profil: did you mean 2026/nsys_profile or 2025/nsys_profile?\n"),
    ("bench --preset nothing", "expected one of quick, 2026/all_reduce, ", " more; `cs336-tui presets` lists them\n"),
    ("bench --size smal", "size smal: edition 2026 has tiny, small, medium, large, xl, 10B; did you mean small?\n"),
    ("bench --precision fp23", "expected one of fp32, tf32, ", "; did you mean fp32?\n"),
    (f"bench {RUN} --ranks 2 --parallel dpp", "or package.module:get_ddp; did you mean ddp?\n"),
    (f"bench {RUN} --reports kernel", "reports kernel: expected one of kernels, memory, precision; did you mean ker"),
    ("export last --report kernel", "'--report': kernel: did you mean kernels or kernels-over-cells?\n"),
    (f"bench {RUN} --model nowhere.at_all:Net", "model nowhere.at_all:Net: no module nowhere, looked in "),
    (f"{TUNE} --over attention=naive,nowhere:fast", "attention nowhere:fast: no module nowhere, looked in "),
    ("selftest --device cpu --quick --size huge", "size huge"),
    ("selftest --device cpu --quick -o missing/selftest.md", "does not exist"),
    ("kernels --device cpu --phase loss --format json", "--phase loss: JSON has every phase and part"),
    ("kernels --device cpu --part head --format json", "--part head: JSON has every phase and part"),
]


@pytest.mark.parametrize(("words", "says"), [(words, says) for words, *says in REFUSED])
def test_it_is_one_line_with_exit_code_2_and_nothing_is_written(words: str, says: list[str], tmp_path: Path) -> None:
    command, *more = shlex.split(words)
    done = call(command, "--session-dir", str(tmp_path / "sessions"), *more, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    for part in says:
        assert part in done.stderr
    assert not list(tmp_path.iterdir())
