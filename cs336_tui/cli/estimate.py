"""`cs336-tui estimate`: what cells will need, whether they fit and how long they will take, before anything runs."""

from __future__ import annotations

import time
from collections import Counter as Counted
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cs336_tui.analysis.estimates import (
    Estimate,
    Unpredicted,
    judge_all,
    least_times,
    stream_derivation,
    stream_text,
    timed_flops,
    total_s,
)
from cs336_tui.analysis.merge import grouped
from cs336_tui.cli.files import Destination, file_options, to_json
from cs336_tui.cli.flags import Parsed, choice_options, gpu_option, session_dir_option, trust_option
from cs336_tui.cli.help import command, heading
from cs336_tui.cli.run import EXIT_CELL_FAILED
from cs336_tui.cli.streams import TERMINAL, on_terminal, shown
from cs336_tui.cli.suggestions import offer, sessions
from cs336_tui.cli.targets import AskedCells, Counter, Machine, predicting, read_machine, settle
from cs336_tui.config.choices import sweep_from, with_model
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import bytes_per_s_of
from cs336_tui.events.events import CellsPredicted
from cs336_tui.events.prediction import Prediction, prediction_key
from cs336_tui.export.subjects.estimates import (
    category_table,
    communication_table,
    estimate_notes,
    estimate_table,
    sweep_note,
)
from cs336_tui.export.writing.formats import plain_text
from cs336_tui.export.writing.tables import Table, attributes
from cs336_tui.export.writing.terminal import Notes
from cs336_tui.runner.predictor import PredictionError, Predictor
from cs336_tui.runner.trust import Trust
from cs336_tui.session import store
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import counted, gigabytes

_LARGEST_SHOWN = 8


@command("estimate")
@choice_options
@heading("Which device")
@gpu_option
@click.option(
    "--peak",
    type=click.FloatRange(min=0, min_open=True),
    metavar="TFLOPS",
    help="Peak of the target for this precision, in place of the data sheet's.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up predicting a cell after this time, and go on. [default: 60 for code of your own]",
)
@click.option(
    "--link",
    "link_bytes_per_s",
    type=Parsed("RATE", bytes_per_s_of),
    help="Outgoing bandwidth of a device: 450GB/s, or in bits 400Gb/s; gives several ranks' "
    "least time to communicate. [default: NVLink's by the GPU's data sheet]",
)
@click.option(
    "--session",
    metavar="SESSION",
    help="Take the speed of the device from the measured cells of this session.",
    shell_complete=offer(sessions),
)
@trust_option
@file_options("table")
@session_dir_option
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
    predictor: Predictor | None = None,
    read: Callable[[], Machine] = read_machine,
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
    asked = settle(with_model(sweep_from(**choices), "prediction"), gpu, peak, read, link_bytes_per_s)
    state = store.load(store.find(session, session_dir)) if session else None
    measured = unpredicted(state, asked, trusted=trusted) if state else ()
    failed: dict[CellSpec, PredictionError] = {}
    counter = Counter("predicting", len(asked.specs))

    def give_up(spec: CellSpec, error: PredictionError) -> None:
        failed[prediction_key(spec)] = error
        counter()

    with predicting(asked, predictor, measured) as predicts:
        predictions = predicts.predict(asked.specs, counter, within_s=timeout_s, give_up=give_up)
        if state:
            complete(state, measured, predicts, timeout_s)
    counter.clear()
    if failed and len(asked.specs) == 1:
        raise next(iter(failed.values()))
    cells = _judged(asked, predictions, failed, state)
    text = to.deliver(_render(cells, to.format))
    if not failed:
        return text
    click.echo(text, nl=False)
    click.echo(f"{len(cells) - len(_predicted(cells))} of {counted(len(cells), 'cell')} not predicted", err=True)
    return EXIT_CELL_FAILED


