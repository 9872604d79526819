"""Everything known of one cell, for a window."""

from __future__ import annotations

from collections.abc import Iterator

from cs336_tui.analysis.measures import tokens_per_s
from cs336_tui.config.counts import INTERVAL, steps_words, warmup_words
from cs336_tui.config.flops import algbw, busbw
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.events import EffectiveSettings
from cs336_tui.events.peaks import WRONG_PEAK
from cs336_tui.export.writing.footnotes import limit_words
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import bandwidth, counted, percent
from cs336_tui.stats.summaries import summarize
from cs336_tui.tui import format
from cs336_tui.tui.charts.bars import phase_bars
from cs336_tui.tui.format import title_rows
from cs336_tui.tui.judging import Assessment
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.tabs import status
from cs336_tui.tui.tabs.live import phase_times
from cs336_tui.tui.tabs.status import all_checks, energy_words, interval_words, trust
from cs336_tui.tui.widgets.lines import Line, labelled, line, wrapped

_OUTPUT_ROWS = 200
_VERSIONS = {"os": "system", "cuda": "CUDA", "cudnn": "cuDNN", "app": "cs336-tui"}


def cell_detail(state: SessionState, cell: CellState, width: int, found: Assessment | None = None) -> list[Line]:
    """Result, error, phases, every step time (warm-up first), verdicts, settings, machine, and the process's output."""
    title = [line((row, "title")) for row in title_rows(cell.spec.title, width, 4)]
    mean = format.ms(cell.running.mean, cell.running.std(state.ddof))
    known = trust(cell, found, width, f" · {mean} ms {interval_words(found)}".rstrip())
    head = [*title, line(status.status(cell, found)), *known]
    if cell.spec.recording:
        machine = _titled("Machine", _machine(state, cell))
        return [*head, (), *wrapped(status.RECORDED_ELSEWHERE, width, "muted"), *([(), *machine] if machine else [])]
    sections = [
        head,
        _error(cell, width),
        _statistics(state, cell, found, width),
        _titled("Ranks", _ranks(state, cell, width)),
        _titled(
            "Mean of each phase" if cell.phase_times_s else "Each phase of the last warm-up step",
            phase_bars({} if cell.spec.is_collective else phase_times(cell), width=width),
        ),
        _titled("Warm-up steps, ms (not measured)", _times(cell.warmup_times_s, None, width, "warmup")),
        _titled("Measured steps, ms", _times(cell.step_times_s, cell.running.std(state.ddof), width, "measured")),
        _titled("Checks of these steps", all_checks(found.judgement, width) if found and found.judgement else []),
        _titled("Before the first step", _prepared(cell, width)),
        labelled("whole run", words, width) if (words := limit_words(cell)) else [],
        _titled("Asked for", [row for label, text in _asked(cell.spec) for row in labelled(label, text, width)]),
        _titled("Effective settings, read back", _in_force(cell, cell.in_force, width) if cell.in_force else []),
        _titled("Machine", _machine(state, cell)),
        _titled("Output of the process", [line(format.plain(row)) for row in cell.output.splitlines()[-_OUTPUT_ROWS:]]),
    ]
    return [row for section in sections if section for row in (*section, ())][:-1]


def _titled(title: str, lines: list[Line]) -> list[Line]:
    return [line((title, "strong")), *lines] if lines else []


def _error(cell: CellState, width: int) -> list[Line]:
    if cell.status == "skipped":
        return wrapped(cell.skipped_because or "", width)
    problem = status.how_it_ended(cell)
    if not problem or cell.finished is None:
        return []
    return [line((f"✗ {problem}", "bad")), *status.error_lines(cell, width)]


def _statistics(state: SessionState, cell: CellState, found: Assessment | None, width: int) -> list[Line]:
    lines: list[Line] = []
    if summary := cell.summary(state.ddof):
        std = summary.std_s
        label = "sample, n-1" if summary.ddof == 1 else f"ddof {summary.ddof}"
        lines += [
            row("mean", f"{format.ms(summary.mean_s, std)} ms"),
            row("std", f"{format.ms(std, std)} ms ({label}, n={summary.n})"),
            row("median", f"{format.ms(summary.median_s, std)} ms"),
            *([row("20 to 80 %", _span(summary.p20_s, summary.p80_s, std))] if summary.p20_s is not None else []),
            row("min to max", _span(summary.min_s, summary.max_s, std)),
            *([row("p95", f"{format.ms(summary.p95_s, std)} ms")] if summary.p95_s is not None else []),
            *([row("tokens/s", format.rate(rate))] if (rate := tokens_per_s(cell.spec, cell.running.mean)) else []),
            *(
                row(name, f"{bandwidth(of(cell.spec, cell.running.mean))} GB/s")
                for name, of in (("algbw", algbw), ("busbw", busbw))
                if cell.spec.is_collective and cell.running.mean
            ),
            *_found(found, width),
        ]
    if finished := cell.finished:
        peaks = {
            "peak allocated": finished.peak_allocated_bytes,
            "peak reserved": finished.peak_reserved_bytes,
            "peak RSS": finished.peak_rss_bytes,
        }
        if finished.before_backward_bytes is not None:
            lines.append(row("before backward", format.fine_size(finished.before_backward_bytes)))
        lines += [row(name, format.size(value, format.NOT_AVAILABLE)) for name, value in peaks.items()]
        if apart := state.activation_peak_of(cell.spec):
            lines.append(row("activation peak", f"{format.size(apart.bytes)} ({apart.basis})"))
        if finished.num_alloc_retries:
            retries = counted(finished.num_alloc_retries, "allocator retry")
            lines.append(line(("! ", "caution"), f"{retries}: timing is suspect"))
        if finished.recompilations:
            times = f"{finished.recompilations} time{'s' * (finished.recompilations > 1)}"
            again = f"! recompiled {times} during the steps: step times include it"
            lines += wrapped(again, width, "caution", "  ")
    return _titled("Result", lines)


