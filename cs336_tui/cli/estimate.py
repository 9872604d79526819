"""`cs336-tui estimate`: what cells will need, whether they fit and how long they will take, before anything runs; and
`fit`: the largest batch or context that fits a device, by prediction and, if asked, by running it."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cs336_tui.analysis.estimates import (
    Estimate,
    Unpredicted,
    judge_each,
    least_times,
    stream_derivation,
    stream_text,
    timed_flops,
    total_s,
)
from cs336_tui.analysis.merge import grouped
from cs336_tui.analysis.targets import Dimension, Target, search
from cs336_tui.cli.files import Destination, file_options, json_text
from cs336_tui.cli.flags import COUNT, POSITIVE, Parsed, choice_options, gpu_option, trust_option
from cs336_tui.cli.help import Choice, command, heading, option
from cs336_tui.cli.run import EXIT_CELL_FAILED, EXIT_OK, HeadlessRun, Outputs, carry_out
from cs336_tui.cli.streams import TERMINAL, laid_out, shown
from cs336_tui.cli.suggestions import sessions
from cs336_tui.cli.targets import Counter, predicting, settle
from cs336_tui.config.choices import sweep_from, with_model
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.tuning import COUNTS
from cs336_tui.config.values import bytes_per_s_of
from cs336_tui.events.prediction import Prediction, prediction_key
from cs336_tui.export.subjects.estimates import (
    Fitted,
    category_table,
    communication_table,
    estimate_notes,
    estimate_table,
    fit_document,
    fit_table,
    sweep_note,
)
from cs336_tui.export.writing.tables import Table, attributes
from cs336_tui.export.writing.terminal import Notes
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.predictor import PredictionError, Predictor
from cs336_tui.session import store
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import counted, gigabytes

_LARGEST_SHOWN = 8


@command("estimate")
@choice_options
@heading("Which device")
@gpu_option
@option("--peak TFLOPS", "Peak of the target for this precision, in place of the data sheet's.", type=POSITIVE)
@option(
    "--timeout SECONDS",
    "Give up predicting a cell after this time, and go on. [default: 60 for code of your own]",
    name="timeout_s",
    type=POSITIVE,
)
@option(
    "--link",
    "Outgoing bandwidth of a device: 450GB/s, or in bits 400Gb/s; gives several ranks' "
    "least time to communicate. [default: NVLink's by the GPU's data sheet]",
    name="link_bytes_per_s",
    type=Parsed("RATE", bytes_per_s_of),
)
@option("--session SESSION", "Take the speed of the device from the measured cells of this session.", complete=sessions)
@trust_option
@file_options("table")
def estimate(
    *,
    gpu: str | None,
    peak: float | None = None,
    timeout_s: float | None = None,
    link_bytes_per_s: float | None = None,
    session: str | None = None,
    trusted: bool = False,
    to: Destination,
    session_dir: Path,
    **choices: Any,
) -> str | int:
    """Predict what every combination of the choices needs: parameters, FLOPs, peak memory by category, time.

    Nothing is run: the step is shape-only (meta tensors). Says whether it fits this machine's device, or the
    one named by --gpu. A cell that cannot be predicted has a row that says why; then the exit code is 1.

    \f
    As JSON ``{"estimates": [...], "total_low_s": ..., "total_high_s": ..., "not_predicted": [...]}``, however many they
    are; empty when it went to a file. Prints it and returns the exit code where some could not be predicted. Raises
    `UserError` or `click.ClickException`, also when the only cell could not be predicted.
    """
    if trusted and session is None:
        raise click.UsageError("--trust is for the log of a session; name it with --session")
    asked = settle(with_model(sweep_from(**choices), "prediction"), gpu, peak, link_bytes_per_s)
    state = store.load(store.find(session, session_dir)) if session else None
    failed: dict[CellSpec, PredictionError] = {}
    counter = Counter("predicting", len(asked.specs))

    def give_up(spec: CellSpec, error: PredictionError) -> None:
        failed[prediction_key(spec)] = error
        counter()

    with predicting(asked, state=state, trusted=trusted, within_s=timeout_s) as predicts:
        predicted = predicts.predict(asked.specs, counter, within_s=timeout_s, give_up=give_up)
    counter.clear()
    if failed and len(asked.specs) == 1:
        raise next(iter(failed.values()))
    predictions = {each.spec: each for each in predicted}
    judged = judge_each([(spec, predictions.get(spec)) for spec in asked.specs], asked.targets, state)
    cells = [
        estimate or Unpredicted(spec, asked.targets[spec.device], failed[prediction_key(spec)].why)
        for spec, estimate in zip(asked.specs, judged, strict=True)
    ]
    text = to.deliver(_render(cells, to.format))
    if not failed:
        return text
    click.echo(text, nl=False)
    click.echo(f"{len(cells) - len(_predicted(cells))} of {counted(len(cells), 'cell')} not predicted", err=True)
    return EXIT_CELL_FAILED


def document(estimate: Estimate) -> dict[str, Any]:
    """An estimate as data: bytes, seconds and FLOPs, None for what is unknown."""
    found, target = estimate.prediction, estimate.target
    return {
        "spec": estimate.spec,
        **attributes(found, "num_params", "num_params_without_head"),
        "flops": timed_flops(found),
        "flops_by_phase": found.flops,
        "flops_by_range": {name: {"forward": f, "backward": b} for name, (f, b) in found.flops_by_range.items()},
        **attributes(found, "peak_bytes", "peak_phase", "by_category", "forward_peak_bytes", "forward_end_bytes"),
        **attributes(found, "activation_peak_bytes", "activation_peak_phase"),
        **attributes(found, "forward_end_by_category", "residual_stream_bytes", "largest"),
        "residual_stream": stream_derivation(found),
        "device": target.name,
        "gpu": target.gpu.name if target.gpu else None,
        **attributes(target, "capacity_bytes", "free_bytes", memory_source="source"),
        **attributes(target, "context_bytes"),
        **attributes(estimate, "needed_bytes", "fits", "tight", "margin_bytes", "low_s", "high_s"),
        **attributes(estimate, "run_low_s", "run_high_s", "basis"),
        "communication": [
            attributes(each, "op", "calls", "bytes") | {"least_s": time} for each, time in least_times(estimate)
        ],
        **attributes(target, "link_bytes_per_s"),
        "note": found.note,
    }


def _render(cells: Sequence[Estimate | Unpredicted], format_: str) -> str:
    groups = grouped(cells, lambda cell: cell.spec.device).values()
    if format_ == "json":
        predicted = _predicted(cells)
        low, high = total_s(predicted)
        others = [{"spec": cell.spec, "why": cell.why} for cell in cells if isinstance(cell, Unpredicted)]
        totals = {"total_low_s": low, "total_high_s": high, "not_predicted": others}
        return json_text({"estimates": [document(estimate) for estimate in predicted], **totals})
    if format_ in (TERMINAL, "table"):
        return laid_out([part for group in groups for part in _parts(group)], format_)
    tables = []
    for group in groups:
        tables.append(estimate_table(group))
        if format_ != "csv" and (estimates := _predicted(group)):
            tables.append(category_table(estimates))
            tables += filter(None, [communication_table(estimates)])
    return shown(tables, format_)


def _predicted(cells: Sequence[Estimate | Unpredicted]) -> list[Estimate]:
    return [cell for cell in cells if isinstance(cell, Estimate)]


def _parts(group: Sequence[Estimate | Unpredicted]) -> Iterator[Table | str | Notes]:
    """A card for one estimate with its notes, a table for several, and what their ranks send."""
    only = group[0] if len(group) == 1 else None
    if isinstance(only, Estimate):
        yield card(only)
        yield Notes(tuple(estimate_notes([only])))
    else:
        yield estimate_table(group)
    yield from filter(None, [communication_table(_predicted(group))])


def card(estimate: Estimate) -> str:
    """One estimate for people, top to bottom, without its notes."""
    spec, found = estimate.spec, estimate.prediction
    phases = ", ".join(f"{phase} {flops / 1e12:.4g}" for phase, flops in found.flops.items() if flops)
    activations = f"{gigabytes(found.activation_peak_bytes)} GB in {found.activation_peak_phase}"
    facts = {
        "parameters": f"{found.num_params / 1e6:.2f} M, {found.num_params_without_head / 1e6:.2f} M less the head",
        "TFLOP per step": f"{timed_flops(found) / 1e12:.4g}: {phases}",
        **({"activation peak": activations} if found.activation_peak_bytes is not None else {}),
        "residual stream": f"{stream_text(found)} a tensor",
        "memory": estimate.fit,
        "time per step": f"{estimate.step_time} ({estimate.basis})",
    }
    if estimate.run_low_s is not None:
        facts["all steps"] = sweep_note([estimate]).partition(": ")[2]
    usual = (spec.size_label, f"ctx {spec.context_length}", f"batch {spec.batch_size}", spec.pass_, spec.precision)
    title = " · ".join((*usual, *spec.variants))
    lines = [f"{title} on {estimate.target.name}", "", *(f"{name:<17}{value}" for name, value in facts.items()), ""]
    lines += [f"{'GB':<17}{'end of forward':>16}{f'peak, in {found.peak_phase}':>24}"]
    end, peak = found.forward_end_by_category, found.by_category
    rows = [(name, end.get(name, 0), peak.get(name, 0)) for name in found.categories]
    for name, at_end, at_peak in (*rows, ("total", found.forward_end_bytes, found.peak_bytes)):
        lines.append(f"{name.replace('_', ' '):<17}{gigabytes(at_end):>16}{gigabytes(at_peak):>24}")
    if found.largest:
        lines += ["", "largest at the peak", *_largest(found)]
    return "\n".join([*lines, ""])


def _largest(prediction: Prediction) -> Iterator[str]:
    """The largest live allocations, alike ones in one line."""
    alike = Counted((block.bytes, block.category, block.shape, block.dtype, block.site) for block in prediction.largest)
    for (size, category, shape, dtype, site), number in list(alike.items())[:_LARGEST_SHOWN]:
        times = f"{number} × " if number > 1 else ""
        what = f"{list(shape)} {dtype}" if shape is not None else ""
        where = " · ".join(filter(None, (site.range, site.frame or site.op)))
        yield f"{times + gigabytes(size):>11} GB  {category.replace('_', ' '):<15}  {what:<30}  {where}".rstrip()


_WARMUP, _STEPS = 1, 2
"""Steps of a cell that is run to see whether it fits: from the second on the optimizer's state is there."""


