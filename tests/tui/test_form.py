"""Entries of the form become a sweep or a list of problems, whatever is typed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cs336_tui.config.choices import sweep_from
from cs336_tui.config.counts import Auto
from cs336_tui.config.presets import Preset, bundled
from cs336_tui.config.spec import AXES, CUSTOM_SIZE
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.values import ATTENTIONS, NORMS, OPTIMIZERS
from cs336_tui.events.environment import Environment
from cs336_tui.tui.configure.form import MAX_CELLS, Entries, entries_of, entry_axes, read
from cs336_tui.tui.requests import RunOptions
from tests.samples import ENVIRONMENT
from tests.strategies import automatic_sweeps, sweeps
from tests.tui.configuring import HERE

WITHOUT_DEVICES = msgspec.structs.replace(HERE, devices=())
DEFAULT = entries_of(Sweep())
offered = st.sampled_from
TICKED = "context_length pass_ precision edition arch sync workload causal attention norm compile optimizer cuda_graph"
"""Choices that a CPU can have."""

typed = st.one_of(
    st.text(max_size=12),
    st.lists(st.integers(-2, 2**40).map(str), max_size=4).map(",".join),
    st.floats().map(str),
    st.sampled_from(["", " ", ",", "1,", "1, 2", "٣", "1_0", "0x1", "+1", "1e3", "9" * 5000]),
    offered(["auto", "auto:50", " auto 2 %", "auto:", "auto:٣٣", "auto,5", "auto:20 0", "auto 1e-3", "auto 9%%"]),
    offered(["my.model:LM", "reference, my.model:LM", ":", "a:b:c", "a=1, b='x,y'", "a='", "\\", "~nobody-here/x"]),
)


def ticked(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(offered(values), unique=True, max_size=4).map(tuple)


@st.composite
def any_entries(draw: st.DrawFn) -> Entries:
    """The default's entries with up to four of them replaced by anything that widgets can hold."""
    ticks = {
        axis.field: (ticked if axis.widget == "chips" else offered)(axis.values)
        for axis in entry_axes()
        if axis.field in TICKED.split()
    }
    ticks |= {
        "size": ticked(("tiny", "small", "10B", "2.7B", CUSTOM_SIZE)),
        "device": ticked(("auto", "cpu", "cuda", "cuda:0", "cuda:7", "tpu")),
        "ddof": offered(("0", "1")),
    }
    fields = draw(st.sets(st.sampled_from(Entries.__struct_fields__), max_size=4))
    return msgspec.structs.replace(DEFAULT, **{field: draw(ticks.get(field, typed)) for field in fields})


@example(msgspec.structs.replace(DEFAULT, other_optimizers="0\n0"), None)
@example(msgspec.structs.replace(DEFAULT, model="a\n:b"), None)
@example(msgspec.structs.replace(DEFAULT, accumulate="0"), None)
@given(any_entries(), st.sampled_from([None, HERE, WITHOUT_DEVICES]))
def test_anything_entered_is_a_runnable_sweep_or_a_problem(entries: Entries, environment: Environment | None) -> None:
    form = read(entries, environment)
    assert (form.sweep is None) == bool(form.problems)
    assert not any("\n" in str(problem) for problem in form.problems)
    if form.sweep is None:
        assert form.summary == ""
        return
    assert form.summary
    cells = form.sweep.with_devices(environment.resolve(form.sweep.devices) if environment else ("cpu",)).cells()
    assert 0 < len(cells) <= MAX_CELLS
    for cell in cells if environment else ():
        environment.check(cell)


@example(Sweep(devices=("cpu",), model_args=(("sizes", "1,2"),)), RunOptions())
@given(sweeps(), st.builds(RunOptions, ddof=st.integers(0, 1), timeout_s=st.none() | st.floats(1e-3, 1e6)))
def test_a_sweep_shown_in_the_form_reads_as_itself(sweep: Sweep, options: RunOptions) -> None:
    form = read(entries_of(sweep, options))
    if len(sweep) > MAX_CELLS:
        assert [problem.field for problem in form.problems] == ["sweep"]
        return
    assert form.problems == ()
    assert form.options == options
    assert form.sweep == shown_in_the_form(sweep)


