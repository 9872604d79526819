"""The board of the simulated GPUs, as `src/sim.h` has it: tests write there what happens to a device."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

_DEVICES, _PROCESSES, _BUCKETS = 16, 128, 1024
FULL_MHZ = 1980.0
POWER_CAP, HARDWARE_SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL = 0x4, 0x8, 0x20, 0x40
"""Clock event reasons of nvml.h."""


class Device(ctypes.Structure):
    """A device; 0 is as usual."""

    _fields_ = (
        ("sm_mhz", ctypes.c_double),
        ("idle_w", ctypes.c_double),
        ("busy_w", ctypes.c_double),
        ("limit_w", ctypes.c_double),
        ("temperature", ctypes.c_double),
        ("reasons", ctypes.c_uint64),
        ("foreign_bytes", ctypes.c_int64),
        ("foreign_pid", ctypes.c_int64),
        ("busy_total", ctypes.c_int64),
        ("bucket_start", ctypes.c_int64 * _BUCKETS),
        ("bucket_busy", ctypes.c_int64 * _BUCKETS),
    )


class _Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_int64), ("used", ctypes.c_int64 * _DEVICES))


class Board(ctypes.Structure):
    _fields_ = (("devices", Device * _DEVICES), ("processes", _Process * _PROCESSES))


def board_at(path: Path) -> Board:
    """The board in this file, which processes with `SIMGPU_BOARD` share. It stays mapped as long as it is used."""
    with path.open("a+b") as file:
        file.truncate(max(path.stat().st_size, ctypes.sizeof(Board)))
        return Board.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(Board)))
