"""Verdicts on a cell's honesty: that its steps are the time of that work, on those inputs, in that precision; from the
checks that the cell's process made (`events.audit`). `docs/referee.md` has each with its threshold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import msgspec

from cs336_tui.analysis.agreement import tolerance_of
from cs336_tui.analysis.judgement import Finding, VerdictName
from cs336_tui.config.flops import step_flops, surely_moved
from cs336_tui.config.spec import Precision
from cs336_tui.events.audit import AFTER_S, FASTER, SLOWER, AttentionCheck, Audit, Books, Inputs, Results, Work
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import counted, named, percent, two_digit_percent

DISQUALIFYING: tuple[VerdictName, ...] = (
    "work-outside-steps", "impossible", "less-work", "differs", "remembers-inputs", "other-precision",
)  # fmt: skip
"""Verdicts with which a cell's time is not that of its work: it is never called faster."""

BETWEEN, BETWEEN_S = 0.25, 0.0005
"""Work between two steps from this share of a step, and so many seconds, on."""
THREADS = 0.05
"""Processor time of other Python threads, of the window's length."""
AFTER = 0.5
"""Processor time after the last step, of the time in which it is looked for."""
CLOCK, CLOCK_S = 1.5, 0.5
"""The window on the parent's clock, of that on the process's own, and so many seconds more."""
FASTER_THAN_SHEET = 1.05
"""The rate of a step, of the data sheet's peak, that cannot be."""
LESS, MORE = 0.95, 1.3
"""FLOPs counted, of the least and of the most that the dimensions ask for."""
MOVED = 0.05
"""Largest relative difference of what AdamW moves: implementations add epsilon and decay in other orders."""
MOMENTS = 0.0005
"""The same of its moments in float32, which all implementations have alike: those in bfloat16 are further off."""
REMEMBERED, FAR_LESS, CHANCE = 0.9, 0.5, 0.002
"""Time of steps on repeated tokens, of that on fresh ones: so much less with this chance at most, or far less."""
OTHER = 0.01
"""Share of the FLOPs in another precision."""

_DTYPES: dict[Precision, tuple[str, ...]] = {
    "fp32": ("float32", "float64"),
    "tf32": ("float32", "float64"),
    "bf16": ("bfloat16", "float32", "float64"),
    "bf16-mixed": ("bfloat16", "float32", "float64"),
    "fp16-mixed": ("float16", "float32", "float64"),
    "fp8-mixed": ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float32", "float64"),
}
"""dtypes that products may have, the one asked for first."""


def refereed(cell: CellState) -> Mapping[VerdictName, Finding]:
    """The verdicts on the honesty of a cell that ended well; none of one of an old log."""
    audit = cell.finished.audit if cell.finished else None
    if cell.spec.check == "off":
        return {"unchecked": Finding(True, "--check off")}
    if audit is None:
        return {}
    differs = _differs(cell, audit.results)
    why = _unchecked(audit.results)
    return {
        **({"differs-elsewhere": _elsewhere(cell, audit.attention)} if audit.attention else {}),
        "work-outside-steps": _outside(cell, audit.books),
        "impossible": _impossible(cell, audit),
        "less-work": _less(cell, audit),
        "differs": differs,
        "remembers-inputs": _remembers(cell, audit.inputs),
        "other-precision": _other_precision(cell, audit.work),
        "more-work": _more(audit.work),
        "checked": Finding(not why and not differs.holds, why or _checked_words(audit)),
        "unchecked": Finding(bool(why) and not differs.holds, why or "its results were compared"),
    }


def disqualified(cell: CellState) -> str:
    """The first verdict with which the cell's time is not that of its work, with its evidence; empty without one."""
    if cell.finished is None or cell.finished.status != "ok" or not cell.step_times_s:
        return ""
    found = refereed(cell)
    return next(
        (f"{name}: {found[name].evidence}" for name in DISQUALIFYING if name in found and found[name].holds), ""
    )


def checked_word(cell: CellState) -> str:
    """``checked``, ``unchecked`` or the verdict that disqualifies it, in one word."""
    found = refereed(cell).get("checked")
    return disqualified(cell).partition(":")[0] or ("checked" if found and found.holds else "unchecked")


def _checked_words(audit: Audit) -> str:
    results = audit.results
    assert results is not None
    besides = f"; not compared: {results.left_out}" if results.left_out else ""
    return f"its results are those of {results.reference}{besides}; the checks took {_seconds(audit.took_s)}"


def _unchecked(results: Results | None) -> str:
    return "no result was compared" if results is None else results.unchecked


def _outside(cell: CellState, books: Books | None) -> Finding:
    if books is None:
        return Finding(None, "the window was not watched", unknown_because="not recorded")
    found = list(_outside_words(cell, books))
    if found:
        return Finding(True, ", ".join(found), "time the whole loop, and leave clocks and hooks as they are")
    return Finding(False, f"steps and the tool's own work are the window of {_seconds(books.window_s)}")


