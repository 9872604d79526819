"""`cs336-tui problems`: the handouts' measuring problems, what each needs, and what of it a session has."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from cs336_tui.analysis.estimates import Estimate, judge
from cs336_tui.analysis.merge import results_of, title_of
from cs336_tui.analysis.problems import editions_of, progress_of, sweeps_of
from cs336_tui.analysis.targets import Target
from cs336_tui.cli.files import Destination, file_options
from cs336_tui.cli.flags import a_session, gpu_option, trust_option
from cs336_tui.cli.help import Choice, command, option_under
from cs336_tui.cli.suggestions import offer
from cs336_tui.cli.suggestions import problems as named
from cs336_tui.cli.targets import AskedCells, Counter, best_device, predicting
from cs336_tui.config.order import relative_work, rough_peak_bytes
from cs336_tui.config.problem import Problem
from cs336_tui.config.problems import EDITIONS, every_problem, problem_named
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.problems import Needs, parts_table, problems_table
from cs336_tui.runner.predictor import PredictionError, Predictor
from cs336_tui.session import store
from cs336_tui.session.log import LogError
from cs336_tui.session.state import SessionState


@command("problems")
@click.argument("name", required=False, shell_complete=offer(named))
@a_session(required=False)
@option_under(
    "What to run",
    "--edition",
    "Handout edition. [default: the session's, or the newest]",
    type=Choice([*EDITIONS, "all"]),
)
@gpu_option
@trust_option
@file_options("table")
def problems(
    *,
    name: str | None = None,
    session: str | None,
    edition: str | None,
    gpu: str | None,
    trusted: bool = False,
    to: Destination,
    session_dir: Path,
) -> str:
    """List the measuring problems of the handouts: what each needs on this machine, and what of it SESSION has. With
    NAME that problem alone, and its parts with the command of each.

    SESSION is an id, a unique prefix of one, `last` or a path; without one the latest, if there is any. Nothing is run.

    \f
    Empty when it went to a file. Raises `UserError` or `click.ClickException`.
    """
    if name and session is None and not any(name in (row.name, row.preset(each)) for each, row in every_problem()):
        with contextlib.nullcontext() if name == "last" else contextlib.suppress(LogError):
            store.find(name, session_dir)
            name, session = None, name
    path = store.find(session or "last", session_dir) if session or store.folder_sessions(session_dir) else None
    state = store.load(path) if path else None
    results = results_of(state) if state else ()
    wanted = edition or next(iter(editions_of(reversed(results))), EDITIONS[0])
    rows = [(each, row) for each, row in every_problem() if wanted in (each, "all")]
    if name:
        row, found = problem_named(name, (wanted,))
        if edition not in (None, "all", found):
            raise click.UsageError(f"--edition {edition} does not have {found}/{row.name}; leave out --edition")
        rows = [(found, row)]
    asked = best_device(gpu)
    with predicting(asked, state=state if asked.machine else None, trusted=trusted) as predicts:
        count = Counter("predicting", len(rows))
        needs = []
        for each, row in rows:
            progress = progress_of(row, each, [state], results) if state else None
            needs.append(_needs(each, row, asked, state, predicts)._replace(progress=progress))
            count()
    (target,) = asked.targets.values()
    table = problems_table(needs, title_of(state) if state else "", target.name)
    return to.show([table, *(parts_table(row, each) for each, row in rows if name)])


def _can_run(spec: CellSpec, asked: AskedCells) -> bool:
    if asked.machine is not None:
        return asked.machine.environment.refusal(spec) is None
    gpu = asked.targets[spec.device].gpu
    return gpu is None or spec.precision in gpu.precisions


def _needs(edition: str, problem: Problem, asked: AskedCells, state: SessionState | None, predicts: Predictor) -> Needs:
    ((device, target),) = asked.targets.items()
    sweeps = sweeps_of(problem, edition)
    of_each = (sweep.with_devices((device,)).cells() for sweep in sweeps.values())
    cells = list(dict.fromkeys(cell for several in of_each for cell in several))
    can = [cell for cell in cells if _can_run(cell, asked)]
    largest = _estimate(max(can, key=rough_peak_bytes), target, state, predicts) if can else None
    capacity = target.capacity_bytes
    fit = [cell for cell in can if capacity is None or rough_peak_bytes(cell) <= capacity]
    low_s, high_s = _times_s(largest, fit)
    reports = tuple(dict.fromkeys(report for sweep in sweeps.values() for report in sweep.reports))
    return Needs(edition, problem, tuple(sweeps), len(cells), len(fit), reports, largest, low_s, high_s, None)


def _times_s(largest: Estimate | None, cells: Sequence[CellSpec]) -> tuple[float | None, float | None]:
    """Seconds that all steps of these cells take, low and high, by their work against that of the largest cell."""
    if largest is None or not cells:
        return None, None

    def total(step_s: float) -> float:
        share_s = step_s / relative_work(largest.spec)
        return sum(cell.steps_s(share_s * relative_work(cell)) or 0.0 for cell in cells)

    low_s, high_s = (None if step_s is None else total(step_s) for step_s in (largest.low_s, largest.high_s))
    return low_s, high_s


def _estimate(spec: CellSpec, target: Target, state: SessionState | None, predicts: Predictor) -> Estimate | None:
    """The estimate of one cell; None if it cannot be predicted."""
    try:
        (prediction,) = predicts.predict([spec])
    except PredictionError:
        return None
    return judge(prediction, target, state, spec)
