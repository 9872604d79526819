"""The least that a cell needs before its first step: a fork of a process that has torch, and a tiny model with tokens.

Prints milliseconds from the fork to the ready model, one line for each of the forks asked for. On a GPU a fork makes
its CUDA context, as a cell does. Arguments: how many forks, the device."""

from __future__ import annotations

import os
import struct
import sys
import time

import torch

from cs336_tui.config.spec import dims_of
from cs336_tui.worker.workload.transformer import Transformer

CONTEXT, BATCH, SEED = 128, 4, 0


def ready_s(device: torch.device) -> float:
    """Seconds from the fork until a child has the model and its tokens on the device."""
    reading, writing = os.pipe()
    begin = time.monotonic()
    if not (pid := os.fork()):
        dims = dims_of("tiny", "2025")
        model = Transformer(dims, arch="swiglu-rope", context_length=CONTEXT, device=device)
        model.initialise(SEED)
        torch.randint(dims.vocab_size, (BATCH, CONTEXT), device=device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        os.write(writing, struct.pack("d", time.monotonic() - begin))
        os._exit(0)
    os.close(writing)
    (found,) = struct.unpack("d", os.read(reading, 8))
    os.close(reading)
    os.waitpid(pid, 0)
    return float(found)


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        print(ready_s(torch.device(sys.argv[2])) * 1e3)