def _outside_words(cell: CellState, books: Books) -> Iterator[str]:
    if books.replaced:
        yield f"{' and '.join(books.replaced[:3])} replaced"
    if books.between_s > BETWEEN * books.step_s + BETWEEN_S:
        yield f"{_seconds(books.between_s)} of work between two steps of {_seconds(books.step_s)}"
    waited_s = (cell.finished.cpu_wait_s or 0.0) if cell.finished else 0.0
    count = len(cell.step_times_s)
    beside_s = books.window_s - books.steps_s - books.known_s
    if not books.between_s and beside_s - waited_s > BETWEEN * books.steps_s + (BETWEEN_S + 0.001) * count:
        yield f"{_seconds(beside_s)} of the window of {_seconds(books.window_s)} in no step"
    if books.threads_s > THREADS * books.window_s:
        yield f"{_seconds(books.threads_s)} of work on other threads"
    if books.after_s > AFTER * AFTER_S:
        yield "work that went on after the last step"
    if books.parent_s is not None and books.parent_s > CLOCK * books.window_s + CLOCK_S:
        yield f"{_seconds(books.parent_s)} by the parent's clock, {_seconds(books.window_s)} by its own"


def _impossible(cell: CellState, audit: Audit) -> Finding:
    step_s, speed = median(cell.step_times_s), audit.speed
    if speed is None or step_s <= 0:
        return Finding(None, "no peak to compare with", unknown_because="no peak known")
    reference_s, found = speed.reference_s or math.inf, []
    for unit, of, work, peak, sheet in (
        ("FLOP/s", "a matrix product", step_flops(cell.spec, False), speed.flops_per_s, speed.sheet_flops_per_s),
        ("bytes/s", "a copy", surely_moved(cell.spec), speed.bytes_per_s, speed.sheet_bytes_per_s),
    ):
        if not (peak or sheet):
            continue
        most = sheet or max(peak, work / reference_s)
        share = work / step_s / most
        text = f"{percent(share)} % of the {unit} of {'the data sheet' if sheet else f'{of} in the same process'}"
        if share > (FASTER_THAN_SHEET if sheet else FASTER):
            return Finding(True, text, "look for work that is left out")
        found.append(text)
    return Finding(False, ", ".join(found) or "no faster than the reference")


def _less(cell: CellState, audit: Audit) -> Finding:
    work, advice = audit.work, "its dimensions are not those of the cell"
    if again_s := audit.results.again_s if audit.results else None:
        share = median(cell.step_times_s) / again_s
        if share * SLOWER < 1 and max(cell.step_times_s) < again_s:
            text = f"its steps took {percent(share)} % of the time of one whose results were compared"
            return Finding(True, text, "look for work that is left out while it is measured")
    if work is None or not (work.least_forward or work.least_backward):
        return Finding(None, "its products could not be counted", unknown_because="not countable")
    if work.uncounted:
        why = f"products of {', '.join(work.uncounted)} cannot be seen"
        return Finding(None, why, unknown_because="not countable")
    short = [f"{name} {percent(done / least)} %" for name, (done, least) in work.parts.items() if done < LESS * least]
    if work.least_backward and work.backward < LESS * work.least_backward:
        short.append(f"backward {percent(work.backward / work.least_backward)} %")
    if short:
        return Finding(True, f"of the FLOPs that its dimensions ask for: {', '.join(short)}", advice)
    return Finding(False, "as many FLOPs as its dimensions ask for")


def _more(work: Work | None) -> Finding:
    if work is None or not work.least_forward or "attention" not in work.parts:
        return Finding(None, "its products could not be counted", unknown_because="not countable")
    ratio = work.forward / work.least_forward
    most = MORE * 2
    return Finding(ratio > most, f"{percent(ratio)} % of the FLOPs that its dimensions ask for at least")


def _differs(cell: CellState, results: Results | None) -> Finding:
    if results is None or (results.unchecked and not results.differences):
        return Finding(None, _unchecked(results), unknown_because="unchecked")
    tolerance = tolerance_of(cell.spec, cell.spec)
    found = []
    for each in results.differences:
        most = {"moves": MOVED, "moments": MOMENTS}.get(each.quantity)
        part, whole = (most, most) if most else (tolerance.part, tolerance.whole)
        if not each.worst_error <= part:
            where = "" if each.quantity == "loss" else f" ({each.worst})"
            found.append(f"{each.quantity} by {_share(each.worst_error)}{where}")
        elif not each.whole <= whole:
            found.append(f"{each.quantity} by {_share(each.whole)} in all")
    if results.unmoved:
        found.append(f"the optimizer left {named(results.unmoved, 1)} as it was")
    if results.unequal:
        found.append(f"ranks have unequal {named(results.unequal, 1)}")
    if found:
        return Finding(True, f"from {results.reference}: {', '.join(dict.fromkeys(found))}", "do not compare its time")
    return Finding(False, f"its results are those of {results.reference}")