def _ranks(state: SessionState, cell: CellState, width: int) -> list[Line]:
    """Of several ranks the mean and the peak of each, and the skew."""
    measured = cell.times.rank_s if cell.spec.ranks > 1 else []
    peaks = cell.finished.rank_peak_bytes if cell.finished else ()
    allocated = cell.finished is not None and cell.finished.peak_allocated_bytes is not None
    lines: list[Line] = []
    for rank in range(max(len(measured), len(peaks))):
        parts: list[str] = []
        if rank < len(measured):
            own = summarize(measured[rank], state.ddof)
            parts.append(f"{format.ms(own.mean_s, own.std_s)} ms mean")
        if rank < len(peaks):
            parts.append(f"{format.size(peaks[rank], format.NOT_AVAILABLE)} peak {'allocated' if allocated else 'RSS'}")
        lines.append(row(f"rank {rank}", ", ".join(parts)))
    if (skew := cell.skew).n:
        std = skew.std(state.ddof)
        spread = f" ± {format.ms(std, std)} std" if std is not None else ""
        lines.append(row("skew", f"{format.ms(skew.mean, std)} ms mean{spread}"))
    if measured:
        note = "Step time: that of the slowest rank. Skew: slowest minus fastest rank, mean over the steps."
        lines += wrapped(note, width, "muted")
    return lines


def _found(found: Assessment | None, width: int) -> list[Line]:
    if found is None or found.judgement is None:
        return []
    lines: list[Line] = []
    if limit := found.limit:
        lines.append(row("FLOP/s", f"{format.flops(limit.flops_per_s)}FLOP/s"))
        measured, sheet = limit.share_of_measured, limit.share_of_sheet
        wrong = ""
        if measured is not None and measured > 1:
            wrong = f" ({'the peak is wrong' if measured > WRONG_PEAK else 'above it'}: measure the peak again)"
        lines.append(
            row("% of peak", _share(measured, f"not measured (Roofline, {key_name('app.open_roofline')})") + wrong)
        )
        lines.append(row("% of spec", _share(sheet, "unknown")))
        if limit.share_of_bandwidth is not None:
            lines.append(row("% of bandwidth", f"at least {_share(limit.share_of_bandwidth)} (bandwidth-bound)"))
    if energy := found.energy:
        lines += labelled("energy", ", ".join(energy_words(energy)) or f"{format.NOT_AVAILABLE}: {energy.why}", width)
    return lines + labelled("warm-up", found.judgement.warmup_advice, width)


def _share(share: float | None, unknown: str = "") -> str:
    return unknown if share is None else f"{percent(share)} %"


