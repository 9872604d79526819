"""Times of `cs336-tui comm` beside a bare torchrun script of the same all-reduce, in turns.

``python -m benchmarks.collectives --rounds 10``: each round runs both, the order alternating, with as many warm-up and
measured steps. A step is the slowest rank's in both. Prints each size's ratio of the medians over all rounds, of the
fastest steps, and the range of the rounds' own ratios.
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
            ours: list[list[float]] = []
            bare: list[list[float]] = []
            for number in range(args.rounds):
                for which in ("comm", "bare") if number % 2 else ("bare", "comm"):
                    if which == "comm":
                        ours.append(comm_times_s(size, folder, args)[1])
                    else:
                        bare.append(bare_times_s(script, size_bytes, args))
            ratios = sorted(median(a) / median(b) for a, b in zip(ours, bare, strict=True))
            all_ours, all_bare = list(chain.from_iterable(ours)), list(chain.from_iterable(bare))
            print(
                f"{size}: comm {median(all_ours) * 1e3:.3f} ms, bare {median(all_bare) * 1e3:.3f} ms, ratio of medians "
                f"{median(all_ours) / median(all_bare):.3f}, of the fastest steps {min(all_ours) / min(all_bare):.3f}; "
                f"of single rounds {ratios[0]:.3f} to {ratios[-1]:.3f}, median {median(ratios):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
