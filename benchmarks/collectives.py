"""Times of `cs336-tui comm` beside a bare torchrun script of the same all-reduce, in turns.

``python -m benchmarks.collectives --rounds 10``: each round runs `comm`, the script, and the script once more, in an
order that turns, with as many warm-up and measured steps. A step is the slowest rank's in all. Prints for each size the
ratio of `comm` to the script, and of the script to itself, which says how far equal code comes out apart: of the
medians over all rounds, of the 20 % quantiles, and the range of the rounds' own medians. The fastest steps tell nothing
on few cores: those of equal loops differ by more than half, as the system happens to place their threads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from statistics import median

SIDES = ("comm", "bare", "again")
BARE = """
import json, sys, time
import torch, torch.distributed as dist

size, warmup, steps, device = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rank = int(__import__("os").environ["RANK"])
if device == "cuda":
    torch.cuda.set_device(rank)
wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
dist.init_process_group("nccl" if device == "cuda" else "gloo")
data = torch.ones(size // 4, device=device)
times = []
for step in range(warmup + steps):
    data.fill_(1.0) if step % 16 == 0 else None
    wait()
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(data)
    wait()
    times.append(time.perf_counter() - begin)
every = [None] * dist.get_world_size()
dist.all_gather_object(every, times[warmup:])
if rank == 0:
    print(json.dumps([max(step) for step in zip(*every)]))
dist.destroy_process_group()
"""


def bare_times_s(script: Path, size_bytes: int, args: argparse.Namespace) -> list[float]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks)]
    words = [str(size_bytes), str(args.warmup), str(args.steps), args.device]
    done = subprocess.run([sys.executable, *launch, str(script), *words], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def comm_times_s(size: str, folder: Path, args: argparse.Namespace) -> tuple[int, list[float]]:
    words = f"comm --op all-reduce --size {size} --ranks {args.ranks} --device {args.device} --device-interval 0"
    counts = f"--warmup {args.warmup} --steps {args.steps} --format json --session-dir"
    command = [sys.executable, "-m", "cs336_tui", *words.split(), *counts.split(), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (run,) = json.loads(done.stdout)["runs"]
    sent = run["algbw_bytes_per_s"] * sum(run["step_times_s"]) / len(run["step_times_s"])
    return round(sent), run["step_times_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1MB,10MB,100MB")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder, script = Path(made), Path(made) / "bare.py"
        script.write_text(BARE)
        for size in args.sizes.split(","):
            size_bytes, _ = comm_times_s(size, folder, args)  # a round of both ahead, which is not counted
            bare_times_s(script, size_bytes, args)
            times: dict[str, list[list[float]]] = {name: [] for name in SIDES}
            for number in range(args.rounds):
                for name in (*SIDES[number % 3 :], *SIDES[: number % 3]):
                    found = (
                        comm_times_s(size, folder, args)[1]
                        if name == "comm"
                        else bare_times_s(script, size_bytes, args)
                    )
                    times[name].append(found)
            for name in ("comm", "again"):
                print(f"{size}: {compared(name, times[name], times['bare'])}", flush=True)


def compared(name: str, ours: list[list[float]], bare: list[list[float]]) -> str:
    """The ratios of a side to the script."""
    all_ours, all_bare = sorted(chain.from_iterable(ours)), sorted(chain.from_iterable(bare))
    rounds = sorted(median(a) / median(b) for a, b in zip(ours, bare, strict=True))
    fifth = all_ours[len(all_ours) // 5] / all_bare[len(all_bare) // 5]
    medians = median(all_ours), median(all_bare)
    return (
        f"{'comm' if name == 'comm' else 'the script again'} {medians[0] * 1e3:.3f} ms, the script "
        f"{medians[1] * 1e3:.3f} ms, ratio of medians {medians[0] / medians[1]:.3f}, of 20 % quantiles {fifth:.3f}; "
        f"of single rounds {rounds[0]:.3f} to {rounds[-1]:.3f}, median {median(rounds):.3f}"
    )


if __name__ == "__main__":
    main()