def _times(times_s: list[float], std_s: float | None, width: int, role: str) -> list[Line]:
    texts = [format.ms(time_s, std_s) for time_s in times_s]
    each = max(map(len, texts), default=0) + 2
    across = max(width // each, 1)
    rows = (texts[start : start + across] for start in range(0, len(texts), across))
    return [line(("".join(f"{text:>{each}}" for text in row), role)) for row in rows]


def _prepared(cell: CellState, width: int) -> list[Line]:
    """Compiling and capturing, whose time is in no step."""
    if (prepared := cell.prepared) is None:
        return []
    lines: list[Line] = []
    if prepared.compile_s is not None:
        breaks = prepared.graph_breaks
        lines += [row("compiling", f"{prepared.compile_s:.1f} s"), row("graphs", prepared.graphs)]
        lines.append(row("graph breaks", len(breaks) or "none"))
        lines += [row for why in breaks for row in labelled("", why, width)]
    if prepared.capture_s is not None:
        lines.append(row("capturing", f"{prepared.capture_s:.2f} s"))
    return lines


_OF_A_MESSAGE = ("device", "parameters", "allocator", "variables", "threads", "interop threads")


def _in_force(cell: CellState, real: EffectiveSettings, width: int) -> list[Line]:
    names = {
        "device": real.device_name,
        "float32 matmul": real.matmul_precision,
        "TF32 allowed": real.allow_tf32,
        "parameters": real.parameter_dtype,
        "autocast": real.autocast_dtype,
        "float8": real.float8,
        "logits": real.logits_dtype,
        "grad scaler": real.grad_scaler,
        "optimizer": real.optimizer,
        "attention": real.attention,
        "compiler": real.compiler,
        "allocator": real.allocator,
        "flush L2": real.flushed,
        "variables": " ".join(real.variables or ()) or None,
        "threads": real.threads,
        "interop threads": real.interop_threads,
        "model revision": real.model_revision,
    }
    words = {True: "yes", False: "no"}
    known = {name: value for name, value in names.items() if value is not None}
    if cell.spec.is_collective:
        known = {"message" if name == "parameters" else name: known[name] for name in _OF_A_MESSAGE if name in known}
    texts = ((name, words[value] if isinstance(value, bool) else str(value)) for name, value in known.items())
    return [row for name, text in texts for row in labelled(name, text, width)]


def _machine(state: SessionState, cell: CellState) -> list[Line]:
    seen, environment = cell.surroundings, cell.environment or state.environment
    clocks = {
        "clock before": seen.clock_before_mhz,
        "lowest clock": seen.lowest_clock_mhz,
        "clock after": seen.clock_after_mhz,
    }
    lines = [row(name, f"{clock} MHz (SM)") for name, clock in clocks.items() if clock is not None]
    if not lines and cell.finished is not None and not cell.spec.recording:
        lines = [row("clocks", "not observed")]
    if seen.persistence_mode is not None:
        lines.append(row("persistence", "on" if seen.persistence_mode else "off"))
    if environment is not None:
        names: tuple[str, ...] = ("host", "os", "driver", "cuda", "cudnn", "torch", "python", "app")
        names = names[:-1] if cell.spec.recording else names  # which reads it, and did not run it
        lines += [row(_VERSIONS.get(name, name), value) for name in names if (value := getattr(environment, name))]
        if cell.spec.recording and (device := environment.device(cell.spec.device)):
            lines.append(row("device", device.label))
    return lines


def _span(low_s: float | None, high_s: float | None, std_s: float | None) -> str:
    return f"{format.ms(low_s, std_s)} to {format.ms(high_s, std_s)} ms"


def row(label: str, value: object) -> Line:
    return labelled(label, str(value))[0]


def _asked(spec: CellSpec) -> Iterator[tuple[str, str]]:
    """All settings of the spec that its title does not have."""
    yield from _model(spec)
    for field, axis in AXES.items():
        value, always = getattr(spec, field), field == spec.workload
        if axis.said and field not in ("causal", "model", "model_args") and (value != axis.default or always):
            yield axis.long_title or axis.title, axis.detail(value)
    if spec.model_path and spec.brings_own_code:
        yield "module path", ", ".join(spec.model_path)
    yield "warm-up", warmup_words(spec.warmup_steps, spec.warmup_auto, spec.warmup_for)
    yield "measured steps", steps_words(spec.measure_steps, spec.steps_auto and INTERVAL, spec.steps_for)
    if spec.steps_auto is not None:
        yield "interval", f"± {spec.steps_auto * 50:g} % of the mean ends it"
    yield "synchronised", spec.synchronised
    yield "seed", str(spec.seed)
    yield "threads", str(spec.threads) if spec.threads is not None else "torch's own choice"


def _model(spec: CellSpec) -> Iterator[tuple[str, str]]:
    """The model and its dimensions, or those of an operation alone."""
    if spec.is_collective:
        yield "operation", spec.collective
        yield "size", f"{spec.size}: {spec.message_bytes} bytes, the whole array"
        return
    if spec.is_alone:
        yield "workload", f"{spec.workload} alone, no model around it"
    if spec.workload == "norm":
        yield "width", str(spec.d_model)
        yield "rows", f"{spec.rank_batch_size} × {spec.context_length} = {spec.tokens_per_step}"
        return
    if spec.workload == "attention":
        heads = f", {spec.num_heads} heads" if spec.num_heads > 1 else ""
        yield "head dim", f"{spec.head_dim}{heads}"
        yield "mask", "causal" if spec.causal else "none"
        yield "batch, sequence", f"{spec.rank_batch_size} × {spec.context_length}"
        return
    if is_imported(spec.model):
        yield "model", spec.model
        if spec.model_args:
            yield "arguments", ", ".join(f"{name}={value}" for name, value in spec.model_args)
        if spec.annotations:
            yield "annotated", ", ".join(f"{name}={value}" for name, value in spec.annotations)
        yield "size", f"{spec.size} of {spec.edition}"
    else:
        yield "model", f"{spec.size} of {spec.edition}, {spec.arch}"
    blocks = f"{counted(spec.num_layers, 'layer')}, {counted(spec.num_heads, 'head')}"
    yield "dimensions", f"{spec.d_model} wide, d_ff {spec.d_ff}, {blocks}"
    yield "vocabulary", str(spec.vocab_size)
    whole = f"{spec.rank_batch_size} × {spec.context_length} = {spec.tokens_per_step} tokens a step"
    yield "batch, context", whole if spec.ranks == 1 else f"{whole} and rank"
