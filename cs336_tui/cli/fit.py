"""`cs336-tui fit`: the largest batch or context that fits a device, by prediction and, if asked, by running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cs336_tui.analysis.targets import Dimension, Target, search
from cs336_tui.cli.files import Destination, file_options, to_json
from cs336_tui.cli.flags import choice_options, gpu_option, session_dir_option
from cs336_tui.cli.help import command, heading
from cs336_tui.cli.run import EXIT_CELL_FAILED, EXIT_OK, HeadlessRun, Outputs, carry_out
from cs336_tui.cli.streams import shown
from cs336_tui.cli.targets import Counter, Machine, predicting, read_machine, settle
from cs336_tui.config.choices import sweep_from, with_model
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction, prediction_key
from cs336_tui.export.subjects.estimates import Fitted, fit_document, fit_table
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.predictor import Predictor
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState

_CHOICES: dict[Dimension, str] = {"batch": "batches", "context": "contexts"}
_WARMUP, _STEPS = 1, 2
"""Steps of a cell that is run to see whether it fits: from the second on the optimizer's state is there."""


@command("fit")
@choice_options
@heading("The search")
@click.option(
    "--by", type=click.Choice(["batch", "context"]), default="batch", show_default=True, help="What to increase."
)
@click.option("--limit", type=click.IntRange(1), help="Largest value to try.")
@gpu_option
@click.option("--confirm", is_flag=True, help="Run what was found, and on a GPU the next larger one, to confirm it.")
@file_options("table")
@session_dir_option
def fit(
    *,
    by: Dimension,
    gpu: str | None,
    limit: int | None,
    confirm: bool,
    to: Destination,
    session_dir: Path,
    predictor: Predictor | None = None,
    read: Callable[[], Machine] = read_machine,
    **choices: Any,
) -> int:
    """Find the largest batch (or context length) that fits, by bisection on the prediction.

    Exits with 0 when something fits, 1 when not even the smallest does or what was found did not run.

    \f
    As JSON ``{"fits": [...]}``, for every combination of the other choices. With `confirm` the largest is run, and on a
    GPU the next larger one too. Raises `SpecError` or `click.ClickException` for what cannot be asked.
    """
    sweep = with_model(sweep_from(**choices), "prediction")
    starts = sweep.batches if by == "batch" else sweep.contexts
    if len(starts) > 1:
        given = ",".join(map(str, starts))
        raise click.UsageError(f"--{by} {given}: fit finds the {by}; give one value to start from, or none")
    if confirm and gpu is not None:
        raise click.UsageError(
            f"--confirm runs on this machine and --gpu {gpu} names a GPU elsewhere; use one of the two"
        )
    asked = settle(sweep, gpu, None, read)
    tried = Counter("predicted")
    with predicting(asked, predictor) as predicts:
        results = [_fitted(spec, by, asked.targets[spec.device], predicts, limit, tried) for spec in asked.specs]
    tried.clear()
    if confirm and any(result.fit.spec for result in results):
        return _confirmed(results, to, session_dir)
    click.echo(to.deliver(_render(results, to.format)), nl=False)
    return EXIT_OK if all(result.fit.spec for result in results) else EXIT_CELL_FAILED


def _fitted(
    spec: CellSpec, by: Dimension, target: Target, predicts: Predictor, limit: int | None, tried: Counter
) -> Fitted:
    room = target.room_bytes(spec.ranks)
    if room is None:
        raise click.UsageError(f"{target.name}: its memory is not known; --gpu NAME is for a GPU that is")
    known: dict[CellSpec, Prediction] = {}

    def need(candidate: CellSpec) -> int:
        (known[candidate],) = predicts.predict([candidate])
        return known[candidate].needed_of(room)

    fit = search(spec, by, need, room, limit=limit, on_try=tried)
    found, following = (known.get(each) if each else None for each in (fit.spec, fit.next_spec))
    return Fitted(spec, fit, target, found, following)


def _confirmed(results: Sequence[Fitted], to: Destination, session_dir: Path) -> int:
    """Run what was found, then say how it went. Off a GPU nothing larger is tried: what a host cannot hold takes other
    programs' memory before it fails."""
    larger = [result.fit.next_spec for result in results if result.target.kind == "cuda" and result.fit.spec]
    wanted = [spec for spec in (*(result.fit.spec for result in results), *larger) if spec is not None]
    fixed = {"warmup_steps": _WARMUP, "measure_steps": _STEPS, "warmup_auto": False, "steps_auto": None}
    fixed |= {"warmup_for": None, "steps_for": None}
    cells = [(msgspec.structs.replace(spec, **fixed), 1) for spec in wanted]
    run = HeadlessRun()
    bench = Bench(run.sink, session_dir=session_dir, skip_after_oom=False, explain_oom=False)

    def work() -> None:
        bench.add(cells)
        bench.work()

    code = carry_out(bench, run, work, Outputs(lambda state: _render(_as_run(results, state), to.format), to))
    fits = all(result.ran is not None and result.ran.status == "ok" for result in _as_run(results, run.state))
    return code or (EXIT_OK if fits else EXIT_CELL_FAILED)


def _as_run(results: Sequence[Fitted], state: SessionState) -> list[Fitted]:
    cells = {prediction_key(cell.spec): cell for cell in state.cells.values()}

    def cell_of(spec: CellSpec | None) -> CellState | None:
        return cells.get(prediction_key(spec)) if spec else None

    return [each._replace(ran=cell_of(each.fit.spec), ran_next=cell_of(each.fit.next_spec)) for each in results]


def _render(results: Sequence[Fitted], format_: str) -> str:
    if format_ == "json":
        return to_json({"fits": [fit_document(result) for result in results]})
    return shown([fit_table(results)], format_)
