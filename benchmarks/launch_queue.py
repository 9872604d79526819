"""A model of a host that launches a training step through a bounded queue, and the verdicts on it.

    python -m benchmarks.launch_queue [--queue 1024] [--launch-us 6] [--random 2000]

A model of the driver, not a measurement: each launch takes the host some microseconds; where the queue is full the host
first waits for a place in it; the device runs kernels in order, none before it was launched. For sizes, contexts and
passes of the course the table shows the host's share of the step as a host measures it, waiting included, its share
without waiting, which is the truth, and the verdict. Then come random steps, whose phases are of one kind or of any.
Exit status 1 if a verdict is wrong, but for a denial where phases are of any kind, which the verdict does not promise.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cs336_tui.analysis.judgement import Finding
from cs336_tui.analysis.verdicts import LEAST_SHARE, launching
from cs336_tui.config.spec import ModelDims, dims_of
from cs336_tui.events.events import StepsTimed
from cs336_tui.session.states import CellState
from tests.samples import a_spec

LATENCY_S = 5e-6
"""Time from a launch to the kernel's begin on an idle device."""


class Launch(NamedTuple):
    """Seconds of one kernel: launching it on the host and running it on the device."""

    host_s: float
    device_s: float


class Simulated(NamedTuple):
    """Times of a step in seconds: those that clocks show, by phase, and those that they do not."""

    host_s: Mapping[str, float]
    """Time of the host by phase, with its waits for room in the queue."""
    device_s: Mapping[str, float]
    step_s: float
    enqueuing_s: float
    """Time of the host in the whole step, without its waits."""

    @property
    def is_bound(self) -> bool:
        return self.enqueuing_s / self.step_s >= LEAST_SHARE


def simulate(phases: Mapping[str, Sequence[Launch]], queue: int = 1024) -> Simulated:
    """Run a step of these phases, the device idle before it."""
    waiting: deque[float] = deque()  # when each queued kernel will have ended
    host_s = device_s = 0.0
    hosts, devices = [0.0], [0.0]
    for launches in phases.values():
        for launch in launches:
            while waiting and waiting[0] <= host_s:
                waiting.popleft()
            if len(waiting) >= queue:
                host_s = waiting.popleft()
            host_s += launch.host_s
            device_s = max(device_s, host_s + LATENCY_S) + launch.device_s
            waiting.append(device_s)
        hosts.append(host_s)
        devices.append(max(device_s, host_s))
    return Simulated(
        host_s={name: after - before for name, before, after in zip(phases, hosts, hosts[1:], strict=False)},
        device_s={name: after - before for name, before, after in zip(phases, devices, devices[1:], strict=False)},
        step_s=max(host_s, device_s),
        enqueuing_s=sum(launch.host_s for launches in phases.values() for launch in launches),
    )


def judged(found: Simulated, *, steps: int = 5) -> Finding:
    """The verdict on a cell whose steps all equal this one."""
    cell = CellState(0, a_spec(pass_="train-step"))
    cell.times.add(
        StepsTimed(
            at=0.0,
            cell=0,
            kind="measured",
            first=0,
            times_s=(found.step_s,) * steps,
            phases_s={name: (time_s,) * steps for name, time_s in found.device_s.items()},
            host_s=(sum(found.host_s.values()),) * steps,
            host_phases_s={name: (time_s,) * steps for name, time_s in found.host_s.items()},
        )
    )
    return launching(cell)


class Device(NamedTuple):
    """Rates that kernels reach, and the least that one takes."""

    flops_per_s: float
    bytes_per_s: float
    least_s: float = 2e-6

    def kernel(self, flops: float = 0.0, moved: float = 0.0) -> float:
        return max(self.least_s, flops / self.flops_per_s, moved / self.bytes_per_s)


H100_FP32 = Device(45e12, 2.6e12)
H100_BF16 = Device(500e12, 2.6e12)


