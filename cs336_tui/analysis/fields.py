"""The fields by which tables are pivoted, filtered and shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from cs336_tui.analysis.merge import Result
from cs336_tui.config.axis import UserError
from cs336_tui.config.counts import steps_words, warmup_words
from cs336_tui.config.flops import parameters
from cs336_tui.config.spec import ARGUMENTS, AXES, CUSTOM_SIZE, CellSpec, has_choice
from cs336_tui.config.variants import IN_EXPORT, REFERENCE, expected, is_imported, pairs_text, short
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import count

Kind = Literal["choice", "model", "place", "run"]


class Field(NamedTuple):
    """One thing that can differ between results. `order` is a sort key, comparable within the field. `kind`: a
    ``choice`` of what to run; a dimension of the ``model``, which its size implies; the ``place`` where it ran; which
    ``run`` of its spec it is. `done` shows what an automatic choice came to, as ``auto (12)``; None where nothing is
    automatic. Results are told apart by `show`, never by `done`. `usual` need not be said where all results show it."""

    key: str
    title: str
    kind: Kind
    show: Callable[[Result], str]
    order: Callable[[Result], Any]
    done: Callable[[Result], str] | None = None
    usual: str = ""

    def show_done(self, result: Result) -> str:
        """Text of this result, with the outcome of an automatic choice."""
        shown = self.show(result)
        return self.done(result) if self.done and shown else shown


OWN = "own"
"""Shown where a user's model decides: its attention and architecture, and its size if its dimensions were given raw."""
NO_ARGUMENTS = "none"
_OF_MODELS = ("edition", "arch", "vocab")
"""Fields that an operation alone does not have."""


def num_params(result: Result) -> int | None:
    """Parameters of the model as built, else of a reference as its dimensions imply; None of a user's own not built,
    and of a collective."""
    if result.spec.is_collective:
        return None
    unknown = is_imported(result.spec.model) or bool(result.spec.recording)
    return result.cell.num_params or (None if unknown else implied_params(result.spec))


def headless_params(result: Result) -> int | None:
    """The same less the output head, as published tables count them."""
    spec = result.spec
    if result.cell.num_params_without_head or is_imported(spec.model):
        return result.cell.num_params_without_head
    return implied_params(spec) - (0 if spec.is_alone or spec.weight_tying == "on" else spec.vocab_size * spec.d_model)


def implied_params(spec: CellSpec) -> int:
    """Parameters of the reference model with these dimensions; of attention alone its queries, keys and values;
    of a norm alone its rows, weights and bias."""
    if spec.workload == "norm":
        return (spec.tokens_per_step + 1 + (spec.norm == "layernorm")) * spec.d_model
    return 3 * spec.tokens_per_step * spec.d_model if spec.is_alone else parameters(spec).numbers


def device_label(result: Result) -> str:
    """The name of the cell's device, such as the GPU's; torch's name for it where the machine is unknown."""
    return result.device.label if result.device else result.spec.device


def _place(result: Result) -> Result:
    """The result whose place tables show for this one; itself, unless it has no timings."""
    return result.home or result


def machine(result: Result) -> str:
    """The cell's device and the host that it is in."""
    environment = _place(result).environment
    device = environment.device(result.spec.device) if environment else None
    host = environment.host if environment else ""
    return f"{device.label if device else result.spec.device} · {host or 'unknown machine'}"


def values(results: Iterable[Result], key: str) -> tuple[str, ...]:
    """Values of the results in this field, each once, in the field's order."""
    field = FIELDS[key]
    found: dict[str, Any] = {}
    for result in results:
        found.setdefault(field.show(result), result)
    return tuple(sorted(found, key=lambda shown: field.order(found[shown])))


def varies(results: Sequence[Result], key: str) -> bool:
    """True if results that have this field differ in it by more than what follows from their model."""
    results = _with(results, key)
    if of := owner(key):
        by_code: dict[str, set[str]] = {}
        for result in results:
            by_code.setdefault(getattr(result.spec, of), set()).add(FIELDS[key].show(result))
        return any(len(taken) > 1 for taken in by_code.values())
    return len({FIELDS[key].show(result) for result in results} - {OWN}) > 1


