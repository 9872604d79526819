"""The runner's only entry to the code that imports torch: in a child process, or here with ``--in-process``.

Each function imports its module when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cs336_tui.config import environment_variables as environment_variables  # before torch

if TYPE_CHECKING:
    from cs336_tui.worker.estimate.predict import predict as predict
    from cs336_tui.worker.measure.ab import run_round as run_round
    from cs336_tui.worker.measure.cell import run_cell as run_cell
    from cs336_tui.worker.measure.failures import in_one_line as in_one_line
    from cs336_tui.worker.measure.peak import measure_peak as measure_peak
    from cs336_tui.worker.measure.probe import probe as probe
    from cs336_tui.worker.measure.process import keep_freed_memory as keep_freed_memory
    from cs336_tui.worker.measure.report import make_report as make_report
else:

    def _late(module: str, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: getattr(import_module(f"cs336_tui.worker.{module}"), name)(*args, **kwargs)

    predict = _late("estimate.predict", "predict")
    run_round = _late("measure.ab", "run_round")
    run_cell = _late("measure.cell", "run_cell")
    in_one_line = _late("measure.failures", "in_one_line")
    measure_peak = _late("measure.peak", "measure_peak")
    probe = _late("measure.probe", "probe")
    keep_freed_memory = _late("measure.process", "keep_freed_memory")
    make_report = _late("measure.report", "make_report")

PRELOAD = "cs336_tui.worker.measure.preload"
"""The module that the fork server imports, so that every child starts with torch loaded."""


def forked_after_driver() -> bool:
    """True if this process was forked after the CUDA driver was initialised: it cannot use CUDA then."""
    preload = sys.modules.get(PRELOAD)
    return bool(preload and preload.DRIVER_INITIALISED)
