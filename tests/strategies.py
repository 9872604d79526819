"""Hypothesis strategies for the project's vocabulary: specs, sweeps and events, all of them valid."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from cs336_tui.config import spec, values, variants
from cs336_tui.config.counts import FEWEST, INTERVAL
from cs336_tui.config.spec import CellSpec, ModelDims, size_names
from cs336_tui.config.sweep import ASKED_REPORTS, Sweep
from cs336_tui.events import events
from cs336_tui.events.environment import DeviceInfo, Environment, GpuProcess, GpuSample, HostSample

counts = st.integers(1, 10_000)
times_s = st.floats(1e-7, 1e4)
texts = st.text(st.characters(codec="utf-8"), max_size=30)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_ ", min_size=1, max_size=12)
optional_bytes = st.none() | st.integers(0, 2**50)
devices = st.sampled_from(["cpu", "mps", "cuda:0", "cuda:1", "cuda:12"])


@st.composite
def model_dims(draw: st.DrawFn) -> ModelDims:
    """Dimensions with equal heads of even width, fit for every arch."""
    num_heads = draw(st.integers(1, 64))
    return ModelDims(
        d_model=num_heads * 2 * draw(st.integers(1, 128)),
        d_ff=draw(counts),
        num_layers=draw(st.integers(1, 96)),
        num_heads=num_heads,
        vocab_size=draw(counts),
    )


@st.composite
def run_specs(draw: st.DrawFn) -> CellSpec:
    dims = draw(model_dims())
    in_float8 = not (dims.d_model % 16 or dims.d_ff % 16)
    return CellSpec(
        size=draw(st.sampled_from(["tiny", "small", spec.CUSTOM_SIZE])),
        edition=draw(st.sampled_from(spec.EDITIONS)),
        arch=draw(st.sampled_from(spec.ARCHES)),
        **msgspec.structs.asdict(dims),
        context_length=draw(counts),
        batch_size=draw(counts),
        pass_=draw(st.sampled_from(spec.PASSES)),
        precision=draw(st.sampled_from([name for name in spec.PRECISIONS if in_float8 or name != "fp8-mixed"])),
        device=draw(devices),
        sync=draw(st.sampled_from(spec.SYNCS)),
        warmup_steps=draw(st.integers(0, 20)),
        measure_steps=draw(st.integers(1, 50)),
        seed=draw(st.integers(0, 2**31 - 1)),
        threads=draw(st.none() | st.integers(1, 256)),
    )


def some(offered: st.SearchStrategy, max_size: int = 3) -> st.SearchStrategy:
    """A tuple of different offered."""
    return st.lists(offered, min_size=1, max_size=max_size, unique=True).map(tuple)


imported = st.sampled_from(["my.model:LM", "course.nn:Transformer.of", "x:y", "repo.optim:AdamW"])
"""Names of a user's own code."""
words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=12)
folders = words.map("/{}".format).filter(lambda folder: str(Path(folder)) == folder)
"""Folders as a sweep holds them: absolute, without a slash at the end."""
_NAMES = ("models", "attentions", "norms", "optimizers")
"""Fields of a sweep that may name a user's own code."""
_arguments = names.map(str.strip).filter(lambda name: name and "." not in name and not variants.option_of(name))
pairs = st.lists(st.tuples(_arguments, texts.map(str.strip)), max_size=2).map(tuple)


