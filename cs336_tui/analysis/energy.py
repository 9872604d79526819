"""The energy of a step, if the device counts it."""

from __future__ import annotations

import msgspec

from cs336_tui.session.states import CellState

LEAST_S = 1.0
"""Seconds between the readings, at least: the driver moves the counter on in steps, and taking these for as long as
100 ms, a second bounds the error by 10 %."""


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of one measured step; all None where it is unknown, and `why` then says why."""

    joules_per_step: float | None = None
    tokens_per_joule: float | None = None
    mean_power_w: float | None = None
    why: str = ""


def energy_of(cell: CellState) -> Energy:
    """Joules of a mean step, from NVML's energy counter (``nvmlDeviceGetTotalEnergyConsumption``): the mean power
    between its first and its last reading while the cell measured, times the mean step time. It is of the whole GPU,
    of several ranks of all their GPUs, with memory, idle draw, other processes, and pauses between steps; without the
    host."""
    step_s = cell.running.mean if cell.running.n else 0.0
    if not step_s:
        return Energy(why="no step was measured")
    if why := _unknown(cell):
        return Energy(why=why)
    counted = cell.surroundings.energy
    assert counted is not None
    joules, seconds = counted
    power_w = joules / seconds
    per_step, tokens = power_w * step_s, cell.spec.tokens_per_step * cell.spec.ranks
    return Energy(
        joules_per_step=per_step,
        tokens_per_joule=tokens / per_step if per_step and tokens else None,
        mean_power_w=power_w,
    )


def _unknown(cell: CellState) -> str:
    """Why the window does not tell its power; empty when it does."""
    around, device = cell.surroundings, cell.spec.device
    if not device.startswith("cuda"):
        return f"energy is read from NVIDIA's counter; not observable on {device}"
    if cell.in_turns:
        return "another cell ran in turns with it, and the counter cannot tell the two apart"
    if not around.samples:
        return "no device sample while measuring"
    if not around.counts_energy:
        return around.why or "this GPU or driver has no energy counter"
    if around.energy is None:
        return "the energy counter was read once while measuring, or was reset; two readings are needed"
    if around.energy[1] < LEAST_S:
        return (
            f"the readings of the energy counter are {around.energy[1]:.1f} s apart; {LEAST_S:.0f} s or more is needed"
        )
    if not around.energy[0]:
        return "the energy counter did not change"
    return ""
