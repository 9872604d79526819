"""Sessions that are run, and resumed, to their end."""

from __future__ import annotations

from pathlib import Path

from cs336_tui.config.spec import CellSpec
from cs336_tui.runner.bench import Bench
from tests.watching import Watch


def run(directory: Path, *specs: CellSpec) -> tuple[Path, Watch]:
    """A session of these cells, run to its end."""
    watch = Watch()
    bench = Bench(watch, session_dir=directory, device_interval_s=0)
    bench.prepare()
    try:
        bench.run(specs, "a command")
    finally:
        bench.close()
    return bench.log_path, watch


def resume(path: Path, **options: bool) -> tuple[tuple[int, ...], Watch]:
    """Go on with the session to its end; returns the cells that were left."""
    watch = Watch()
    bench = Bench(watch, session_dir=path.parent, session=path.stem, device_interval_s=0)
    bench.prepare()
    try:
        left = bench.resume(**options)
        bench.work()
    finally:
        bench.close()
    return left, watch
