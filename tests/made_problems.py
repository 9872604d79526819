"""Sessions of what a problem's presets run, as if it had been run on a GPU."""

from collections.abc import Iterator

import msgspec

from cs336_tui.analysis.problems import sweeps_of
from cs336_tui.config.problem import Problem
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, ReportFinished, ReportStarted
from cs336_tui.events.prediction import report_key
from cs336_tui.events.reports import Report, ReportKind
from cs336_tui.session.state import SessionState
from tests.export.grids import grid_events
from tests.made_kernels import a_kernel_report, a_prediction_for
from tests.made_memory import a_memory_report
from tests.made_precision import a_precision_report
from tests.made_ranks import a_rank_memory_report, a_traffic_report
from tests.samples import START, state_of


def problem_events(problem: Problem, edition: str, *, reports: bool = True) -> list[Event]:
    """Every cell of the problem's presets finished, and with `reports` every report that they ask for is made."""
    sweeps = [sweep.with_devices(("cuda:0",)) for sweep in sweeps_of(problem, edition).values()]
    specs = list(dict.fromkeys(cell for sweep in sweeps for cell in sweep.cells()))
    events = grid_events(specs, times=_times)
    if reports:
        wanted = {
            (kind, report_key(cell)): cell for sweep in sweeps for kind in sweep.reports for cell in sweep.cells()
        }
        for number, ((kind, _), cell) in enumerate(wanted.items()):
            events += _report(number, kind, cell)
    return events


def problem_state(problem: Problem, edition: str, *, reports: bool = True) -> SessionState:
    return state_of(problem_events(problem, edition, reports=reports))


def _times(spec: CellSpec) -> list[float]:
    return [0.01 + 0.0001 * (step % 3) + 0.001 * spec.warmup_steps for step in range(4)]


def _report(number: int, kind: str, spec: CellSpec) -> Iterator[Event]:
    made: Report
    named: ReportKind
    if kind == "kernels" and spec.ranks > 1:
        gathered = {} if spec.parallel == "fsdp2" else {"all_gathers": ()}
        named, made = "kernels", msgspec.structs.replace(a_traffic_report(spec.ranks, **gathered), spec=spec)
    elif kind == "kernels":
        named, made = "kernels", a_kernel_report(spec)
    elif kind == "memory" and spec.ranks > 1:
        named, made = "memory", a_rank_memory_report(spec)
    elif kind == "memory":
        named, made = "memory", a_memory_report(spec=spec, prediction=a_prediction_for(spec))
    else:
        named, made = "precision", a_precision_report(spec)
    yield ReportStarted(at=START + 9_000, report=number, kind=named, spec=spec)
    yield ReportFinished(at=START + 9_001, report=number, status="ok", content=made)