def in_common(results: Sequence[Result], key: str) -> str:
    """The value that all results show in this field; empty if they differ, or if it is the usual one. Beside a model
    that decides it itself it reads ``swiglu-rope (reference)``, beside an operation alone ``2026 (language-model)``."""
    having = _with(results, key)
    taken = values(having, key)
    found = [shown for shown in taken if shown != OWN]
    if len(found) != 1 or found[0] == FIELDS[key].usual:
        return ""
    if len(having) < len(results):
        return f"{found[0]} ({having[0].spec.workload})"
    return found[0] if len(taken) == 1 else f"{found[0]} ({REFERENCE})"


def _with(results: Sequence[Result], key: str) -> Sequence[Result]:
    """Results that have this field: an operation alone has none of a language model's, a recording only few."""
    if key in _OF_COLUMN and not _OF_COLUMN[key].recorded:
        results = [each for each in results if not each.spec.recording]
    return [each for each in results if not each.spec.is_alone] if key in _OF_MODELS else results


def shown_of(spec: CellSpec, key: str) -> str:
    """Text of a choice or dimension of a spec; empty if it is not known of a recording, or a collective has none."""
    if not has_choice(spec, _OF_COLUMN[key].field):
        return ""
    if key in _WORDS:
        return _WORDS[key](spec)
    if key in ARGUMENT_COLUMNS:
        return pairs_text(spec.arguments_given(ARGUMENT_COLUMNS[key])) or NO_ARGUMENTS
    value = getattr(spec, _OF_COLUMN[key].field)
    return _YES_NO[value] if isinstance(value, bool) else str(value)


def warmup_done(cell: CellState) -> str:
    """The warm-up setting; where it is automatic, with the steps that were really done once measuring has begun, or
    the cell is over: ``auto (12)``."""
    words = shown_of(cell.spec, "warmup")
    if not (cell.spec.warmup_is_open and (cell.is_over or cell.stage == "measuring")):
        return words
    done = cell.steps_done - cell.running.n  # without reading the steps of a finished cell from its file
    return f"{words} ({done})"


def warmup_value(spec: CellSpec) -> int | str:
    """The warm-up setting as data: steps, the most where they are automatic, or the time that they come to."""
    return spec.warmup_steps if spec.warmup_for is None else shown_of(spec, "warmup")


def steps_done(cell: CellState) -> str:
    """The number of measured steps; if automatic, with those done once the cell is over: ``auto (140)``."""
    words = shown_of(cell.spec, "steps")
    return f"{words} ({cell.running.n})" if cell.spec.steps_are_open and cell.is_over else words


_YES_NO = {True: "yes", False: "no"}
_OF_COLUMN = {axis.column: axis for axis in AXES.values() if axis.column}
_WORDS: Mapping[str, Callable[[CellSpec], str]] = {
    "size": lambda spec: spec.size_label,
    "warmup": lambda spec: warmup_words(spec.warmup_steps, spec.warmup_auto, spec.warmup_for),
    "steps": lambda spec: steps_words(spec.measure_steps, spec.steps_auto, spec.steps_for),
    "edition": lambda spec: OWN if is_imported(spec.model) and spec.size == CUSTOM_SIZE else spec.edition,
    "arch": lambda spec: OWN if is_imported(spec.model) else spec.arch,
    "model": lambda spec: spec.model,
    "within": lambda spec: str(spec.within or "any"),
    "attention": lambda spec: OWN if is_imported(spec.model) else spec.attention,
    "norm": lambda spec: OWN if is_imported(spec.model) else spec.norm,
    "backend": lambda spec: spec.backend_in_use if spec.is_collective else spec.backend,
    "causal": lambda spec: _YES_NO[spec.causal or spec.workload != "attention"],
}
"""Texts of choices that are not one attribute."""
ARGUMENT_COLUMNS = {AXES[field].column: field for field in ARGUMENTS}
"""Fields of the arguments of a user's own code; each argument is one, too: ``attention-arg.BLOCK_M``."""