@st.composite
def sweeps(draw: st.DrawFn, workloads: Sequence[str] = values.COMPUTING) -> Sweep:
    """Sweeps whose every cell is valid: of named sizes, of raw dimensions, or of an operation alone; of collectives
    see tests/config/test_ranks.py."""
    edition = draw(st.sampled_from(spec.EDITIONS))
    workload = draw(st.sampled_from(workloads))
    alone = workload != values.LANGUAGE_MODEL
    graphs = draw(st.booleans())
    made: dict[str, Any] = draw(_ALONE[workload]() if alone else _models(edition))
    dims = made.get("dims")
    in_float8 = not alone and (dims is None or not (dims.d_model % 16 or dims.d_ff % 16))
    passes = {"train-step": not alone, "backward": not graphs}
    precisions = {"fp16-mixed": not graphs, "fp8-mixed": in_float8}
    brought = any(variants.is_imported(name) for field in _NAMES for name in made.get(field, ()))
    brought = brought or variants.is_imported(made.get("loss", ""))
    return Sweep(
        **made,
        contexts=draw(some(counts)),
        batches=draw(some(counts, 2)),
        passes=draw(some(st.sampled_from([name for name in spec.PASSES if passes.get(name, True)]))),
        precisions=draw(some(st.sampled_from([name for name in spec.PRECISIONS if precisions.get(name, True)]), 2)),
        devices=draw(some(devices, 2)),
        warmups=draw(some(st.integers(0, 20), 2)),
        steps=draw(counts),
        edition=edition,
        arch=draw(st.sampled_from(spec.ARCHES)),
        sync=draw(st.sampled_from(spec.SYNCS)),
        seed=draw(st.integers(0, 2**31 - 1)),
        threads=draw(st.none() | st.integers(1, 256)),
        reports=draw(st.just(()) | some(st.sampled_from(ASKED_REPORTS))),
        oom_skip=draw(st.booleans()),
        compiles=draw(some(st.sampled_from(["off", "default"] if graphs else spec.AXES["compile"].values), 2)),
        cuda_graphs=draw(some(st.sampled_from(spec.AXES["cuda_graph"].values))) if graphs else ("off",),
        model_path=draw(st.lists(folders, min_size=int(brought), max_size=2).map(tuple)),
    )


