"""What is entered in the configure pane, as text and ticks, and the sweep that it makes."""

from __future__ import annotations

import msgspec

from cs336_tui.config.choices import ATTENTION_USUAL, own_code_folders
from cs336_tui.config.recent_models import RecentModel
from cs336_tui.config.sizes import dims_of
from cs336_tui.config.spec import CUSTOM_SIZE, SpecError
from cs336_tui.config.sweep import Auto, Sweep, steps_words
from cs336_tui.config.variants import ATTENTIONS, CROSS_ENTROPY, OPTIMIZERS, REFERENCE, WORKLOADS, is_imported
from cs336_tui.events.environment import Environment
from cs336_tui.tui.configure.form_problems import problems_of
from cs336_tui.tui.configure.reading import Reader, joined, names_of

CONTEXTS = ("128", "256", "512", "1024")
"""Context lengths offered as choices; others are typed."""

MAX_CELLS = 10_000
"""The most cells that the app runs at once: each is a row of its table."""
AFTER_OOM = ("skip larger", "try all")
"""What becomes of waiting cells that need at least as much memory as one that ran out of it."""
DIMS = ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size")
CAUSAL = ("causal", "not causal")


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run and summarise, apart from what.

    `timeout_s` ends a cell that takes longer, None never. All cells run `repeats` times, round after round. After a
    cell that ran out of memory, `skip_after_oom` skips waiting ones that need at least as much.
    """

    ddof: int = 1
    timeout_s: float | None = None
    repeats: int = 1
    skip_after_oom: bool = True


class Entries(msgspec.Struct, frozen=True, kw_only=True):
    """Everything as it was entered, valid or not. Fields are named as `SpecError` names them."""

    size: tuple[str, ...]
    head_dim: str
    d_model: str
    d_ff: str
    num_layers: str
    num_heads: str
    vocab_size: str
    context_length: tuple[str, ...]
    other_contexts: str
    batch_size: str
    pass_: tuple[str, ...]
    precision: tuple[str, ...]
    workload: str
    causal: str
    model: str
    model_args: str
    model_path: str
    annotations: str
    attention: tuple[str, ...]
    other_attentions: str
    compile: tuple[str, ...]
    checkpoint: str
    optimizer: tuple[str, ...]
    other_optimizers: str
    loss: str
    cuda_graph: tuple[str, ...]
    device: tuple[str, ...]
    warmup_steps: str
    measure_steps: str
    edition: str
    arch: str
    sync: str
    seed: str
    threads: str
    ddof: str
    timeout_s: str
    repeats: str
    after_oom: str

    def with_value(self, field: str, value: str | tuple[str, ...]) -> Entries:
        """The same with one field changed; where one choice only is held, that of a tuple of one."""
        if isinstance(getattr(self, _attribute(field)), str) and isinstance(value, tuple):
            (value,) = value
        return msgspec.structs.replace(self, **{_attribute(field): value})

    def with_options_of(self, other: Entries) -> Entries:
        """The same with the other's entries that are no part of a sweep."""
        kept = {name: getattr(other, name) for name in ("ddof", "timeout_s", "repeats", "after_oom")}
        return msgspec.structs.replace(self, **kept)

    def with_workload(self, workload: str) -> Entries:
        """The same for another workload: what is as usual for the one before becomes what is usual for it."""
        before, after = _USUAL[self.workload], _USUAL[workload]
        usual = {name: value for name, value in after.items() if getattr(self, name) == before[name]}
        return msgspec.structs.replace(self, workload=workload, **usual)

    def with_model(self, recent: RecentModel) -> Entries:
        """The same with a model that was run before, and what it was run with."""
        return msgspec.structs.replace(
            self,
            model=recent.model,
            model_args=_pairs_words(recent.args),
            model_path=joined(recent.path),
            annotations=_pairs_words(recent.annotations),
        )

    @property
    def own_names(self) -> tuple[str, ...]:
        """What is entered as a person's own code, finished or not."""
        several = (self.model, self.other_attentions, self.other_optimizers, self.loss)
        return tuple(name for text in several for name in names_of(text) if is_imported(name))

    def text(self, field: str) -> str:
        """What was typed in a field."""
        return str(getattr(self, _attribute(field)))

    def chosen(self, field: str) -> tuple[str, ...]:
        """What was ticked in a field."""
        value = getattr(self, _attribute(field))
        return (value,) if isinstance(value, str) else tuple(value)