def shown_in_the_form(sweep: Sweep) -> Sweep:
    """The sweep as the form returns it: offered choices first, no choice of another workload, and the folder of the
    user's code."""
    plain = Sweep()

    def offered_first(values: tuple[Any, ...], offered: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(sorted(values, key=lambda value: str(value) not in offered))

    expected: dict[str, Any] = {
        "contexts": offered_first(sweep.contexts, AXES["context_length"].values),
        "attentions": offered_first(sweep.attentions, ATTENTIONS),
        "norms": offered_first(sweep.norms, NORMS),
        "optimizers": offered_first(sweep.optimizers, OPTIMIZERS),
    }
    if sweep.is_alone or sweep.dims:
        expected |= {"sizes": plain.sizes, "vocab_size": plain.vocab_size}
    if any(":" in name for name in (*sweep.models, *sweep.attentions, *sweep.norms, *sweep.optimizers, sweep.loss)):
        expected |= {"model_path": sweep.model_path or (str(Path.cwd()),)}
    return msgspec.structs.replace(sweep, **expected)


@given(automatic_sweeps())
def test_automatic_counts_shown_in_the_form_read_as_themselves(sweep: Sweep) -> None:
    small = msgspec.structs.replace(Sweep(), **{
        name: getattr(sweep, name) for name in ("warmups", "warmup_auto", "steps", "steps_auto", "sync")
    })  # fmt: skip
    assert read(entries_of(small)).sweep == small


def test_automatic_counts_are_entered_as_words() -> None:
    form = read(DEFAULT.with_value("warmup_steps", " auto:50 ").with_value("measure_steps", "auto:200 2 %"))
    assert (form.sweep.warmup_auto, form.sweep.warmups) == (True, (50,))
    assert (form.sweep.steps_auto, form.sweep.steps) == (0.02, 200)
    assert form.summary == "3 cells · at most 750 steps"
    shown = entries_of(form.sweep)
    assert (shown.warmup_steps, shown.measure_steps) == ("auto:50", "auto:200 2%")


@pytest.mark.parametrize("preset", bundled(), ids=lambda preset: preset.name)
def test_every_preset_fits_the_form(preset: Preset) -> None:
    assert read(entries_of(preset.sweep)).sweep == preset.sweep


def test_the_summary_counts_cells_and_all_their_steps_or_says_how_long_these_run() -> None:
    entries = entries_of(Sweep(passes=("forward",), contexts=(128, 256), warmups=(0, 5), steps=10))
    assert read(entries).summary == "4 cells · 50 steps"
    assert read(entries_of(Sweep(passes=("forward",), warmups=(0,), steps=1))).summary == "1 cell · 1 step"
    alike = Sweep(passes=("forward",), warmups=(0,), steps=1, optimizers=("adamw", "adamw-fused"))
    assert read(entries_of(alike)).summary == "1 cell · 1 step · cells that are alike run once"
    by_time = entries_of(Sweep(**Sweep().counts(Auto(10**5, 10.0), Auto(10**5, 30.0), None)))
    assert read(by_time).summary == "3 cells · 2:00 of steps"
    assert read(by_time.with_value("warmup_steps", "5")).summary == "3 cells · 15 steps · 1:30 of steps"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("batch_size", "0", "batch size 0: expected a whole number, at least 1"),
        ("batch_size", "4,x", "batch size x: expected a whole number, or several as 1,2,4"),
        ("batch_size", "4,,8", "batch size (empty): expected a whole number, or several as 1,2,4"),
        ("batch_size", "", "batch size (none): choose at least one"),
        ("warmup_steps", "soon", "warmup steps soon: expected a whole number, or several as 1,2,4, or auto alone"),
        ("warmup_steps", "auto,5", "warmup steps auto: expected a whole number, or several as 1,2,4, or auto alone"),
        ("warmup_steps", "auto:9", "warmup steps auto:9: expected auto, or auto:MAX with the most steps, at least 10"),
        ("measure_steps", "auto:", "measure steps auto:: expected auto, or auto:MAX with the most steps, at least 20"),
        ("measure_steps", "auto 2", "measure steps 2: expected a share of the mean such as 1% or 0.01"),
        ("measure_steps", "auto2", "measure steps auto2: expected a whole number, or auto, or as auto 2%"),
        ("measure_steps", "1,2", "measure steps 1,2: expected a whole number"),
        ("other_contexts", "128", "context length 128,128: names the same value twice"),
        ("context_length", (), "context length (none): choose at least one"),
        ("pass", (), "pass (none): choose at least one"),
        ("precision", ("tf32",), "precision tf32: cpu (a CPU) can do fp32, bf16-mixed"),
        ("device", ("cuda:1",), "device cuda:1: this machine has cpu, cuda:0"),
        ("device", ("auto", "cuda:0"), "device auto,cuda:0: auto is cuda:0 here, choose one of the two"),
        ("model_args", "dropout", "model args dropout: expected name=value, several with commas"),
        ("model_args", "name='x", "model args name='x: a quote or backslash is left open"),
        ("annotations", "=x:y", "annotate =x:y: expected name=value, several with commas"),
        ("model_path", "a\\", "model path a\\: a quote or backslash is left open"),
        ("timeout_s", "nan", "timeout s nan: expected seconds, more than 0, or nothing"),
        ("timeout_s", "0", "timeout s 0: expected seconds, more than 0, or nothing"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(field: str, value: str | tuple[str, ...], said: str) -> None:
    entries = DEFAULT.with_value(field, value)
    if field == "precision":
        entries = entries.with_value("device", ("cpu",))
    (problem,) = map(str, read(entries, HERE).problems)
    assert said in problem


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({"d_model": "12", "num_heads": "4"}, "num heads 4: gives heads of odd width 3"),
        ({"num_layers": ""}, "num layers (empty): expected a whole number"),
        ({"vocab_size": "x"}, "vocab size x: expected a whole number"),
    ],
)
def test_a_custom_size_must_be_a_model(dims: dict[str, str], said: str) -> None:
    entries = DEFAULT.with_value("size", (CUSTOM_SIZE,))
    assert read(entries).sweep is not None
    for field, value in dims.items():
        entries = entries.with_value(field, value)
    (problem,) = map(str, read(entries).problems)
    assert said in problem
    assert read(entries.with_value("size", ("tiny",)).with_value("vocab_size", "10000")).problems == ()


