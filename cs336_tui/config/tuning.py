"""A search for the best cell (`Tuning`): its starting point, the choices that are searched, its goal and its limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from cs336_tui.config.axis import SpecError
from cs336_tui.config.counts import duration_of, duration_words, share_of
from cs336_tui.config.rules import ARGUMENTS, AXES, RULES
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import ONLY_BESIDE
from cs336_tui.config.values import LANGUAGE_MODEL, WITHOUT_BACKWARD, bytes_of
from cs336_tui.config.variants import Pairs, arguments_for, is_imported, pairs_of, pairs_text, short
from cs336_tui.stats.quantities import counted, duration

Goal = Literal["step", "tokens/s", "tokens/J", "memory"]
GOALS: tuple[str, ...] = get_args(Goal)
COSTS: Mapping[Goal, str] = {
    "step": "seconds a step",
    "tokens/s": "seconds a token",
    "tokens/J": "joules a token",
    "memory": "peak bytes",
}
"""The cost that each goal makes small."""
SAME_TOKENS = ("step", "memory")
"""Goals whose steps all train the same tokens; with the others the batch is free."""
MOST_CANDIDATES = 2_000
BUDGET_ENDED = "the budget ended"
"""Why a race ends, or a visit is not begun."""
NOT_AFFORDED = "the budget did not allow a visit"
"""Why a candidate was never visited, if nothing else was in the way."""

Value = int | float | str | Pairs

COUNTS = ("warmup_steps", "measure_steps", "warmup_auto", "steps_auto", "warmup_for", "steps_for")
"""Choices that say how many steps a cell has."""


class Over(msgspec.Struct, frozen=True):
    """One choice that is searched: a field of the spec, and the values that are tried."""

    field: str
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """As options and columns have it."""
        return AXES[self.field].option

    @property
    def words(self) -> tuple[str, ...]:
        """The values as options take them, several arguments in one text."""
        return tuple(map(value_words, self.values))

    @property
    def texts(self) -> tuple[str, ...]:
        """As ``--over`` takes them: ``attention=naive,sdpa``; of each argument ``attention-arg.BLOCK_M=16,32``."""
        if self.field not in ARGUMENTS:
            return (f"{self.name}={','.join(self.words)}",)
        settings = [value for value in self.values if isinstance(value, tuple)]
        return tuple(f"{self.name}.{argument}={values}" for argument, values in pairs_of(settings))


def value_words(value: Value) -> str:
    """The value in a text: ``16``, of arguments ``BLOCK_M=16, BLOCK_N=32``."""
    return pairs_text(value) if isinstance(value, tuple) else str(value)


class Tuning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A search. `base` is the starting point, the product of `over` the candidates. `within_bytes` limits their peak
    memory, `within_share` does as a share of the device's. It ends after `budget_s` seconds at the latest."""

    base: CellSpec
    over: tuple[Over, ...]
    goal: Goal = "step"
    within_bytes: int | None = None
    within_share: float | None = None
    budget_s: float = 600.0
    run: CellSpec | None = None
    """The starting point as `cs336-tui bench` runs it, with more steps than a visit; None: as a visit."""
    model_path: tuple[str, ...] = ()
    """Folders of a user's own code among the values."""
    model_args: Pairs = ()
    """Arguments of a user's own models among the values."""
    attention_args: Pairs = ()
    optimizer_args: Pairs = ()

    @property
    def own_code(self) -> tuple[str, ...]:
        """Names of a user's own code in the starting point and among the values."""
        values = (value for each in self.over for value in each.values)
        return (*self.base.own_code, *(value for value in values if isinstance(value, str) and is_imported(value)))

    @property
    def annotations(self) -> tuple[tuple[str, str], ...]:
        return self.base.annotations

    @property
    def keeps_tokens(self) -> bool:
        """True if every candidate's step trains as many tokens as the starting point's."""
        return self.goal in SAME_TOKENS

    @property
    def visit_words(self) -> str:
        """The steps of a visit: ``3 warm-up and 5 measured steps``."""
        warmup, measured, for_s = self.base.warmup_steps, self.base.measure_steps, self.base.steps_for
        if for_s is not None:
            return f"{counted(warmup, 'warm-up step')} and {duration_words(for_s)} of measured steps"
        return f"{warmup} warm-up and {counted(measured, 'measured step')}"

    def as_run(self, spec: CellSpec) -> CellSpec:
        """A candidate with the steps and the timer of `run`."""
        return msgspec.structs.replace(
            spec, **{field: getattr(self.run or self.base, field) for field in (*COUNTS, "timer")}
        )