def _attribute(field: str) -> str:
    return "pass_" if field == "pass" else field


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What the entries mean. `sweep` is None exactly when there are `problems`."""

    sweep: Sweep | None
    options: RunOptions
    problems: tuple[SpecError, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The problems as lines."""
        return tuple(map(str, self.problems))

    @property
    def summary(self) -> str:
        """How much would run: cells, and steps of all cells, warm-up included."""
        if self.sweep is None:
            return ""
        cells = len(self.sweep) * self.options.repeats
        steps = cells * self.sweep.steps + cells // len(self.sweep.warmups) * sum(self.sweep.warmups)
        most = "at most " if self.sweep.warmup_auto or self.sweep.steps_auto is not None else ""
        return f"{_plural(cells, 'cell')} · {most}{_plural(steps, 'step')}"


def entries_of(sweep: Sweep, options: RunOptions | None = None) -> Entries:
    """The entries that `read` turns into this sweep and these options."""
    options = options or RunOptions()
    contexts = tuple(str(context) for context in sweep.contexts)
    dims = sweep.dims or dims_of("tiny", sweep.edition, sweep.vocab_size)
    attentions, other_attentions = _offered(sweep.attentions, ATTENTIONS)
    optimizers, other_optimizers = _offered(sweep.optimizers, OPTIMIZERS)
    return Entries(
        size=(CUSTOM_SIZE,) if sweep.dims else sweep.sizes,
        head_dim=",".join(map(str, sweep.head_dims)),
        d_model=str(dims.d_model),
        d_ff=str(dims.d_ff),
        num_layers=str(dims.num_layers),
        num_heads=str(dims.num_heads),
        vocab_size=str(dims.vocab_size),
        context_length=tuple(context for context in contexts if context in CONTEXTS),
        other_contexts=",".join(context for context in contexts if context not in CONTEXTS),
        batch_size=",".join(map(str, sweep.batches)),
        pass_=sweep.passes,
        precision=sweep.precisions,
        workload=sweep.workload,
        causal=CAUSAL[0 if sweep.causal else 1],
        model="" if sweep.models == (REFERENCE,) else ", ".join(sweep.models),
        model_args=_pairs_words(sweep.model_args),
        model_path=joined(sweep.model_path),
        annotations=_pairs_words(sweep.annotations),
        attention=attentions,
        other_attentions=other_attentions,
        compile=sweep.compiles,
        checkpoint="" if sweep.checkpoints == (0,) else ",".join(map(str, sweep.checkpoints)),
        optimizer=optimizers,
        other_optimizers=other_optimizers,
        loss="" if sweep.loss == CROSS_ENTROPY else sweep.loss,
        cuda_graph=sweep.cuda_graphs,
        device=sweep.devices,
        warmup_steps=",".join(sweep.warmup_words),
        measure_steps=steps_words(sweep.steps, sweep.steps_auto),
        edition=sweep.edition,
        arch=sweep.arch,
        sync=sweep.sync,
        seed=str(sweep.seed),
        threads="" if sweep.threads is None else str(sweep.threads),
        ddof=str(options.ddof),
        timeout_s="" if options.timeout_s is None else str(options.timeout_s).removesuffix(".0"),
        repeats=str(options.repeats),
        after_oom=AFTER_OOM[0 if options.skip_after_oom else 1],
    )


