"""The runner's only entry to the code that imports torch: in a child process, or here with ``--in-process``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from cs336_tui.config import environment_variables as environment_variables  # before torch
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.events.environment import TorchEnvironment
from cs336_tui.events.events import Event
from cs336_tui.events.peaks import DevicePeak
from cs336_tui.events.reports import Prediction, ReportRequest

PRELOAD = "cs336_tui.worker.measure.preload"
"""The module that the fork server imports, so that every child starts with torch loaded."""


def run_cell(
    spec: CellSpec, cell: int, emit: Callable[[Event], None], cancelled: Callable[[], bool], *, nvtx: bool = False
) -> None:
    """Build, warm up and time one cell here; its events go to `emit`."""
    from cs336_tui.worker.measure.cell import run_cell as measure

    measure(spec, cell, emit, cancelled, nvtx=nvtx)


def run_round(
    specs: tuple[CellSpec, CellSpec],
    cells: tuple[int, int],
    emit: Callable[[Event], None],
    cancelled: Callable[[], bool],
    *,
    b_first: bool = False,
) -> None:
    """Build, warm up and time two cells in turns here; their events go to `emit`."""
    from cs336_tui.worker.measure.ab import run_round as measure

    measure(specs, cells, emit, cancelled, b_first=b_first)


def keep_freed_memory() -> None:
    """Make malloc keep memory that a step frees, for the next step. Imports no torch."""
    from cs336_tui.worker.measure.process import keep_freed_memory as keep

    keep()


def make_report(
    request: ReportRequest, report: int, emit: Callable[[Event], None], cancelled: Callable[[], bool]
) -> None:
    """Make one report here; its events go to `emit`."""
    from cs336_tui.worker.measure.report import make_report as make

    make(request, report, emit, cancelled)


def predict(spec: CellSpec, capability: tuple[int, int] | None = None) -> Prediction:
    """Predict a cell's needs on tensors without data."""
    from cs336_tui.worker.estimate.predict import predict as work_out

    return work_out(spec, capability=capability)


def in_one_line(error: BaseException) -> str:
    """The error in one line, with the user's own frame if there is one; its traceback goes to standard error."""
    from cs336_tui.worker.measure.failures import outcome_of

    return outcome_of(error)[1]


def measure_peak(device: str, precision: Precision, threads: int | None) -> DevicePeak:
    """Measure a device's peak rates of matrix products and copies in a precision."""
    from cs336_tui.worker.measure.peak import measure_peak as measure

    return measure(device, precision, threads)


def probe() -> TorchEnvironment:
    """Read torch's versions and devices on this machine."""
    from cs336_tui.worker.measure.probe import probe as ask

    return ask()


def forked_after_driver() -> bool:
    """True if this process was forked after the CUDA driver was initialised: it cannot use CUDA then."""
    preload = sys.modules.get(PRELOAD)
    return bool(preload and preload.DRIVER_INITIALISED)
