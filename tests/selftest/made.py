"""Step times of a self-test with known ratios."""

import random
from collections.abc import Mapping

from cs336_tui.selftest.programs import APP, BARE, BENCH, CONTROL
from cs336_tui.selftest.turns import Round, Turn

STARTS, ROUNDS, STEPS = 6, 4, 40


def made(
    means: Mapping[str, float] | None = None,
    stds: Mapping[str, float] | None = None,
    *,
    luck: float = 0.002,
    seed: int = 1,
) -> list[list[Round]]:
    """Turns of four programs whose means and stds are these times the bare script's 50 ± 0.5 ms.

    Machine and programs drift: 20 % from round to round for all, `luck` of each program's from start to start.
    """
    rng = random.Random(seed)
    means, stds = means or {}, stds or {}

    def turn(name: str, share: float) -> Turn:
        mean, std = 0.05 * means.get(name, 1), 5e-4 * stds.get(name, 1)
        return Turn(tuple(share * rng.gauss(mean, std) for _ in range(STEPS)), (1.0, 2.0))

    starts = []
    for _ in range(STARTS):
        own = {name: rng.gauss(1, luck) for name in (BARE, CONTROL, BENCH, APP)}
        drifts = [rng.uniform(1, 1.2) for _ in range(ROUNDS)]
        starts.append([{name: turn(name, drift * own[name]) for name in own} for drift in drifts])
    return starts
