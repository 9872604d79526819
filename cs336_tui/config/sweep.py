"""Choices whose product is run (`Sweep`), from a form, options or a preset."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from cs336_tui.config.axes import Choices
from cs336_tui.config.axis import MAX_COUNT, Axis, Cell, SpecError
from cs336_tui.config.counts import INTERVAL, Auto, Counted, check_most, share_words, warmup_words
from cs336_tui.config.rules import ARGUMENTS, RULES, Rule, lacks_gpu
from cs336_tui.config.spec import AXES, CUSTOM_SIZE, CellSpec, ModelDims, dims_of
from cs336_tui.config.values import LANGUAGE_MODEL, canonical_device, message_dims
from cs336_tui.config.variants import arguments_for, expected, is_imported, settings_of, short, values_in
from cs336_tui.stats.quantities import counted

UNRESOLVED = ("auto", "every")
"""Names that only a machine can turn into devices: its best one, and all of them."""

AskedReport = Literal["kernels", "memory", "precision"]
"""Reports that can be asked for with a sweep, and alone."""
ASKED_REPORTS: tuple[str, ...] = get_args(AskedReport)
REPORTS_OF_RANKS = ("kernels", "memory")
"""Those that are made of several ranks too."""

MOST_CELLS = 10_000
"""Maximum number of cells of a sweep."""

NO_OOM_SKIP = "--no-oom-skip"

LaneCount = int | Literal["auto"]
"""Lanes to run cells in, side by side; ``auto``: as many as the machine has devices, or whole cores."""

_NOT_SHARED = ("vocab_size", *ARGUMENTS)
"""Fields of a sweep that its cells do not take as they are."""
_OUTER = (
    "device", "precision", "size", "context_length", "batch_size", "model", "model_args", "attention",
    "attention_args", "checkpoint", "optimizer", "optimizer_args",
)  # fmt: skip
_INNER = ("warmup_steps", "pass_")
_IN_SWEEP = {field: axis for field, axis in AXES.items() if axis.sweep}
_SHARED = tuple(
    f for f, axis in _IN_SWEEP.items() if axis.sweep in (f, "checks") and not axis.several and f not in _NOT_SHARED
)
"""Fields that every cell of a sweep has alike; named so by both, but for the checks: `Sweep.check` is a method."""
_PRODUCT = (*_OUTER, *(f for f, axis in _IN_SWEEP.items() if axis.several and f not in _OUTER + _INNER), *_INNER)


OF_COLLECTIVES = (
    "collective", "size", "ranks", "backend", "precision", "device", "warmup_steps", "measure_steps", "threads",
)  # fmt: skip
"""Choices of collectives, in the order of the options of `cs336-tui comm`."""

NOT_OF_COLLECTIVES: dict[str, Any] = {"contexts": (1,), "batches": (1,), "passes": ("forward",)}
"""Stand-ins for choices that collectives do not have, by the fields of a sweep."""


class Beside(NamedTuple):
    """The choice beside which another one counts, its value without that one, and why; without a reason it is not
    refused there, only left out."""

    other: str
    without: Any
    why: str


ONLY_BESIDE = {
    "nesting": Beside(
        "checkpoint", 0, "without checkpointing there are no groups to nest; choose --checkpoint 1 or more"
    ),
    "parallel": Beside("ranks", 1, "one rank has nothing to share; give --ranks 2 or more"),
    "backend": Beside("ranks", 1, ""),
}
"""Choices that count only beside others: without them they have the default."""
_DECIDING = tuple(f for f in _PRODUCT if hasattr(Cell, f) and (f == "model" or f not in ARGUMENTS.values()))
"""Choices by which `Axis.applies` tells whether others count."""
_PLAIN = {field: axis.alike for field, axis in AXES.items()}
_DEEP = ModelDims(d_model=2, d_ff=1, num_layers=MAX_COUNT, num_heads=1)

if TYPE_CHECKING:
    _OfAxes = msgspec.Struct
else:
    _OfAxes = msgspec.defstruct(
        "_OfAxes",
        [(axis.sweep, axis.sweep_type, axis.sweep_default) for axis in _IN_SWEEP.values()],
        frozen=True,
        kw_only=True,
        rename={"passes": "pass"},
    )


class Sweep(_OfAxes, frozen=True, kw_only=True):
    """Choices whose product is run, smallest models first: a field for every axis, and those below.

    `sizes` are names of the edition's table; `dims`, when given, replaces them by one custom size; where
    ``custom`` is among the sizes, it stands beside them.
    `devices` may hold ``auto`` and ``every``; they must be resolved (`with_devices`) before `cells`.
    With `warmup_auto` the one value of `warmups` is the most warm-up steps; with `steps_auto`, the share of the mean to
    which its interval is to narrow, `steps` is the most measured ones (see `CellSpec`). `warmup_for` and `steps_for`,
    seconds, do the same for counts that come from time.

    With workload ``attention`` the widths of `head_dims`, of `heads` heads each, take the place of sizes; with ``norm``
    they are the widths of rows; with ``collective`` `sizes` are those of messages, such as ``10MB``. `model_args`
    are for every model of a user's own, or named ``Class.name`` for one of several; an argument may have several
    values, with commas. So do those of attention and optimizer. `reports` are made of the cells
    that end well, after all. `oom_skip` skips cells not smaller than one that ran out of memory. With `lanes` other
    than 1 cells run side by side and `devices` are those that lanes share: each cell runs once, on any of them.

    Combinations that differ only in choices that count in none of them (`Axis.counts_in`) are one cell.
    """

    dims: ModelDims | None = None
    head_dims: tuple[int, ...] = (64,)
    heads: int = 1
    reports: tuple[str, ...] = ()
    oom_skip: bool = True
    lanes: LaneCount = 1

    if TYPE_CHECKING:  # the types of axes that code names; the fields themselves are derived

        def __init__(self, **choices: Any) -> None: ...

        sizes: tuple[str, ...]
        vocab_size: int
        contexts: tuple[int, ...]
        batches: tuple[int, ...]
        passes: tuple[str, ...]
        precisions: tuple[str, ...]
        devices: tuple[str, ...]
        warmups: tuple[int, ...]
        ranks: tuple[int, ...]
        backends: tuple[str, ...]
        accumulations: tuple[int, ...]
        warmup_auto: bool
        warmup_for: float | None
        steps: int
        steps_auto: float | None
        steps_for: float | None
        edition: str
        threads: int | None
        workload: str
        arch: str
        causal: bool
        models: tuple[str, ...]
        model_args: tuple[tuple[str, str], ...]
        model_path: tuple[str, ...]
        annotations: tuple[tuple[str, str], ...]
        checkpoints: tuple[int, ...]
        nestings: tuple[str, ...]
        timers: tuple[str, ...]

    def with_devices(self, devices: tuple[str, ...]) -> Sweep:
        return msgspec.structs.replace(self, devices=devices)

    def resolved_to(self, device: str) -> Sweep:
        """The sweep as if ``auto`` and ``every`` were this device."""
        return self.with_devices(tuple(device if name in UNRESOLVED else name for name in self.devices))

    def with_fitting_groups(self) -> Sweep:
        """The sweep without groups of more blocks than its smallest model has, if others are left."""
        fewest = min((self._dims_of(size)[1].num_layers for size in self._sizes), default=0)
        kept = tuple(blocks for blocks in self.checkpoints if blocks <= fewest)
        return msgspec.structs.replace(self, checkpoints=kept or self.checkpoints)

    def counts(
        self, warmups: Auto | tuple[int, ...] | None, steps: Auto | int | None, interval: float | None
    ) -> dict[str, Any]:
        """Its fields for other numbers of steps; None leaves them as they are. Raises `SpecError`."""
        fields: dict[str, Any] = {}
        if warmups is not None:
            by_itself = isinstance(warmups, Auto)
            fields["warmups"] = (warmups.most,) if isinstance(warmups, Auto) else warmups
            fields["warmup_for"] = warmups.for_s if isinstance(warmups, Auto) else None
            fields["warmup_auto"] = by_itself and fields["warmup_for"] is None
        share = self.steps_auto
        if steps is not None:
            fields["steps"] = steps.most if isinstance(steps, Auto) else steps
            fields["steps_for"] = steps.for_s if isinstance(steps, Auto) else None
            share = (share or INTERVAL) if isinstance(steps, Auto) and steps.for_s is None else None
        if interval is not None and share is None:
            raise SpecError("interval", share_words(interval), "--interval is only used with --steps auto")
        return fields | {"steps_auto": share if interval is None else interval}

    @property
    def own_code(self) -> tuple[str, ...]:
        """Names of what a user brings."""
        values = ((getattr(self, axis.sweep), axis.several) for axis in AXES.values() if axis.own)
        return tuple(
            name for value, several in values for name in (value if several else (value,)) if is_imported(name)
        )

    def __len__(self) -> int:
        axes = self._axes()
        decided = math.prod(len(axes[field]) for field in _DECIDING)
        lengths, idle = _lengths(axes), self._idle(axes)
        pairs, left_out = lengths["backend"] * lengths["device"], len(self._left_out)
        if not any(idle):
            return decided * math.prod(lengths.values()) * (pairs - left_out) // pairs if pairs else 0
        counts = (math.prod((lengths | fewer).values()) for fewer in idle)
        return sum(
            count if "backend" in fewer else count * (pairs - left_out) // pairs
            for count, fewer in zip(counts, idle, strict=True)
        )

    @property
    def _left_out(self) -> frozenset[tuple[str, str]]:
        """Pairs of backend and device of which no cell is made, as NCCL needs GPUs: none if one of either would then
        have no cell."""
        devices = self._axes()["device"]
        pairs = frozenset(itertools.product(self.backends, devices))
        left_out = frozenset((backend, device) for backend, device in pairs if lacks_gpu(backend, device))
        kept = pairs - left_out
        is_whole = {backend for backend, _ in kept} >= {*self.backends} and {device for _, device in kept} >= {*devices}
        return left_out if is_whole else frozenset()

    @property
    def once_words(self) -> str:
        """That combinations which differ in nothing that counts are one cell; empty if there are none."""
        axes = self._axes()
        fields = {field for several in self._idle(axes) for field in several}
        if not fields:
            return ""
        names, product = [AXES[field].option for field in axes if field in fields], math.prod(map(len, axes.values()))
        change = "changes" if len(names) == 1 else "change"
        return (
            f"{', '.join(names)} {change} nothing in some cells, which run once: {counted(len(self), 'cell')}, "
            f"not {product}"
        )

    def _idle(self, axes: dict[str, tuple[Any, ...]]) -> list[dict[str, int]]:
        """For each combination of the choices that decide which others count, those of several values that do not, or
        not in all, each with the number that does."""
        lengths = _lengths(axes)
        several = [AXES[field] for field, length in lengths.items() if length > 1]
        deciding = [axes[field] for field in _DECIDING]
        if not several or math.prod(map(len, deciding)) > MOST_CELLS:  # then there are too many cells in any case
            return []
        plain = _PLAIN | {"workload": self.workload, "arch": self.arch}
        cells = (Choices(**plain | dict(zip(_DECIDING, each, strict=True))) for each in itertools.product(*deciding))

        def counting(axis: Axis, cell: Choices) -> int:
            if not axis.counts_in(cell):  # type: ignore[arg-type]
                return 1
            if axis.field != "model_args":
                return lengths[axis.field]
            return len({arguments_for(cell.model, pairs) for pairs in axes[axis.field]})

        return [
            {axis.field: count for axis in several if (count := counting(axis, cell)) < lengths[axis.field]}
            for cell in cells
        ]

    def cells(self) -> tuple[CellSpec, ...]:
        """The product, smallest models first; of cells that differ in nothing that counts, the first. Raises the first
        `SpecError` of `problems`."""
        for problem in self.problems():
            raise problem
        axes = self._axes()
        shared = {field: choices[0] for field, choices in self._values().items() if field not in axes}
        several = itertools.product(*axes.values())
        every, left_out = (shared | dict(zip(axes, each, strict=True)) for each in several), self._left_out
        cells = (self._cell(values) for values in every if (values["backend"], values["device"]) not in left_out)
        idle = {field for fields in self._idle(axes) for field in fields if field not in ONLY_BESIDE}
        first = {field: axes[field][0] for field in idle} | dict.fromkeys(ARGUMENTS, ())
        return tuple(dict.fromkeys(_with_first(cell, first) for cell in cells))

    def _cell(self, values: dict[str, Any]) -> CellSpec:
        size, dims = self._dims_of(values["size"])
        values |= {"size": size, **{f: arguments_for(values[of], values[f]) for f, of in ARGUMENTS.items()}}
        values |= {f: AXES[f].default for f, only in ONLY_BESIDE.items() if values[only.other] == only.without}
        return CellSpec(**values | msgspec.structs.asdict(dims))

    def check(self) -> None:
        """Raise the first problem that is not of devices which only the machine can resolve."""
        named = tuple(device for device in self.devices if device not in UNRESOLVED)
        for problem in (*self.refusals_on(named), *self._too_many()):
            raise problem

    def problems(self) -> tuple[SpecError, ...]:
        """All problems, each once; empty if `cells` will succeed."""
        return tuple({str(problem): problem for problem in (*self.refusals(), *self._too_many())}.values())

    def _too_many(self) -> Iterator[SpecError]:
        if len(self) > MOST_CELLS:
            yield SpecError("cells", len(self), f"these choices make too many; expected at most {MOST_CELLS}")

    def refusals_on(self, devices: tuple[str, ...]) -> tuple[SpecError, ...]:
        """`refusals` on these devices; where none is known yet, those that a CPU and a GPU share."""
        found = tuple(self.with_devices(devices or ("cpu",)).refusals())
        if devices or not found:
            return found
        there_too = set(map(str, self.with_devices(("cuda:0",)).refusals()))
        return tuple(problem for problem in found if str(problem) in there_too)

    def refusals(self) -> Iterator[SpecError]:
        """All problems but the number of cells. Costs the sum of the choices and, per rule, the product of its own."""
        for field, choices in self._axes().items():
            if not choices:
                yield SpecError(field.rstrip("_"), "(none)", "choose at least one")
            for name, text in getattr(self, field) if field in ARGUMENTS else ():
                if len(set(found := values_in(text))) != len(found):
                    yield SpecError(field, f"{name}={text}", "names the same value twice")
            if field not in ARGUMENTS and len(set(choices)) != len(choices):
                yield SpecError(field.rstrip("_"), ",".join(map(str, choices)), "names the same value twice")
        if self.lanes != "auto" and self.lanes < 1:
            yield SpecError("lanes", self.lanes, "expected a whole number, at least 1, or auto")
        for report in self.reports:
            if report not in ASKED_REPORTS:
                yield SpecError("reports", report, expected(report, ASKED_REPORTS))
        single = [report for report in self.reports if report not in REPORTS_OF_RANKS]
        if self.is_collective and self.reports:
            yield SpecError("reports", ",".join(self.reports), "none is made of a collective; leave it out")
        elif single and (several := [str(ranks) for ranks in self.ranks if ranks > 1]):
            why = f"of one rank, not of {', '.join(several)}; leave it out of --reports, or give --ranks 1"
            yield SpecError("reports", ",".join(single), why)
        if self.reports and (micro := [str(count) for count in self.accumulations if count > 1]):
            why = f"are of one batch a step, not of {', '.join(micro)}; give --reports none, or --accumulate 1"
            yield SpecError("reports", ",".join(self.reports), why)
        for field, only in ONLY_BESIDE.items():
            given = getattr(self, AXES[field].sweep)
            alone = set(getattr(self, AXES[only.other].sweep)) == {only.without}
            if only.why and alone and AXES[field].is_in(self.workload) and set(given) - {AXES[field].default}:
                yield SpecError(field, ",".join(given), only.why)
        yield from self._ceilings()
        yield from self._arguments_of_nobody()
        values = self._values()
        dims: dict[str | int, ModelDims] = {}
        for size in self._sizes:
            try:
                dims[size] = self._dims_of(size)[1]
            except SpecError as error:
                yield error
        for field, choices in values.items():
            sound = []  # What no choice can be is asked of no rule
            for value in choices:
                try:
                    AXES[field].validate(value)
                    sound.append(value)
                except SpecError as error:
                    yield error
            values[field] = tuple(sound)
        values["size"] = tuple(dims)
        for rule in RULES:
            yield from self._broken(rule, values, dims)

    def _broken(
        self, rule: Rule, values: dict[str, tuple[Any, ...]], dims: dict[str | int, ModelDims]
    ) -> Iterator[SpecError]:
        """Refusals of a rule for all combinations of its choices."""
        several, left_out = [values[field] for field in rule.fields], self._left_out
        if math.prod(map(len, several)) > MOST_CELLS:  # then there are too many cells, too
            return
        for combination in itertools.product(*several):
            cell = dict(zip(rule.fields, combination, strict=True))
            if (cell.get("backend"), cell.get("device")) in left_out:
                continue
            cell |= {f: arguments_for(cell.get(ARGUMENTS[f], ""), cell[f]) for f in cell.keys() & ARGUMENTS.keys()}
            of_size = msgspec.structs.asdict(dims.get(cell.get("size", ""), _DEEP))
            yield from rule.refusals(Choices(**_PLAIN | {"workload": self.workload} | of_size | cell))

    def _values(self) -> dict[str, tuple[Any, ...]]:
        """Values of every choice by the field of `CellSpec`."""
        without = () if self.own_code else ("model_path", "annotations")
        shared = {field: (getattr(self, AXES[field].sweep),) for field in _SHARED if field not in without}
        return shared | self._axes() | {"measure_steps": (self.steps,)}

    def _axes(self) -> dict[str, tuple[Any, ...]]:
        """The choices whose product is run, by the field of `CellSpec` that each gives; the last varies fastest."""
        found = {field: getattr(self, AXES[field].sweep) for field in _PRODUCT if field != "size"}
        found |= {field: settings_of(found[field]) for field in ARGUMENTS}
        devices = tuple(map(_one_spelling, self.devices if self.lanes == 1 else self.devices[:1]))
        return {field: found.get(field, self._sizes) for field in _PRODUCT} | {"device": devices}

    @property
    def is_alone(self) -> bool:
        """True if its cells have one operation each, with no model around it."""
        return self.workload != LANGUAGE_MODEL

    @property
    def width_key(self) -> str:
        """Key and option of `head_dims`."""
        return "width" if self.workload == "norm" else "head_dim"

    @property
    def is_collective(self) -> bool:
        return self.workload == "collective"

    @property
    def has_widths(self) -> bool:
        """True if `head_dims` take the place of sizes."""
        return self.is_alone and not self.is_collective

    @property
    def _sizes(self) -> tuple[str | int, ...]:
        if self.has_widths:
            return self.head_dims
        return (CUSTOM_SIZE,) if self.dims_alone else self.sizes

    @property
    def dims_alone(self) -> bool:
        """True if `dims` replaces the sizes."""
        return self.dims is not None and not self.is_collective and CUSTOM_SIZE not in self.sizes

    def _dims_of(self, size: str | int) -> tuple[str, ModelDims]:
        """A size's name and dimensions; of an operation alone its width, which has neither layers nor tokens."""
        if self.is_collective:
            d_model, d_ff = message_dims(str(size))
            return str(size), ModelDims(d_model=d_model, d_ff=d_ff, num_layers=1, num_heads=1, vocab_size=1)
        if self.is_alone:
            AXES["num_heads"].validate(self.heads)
            dims = ModelDims(d_model=int(size) * self.heads, d_ff=1, num_layers=1, num_heads=self.heads, vocab_size=1)
            return (f"{self.heads}x" if self.heads > 1 else "") + f"d{size}", dims
        custom = self.dims if size == CUSTOM_SIZE else None
        return str(size), custom or dims_of(str(size), self.edition, self.vocab_size)

    def _arguments_of_nobody(self) -> Iterator[SpecError]:
        """Arguments for one of several models, attentions or optimizers that is not here."""
        for field, of in ARGUMENTS.items():
            named = [short(name) for name in getattr(self, AXES[of].sweep) if is_imported(name)]
            for name, value in getattr(self, field) if named else ():
                if "." in name and not any(name.startswith(f"{each}.") for each in named):
                    allowed = f"before the dot goes one of {', '.join(named)}, for that {of} alone"
                    yield SpecError(field, f"{name}={value}", allowed)

    def _ceilings(self) -> Iterator[SpecError]:
        """Problems of the maxima of automatic counts."""
        if (self.warmup_auto or self.warmup_for is not None) and len(self.warmups) > 1:
            values = ",".join(map(str, self.warmups))
            yield SpecError("warmup_steps", f"auto:{values}", "auto stands alone, with one most")
        automatic: list[tuple[Counted, int]] = [("warmup_steps", most) for most in self.warmups if self.warmup_auto]
        automatic += [("measure_steps", self.steps)] if self.steps_auto is not None else []
        for field, most in automatic:
            try:
                check_most(field, most)
            except SpecError as error:
                yield error

    @property
    def warmup_words(self) -> tuple[str, ...]:
        """Each warm-up setting as it is entered."""
        return tuple(warmup_words(warmup, self.warmup_auto, self.warmup_for) for warmup in self.warmups)


def _lengths(axes: dict[str, tuple[Any, ...]]) -> dict[str, int]:
    """The number of values of each choice that does not decide which others count. Code of a user's own and its
    arguments are counted together, with the code."""
    found = {field: len(choices) for field, choices in axes.items() if field not in _DECIDING}
    for field, of in ARGUMENTS.items():
        if of in found:
            both = itertools.product(axes[of], axes[field])
            found |= {of: len({(name, arguments_for(name, pairs)) for name, pairs in both}), field: 1}
    return found


def _with_first(spec: CellSpec, first: dict[str, Any]) -> CellSpec:
    """The cell with the first value of each of these choices that does not count in it."""
    idle = {f: v for f, v in first.items() if getattr(spec, f) != v and not AXES[f].counts_in(spec)}
    return msgspec.structs.replace(spec, **idle) if idle else spec


def _one_spelling(device: str) -> str:
    """The canonical name, so that no device is run twice; an unknown name is kept to be refused."""
    try:
        return canonical_device(device)
    except SpecError:
        return device