def read(entries: Entries, environment: Environment | None = None) -> Form:
    """The sweep and options that the entries mean, or everything that is wrong with them.

    What attention alone has nothing of counts only of a language model, and the other way round. Costs the sum of the
    choices, never their product. Without an environment every device can do all.
    """
    reader = Reader()
    alone = entries.workload == "attention"
    warmups = reader.warmups(entries.warmup_steps)
    steps, share = reader.steps(entries.measure_steps)
    sweep = Sweep(
        contexts=reader.numbers("context_length", ",".join((*entries.context_length, entries.other_contexts))),
        batches=reader.numbers("batch_size", entries.batch_size),
        passes=entries.pass_,
        precisions=entries.precision,
        devices=entries.device,
        warmups=(warmups.most,) if isinstance(warmups, Auto) else warmups,
        warmup_auto=isinstance(warmups, Auto),
        steps=steps,
        steps_auto=share,
        edition=entries.edition,
        arch=entries.arch,
        sync=entries.sync,
        seed=reader.number("seed", entries.seed, _PLAIN.seed),
        threads=reader.number("threads", entries.threads, 1) if entries.threads.strip() else None,
        workload=entries.workload,
        attentions=(*entries.attention, *names_of(entries.other_attentions)),
        compiles=entries.compile,
        cuda_graphs=entries.cuda_graph,
    )
    sweep = _with_attention(sweep, entries, reader) if alone else _with_model(sweep, entries, reader)
    own = (*sweep.models, *sweep.attentions, *sweep.optimizers, sweep.loss)
    folders = own_code_folders(reader.pieces("model_path", entries.model_path), own)
    sweep = msgspec.structs.replace(sweep, model_path=folders)
    options = RunOptions(
        ddof=reader.number("ddof", entries.ddof, 1),
        timeout_s=reader.seconds(entries.timeout_s),
        repeats=reader.number("repeats", entries.repeats, 1),
        skip_after_oom=entries.after_oom == AFTER_OOM[0],
    )
    if options.repeats < 1:
        reader.add(SpecError("repeats", options.repeats, "expected a whole number, at least 1"))
    for problem in problems_of(sweep, environment):
        reader.add(_of_head_dim(problem) if alone else problem)
    cells = len(sweep) * options.repeats
    if not reader.problems and cells > MAX_CELLS:
        reader.add(SpecError("sweep", f"of {cells} cells", f"expected at most {MAX_CELLS}"))
    problems = tuple(sorted(reader.problems.values(), key=lambda problem: _position(problem.field)))
    return Form(sweep=None if problems else sweep, options=options, problems=problems)


def _with_attention(sweep: Sweep, entries: Entries, reader: Reader) -> Sweep:
    """The sweep with what attention alone has."""
    return msgspec.structs.replace(
        sweep,
        head_dims=reader.numbers("head_dim", entries.head_dim),
        causal=entries.causal == CAUSAL[0],
    )


def _with_model(sweep: Sweep, entries: Entries, reader: Reader) -> Sweep:
    """The sweep with what a language model has."""
    custom = CUSTOM_SIZE in entries.size
    return msgspec.structs.replace(
        sweep,
        sizes=_PLAIN.sizes if custom else entries.size,
        dims=reader.dims({field: getattr(entries, field) for field in DIMS}) if custom else None,
        vocab_size=_PLAIN.vocab_size if custom else reader.number("vocab_size", entries.vocab_size, 1),
        models=names_of(entries.model) or (REFERENCE,),
        model_args=reader.pairs("model_args", entries.model_args),
        annotations=reader.pairs("annotations", entries.annotations),
        checkpoints=reader.numbers("checkpoint", entries.checkpoint.strip() or "0"),
        optimizers=(*entries.optimizer, *names_of(entries.other_optimizers)),
        loss=entries.loss.strip() or CROSS_ENTROPY,
    )


def _of_head_dim(problem: SpecError) -> SpecError:
    """The same problem, of the entry that gives attention alone its width."""
    if problem.field not in ("size", "d_model"):
        return problem
    return SpecError("head_dim", problem.value, problem.allowed)


def _pairs_words(pairs: tuple[tuple[str, str], ...]) -> str:
    return joined(f"{name}={value}" for name, value in pairs)


def _offered(values: tuple[str, ...], offered: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Those that are offered as choices, and the others as they are typed."""
    return tuple(v for v in values if v in offered), ", ".join(v for v in values if v not in offered)


def _position(field: str) -> int:
    """Where in the form a field stands; what concerns several fields comes last."""
    fields = Entries.__struct_fields__
    return fields.index(_attribute(field)) if _attribute(field) in fields else len(fields)


_PLAIN = Sweep()
_USUAL = {
    workload: {
        "pass_": usual.passes,
        "context_length": tuple(map(str, usual.contexts)),
        "batch_size": ",".join(map(str, usual.batches)),
    }
    for workload, usual in zip(WORKLOADS, (_PLAIN, msgspec.structs.replace(_PLAIN, **ATTENTION_USUAL)), strict=True)
}
"""Entries that differ between workloads where nobody says."""


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
