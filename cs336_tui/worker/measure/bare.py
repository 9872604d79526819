"""The reference loop of the self-test: the same model, batch and seed, timed by hand, with no measuring code of this
package. Appends a line per step to a file: end of the step (Unix time) and its duration, in seconds."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter, time

import click
import torch
import torch.nn.functional as F

from cs336_tui.config.spec import dims_of
from cs336_tui.worker.workload.transformer import Transformer, random_batch


@click.command()
@click.option("--size", required=True)
@click.option("--context", type=int, required=True)
@click.option("--batch", type=int, default=4)
@click.option("--pass", "pass_", type=click.Choice(["forward", "train-step"]), required=True)
@click.option("--steps", type=int, default=10)
@click.option("--device", default="cpu")
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(size: str, context: int, batch: int, pass_: str, steps: int, device: str, output: Path) -> None:
    torch.set_float32_matmul_precision("highest")
    dims = dims_of(size, "2026")
    model = Transformer(dims, arch="swiglu-rope", context_length=context, device=device)
    model.initialise(0)
    data = random_batch(batch, context, dims.vocab_size, device=device, seed=0)
    optimizer = torch.optim.AdamW(model.parameters())

    def synchronize() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        elif device == "mps":
            torch.mps.synchronize()

    with output.open("w", buffering=1) as file:
        for _ in range(steps):
            synchronize()
            start = perf_counter()
            if pass_ == "train-step":
                optimizer.zero_grad(set_to_none=True)
            logits = model(data.inputs)
            if pass_ == "train-step":
                F.cross_entropy(logits.flatten(0, 1), data.targets.flatten()).backward()
                optimizer.step()
            synchronize()
            took = perf_counter() - start
            print(time(), took, file=file)
            del logits


if __name__ == "__main__":
    main()