ATTENTION = {"workload": "attention", "pass": ("forward",)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (ATTENTION | {"head_dim": "16,16"}, "head dim 16,16: names the same value twice"),
        (ATTENTION | {"head_dim": "0"}, "head dim 0: expected a whole number, at least 1"),
        ({"cuda_graph": ("step",), "device": ("cpu",)}, "CUDA graph step: cpu (a CPU) has none; only cuda has"),
        ({"compile": ("off", "default"), "device": ("cpu",)}, "compile default: no C compiler here"),
        ({"attention": ("naive", "flash"), "device": ("cpu",)}, "attention flash: cpu (a CPU) can do naive, sdpa"),
        ({"measure_steps": "auto", "sync": "pipelined"}, "sync pipelined: a number of steps that is not fixed needs"),
    ],
)
def test_choices_that_do_not_go_together_are_refused(changes: dict[str, str | tuple[str, ...]], said: str) -> None:
    cpu = msgspec.structs.replace(HERE.devices[0], attentions=("naive", "sdpa"), cannot_compile="no C compiler here")
    environment = msgspec.structs.replace(HERE, devices=(cpu, HERE.devices[1]))
    entries = DEFAULT
    for field, value in changes.items():
        entries = entries.with_value(field, value)
    (problem,) = map(str, read(entries, environment).problems)
    assert said.lower() in problem.lower()