def agreeing(cell: CellState) -> tuple[int, int] | None:
    """The forms in which a user's own attention is naive attention, and all that were tried; None of no such."""
    checks = cell.finished.audit.attention if cell.finished and cell.finished.audit else ()
    return (sum(not (each.error or _wrong(cell, each)) for each in checks), len(checks)) if checks else None


def _wrong(cell: CellState, check: AttentionCheck) -> str:
    """The difference from naive attention that rounding does not explain; empty if it explains all."""
    alone = msgspec.structs.replace(cell.spec, num_layers=1)
    tolerance = tolerance_of(alone, alone)
    wrong = [each for each in check.differences if not each.worst_error <= tolerance.part]
    text = " and ".join(f"{each.worst} by {_share(each.worst_error)}" for each in wrong)
    in_tf32 = tolerance_of(rounded := msgspec.structs.replace(alone, precision="tf32"), rounded).part
    explained = cell.spec.precision == "fp32" and all(each.worst_error <= in_tf32 for each in wrong)
    return f"{text}, which products in TF32 would explain" if text and explained else text


def _elsewhere(cell: CellState, checks: Sequence[AttentionCheck]) -> Finding:
    wrong = [f"{each.form}: {text}" for each in checks if (text := _wrong(cell, each))]
    failed = [f"{each.form}: {each.error}" for each in checks if each.error]
    right, every = agreeing(cell) or (0, 0)
    text = f"its attention is naive attention in {right} of {every} forms"
    if failed:
        text += f"; no result in {len(failed)}, {failed[0]}"
    if not wrong:
        return Finding(False, text)
    return Finding(True, f"{text}; it differs in {len(wrong)}, {'; '.join(wrong)}", "mask what is beyond the length")


def _seconds(time_s: float) -> str:
    return f"{time_s:.3g} s" if time_s >= 1 else f"{time_s * 1e3:.3g} ms"


def _share(error: float) -> str:
    return two_digit_percent(error) if error < 100 else "more than can be told"


def _remembers(cell: CellState, inputs: Inputs | None) -> Finding:
    if inputs is None or not inputs.fresh:
        why = inputs.why_fixed if inputs else "not recorded"
        return Finding(None, f"tokens stay the same: {why}", unknown_because="fixed tokens")
    times_s = cell.step_times_s
    again = [times_s[place] for place in inputs.repeated if place < len(times_s)]
    fresh = [time_s for place, time_s in enumerate(times_s) if place not in inputs.repeated]
    if len(again) < 2 or len(fresh) < 2:
        return Finding(None, "too few steps on repeated tokens", unknown_because="too few steps to tell")
    ratio = median(again) / median(fresh) if median(fresh) > 0 else 1.0
    text = f"steps on repeated tokens take {percent(ratio)} % of those on fresh ones"
    far = ratio < FAR_LESS and max(again) < min(fresh)
    if far or (ratio < REMEMBERED and _chance(again, fresh) < CHANCE):
        return Finding(True, text, "its time is that of an answer it had")
    return Finding(False, f"{text}, within noise" if ratio < 1 else text)


def _chance(low: list[float], high: list[float]) -> float:
    """The chance that so many of the pairs have the smaller in `low` if both are alike: Mann and Whitney 1947, by the
    normal approximation."""
    pairs = sum((a < b) + 0.5 * (a == b) for a in low for b in high)
    n, m = len(low), len(high)
    z = (pairs - n * m / 2 - 0.5) / math.sqrt(n * m * (n + m + 1) / 12)
    return math.erfc(z / math.sqrt(2)) / 2


def _other_precision(cell: CellState, work: Work | None) -> Finding:
    asked, force = cell.spec.precision, cell.in_force
    if asked == "fp32" and force and (force.allow_tf32 or force.matmul_precision == "medium"):
        lower = "TF32" if force.allow_tf32 else "bfloat16"
        text = f"products of float32 may run in {lower}, which the workload switched on"
        return Finding(True, text, "choose --precision")
    total = sum(work.dtypes.values()) if work else 0
    if work is None or not total:
        return Finding(None, "dtypes of its products could not be observed", unknown_because="not countable")
    allowed = _DTYPES[asked]
    others = {name: flops / total for name, flops in work.dtypes.items() if name not in allowed}
    if sum(others.values()) > OTHER:
        said = ", ".join(f"{percent(share)} % in {name}" for name, share in others.items())
        return Finding(True, f"of its products {said}", f"asked for is {asked}")
    if not asked.startswith("fp8") and (share := work.dtypes.get(allowed[0], 0) / total) < 0.5:
        return Finding(True, f"{percent(share)} % of its products are in {allowed[0]}", f"asked for is {asked}")
    return Finding(False, f"its products are in {', '.join(work.dtypes)}, counted in {counted(1, 'step')}")