@st.composite
def _attention(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a sweep of attention alone."""
    return {
        "workload": "attention",
        "head_dims": draw(some(counts)),
        "heads": draw(st.sampled_from([1, 1, 2, 16])),
        "causal": draw(st.booleans()),
        "attentions": draw(some(st.sampled_from(values.ATTENTIONS) | imported)),
    }


@st.composite
def _norm(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a sweep of a norm alone."""
    return {
        "workload": "norm",
        "head_dims": draw(some(counts)),
        "norms": draw(some(st.sampled_from(values.NORMS) | imported)),
    }


_ALONE = {"attention": _attention, "norm": _norm}


@st.composite
def _models(draw: st.DrawFn, edition: str) -> dict[str, Any]:
    """Fields of a sweep of language models; a user's own model brings its attention."""
    own, checkpoints = draw(st.booleans()), draw(some(st.integers(0, 1), 2))
    return {
        "sizes": draw(some(st.sampled_from(size_names(edition)))),
        "dims": draw(st.none() | model_dims()),
        "vocab_size": draw(counts),
        "models": draw(some(imported | st.just(variants.REFERENCE), 2)) if own else (variants.REFERENCE,),
        "model_args": draw(pairs),
        "annotations": draw(st.lists(st.tuples(st.sampled_from(variants.RANGES), imported), max_size=2).map(tuple)),
        "attentions": ("naive",) if own else draw(some(st.sampled_from(values.ATTENTIONS) | imported, 2)),
        "norms": ("rmsnorm",) if own else draw(some(st.sampled_from(values.NORMS) | imported, 2)),
        "optimizers": draw(some(st.sampled_from(values.OPTIMIZERS) | imported, 2)),
        "loss": draw(st.just(variants.CROSS_ENTROPY) | imported),
        "checkpoints": checkpoints,
        "nestings": draw(some(st.sampled_from(("off", "halves")), 2)) if any(checkpoints) else ("off",),
    }


environments = st.builds(
    Environment,
    host=texts,
    os=texts,
    cpu=texts,
    cpu_count=counts,
    memory_bytes=st.integers(0, 2**50),
    devices=st.lists(st.builds(DeviceInfo, name=devices, precisions=some(st.sampled_from(spec.PRECISIONS)))).map(tuple),
)

at = st.floats(0, 4e9)
cells = st.integers(0, 3)


@st.composite
def timed_steps(draw: st.DrawFn) -> events.StepsTimed:
    n = draw(st.integers(1, 4))

    def per_step() -> tuple[float, ...]:
        return draw(st.lists(times_s, min_size=n, max_size=n).map(tuple))

    return events.StepsTimed(
        at=draw(at),
        cell=draw(cells),
        kind=draw(st.sampled_from(["warm-up", "measured"])),
        first=draw(st.integers(0, 5)),
        times_s=per_step(),
        phases_s={name: per_step() for name in draw(st.sets(st.sampled_from(["forward", "loss", "backward"])))},
        host_s=per_step() if draw(st.booleans()) else (),
        host_phases_s={name: per_step() for name in draw(st.sets(st.sampled_from(["forward", "backward"])))},
    )


@st.composite
def cell_steps(draw: st.DrawFn) -> list[events.Event]:
    """One cell's consecutive steps as a child sends them: a batch or more of each kind, other events in between."""
    cell = draw(cells)
    phases, ranks = draw(st.sets(st.sampled_from(["forward", "backward"]))), draw(st.sampled_from([0, 2]))
    found: list[events.Event] = []
    for kind in ("warm-up", "measured"):
        first = 0
        for size in draw(st.lists(st.integers(1, 4), max_size=4)):
            times = draw(st.lists(times_s, min_size=size, max_size=size).map(tuple))
            found.append(
                events.StepsTimed(
                    at=draw(at),
                    cell=cell,
                    kind=kind,
                    first=first,
                    times_s=times,
                    phases_s=dict.fromkeys(phases, times),
                    host_s=times,
                    host_phases_s=dict.fromkeys(phases, times),
                    rank_times_s=(times, tuple(time_s / 2 for time_s in times))[:ranks],
                    rank_sync_s=(tuple(time_s / 4 for time_s in times), times)[:ranks],
                )
            )
            first += size
            if draw(st.booleans()):
                found.append(draw(st.builds(events.ChildOutput, at=at, cell=st.just(cell), text=texts)))
    return found


any_event = st.one_of(
    timed_steps(),
    st.builds(events.SessionStarted, at=at, schema=st.just(events.SCHEMA), session=names),
    st.builds(events.EnvironmentRead, at=at, environment=environments),
    st.builds(
        events.CellsQueued, at=at, first=cells, specs=st.lists(run_specs(), max_size=2).map(tuple), command=texts
    ),
    st.builds(events.CellStarted, at=at, cell=cells, pid=st.none() | counts),
    st.builds(events.SessionResumed, at=at, app=texts),
    st.builds(events.SessionAnnotated, at=at, name=st.none() | texts, note=st.none() | texts),
    st.builds(events.QueueOrdered, at=at, cells=st.lists(cells).map(tuple)),
    st.builds(events.CellSkipped, at=at, cell=cells, reason=texts),
    st.builds(events.CellRequeued, at=at, cell=cells),
    st.builds(events.StageChanged, at=at, cell=cells),
    st.builds(
        events.ModelBuilt,
        at=at,
        cell=cells,
        num_params=counts,
        num_params_without_head=counts,
        in_force=st.builds(events.EffectiveSettings),
    ),
    st.builds(events.CellFinished, at=at, cell=cells, error=st.none() | texts, peak_allocated_bytes=optional_bytes),
    st.builds(events.ChildOutput, at=at, cell=st.none() | cells, text=texts),
    st.builds(
        events.DeviceSampled,
        at=at,
        host=st.builds(HostSample, cpu=st.none() | st.floats(0, 1), child_rss_bytes=optional_bytes),
        gpu=st.none()
        | st.builds(
            GpuSample,
            utilisation=st.none() | st.floats(0, 1),
            memory_used_bytes=optional_bytes,
            clock_reasons=st.none() | some(names),
            other_processes=st.none() | st.lists(st.builds(GpuProcess, pid=counts)).map(tuple),
        ),
    ),
    st.builds(events.Notice, at=at, text=texts),
    st.builds(events.SessionEnded, at=at),
)


@st.composite
def automatic_sweeps(draw: st.DrawFn) -> Sweep:
    """Sweeps with one or two automatic counts."""
    changes: dict[str, Any] = {}
    which = draw(st.sampled_from(["warm-up", "steps", "both"]))
    if which != "steps":
        most = draw(st.just(100) | st.integers(FEWEST["warmup_steps"], 10_000))
        changes |= {"warmup_auto": True, "warmups": (most,)}
    elif draw(st.booleans()):
        changes |= {"warmup_for": draw(st.sampled_from([0.025, 1.0, 10.0])), "warmups": (draw(st.integers(1, 10**6)),)}
    if which != "warm-up":
        share = draw(st.just(INTERVAL) | st.floats(1e-9, 1, exclude_max=True))
        most = draw(st.just(1000) | st.integers(FEWEST["measure_steps"], 10_000))
        changes |= {"steps_auto": share, "steps": most, "sync": "each-step"}
    elif draw(st.booleans()):
        changes |= {"steps_for": draw(st.sampled_from([0.1, 30.0, 0.333])), "steps": draw(st.integers(1, 10**6))}
    return msgspec.structs.replace(draw(sweeps()), **changes)
