"""`cs336-tui fit`: the largest batch or context that fits a device, by prediction and, if asked, by running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cs336_tui.analysis.targets import Dimension, Target, search
from cs336_tui.cli.files import file_options
from cs336_tui.cli.flags import choice_options, gpu_option, options, session_dir_option
from cs336_tui.cli.help import command, heading
from cs336_tui.cli.run import HeadlessRun, Outputs, carry_out
from cs336_tui.cli.streams import shown
from cs336_tui.cli.targets import Counter, Machine, Predicts, deliver, predicting, read_machine, settle, to_json
from cs336_tui.config.choices import sweep_from, with_model
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction, prediction_key
from cs336_tui.export.subjects.estimates import Fitted, fit_document, fit_table
from cs336_tui.session.state import SessionState

EXIT_FITS, EXIT_DOES_NOT = 0, 1
_CHOICES: dict[Dimension, str] = {"batch": "batches", "context": "contexts"}
_WARMUP, _STEPS = 1, 2
"""Steps of a cell that is run to see whether it fits: from the second on the optimizer's state is there."""


@choice_options
@heading("The search")
@click.option(
    "--by", type=click.Choice(["batch", "context"]), default="batch", show_default=True, help="What to increase."
)
@click.option("--limit", type=click.IntRange(1), help="Largest value to try.")
@gpu_option
@click.option("--confirm", is_flag=True, help="Run what was found, and on a GPU the next larger one, to confirm it.")
@options(*file_options("table"))
@session_dir_option
def fit_command(
    *,
    by: Dimension,
    gpu: str | None,
    limit: int | None,
    confirm: bool,
    format_: str,
    output: Path | None,
    force: bool,
    session_dir: Path,
    predictor: Predicts | None = None,
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
        return _confirmed(results, format_, output, force=force, session_dir=session_dir)
    click.echo(deliver(_render(results, format_), output, force=force), nl=False)
    return EXIT_FITS if all(result.fit.spec for result in results) else EXIT_DOES_NOT


def _fitted(
    spec: CellSpec, by: Dimension, target: Target, predicts: Predicts, limit: int | None, tried: Counter
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


def _confirmed(results: Sequence[Fitted], format_: str, output: Path | None, *, force: bool, session_dir: Path) -> int:
    """Run what was found, then say how it went. Off a GPU nothing larger is tried: what a host cannot hold takes other
    programs' memory before it fails."""
    from cs336_tui.runner.bench import Bench

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

    def render(state: SessionState) -> str:
        return _render(_as_run(results, state), format_)

    code = carry_out(bench, run, work, Outputs(render, output, force))
    fits = all(result.ran is not None and result.ran.status == "ok" for result in _as_run(results, run.state))
    return code or (EXIT_FITS if fits else EXIT_DOES_NOT)


def _as_run(results: Sequence[Fitted], state: SessionState) -> list[Fitted]:
    cells = {prediction_key(cell.spec): cell for cell in state.cells.values()}
    return [
        result._replace(
            ran=cells.get(prediction_key(result.fit.spec)) if result.fit.spec else None,
            ran_next=cells.get(prediction_key(result.fit.next_spec)) if result.fit.next_spec else None,
        )
        for result in results
    ]


def _render(results: Sequence[Fitted], format_: str) -> str:
    if format_ == "json":
        return to_json({"fits": [fit_document(result) for result in results]})
    return shown([fit_table(results)], format_)


fit = command("fit")(fit_command)
