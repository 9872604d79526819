"""Sessions of what a problem's presets run, as if it had been run on a GPU."""

import msgspec

from cs336_tui.analysis.problems import sweeps_of
from cs336_tui.config.problem import Problem
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event
from cs336_tui.events.prediction import report_key
from cs336_tui.events.reports import Report
from cs336_tui.session.state import SessionState
from tests.export.grids import grid_events
from tests.made_kernels import a_kernel_report, a_prediction_for
from tests.made_memory import a_memory_report
from tests.made_precision import a_precision_report
from tests.made_ranks import a_rank_memory_report, a_traffic_report
from tests.samples import START, report_events, state_of


def problem_events(problem: Problem, edition: str, *, reports: bool = True) -> list[Event]:
    """Every cell of the problem's presets finished, and with `reports` every report that they ask for is made."""
    sweeps = [sweep.with_devices(("cuda:0",)) for sweep in sweeps_of(problem, edition).values()]
    specs = list(dict.fromkeys(cell for sweep in sweeps for cell in sweep.cells()))
    events = grid_events(specs, times=_times)
    if reports:
        wanted = {
            (kind, report_key(cell)): cell for sweep in sweeps for kind in sweep.reports for cell in sweep.cells()
        }
        made = (_report(kind, cell) for (kind, _), cell in wanted.items())
        events += report_events(*made, at=START + 9_000)
    return events


def problem_state(problem: Problem, edition: str, *, reports: bool = True) -> SessionState:
    return state_of(problem_events(problem, edition, reports=reports))


def _times(spec: CellSpec) -> list[float]:
    return [0.01 + 0.0001 * (step % 3) + 0.001 * spec.warmup_steps for step in range(4)]


def _report(kind: str, spec: CellSpec) -> Report:
    if kind == "kernels" and spec.ranks > 1:
        gathered = {} if spec.parallel == "fsdp2" else {"all_gathers": ()}
        return msgspec.structs.replace(a_traffic_report(spec.ranks, **gathered), spec=spec)
    if kind == "kernels":
        return a_kernel_report(spec)
    if kind == "memory" and spec.ranks > 1:
        return a_rank_memory_report(spec)
    if kind == "memory":
        return a_memory_report(spec=spec, prediction=a_prediction_for(spec))
    return a_precision_report(spec)