def test_a_backend_of_gpus_is_for_the_devices_that_are_here() -> None:
    cpu, gpu = ENVIRONMENT.devices
    both = msgspec.structs.replace(ENVIRONMENT, devices=(cpu, gpu, msgspec.structs.replace(gpu, name="cuda:1")))
    sweep = Sweep(sizes=("small",), passes=("train-step",), ranks=(2,), parallels=("ddp",), backends=("nccl",))

    assert read(entries_of(sweep), both).problems == ()
    (problem,) = read(entries_of(sweep.with_devices(("cpu",))), both).problems
    assert str(problem) == "backend nccl: runs on cuda, not on cpu; choose gloo"


def test_another_workload_changes_what_was_as_usual_and_nothing_else() -> None:
    entries = DEFAULT.with_value("batch_size", "3").with_value("size", ("small",))
    alone = entries.with_usual_of("workload", "attention")
    form = read(alone)
    assert form.sweep == Sweep(workload="attention", passes=("forward", "backward"), contexts=(1024,), batches=(3,))
    assert alone.with_usual_of("workload", "language-model") == entries
    norm = read(alone.with_usual_of("workload", "norm"))
    usual: dict[str, Any] = {"passes": ("forward", "backward"), "contexts": (1024,), "head_dims": (1024,)}
    assert norm.sweep == Sweep(workload="norm", batches=(3,), **usual)
    assert alone.with_usual_of("workload", "norm").with_usual_of("workload", "language-model") == entries


def test_a_folder_is_looked_in_for_ones_own_code_as_by_the_flags() -> None:
    entries = DEFAULT.with_value("model", "my.model:LM").with_value("model_args", "dropout=0.1, names='a, b'")
    sweep = read(entries).sweep
    assert sweep == sweep_from(models=("my.model:LM",), model_args=(("dropout", "0.1"), ("names", "a, b")))
    assert sweep.model_path == (str(Path.cwd()),)
    named = read(entries.with_value("model_path", "~/repo, here")).sweep
    assert named.model_path == (str(Path.home() / "repo"), str(Path.cwd() / "here"))
    assert read(DEFAULT).sweep == Sweep()


def test_everything_wrong_is_told_at_once_in_the_forms_order() -> None:
    entries = DEFAULT
    for field, value in {"timeout_s": "x", "batch_size": "0", "seed": "x", "measure_steps": "0"}.items():
        entries = entries.with_value(field, value)
    told = [problem.field for problem in read(entries.with_value("pass", ())).problems]
    assert told == ["batch_size", "pass", "measure_steps", "seed", "timeout_s"]


def test_a_sweep_of_millions_of_cells_is_refused_without_being_walked() -> None:
    many = ",".join(map(str, range(1, 100)))
    entries = DEFAULT.with_value("other_contexts", many).with_value("batch_size", many).with_value("warmup_steps", many)
    (problem,) = read(entries).problems
    assert str(problem) == f"sweep of {100 * 99 * 99 * 3} cells: expected at most 10000"


def test_timer_do_bench_has_tritons_times_where_none_were_typed() -> None:
    entries = entries_of(Sweep())
    as_triton = entries.with_usual_of("timer", ("do_bench",))
    assert (as_triton.warmup_steps, as_triton.measure_steps) == ("25ms", "100ms")
    assert as_triton.with_usual_of("timer", ("step",)) == entries
    typed = entries.with_value("measure_steps", "30s").with_usual_of("timer", ("do_bench",))
    assert (typed.warmup_steps, typed.measure_steps) == ("25ms", "30s")
    both = entries.with_usual_of("timer", ("step", "do_bench"))
    assert (both.warmup_steps, both.measure_steps) == ("5", "10")
    found = read(as_triton).sweep
    assert (found.timers, found.warmup_for, found.steps_for) == (("do_bench",), 0.025, 0.1)
