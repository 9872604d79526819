"""The runner's only entry to the code that imports torch. Each function imports its module when it is called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from cs336_tui.config import processes as processes  # before torch
from cs336_tui.worker.ranks import ENDED_THE_ROUND as ENDED_THE_ROUND
from cs336_tui.worker.ranks import STACK_SIGNAL as STACK_SIGNAL
from cs336_tui.worker.ranks import Place as Place

if TYPE_CHECKING:
    from cs336_tui.worker.estimate.predict import predict as predict
    from cs336_tui.worker.measure.ab import run_round as run_round
    from cs336_tui.worker.measure.cell import run_cell as run_cell
    from cs336_tui.worker.measure.failures import in_one_line as in_one_line
    from cs336_tui.worker.measure.peak import measure_peak as measure_peak
    from cs336_tui.worker.measure.probe import probe as probe
    from cs336_tui.worker.measure.probe import try_device as try_device
    from cs336_tui.worker.measure.process import keep_freed_memory as keep_freed_memory
    from cs336_tui.worker.measure.report import make_report as make_report
    from cs336_tui.worker.ranks.group import served_store as served_store
else:

    class _Late(NamedTuple):  # and no lambda, as it is sent to child processes
        module: str
        name: str

        def __call__(self, *args: Any, **options: Any) -> Any:
            return getattr(import_module(f"cs336_tui.worker.{self.module}"), self.name)(*args, **options)

    predict = _Late("estimate.predict", "predict")
    run_round = _Late("measure.ab", "run_round")
    run_cell = _Late("measure.cell", "run_cell")
    in_one_line = _Late("measure.failures", "in_one_line")
    measure_peak = _Late("measure.peak", "measure_peak")
    probe = _Late("measure.probe", "probe")
    try_device = _Late("measure.probe", "try_device")
    keep_freed_memory = _Late("measure.process", "keep_freed_memory")
    make_report = _Late("measure.report", "make_report")
    served_store = _Late("ranks.group", "served_store")


PRELOAD = "cs336_tui.worker.measure.preload"  # The fork server imports it, so that children begin with torch


def forked_after_driver() -> bool:
    """True if this process was forked after the CUDA driver was initialised: it cannot use CUDA then."""
    preload = sys.modules.get(PRELOAD)
    return bool(preload and preload.DRIVER_INITIALISED)
