"""Why a GPU does not run at its full clocks: NVML's clock-event reasons, by name."""

from __future__ import annotations

_NAMES = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal",
    0x040: "hardware thermal",
    0x080: "power brake",
    0x100: "display clocks",
}
"""``nvmlClocksEventReasons`` of nvml.h."""

ORDINARY_REASONS = frozenset({"idle", "application clocks", "software power cap", "sync boost", "display clocks"})
"""Reasons that are settings or ordinary power management. Any other means that heat or power supply fails to keep
up, and makes a timing suspect."""


def clock_reasons(mask: int) -> tuple[str, ...]:
    """Names of the reasons in force, in the order of their bits; a bit without a name gives ``reason 0x...``."""
    bits = (1 << position for position in range(mask.bit_length()))
    return tuple(_NAMES.get(bit, f"reason {bit:#x}") for bit in bits if mask & bit)