class LeftOut(msgspec.Struct, frozen=True):
    """A combination that is not tried: its choices in words, and why; `spec` is None if it can be no cell at all."""

    words: str
    why: str
    spec: CellSpec | None = None


class Space(msgspec.Struct, frozen=True):
    """The candidates of a search, the starting point first, and the combinations that can be no cell."""

    candidates: tuple[CellSpec, ...]
    left_out: tuple[LeftOut, ...] = ()
    alike: int = 0
    """Combinations that differ from another one only in choices without effect, and so are no candidates."""


def space_of(tuning: Tuning) -> Space:
    """The product of the choices, each cell once. Raises `SpecError` if there are too many or there is nothing to
    choose from."""
    count = math.prod(len(each.values) for each in tuning.over)
    if count > MOST_CANDIDATES:
        raise SpecError("over", count, f"these choices make too many candidates; expected at most {MOST_CANDIDATES}")
    found: dict[CellSpec, None] = {}
    left_out: list[LeftOut] = []
    for values in itertools.product(*(each.values for each in tuning.over)):
        chosen = {each.field: value for each, value in zip(tuning.over, values, strict=True)}
        try:
            found[candidate(tuning, chosen)] = None
        except SpecError as error:
            left_out.append(LeftOut(choice_words(chosen), str(error)))
    alike = count - len(left_out) - len(found)
    found = {tuning.base: None} | found
    for each in tuning.over:
        if not any(_matters(each.field, spec) for spec in found):
            raise SpecError("over", each.name, f"{_nothing(each, tuning.base)}; leave it out")
    if len(found) < 2:
        why = left_out[0].why if left_out else "these choices make one cell alone; name a choice with several values"
        raise SpecError("over", ", ".join(each.name for each in tuning.over) or "(none)", why)
    return Space(tuple(found), tuple(left_out), alike)


def _matters(field: str, spec: CellSpec) -> bool:
    """True if the choice changes anything in this cell."""
    beside = ONLY_BESIDE.get(field)
    return AXES[field].counts_in(spec) and not (beside and getattr(spec, beside.other) == beside.without)


def _nothing(over: Over, base: CellSpec) -> str:
    """Why a choice changes nothing in any candidate."""
    if beside := ONLY_BESIDE.get(over.field):
        return f"changes nothing while {AXES[beside.other].option} is {beside.without}"
    if not AXES[over.field].is_in(base.workload):
        return f"{base.workload} alone has none"
    if base.brings_own_code and over.field != "optimizer":
        return f"changes nothing, as {short(base.model)} has its own"
    return f"changes nothing in pass {base.pass_}"


def candidate(tuning: Tuning, chosen: Mapping[str, Value]) -> CellSpec:
    """The starting point with these choices. Where every step trains the same tokens, a batch that is chosen is a
    micro-batch of a rank, and ranks share the starting point's batch. Raises `SpecError`."""
    base, changes = tuning.base, dict(chosen)
    ranks = int(changes.get("ranks", base.ranks))  # type: ignore[arg-type]
    if tuning.keeps_tokens and ("batch_size" in changes or ranks != base.ranks):
        changes |= _same_tokens(base, ranks, changes.get("batch_size"))
    for field in tuple(changes):
        beside = ONLY_BESIDE.get(field)
        if beside and changes.get(beside.other, getattr(base, beside.other)) == beside.without:
            changes[field] = AXES[field].default
    for field, code in ARGUMENTS.items():
        if {field, code} & {*chosen}:  # what is searched goes before what is the same for all
            pairs = (*getattr(tuning, field), *chosen.get(field, ()))  # type: ignore[misc]
            changes[field] = tuple(dict(arguments_for(str(chosen.get(code, getattr(base, code))), pairs)).items())
    spec = msgspec.structs.replace(base, **changes)
    if spec.brings_own_code and not spec.model_path:
        spec = msgspec.structs.replace(spec, model_path=tuning.model_path)
    plain = msgspec.structs.asdict(base) | dict.fromkeys(ARGUMENTS, ())
    idle = {f: plain[f] for f in (*chosen, *ARGUMENTS) if f not in ONLY_BESIDE and not AXES[f].counts_in(spec)}
    spec = msgspec.structs.replace(spec, **idle) if idle else spec
    _check_sharing(base, spec)
    for refusal in itertools.chain.from_iterable(rule.refusals(spec) for rule in RULES if rule.in_logs):
        raise refusal
    return spec