def training_step(
    dims: ModelDims, context: int, device: Device, launch_s: float, *, batch: int = 4, optimizer: str = "foreach"
) -> dict[str, list[Launch]]:
    """The launches of a training step of the course's model: matrix products, and the many small operations round
    them, as PyTorch runs them one by one. Activations take 4 bytes."""
    tokens, d, heads = batch * context, dims.d_model, dims.num_heads
    scores = batch * heads * context * context

    def product(m: float, n: float, k: float) -> float:
        return device.kernel(2 * m * n * k, 4 * (m * n + n * k + m * k))

    def pointwise(elements: float) -> float:
        return device.kernel(moved=8 * elements)

    norm = [pointwise(tokens * d)] * 3 + [pointwise(tokens)] * 2 + [pointwise(tokens * d)] * 2
    rotary = [pointwise(tokens * d / 2)] * 8
    attention = [product(tokens, context, d), *[pointwise(scores)] * 7, product(tokens, d, context)]
    projections = [product(tokens, d, d)] * 4
    wide = [product(tokens, dims.d_ff, d)] * 2 + [pointwise(tokens * dims.d_ff)] * 3 + [product(tokens, d, dims.d_ff)]
    layer = [*norm, *projections, *rotary, *rotary, *attention, pointwise(tokens * d), *norm, *wide]
    head = [*norm, product(tokens, dims.vocab_size, d)]
    forward = layer * dims.num_layers + head
    loss = [pointwise(tokens * dims.vocab_size)] * 3
    backward = [each for kernel in reversed(forward) for each in (kernel, kernel)]
    matrices = [d * d] * 4 + [d * dims.d_ff] * 3 + [d] * 2
    parameters = matrices * dims.num_layers + [dims.vocab_size * d] * 2 + [d]
    if optimizer == "for-loop":
        updates = [pointwise(elements) for elements in parameters for _ in range(12)]
    else:
        chunks = -(-len(parameters) // 60)
        updates = [pointwise(sum(parameters) / chunks) for _ in range(12 * chunks)]

    def launched(kernels: Iterable[float], host_s: float) -> list[Launch]:
        return [Launch(host_s, kernel) for kernel in kernels]

    return {
        "zero_grad": [],
        "forward": launched(forward, launch_s),
        "loss": launched(loss, launch_s),
        "backward": launched(backward, launch_s * 0.6),  # autograd launches from C++
        "optimizer": launched(updates, launch_s),
    }


def random_step(dice: random.Random, *, alike: bool) -> dict[str, list[Launch]]:
    """A step of random launches. Where phases are `alike`, forward, loss and backward are of one kind."""

    def kind() -> tuple[float, float]:
        """Seconds of a launch on the host, 2.5 to 20 us, and of its kernel on the device, 1.5 to 500 us."""
        return math.exp(dice.uniform(-12.9, -10.8)), math.exp(dice.uniform(-13.4, -7.6))

    def launches(launch_s: float, kernel_s: float) -> list[Launch]:
        spread = dice.choice((0.0, 0.5, 1.5))
        return [
            Launch(
                launch_s * dice.uniform(0.7, 1.3),
                max(1.2e-6, kernel_s * dice.lognormvariate(-spread * spread / 2, spread)),
            )
            for _ in range(int(math.exp(dice.uniform(0, 8))))
        ]

    def phase(kind: tuple[float, float]) -> list[Launch]:
        launch_s, kernel_s = kind
        return launches(launch_s * dice.uniform(0.6, 1.1), kernel_s * dice.uniform(0.8, 1.3))

    shared = kind()
    found = {name: phase(shared if alike else kind()) for name in ("forward", "loss", "backward")}
    return found | {"optimizer": launches(*kind())}


def _judge_random(count: int, queue: int) -> int:
    """Judge `count` random steps of each sort and print the results; returns the number of wrong verdicts."""
    wrong = 0
    for alike in (True, False):
        dice = random.Random(count)
        fared = Counter[tuple[bool | None, bool]]()
        for _ in range(count):
            found = simulate(random_step(dice, alike=alike), queue)
            fared[judged(found).holds, found.is_bound] += 1
        said, denied = fared[True, False], fared[False, True]
        untold = fared[None, True] + fared[None, False]
        print(
            f"{count} random steps, phases {'alike' if alike else 'of any kind'}: {fared[True, True]} of "
            f"{sum(number for (_, bound), number in fared.items() if bound)} launch-bound ones found, "
            f"{said} falsely said, {denied} falsely denied, {untold} cannot be told"
        )
        wrong += said + denied * alike
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queue", type=int, default=1024, help="launches that the driver's queue holds")
    parser.add_argument("--launch-us", type=float, default=6.0, help="what a launch takes the host, in microseconds")
    parser.add_argument("--random", type=int, default=2000, help="random steps of either sort")
    asked = parser.parse_args()
    wrong = by_share = rows = 0
    print("size   context  precision  optimizer   step (ms)  host  without waiting  verdict")
    for size in ("small", "medium", "large", "xl"):
        for context in (128, 256, 512, 1024):
            for precision, device in {"fp32": H100_FP32, "bf16": H100_BF16}.items():
                for optimizer in ("foreach", "for-loop"):
                    phases = training_step(
                        dims_of(size, "2026"), context, device, asked.launch_us / 1e6, optimizer=optimizer
                    )
                    found = simulate(phases, asked.queue)
                    holds = judged(found).holds
                    wrong += holds is not None and holds != found.is_bound
                    host, pure = sum(found.host_s.values()) / found.step_s, found.enqueuing_s / found.step_s
                    rows, by_share = rows + 1, by_share + ((host >= LEAST_SHARE) != found.is_bound)
                    said = {True: "launch-bound", False: "not launch-bound", None: "cannot be told"}[holds]
                    print(
                        f"{size:<7}{context:>7}  {precision:<9}  {optimizer:<9}  {found.step_s * 1e3:>10.1f}  "
                        f"{host:.2f}  {pure:>15.2f}  {said}"
                    )
    print(f"wrong verdicts: {wrong} of {rows}; by the host's share alone there would be {by_share}")
    return wrong + _judge_random(asked.random, asked.queue) > 0


if __name__ == "__main__":
    raise SystemExit(main())
