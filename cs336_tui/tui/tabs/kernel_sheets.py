"""Views beside the list of a profiled step's kernels: summary, kinds, parts, attention, gaps, ranks, and all cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from cs336_tui.analysis import kernels
from cs336_tui.analysis.grouping import shared
from cs336_tui.analysis.kernel_cells import AttentionSplit, CellPart, attention_split, profiled
from cs336_tui.analysis.kernels import Phases, TimeShare
from cs336_tui.events.kernel_report import KernelReport, RankTraffic
from cs336_tui.export.subjects import flame_graph, kernel_use
from cs336_tui.export.subjects.kernel_cells import cell_keys, kernel_cells_table, notes, results_of
from cs336_tui.export.subjects.kernels import (
    ATTENTION,
    UNNAMED,
    UNNAMED_RECORDING,
    UNPHASED,
    WAYS_NOTE,
    attention_notes,
    kind_shares,
    range_table,
)
from cs336_tui.export.writing.tables import Column, Table, known
from cs336_tui.stats.quantities import FLOP_RATES, NONE, counted, scale, tenth_percent, time_text
from cs336_tui.tui import format
from cs336_tui.tui.charts.bars import phase_role
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.tabs.kernel_listing import NAME_WIDTH, NO_PART, kind_role, model_phases, phase_label
from cs336_tui.tui.widgets.columns import Sheet, middle, on_screen, shown_table, table_lines, without_shared
from cs336_tui.tui.widgets.lines import Line, Span, labelled, line, paragraphs, wrapped

_KIND_RANKS = {"forward": 1, "backward": 2, "optimizer": 3, "loss": 5, "zero_grad": 6}
_PART_RANKS = {"backward_ns": 1, "forward_ns": 2, "instances": 3}
_TRAFFIC_RANKS = {"span_ns": 2, "overlapped_ns": 1, "operations": 4}
_GATHER_RANKS = {"begin_ns": 4, "megabytes": 3, "took_ns": 2, "alone_ns": 1}
_CELL_RANKS = {
    "timed_s": 1,
    "kernel_difference_s": 2,
    "top_share": 3,
    "top_instances": 4,
    "matmul_share": 5,
    "softmax_share": 6,
    "optimizer_share": 7,
    "same_as_forward": 8,
    "span_ns": 9,
    "span_difference_s": 10,
}
_ALWAYS = ("size", "context", "pass", "recording")
_NAME_WIDTH = 14
_OF_TOP = ("top_short", "top_instances", "top_share")
_DIFFERENCES = {"kernel_difference_s": "kernels - timed ms, %", "span_difference_s": "first to last - timed ms, %"}
"""The titles of differences that stand alone."""
_LABEL = len("rank 0 communicates ")
_LONGEST_MODULE = 26
_SHADED = f"Over the step: {kernel_use.SHADES[0]} none of the time, {kernel_use.SHADES[-1]} all of it."
_LONGEST = 120  # characters of a line of time, twice its parts
_ALL = "all"
_LONGEST_TOP = 60
_CELL_TEXTS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(("part", "pass"), lambda name: format.SHORT_PASSES.get(name, name)),
    "timed_s": lambda timed: timed.partition(" ±")[0],
    **dict.fromkeys(("kernel_difference_s", "span_difference_s"), lambda difference: difference.rpartition(", ")[2]),
}
"""Texts that leave room for the rest: ``fwd+bwd``, no std, and the share alone of ``-0.210, -1.3 %``."""
_UNNAMED = (
    "Nothing names the attention's parts: in Configure, model and variants, give annotate "
    "attention core=package.module:function."
)


def summary(report: KernelReport) -> Iterator[str]:
    """Launches, time, idle share and named share, the most important first; then, where they are known, launches a
    second, gaps and the overlap of communication with computation."""
    what = "launch" if report.launches == 1 else "launches"
    if report.activity == "operators":
        what = f"operators by self time ({'CPU' if report.spec.device == 'cpu' else 'host'})"
    runs = report.runs.get("recording")
    yield f"{report.launches:,} {what}" + (f" in {runs.text}" if runs else "")
    yield time_text(report.total_ns) + (f" of {time_text(report.span_ns)} span" if report.span_ns else "")
    if (idle := kernels.idle_share(report)) is not None:
        yield f"idle {tenth_percent(idle)}"
    yield f"named {tenth_percent(kernels.named_share(report))}"
    if report.host_ns is not None:
        yield f"enqueued in {time_text(report.host_ns)}"
    if (gaps := report.gaps) is not None:
        if rate := kernels.launches_per_s(report):
            yield f"{rate:,.0f} launches/s"
        yield counted(gaps.count, "gap", ",") + (f", median {time_text(gaps.median_ns)}" if gaps.count else "")
        if (share := kernels.overlapped_share(report)) is not None:
            yield f"communication {tenth_percent(share)} beside compute"


def gaps_sheet(report: KernelReport) -> Sheet:
    """The longest times in which the device ran nothing, and what ran before and after each."""
    gaps, overlap = report.gaps, report.overlap
    if gaps is None:
        return Sheet(Table(columns=(), rows=(), footnotes=("Gaps: only for kernels on a GPU.",)))
    idle = kernels.idle_share(report) or 0.0
    lead = (
        f"The GPU ran nothing for {time_text(gaps.total_ns)} of {time_text(report.span_ns)} ({tenth_percent(idle)}), "
        f"in {counted(gaps.count, 'gap', ',')} between kernels, copies and fills."
    )
    notes = []
    if overlap and (share := kernels.overlapped_share(report)) is not None:
        beside = f"in {time_text(overlap.overlapped_ns)} of it, {tenth_percent(share)}, another kernel ran"
        notes = [f"Communication (NCCL and others) took {time_text(overlap.communication_ns)}; {beside}."]
    shows = dict.fromkeys(("after", "before"), partial(middle, width=NAME_WIDTH))
    table = on_screen(kernel_use.gap_table(report), shows=shows)
    return Sheet(msgspec.structs.replace(table, footnotes=tuple(notes)), lead)


def kinds_sheet(report: KernelReport) -> Sheet:
    """Time and share of each kind in each phase; the lead gives the share of matrix multiplication."""
    found = kind_shares(report)
    times = scale(share.total_ns for shares in found.values() for share in shares.values())
    *_, all_of_it = found
    names = tuple(found[all_of_it])
    for shares in found.values():
        launches, total_ns = (sum(getattr(each, of) for each in shares.values()) for of in ("instances", "total_ns"))
        shares[_ALL] = TimeShare(_ALL, 1.0, total_ns, launches)

    def column(name: str) -> Column[str]:
        def text(kind: str) -> str:
            share = found[name].get(kind)
            return f"{times.text(share.total_ns)} {share.share * 100:5.1f} %" if share else NONE

        rank = 0 if name == all_of_it else _KIND_RANKS.get(name, 4)
        return Column(name, f"{name or UNPHASED} {times.unit}", rank=rank, text=text)

    table = shown_table((*names, _ALL), [Column[str]("kind", left=True, text=str), *map(column, found)], _tops(report))
    bars = tuple(found[all_of_it][name].share for name in names)
    roles = tuple(map(kind_role, (*names, _ALL)))
    return Sheet(table, _matmul_sentence(report), (*names, None), shares=(*bars, 1.0), roles=roles)


def parts_sheet(report: KernelReport) -> Sheet:
    """Time of each named part, with its backward, and a bar of its share of the step."""
    found = kernels.by_range(report)
    shows = {"name": lambda name: NO_PART if name == UNNAMED else name}
    table = on_screen(range_table(report), _PART_RANKS, shows=shows)
    largest = max((share.share for share in found), default=0.0)
    return Sheet(
        msgspec.structs.replace(table, footnotes=(WAYS_NOTE,) if kernels.knows_phases(report) else ()),
        keys=tuple(share.name for share in found),
        rest=8,
        shares=tuple(share.share / largest if largest else 0.0 for share in found),
        roles=tuple(role if (role := phase_role(share.name)) != "muted" else "measured" for share in found),
    )


def icicle_sheet(report: KernelReport) -> Sheet:
    """No table: `icicles` are below it."""
    return Sheet(Table(columns=(), rows=()), f"{time_text(report.total_ns)}, from the whole down to kernels.")


def icicles(report: KernelReport, width: int) -> Iterator[Line]:
    """Frames of the time by operator, then by stack, each as wide as its share, those in it below."""
    for nesting in flame_graph.NESTINGS:
        yield ()
        yield line((flame_graph.ABOUT[nesting], "title"))
        for texts in flame_graph.icicle(report, nesting, width):
            yield tuple(Span(format.plain(text), "measured" if is_odd else "caution") for text, is_odd in texts)


def attention_sheet(report: KernelReport) -> Sheet:
    """Matmul against softmax, in time and in FLOPs, forward, backward and both."""
    found = attention_split(report)
    if not any(split.matmul_ns or split.softmax_ns for split in found):
        fused = "Attention runs as one fused kernel: no separate matmul and softmax to compare."
        unnamed = f"{UNNAMED_RECORDING[0].upper()}{UNNAMED_RECORDING[1:]}." if report.spec.recording else _UNNAMED
        why = unnamed if any(split.unnamed for split in found) else fused
        return Sheet(Table(columns=(), rows=(), footnotes=(why,)))
    explained = attention_notes(found)
    if len(found) == 2:
        found = (*found, _both(found))
    notes = [
        *(f"{split.phase.capitalize()}: {_sentence(split)}" for split in found[1:]),
        "×: softmax over matmul",
        *explained,
        *(["FLOPs: unknown, the step could not be predicted"] if report.prediction is None else []),
    ]
    table = shown_table(found, (*ATTENTION, *_RATES), notes)
    if report.prediction is None:
        table = table.without("matmul_flops", "softmax_flops", "flop_ratio", *(column.key for column in _RATES))
    return Sheet(on_screen(table), f"{found[0].phase.capitalize()}: {_sentence(found[0])}")


def _matmul_sentence(report: KernelReport) -> str:
    shares = kernels.matmul_shares(report)
    parts = zip(("forward", "forward + backward", "a full step"), shares, strict=True)
    said = [f"{tenth_percent(share)} of {part}" for part, share in parts if share is not None]
    if not said:
        share = next((found.share for found in kernels.by_kind(report) if found.name == kernels.MATMUL), 0.0)
        phases_of_model = model_phases(report)
        part = phase_label(phases_of_model) if any(phases_of_model) else f"the whole {kernels.whole(report.spec)}"
        said = [f"{tenth_percent(share)} of {part}"]
    return f"Matrix multiplication takes {', '.join(said)}."


def _tops(report: KernelReport) -> tuple[str, ...]:
    model = model_phases(report)
    parts: dict[str, Phases] = {"forward": "forward"} if "forward" in model else {}
    if len(model) > 1:
        parts["forward + backward"] = model
    if "optimizer" in report.phase_spans_ns or not parts:
        alone = len(report.phase_spans_ns) < 2 and any(model)
        parts[phase_label(model) if alone else f"the whole {kernels.whole(report.spec)}"] = None
    said = []
    for part, phase in parts.items():
        if top := (of_part := profiled(report, phase)).top:
            name = middle(format.plain(top.short), _LONGEST_TOP)
            inside = kernels.launches_in_forward(report, top.name)
            each = f", {inside} of them in forward" if part != "forward" and inside is not None else ""
            times = "once" if top.instances == 1 else f"{top.instances} times"
            times += f" in each of {of_part.times}" if of_part.runs else ""
            share = f"{tenth_percent(top.share)}, {time_text(top.total_ns)}"
            said.append(f"Top {kernel_use.nouns(report)[0]} of {part}: {name}, {share}, {times}{each}.")
    if "loss" in model and len(model) > 1:
        said.append("Forward + backward includes the loss.")
    return tuple(said)


def _both(found: Sequence[AttentionSplit]) -> AttentionSplit:
    def total(values: tuple[int | None, ...]) -> int | None:
        return None if None in values else sum(value or 0 for value in values)

    figures = ((s.matmul_ns, s.softmax_ns, s.matmul_flops, s.softmax_flops) for s in found)
    matmul_ns, softmax_ns, matmul_flops, softmax_flops = map(total, zip(*figures, strict=True))
    return AttentionSplit("both", matmul_ns, softmax_ns, matmul_flops, softmax_flops)


def _sentence(split: AttentionSplit) -> str:
    if split.time_ratio is None:
        return f"softmax takes {time_text(split.softmax_ns or 0)}; no separate matmul of attention."
    with_ = f" with {_ratio(split.flop_ratio)}× their FLOPs" if split.flop_ratio is not None else ""
    return f"softmax takes {_ratio(split.time_ratio)}× the time of attention's matmuls{with_}."


_ratio = known("{:.3g}")


def _rate(flops: int | None, time_ns: int | None) -> float | None:
    return flops / time_ns * 1e9 if flops is not None and time_ns else None


_RATES: tuple[Column[AttentionSplit], ...] = (
    Column("matmul_rate", "matmul", rank=4, read=lambda s: _rate(s.matmul_flops, s.matmul_ns), units=FLOP_RATES),
    Column("softmax_rate", "softmax", rank=5, read=lambda s: _rate(s.softmax_flops, s.softmax_ns), units=FLOP_RATES),
)


def ranks_sheet(report: KernelReport) -> Sheet:
    """A row a rank. The lead gives the overlap over ranks, and which all-gathers ended in time."""
    in_time = [_GATHERS_IN_TIME] if kernel_use.gathers_of(report) else []
    table = shown_table(report.ranks, (*kernel_use.TRAFFIC, *in_time))
    return Sheet(on_screen(table, _TRAFFIC_RANKS), _ranks_lead(report), tuple(str(each.rank) for each in report.ranks))


def timelines(report: KernelReport, width: int) -> Iterator[Line]:
    """Two lines of time a rank, compute over communication, as long as `width` allows."""
    long = max(min(width - _LABEL, _LONGEST), 10)
    yield ()
    for each in report.ranks:
        yield from _timeline(each, long)
    about = f"{_SHADED} {key_name('rows.choose')}: a rank's figures and all-gathers."
    yield from wrapped(about, width, "muted", "  ")


def rank_detail(report: KernelReport, rank: int, width: int) -> list[Line]:
    """All figures of a rank, its line of time and its all-gathers."""
    place, of = next((place, each) for place, each in enumerate(report.ranks) if each.rank == rank)
    lines: list[Line] = [line((format.plain(f"{report.spec.title} · rank {rank}"), "title")), ()]
    facts = on_screen(kernel_use.traffic_table(report)).without("rank").facts(place)
    if of.trace:
        facts["Chrome trace"] = f"{of.trace} (ui.perfetto.dev)"
    lines += _labelled_facts(facts, width)
    lines += [(), *_timeline(of, max(min(width - _LABEL, _LONGEST), 10))]
    if gathers := kernel_use.gathers_of(report, rank):
        lines += [(), line(("All-gathers", "title"))]
        table = shown_table(gathers, kernel_use.GATHERS).without("rank")
        table = on_screen(table, _GATHER_RANKS, shows={"module": partial(middle, width=_LONGEST_MODULE)})
        lines += table_lines(table, width).lines
        lines += paragraphs(kernel_use.gather_sums(of), width, "muted", "  ")
    return lines


def _timeline(of: RankTraffic, long: int) -> Iterator[Line]:
    for what, shares, role in (
        ("computes", of.compute_over_time, "measured"),
        ("communicates", of.communication_over_time, "caution"),
    ):
        yield Span(f"{f'rank {of.rank} {what}':<{_LABEL}}", "muted"), Span(kernel_use.shades(shares, long), role)


def _ranks_lead(report: KernelReport) -> str:
    shares = [each.overlapped_share for each in report.ranks if each.overlapped_share is not None]
    if not shares:
        return "No communication between ranks in this step."
    span = " to ".join(dict.fromkeys(f"{share * 100:.1f}" for share in (min(shares), max(shares))))
    beside = f"{span} % of a rank's communication is beside compute."
    gathers = [each for rank in report.ranks for each in rank.all_gathers if each.waited_ns is not None]
    if not gathers:
        return beside
    early = sum(each.early_ns is not None for each in gathers)
    most_ns = max(sum(each.waited_ns or 0 for each in rank.all_gathers) for rank in report.ranks)
    waited = f"; longest wait of a rank for the others: {time_text(most_ns)}" if most_ns else ""
    return f"{beside} {early} of {counted(len(gathers), 'all-gather')} ended before they were needed{waited}."


def _in_time(of: RankTraffic) -> str:
    told = [each for each in of.all_gathers if each.waited_ns is not None]
    return f"{sum(each.early_ns is not None for each in told)} of {len(told)}"


_GATHERS_IN_TIME: Column[RankTraffic] = Column("gathers", "gathers in time", rank=3, text=_in_time)


def cells_sheet(parts: Sequence[CellPart]) -> Sheet:
    """A row for each part of each cell; the top kernel takes the rest. Settings that all share stand above."""
    results = results_of(parts)
    named = cell_keys(results)
    table, same = without_shared(kernel_cells_table(parts), named)
    settings = {key: 0 if key in _ALWAYS else 6 for key in named}
    shown = on_screen(table, settings | _CELL_RANKS, titles={"context": "ctx"}, shows=_CELL_TEXTS, last="top_short")
    said = ", ".join(filter(None, (same, shared(results, but=named))))
    titles = tuple(str(place) for place in range(len(parts)))
    lead = f"Every row: {format.plain(said)}" if said else ""
    return Sheet(msgspec.structs.replace(shown, footnotes=tuple(notes(parts))), lead, keys=titles, rest=_NAME_WIDTH)


def cell_detail(part: CellPart, width: int) -> list[Line]:
    """All figures of a part of a cell's step, and its top kernel in full."""
    lines: list[Line] = [line((format.plain(f"{part.result.spec.title} · {part.part}"), "title")), ()]
    table = on_screen(kernel_cells_table([part]), titles=_DIFFERENCES)
    facts = table.without(*cell_keys([part.result]), "part", *_OF_TOP).facts(0)
    if part.timed:
        facts["timed steps"] = str(part.timed.n)
    if part.profiled:
        facts["launches or calls"] = str(part.profiled.instances)
    lines += _labelled_facts(facts, width)
    if part.profiled and (top := part.profiled.top):
        time = f"{time_text(top.total_ns)}, {tenth_percent(top.share)}, {counted(top.instances, 'time')}"
        lines += [(), line(("Top kernel", "title")), *wrapped(top.name, width, "strong", "  "), line(time)]
    return lines


def _labelled_facts(facts: Mapping[str, str], width: int) -> list[Line]:
    label = max(map(len, facts), default=0) + 2
    return [row for name, text in facts.items() for row in labelled(name, format.plain(text), width, label)]