def _same_tokens(base: CellSpec, ranks: int, micro: Value | None) -> dict[str, Value]:
    """The batch of so many ranks that share the starting point's, in micro-batches of `micro`, if that is given."""
    whole = base.rank_batch_size * base.ranks
    if whole % ranks:
        raise SpecError("ranks", ranks, f"does not divide the {counted(whole, 'sequence')} of a step")
    found: dict[str, Value] = {"batch_size": whole if base.batch_is == "global" else whole // ranks}
    if micro is None:
        return found
    if whole // ranks % int(micro):  # type: ignore[arg-type]
        of = f"{counted(whole, 'sequence')} of a step" + (f", shared by {ranks} ranks" if ranks > 1 else "")
        raise SpecError("batch", micro, f"is no micro-batch of the {of}")
    return found | {"accumulate": whole // ranks // int(micro)}  # type: ignore[arg-type]


def _check_sharing(base: CellSpec, spec: CellSpec) -> None:
    """Raise `SpecError` for ranks that train apart, where the starting point is one training: that is other work."""
    is_apart = spec.ranks > 1 and spec.parallel == "none"
    is_trained = spec.workload == LANGUAGE_MODEL and spec.pass_ not in WITHOUT_BACKWARD
    if is_trained and is_apart and not (base.ranks > 1 and base.parallel == "none"):
        why = f"{spec.ranks} ranks would train a model each; search --over parallel=ddp,fsdp2 too"
        raise SpecError("parallel", "none", why)


LEAST_VISIT_S = 1.0
"""Seconds that the first visit takes at least: torch is imported, a process starts."""


def check_goal(goal: Goal, device: str) -> None:
    """Raise `SpecError` if the cost cannot be observed on the device."""
    if goal == "tokens/J" and not device.startswith("cuda"):
        raise SpecError("goal", goal, f"the energy of {device} cannot be read, only that of a GPU; choose another goal")


def check_budget(tuning: Tuning, visit_s: float | None = None) -> None:
    """Raise `SpecError` if the budget is shorter than one visit, which takes so many seconds at least."""
    least_s = max(visit_s or 0.0, LEAST_VISIT_S)
    if tuning.budget_s < least_s:
        least = duration(math.ceil(least_s))
        why = f"shorter than one visit, which takes at least {least} (m:s); give more, or fewer --steps"
        raise SpecError("budget", duration_words(tuning.budget_s), why)


def changed(tuning: Tuning, spec: CellSpec) -> dict[str, Any]:
    """The choices of a candidate that are not the starting point's, by field."""
    fields = dict.fromkeys((*(each.field for each in tuning.over), "accumulate"))
    return {field: value for field in fields if (value := getattr(spec, field)) != getattr(tuning.base, field)}


def label(tuning: Tuning, spec: CellSpec) -> str:
    """The choices that set a candidate apart from the starting point, such as ``attention sdpa, checkpoint 1``."""
    return choice_words(changed(tuning, spec)) or "starting point"


def choice_words(chosen: Mapping[str, Any]) -> str:
    """Values of choices, by field, in a line: ``attention sdpa, checkpoint 1``."""
    named = ((AXES[field].option, value) for field, value in chosen.items())
    return ", ".join(pairs_text(v) if isinstance(v, tuple) else f"{option} {short(str(v))}" for option, v in named)


def budget_of(text: str) -> float:
    """Seconds of ``90s``, ``10m`` or ``2h``. Raises ValueError."""
    seconds = duration_of(text)
    if seconds is None:
        raise ValueError("expected a time such as 90s, 10m or 2h")
    return seconds


def limit_of(text: str) -> dict[str, Any]:
    """`within_share` of ``80%``, `within_bytes` of ``70GB``. Raises ValueError."""
    words = text.strip()
    try:
        return {"within_share": share_of(words)} if words.endswith("%") else {"within_bytes": bytes_of(words)}
    except ValueError:
        raise ValueError("expected memory such as 70GB, or a share of the device's such as 80%") from None