def _choice(key: str) -> Field:
    """A choice: numbers in their order, offered values in theirs, a user's own after them by name."""
    axis = _OF_COLUMN[key]
    is_variant = axis.group == "variants"
    among = ("yes", "no") if axis.kind is bool else (NO_ARGUMENTS,) if axis.kind is tuple else axis.values

    def order(result: Result) -> Any:
        if axis.is_number:
            return getattr(result.spec, axis.field)
        shown = shown_of(result.spec, key)
        return (among.index(shown), "") if shown in among else (len(among), shown)

    kind: Kind = "choice" if axis.sweep else "model"
    usual = shown_of(_PLAIN, key) if is_variant else ""
    return Field(key, axis.title, kind, lambda result: shown_of(result.spec, key), order, usual=usual)


_PLAIN = CellSpec(
    size="tiny", edition="2026", arch="swiglu-rope", d_model=2, d_ff=1, num_layers=1, num_heads=1, vocab_size=1,
    context_length=1, batch_size=1, pass_="forward", precision="fp32", device="cpu",
)  # fmt: skip


def _size_order(result: Result) -> tuple[int, str]:
    spec = result.spec
    # Of an operation alone by its width: how many numbers that makes depends on the context, which is not its size.
    if spec.is_collective:
        return spec.message_bytes, spec.size_label
    return spec.d_model if spec.is_alone else implied_params(spec), spec.size_label


def _device_order(result: Result) -> tuple[int, int]:
    kind, _, number = result.spec.device.partition(":")
    return ("cpu", "mps", "cuda").index(kind), int(number or 0)


def _threads(result: Result) -> int:
    """torch's intra-op threads as asked for, else as read back, else 0: unknown. Of a cell that did not get so far,
    what its neighbours had, else torch's default: it is of the same sweep."""
    result = _place(result)
    spec, in_force, environment = result.spec, result.cell.in_force, result.environment
    known = in_force.threads if in_force else result.state.default_threads.get((spec.device, spec.model))
    return spec.threads or known or (environment.threads if environment else None) or 0


def threads_words(spec: CellSpec) -> str:
    """The intra-op threads as they were asked for."""
    return str(spec.threads or "torch's default")


def _torch(result: Result) -> str:
    environment = _place(result).environment
    return (environment.torch if environment else None) or "unknown"


_FIRST = ("size", "model", "model-args", "edition", "arch")
_DIMENSIONS = tuple(axis.column for axis in AXES.values() if not axis.sweep)
_BEFORE_VARIANTS = ("vocab", "workload", "causal", "attention", "context", "batch", "pass", "precision")
_LAST = ("device", "warmup", "steps", "sync", "seed", "threads")
_OTHERS = tuple(key for key in _OF_COLUMN if key not in (*_FIRST, *_DIMENSIONS, *_BEFORE_VARIANTS, *_LAST))
_DEVIATING: Mapping[str, Mapping[str, Any]] = {
    "size": {"order": _size_order},
    "device": {"order": _device_order},
    "warmup": {
        "order": lambda r: (r.spec.warmup_is_open, r.spec.warmup_for or 0.0, r.spec.warmup_steps),
        "done": lambda r: warmup_done(r.cell),
    },
    "steps": {
        "order": lambda r: (r.spec.steps_for or 0.0, r.spec.steps_auto or 0.0, r.spec.measure_steps),
        "done": lambda r: steps_done(r.cell),
    },
    "within": {"usual": "any"},
    "threads": {
        "kind": "place",
        "show": lambda r: "" if r.spec.recording else str(_threads(r) or "unknown"),
        "order": _threads,
    },
}
_CHOICES = {key: _choice(key)._replace(**_DEVIATING.get(key, {})) for key in _OF_COLUMN}
_ALL = (
    *map(_CHOICES.__getitem__, _FIRST),
    Field("params", "parameters", "model", lambda result: count(num_params(result)), lambda r: num_params(r) or 0),
    *map(_CHOICES.__getitem__, (*_DIMENSIONS, *_BEFORE_VARIANTS, *_OTHERS, *_LAST)),
    Field("machine", "machine", "place", machine, lambda result: (_device_order(result), machine(result))),
    Field("torch", "torch", "place", _torch, lambda r: ([*map(int, re.findall(r"\d+", _torch(r)))], _torch(r))),
    Field("session", "session", "place", lambda result: result.session, lambda result: result.source),
    Field("repeat", "repeat", "run", lambda result: str(result.cell.repeat), lambda result: result.cell.repeat),
)
_OPTIONS = {AXES[field].option: field for field in ARGUMENTS}