def unpredicted(state: SessionState, asked: AskedCells, *, trusted: bool) -> tuple[CellSpec, ...]:
    """The session's measured cells that are of the targets' kinds and that nobody has predicted yet. Leaves out, with a
    line on standard error, those whose code the log alone names, unless it is `trusted`."""
    trust = Trust()
    trust.name(*asked.specs)
    kinds = {target.kind for target in asked.targets.values()}
    found: list[CellSpec] = []
    withheld: dict[str, None] = {}
    for spec in (cell.spec for cell in state.cells.values() if cell.running.n):
        if spec.device.partition(":")[0] not in kinds or state.prediction_of(spec) is not None:
            continue
        if not trusted and (why := trust.refusal(spec)):
            withheld[why] = None
        else:
            found.append(spec)
    for why in withheld:
        click.echo(f"note: {why}, and the speed of its cells is left out; --trust imports it", err=True)
    return tuple(found)


def complete(state: SessionState, missing: Sequence[CellSpec], predicts: Predictor, timeout_s: float | None) -> None:
    """Predict these cells of the session, where it can be done."""
    if missing:
        found = predicts.predict(missing, within_s=timeout_s, give_up=lambda _spec, _why: None)
        state.apply(CellsPredicted(at=time.time(), predictions=found))


def _judged(
    asked: AskedCells,
    predictions: Sequence[Prediction],
    failed: Mapping[CellSpec, PredictionError],
    state: SessionState | None,
) -> tuple[Estimate | Unpredicted, ...]:
    """The cells in the order in which they were asked for; `failed` is by `prediction_key`."""
    found: dict[CellSpec, Estimate | Unpredicted] = {
        spec: Unpredicted(spec, asked.targets[spec.device], failed[key].why)
        for spec in asked.specs
        if (key := prediction_key(spec)) in failed
    }
    predicted = [spec for spec in asked.specs if spec not in found]
    by_device = grouped(zip(predicted, predictions, strict=True), lambda each: each[0].device)
    for device, cells in by_device.items():
        specs = [spec for spec, _ in cells]
        judged = judge_all([prediction for _, prediction in cells], asked.targets[device], state, specs)
        found.update(zip(specs, judged, strict=True))
    return tuple(found[spec] for spec in asked.specs)


def document(estimate: Estimate) -> dict[str, Any]:
    """An estimate as data: bytes, seconds and FLOPs, None for what is unknown."""
    found, target = estimate.prediction, estimate.target
    return {
        "spec": estimate.spec,
        **attributes(found, "num_params", "num_params_without_head"),
        "flops": timed_flops(found),
        "flops_by_phase": found.flops,
        "flops_by_range": {
            name: {"forward": each[0], "backward": each[1]} for name, each in found.flops_by_range.items()
        },
        **attributes(found, "peak_bytes", "peak_phase", "by_category", "forward_peak_bytes", "forward_end_bytes"),
        **attributes(found, "activation_peak_bytes", "activation_peak_phase"),
        **attributes(found, "forward_end_by_category", "residual_stream_bytes", "largest"),
        "residual_stream": stream_derivation(found),
        "device": target.name,
        "gpu": target.gpu.name if target.gpu else None,
        "capacity_bytes": target.capacity_bytes,
        "free_bytes": target.free_bytes,
        "memory_source": target.source,
        "context_bytes": target.context_bytes,
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
        return to_json(
            {
                "estimates": [document(estimate) for estimate in predicted],
                "total_low_s": low,
                "total_high_s": high,
                "not_predicted": [
                    {"spec": cell.spec, "why": cell.why} for cell in cells if isinstance(cell, Unpredicted)
                ],
            }
        )
    if format_ == "table":
        return "\n".join(_plain(group) for group in groups)
    if format_ == TERMINAL:
        return on_terminal([part for group in groups for part in _parts(group)])
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


def _plain(group: Sequence[Estimate | Unpredicted]) -> str:
    def text(part: Table | str | Notes) -> str:
        if isinstance(part, Notes):
            return "\n".join([*part.lines, ""])
        return part if isinstance(part, str) else plain_text(part)

    return "\n".join(map(text, _parts(group)))


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
