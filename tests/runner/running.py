"""Benches in use, on this thread or on one of their own, with all that they told; sessions run and resumed to their
end."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import RankMemoryReport
from cs336_tui.runner.bench import Bench
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from tests.watching import PATIENCE_S, Watch


class Running:
    """A bench that runs cells one after another, in this thread or on one of its own."""

    def __init__(self, folder: Path, session: str | None = None, **options: Any) -> None:
        self.watch = Watch()
        self.bench = Bench(self.watch, session_dir=folder, session=session, **({"device_interval_s": 0} | options))
        self.bench.prepare()
        self.bench.start()
        self.thread = threading.Thread()

    @property
    def cells(self) -> list[CellState]:
        return list(self.watch.state.cells.values())

    @property
    def statuses(self) -> list[str]:
        return [cell.status for cell in self.cells]

    def run(self, *specs: CellSpec) -> list[CellState]:
        """Run these to their end; returns their cells."""
        begun = len(self.cells)
        self.bench.run(specs, "a command")
        return self.cells[begun:]

    def turns(self, a: CellSpec, b: CellSpec, rounds: int) -> list[CellState]:
        begun = len(self.cells)
        self.bench.run_ab(a, b, rounds, "a command")
        return self.cells[begun:]

    def memory(self, spec: CellSpec) -> RankMemoryReport:
        self.bench.trust.name(spec)
        self.bench.ask_report("memory", spec)
        self.bench.work()
        return list(self.watch.state.reports.values())[-1].content

    def begin(self, *specs: CellSpec) -> threading.Thread:
        """Run these on a thread."""
        return self.on_a_thread(self.bench.run, specs, "a command")

    def on_a_thread(self, work: Callable[..., object], *words: Any) -> threading.Thread:
        self.thread = threading.Thread(target=work, args=words)
        self.thread.start()
        return self.thread

    def once_measuring(self, *cells: int, steps: int = 4) -> int:
        """The process of these cells (of the first, unless named), once each has measured so many steps."""
        cells = cells or (0,)
        self.watch.until(
            lambda state: all(cell in state.cells and len(state.cells[cell].step_times_s) >= steps for cell in cells)
        )
        (pid,) = {self.watch.state.cells[cell].pid for cell in cells}
        assert pid is not None
        return pid

    def finish(self, within_s: float = PATIENCE_S) -> SessionState:
        """The state once nothing runs on the thread any more."""
        self.thread.join(within_s)
        assert not self.thread.is_alive()
        return self.watch.state


Start = Callable[..., Running]


def run(directory: Path, *specs: CellSpec) -> tuple[Path, Watch]:
    """A session of these cells, run to its end."""
    running = Running(directory)
    with closing(running.bench):
        running.run(*specs)
    return running.bench.log_path, running.watch


def resume(path: Path, **options: bool) -> tuple[tuple[int, ...], Watch]:
    """Go on with the session to its end; returns the cells that were left."""
    running = Running(path.parent, path.stem)
    with closing(running.bench):
        left = running.bench.resume(**options)
        running.bench.work()
    return left, running.watch
