"""Time to create the reference model of 3.4 billion parameters on the meta device, and on a GPU if there is one.

Each creation is in a process of its own, which has imported torch and, on a GPU, made a CUDA context.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from benchmarks.reporting import publish, spread, table, verdict
from cs336_tui.config.spec import dims_of

MARKS_S = {"meta": 0.5, "cuda": 2.0}
_BESIDE = 1.1
"""Of the parameters: what initialising one of them takes beside."""
_CODE = """
import json, sys, time
import torch
from cs336_tui.config.spec import dims_of
from cs336_tui.worker.workload.transformer import Transformer

size, arch, device = sys.argv[1:]
there = torch.device(device)
if there.type == "cuda":
    torch.empty(1, device=there)
    torch.cuda.synchronize()
times_s = []
for _ in range(2):
    model = None
    begin = time.perf_counter()
    model = Transformer(dims_of(size, "2026"), arch=arch, context_length=512, device=there)
    if there.type != "meta":
        model.initialise(0)
        torch.cuda.synchronize()
    times_s.append(time.perf_counter() - begin)
print(json.dumps([times_s, model.num_params, torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0]))
"""


def create(size: str, arch: str, device: str) -> tuple[list[float], int, int]:
    """Seconds of the first creation in a process and of the second, the parameters, and a GPU's free bytes, if any."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, size, arch, device], capture_output=True, text=True, check=True, timeout=300
    )
    times_s, count, free = json.loads(done.stdout)
    return times_s, count, free


@click.command()
@click.option("--size", default="xl", show_default=True)
@click.option("--arch", default="swiglu-rope", show_default=True)
@click.option("--times", default=5, show_default=True, help="Processes.")
@click.option("--quick", is_flag=True, help="One process.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(size: str, arch: str, times: int, quick: bool, output: Path | None) -> None:
    times = 1 if quick else times
    dims_of(size, "2026")
    rows, devices, note = [], ["meta"], ""
    for device in devices:  # grows where there is a GPU
        found = [create(size, arch, device) for _ in range(times)]
        _, count, free = found[0]
        needed = _BESIDE * 4 * count
        if free >= needed and device == "meta":
            devices.append("cuda")
        elif free and device == "meta":
            note = f"\n\nNot on cuda: it needs {needed / 1e9:.1f} GB of free memory, and there are {free / 1e9:.1f}."
        for place, name in enumerate(("first", "second")):
            times_s = [each[0][place] for each in found]
            met = verdict(sorted(times_s)[len(times_s) // 2], 0, MARKS_S[device])
            rows.append([device, name, f"{found[0][1] / 1e9:.2f}", spread(times_s), f"{MARKS_S[device]:g}: {met}"])
    header = ["device", "in its process", "parameters, billions", "seconds", "at most"]
    command = f"python -m benchmarks.creation --size {size} --arch {arch} --times {times}"
    publish("Creating a model", command, table(header, rows) + note, output)


if __name__ == "__main__":
    main()