@command("fit")
@choice_options
@heading("The search")
@option("--by", "What to increase.", type=Choice(["batch", "context"]), default="batch")
@option("--limit", "Largest value to try.", type=COUNT)
@gpu_option
@option("--confirm", "Run what was found, and on a GPU the next larger one, to confirm it.", is_flag=True)
@file_options("table")
def fit(
    *,
    by: Dimension,
    gpu: str | None,
    limit: int | None,
    confirm: bool,
    to: Destination,
    session_dir: Path,
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
    asked = settle(sweep, gpu)
    tried = Counter("predicted")
    with predicting(asked) as predicts:
        results = [_fitted(spec, by, asked.targets[spec.device], predicts, limit, tried) for spec in asked.specs]
    tried.clear()
    if confirm and any(result.fit.spec for result in results):
        return _confirmed(results, to, session_dir)
    click.echo(to.deliver(_render_fit(results, to.format)), nl=False)
    return EXIT_OK if all(result.fit.spec for result in results) else EXIT_CELL_FAILED


def _fitted(
    spec: CellSpec, by: Dimension, target: Target, predicts: Predictor, limit: int | None, tried: Counter
) -> Fitted:
    room = target.room_bytes(spec.ranks)
    if room is None:
        raise click.UsageError(f"{target.name}: its memory is not known; --gpu NAME is for a GPU that is")
    fit = search(spec, by, lambda each: predicts.predict([each])[0], room, limit=limit, on_try=tried)
    return Fitted(spec, fit, target)


def _confirmed(results: Sequence[Fitted], to: Destination, session_dir: Path) -> int:
    """Run what was found, then say how it went. Off a GPU nothing larger is tried: what a host cannot hold takes other
    programs' memory before it fails."""
    larger = [result.fit.next_spec for result in results if result.target.kind == "cuda" and result.fit.spec]
    wanted = [spec for spec in (*(result.fit.spec for result in results), *larger) if spec is not None]
    fixed = {field: AXES[field].default for field in COUNTS} | {"warmup_steps": _WARMUP, "measure_steps": _STEPS}
    cells = [(msgspec.structs.replace(spec, **fixed), 1) for spec in wanted]
    run = HeadlessRun()
    bench = Bench(run.sink, session_dir=session_dir, skip_after_oom=False, explain_oom=False)

    def work() -> None:
        bench.add(cells)
        bench.work()

    code = carry_out(bench, run, work, Outputs(lambda state: _render_fit(_as_run(results, state), to.format), to))
    fits = all(result.ran is not None and result.ran.status == "ok" for result in _as_run(results, run.state))
    return code or (EXIT_OK if fits else EXIT_CELL_FAILED)


def _as_run(results: Sequence[Fitted], state: SessionState) -> list[Fitted]:
    cells = {prediction_key(cell.spec): cell for cell in state.cells.values()}

    def cell_of(spec: CellSpec | None) -> CellState | None:
        return cells.get(prediction_key(spec)) if spec else None

    return [each._replace(ran=cell_of(each.fit.spec), ran_next=cell_of(each.fit.next_spec)) for each in results]


def _render_fit(results: Sequence[Fitted], format_: str) -> str:
    if format_ == "json":
        return json_text({"fits": [fit_document(result) for result in results]})
    return shown([fit_table(results)], format_)