class _Fields(dict[str, Field]):
    """The fields, and on demand those of a user's own arguments, of which nobody knows which there are."""

    def __missing__(self, key: str) -> Field:
        option, _, argument = key.partition(".")
        if not argument or option not in _OPTIONS:
            raise KeyError(key)
        field = _OPTIONS[option]

        def show(result: Result) -> str:
            return dict(result.spec.arguments_given(field)).get(argument, NO_ARGUMENTS)

        def order(result: Result) -> tuple[bool, float, str]:
            try:
                return True, float(shown := show(result)), ""
            except ValueError:
                return shown != NO_ARGUMENTS, math.inf, shown

        return Field(key, argument, "choice", show, order, usual=NO_ARGUMENTS)


FIELDS: Mapping[str, Field] = _Fields((field.key, field) for field in _ALL)


def owner(key: str) -> str:
    """The choice whose arguments a field shows, all or one; empty for any other field."""
    field = ARGUMENT_COLUMNS.get(key) or _OPTIONS.get(key.partition(".")[0] if "." in key else "")
    return ARGUMENTS[field] if field else ""


def one_by_one(results: Iterable[Result], key: str) -> tuple[str, ...]:
    """The field of each argument that results have, for that of all together; any other as it is."""
    if key not in ARGUMENT_COLUMNS:
        return (key,)
    field = ARGUMENT_COLUMNS[key]
    names = dict.fromkeys(name for result in results for name, _ in result.spec.arguments_given(field))
    return tuple(f"{AXES[field].option}.{name}" for name in names)


VARIANTS = tuple(axis.column for axis in AXES.values() if axis.group == "variants" and axis.column)
"""Fields of what is run and how, which need be said only where it is not as usual."""
NUMBERS: Mapping[str, Callable[[str], float]] = {
    k: axis.kind for k, axis in _OF_COLUMN.items() if axis.is_number and k != "threads"
} | {"repeat": int}
"""Fields that are numbers, each with its kind."""


_BY_BEGINNING = ("device", "machine", "session", "recording")


class PivotError(UserError, ValueError):
    """A choice of fields or values that cannot be shown; one line says what was asked for and what would do."""


def field_named(name: str) -> Field:
    """The field of that key or title. Raises `PivotError` naming the known ones."""
    for field in FIELDS.values():
        if name in (field.key, field.title):
            return field
    if owner(name):
        return FIELDS[name]
    raise PivotError(f"field {name}: {expected(name, FIELDS, see=IN_EXPORT)}")


def values_meant(field: Field, text: str, known: Sequence[str], said: str) -> tuple[str, ...]:
    """The known values that a person's text means: one itself, in whatever capitals, or several with commas; of
    devices, machines and sessions a unique beginning will do, of ``package.module:Class`` the class where it is unique.
    Raises `PivotError`, which begins with `said`."""
    if text in known:
        return (text,)
    fitting = [shown for shown in known if shown.casefold() == text.casefold()]
    if not fitting and text and field.key in _BY_BEGINNING:
        fitting = [shown for shown in known if shown.casefold().startswith(text.casefold())]
    fitting = fitting or [shown for shown in known if is_imported(shown) and short(shown) == text]
    if len(fitting) == 1:
        return (fitting[0],)
    if "," in text:
        return tuple(shown for word in text.split(",") for shown in values_meant(field, word.strip(), known, said))
    raise PivotError(f"{said}: {field.title} here is {'one of ' if len(known) > 1 else ''}{', '.join(known)}")


def select(results: Sequence[Result], where: Mapping[str, str]) -> tuple[Result, ...]:
    """The results that show these values: ``{"precision": "fp32"}``, several with commas. Raises `PivotError`."""
    kept = tuple(results)
    for name, text in where.items():
        field = field_named(name)
        wanted = values_meant(field, text, values(results, field.key), f"{name}={text}")
        kept = tuple(result for result in kept if field.show(result) in wanted)
    if where and not kept:
        raise PivotError(f"{in_words(where)}: no cell has all of these")
    return kept


def in_words(where: Mapping[str, str]) -> str:
    """``size=small, pass=forward``."""
    return ", ".join(f"{name}={text}" for name, text in where.items())
