"""Measuring on a real CUDA GPU: event times against the host's clock, peaks, precision, running out of memory."""

import time
from collections.abc import Callable, Iterator
from statistics import median

import pytest
import torch

from cs336_tui.config.spec import PASSES, CellSpec, Pass, Precision
from cs336_tui.config.values import PHASES
from cs336_tui.worker.measure.probe import probe
from cs336_tui.worker.measure.process import driver_initialised
from cs336_tui.worker.measure.timing import StepTimer, clock_for, time_window
from cs336_tui.worker.workload.building import make_optimizer
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.passes import Step, Training
from cs336_tui.worker.workload.precision import RECIPES, autocast_for
from cs336_tui.worker.workload.transformer import Transformer, random_batch
from tests.gpu.cells import assert_ok, gpu_spec, needs
from tests.worker.measure.cells import run

DEVICE = torch.device("cuda:0")
MEGABYTE = 1024**2


LONG = {"context_length": 1024, "batch_size": 2}
"""Steps much longer than their launches, of less than 6 GB."""


def gpu_step(spec: CellSpec) -> Step:
    """A step as a cell builds it."""
    recipe = RECIPES[spec.precision]
    torch.set_float32_matmul_precision(recipe.matmul)
    model = Transformer(
        spec.dims, arch=spec.arch, context_length=spec.context_length, device=DEVICE, dtype=recipe.parameters
    )
    model.initialise(0)
    batch = random_batch(spec.batch_size, spec.context_length, spec.vocab_size, device=DEVICE, seed=0)
    training = None
    if spec.pass_ == "train-step":
        training = Training(*make_optimizer("adamw", model, "cuda"), "cuda", scale_gradients=recipe.scale_gradients)
    return Step(spec.pass_, model, batch, autocast_for(recipe, "cuda"), training)


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.cuda.empty_cache()


@pytest.mark.timed
@pytest.mark.parametrize("pass_", PASSES)
def test_phases_by_events_add_up_to_the_wall_time(pass_: Pass) -> None:
    report = assert_ok(run(gpu_spec(pass_=pass_)))
    for event in report.steps("measured"):
        assert tuple(event.phases_s) == PHASES[pass_]
        assert sum(times[0] for times in event.phases_s.values()) <= event.times_s[0] * 1.01
        assert 0 < event.host_s[0] <= event.times_s[0]
    covered = [sum(t[0] for t in e.phases_s.values()) / e.times_s[0] for e in report.steps("measured")]
    assert median(covered) > 0.9


@pytest.mark.parametrize("pass_", PASSES)
def test_no_step_waits_for_the_device(pass_: Pass) -> None:
    """Nothing inside the timed phases synchronises, so that the host can run ahead."""
    step = gpu_step(gpu_spec(pass_=pass_))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            step.prepare()
            run_whole(step)
            step.clear()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.timed
def test_the_host_runs_ahead_of_a_busy_device() -> None:
    report = assert_ok(run(gpu_spec(**LONG)))
    for event in report.steps("measured"):
        assert event.host_s[0] < 0.9 * event.times_s[0]


@pytest.mark.timed
@pytest.mark.parametrize("pass_", ["inference", "forward", "forward+loss", "forward+backward", "train-step"])
def test_a_window_of_steps_takes_the_time_of_its_steps(pass_: Pass) -> None:
    step, clock = gpu_step(gpu_spec(pass_=pass_, **LONG)), clock_for(DEVICE)
    time_window(step, clock, 3, lambda _number: True)
    torch.cuda.synchronize()
    started = time.perf_counter()
    times = time_window(step, clock, 10, lambda _number: True)
    wall = time.perf_counter() - started
    assert sum(timed.total_s for timed in times) == pytest.approx(wall, rel=0.05)
    for timed in times:
        assert sum(timed.phases_s) == pytest.approx(timed.total_s)


@pytest.mark.timed
def test_a_window_of_backwards_leaves_the_forwards_out() -> None:
    shape = LONG | {"measure_steps": 10}
    whole = assert_ok(run(gpu_spec(**shape)))
    for sync in ("each-step", "pipelined"):
        alone = assert_ok(run(gpu_spec(pass_="backward", sync=sync, **shape)))
        assert median(alone.times_s()) == pytest.approx(median(whole.phase_s("backward")), rel=0.15)
        assert median(alone.times_s()) < 0.9 * median(whole.times_s())


def test_peaks_are_those_of_the_measured_steps() -> None:
    report = assert_ok(run(gpu_spec(pass_="train-step")))
    parameters = 4 * report.built.num_params
    finished = report.finished
    assert 4 * parameters < finished.peak_allocated_bytes <= finished.peak_reserved_bytes
    assert finished.num_alloc_retries == 0


def test_peaks_are_reset_after_warm_up_and_between_cells() -> None:
    large = assert_ok(run(gpu_spec(**LONG))).finished.peak_allocated_bytes
    small = assert_ok(run(gpu_spec(context_length=64))).finished.peak_allocated_bytes
    assert 0 < small < large / 2
    balloon: list[torch.Tensor] = []

    def blow_up_while_warming_up(event: object) -> None:
        if type(event).__name__ == "StepsTimed" and not balloon:
            balloon.append(torch.empty(4096 * MEGABYTE, dtype=torch.uint8, device=DEVICE))
            balloon[0] = balloon[0].new_empty(0)

    again = assert_ok(run(gpu_spec(context_length=64), watch=blow_up_while_warming_up)).finished.peak_allocated_bytes
    assert 0 < again < small + 64 * MEGABYTE


def test_inference_needs_less_memory_than_forward() -> None:
    inference, forward = (
        assert_ok(run(gpu_spec(pass_=pass_, **LONG))).finished.peak_allocated_bytes
        for pass_ in ("inference", "forward")
    )
    assert 0 < inference < forward / 1.5


def test_a_cell_gives_its_memory_back() -> None:
    assert_ok(run(gpu_spec(pass_="train-step")))
    before = torch.cuda.memory_allocated()
    assert_ok(run(gpu_spec(pass_="train-step", num_layers=24)))
    assert torch.cuda.memory_allocated() - before < 64 * MEGABYTE


def out_of_memory_specs() -> dict[str, Callable[[], CellSpec]]:
    total = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 2**30
    scores = 4 * 12 * 2048**2
    return {
        "building": lambda: gpu_spec(vocab_size=total // (4 * 768)),
        "warm-up": lambda: gpu_spec(context_length=2048, batch_size=total // scores + 1),
        "measuring": lambda: gpu_spec(context_length=2048, batch_size=total // scores + 1, warmup_steps=0),
    }


@pytest.mark.parametrize("stage", ["building", "warm-up", "measuring"])
def test_out_of_memory_is_a_result_and_poisons_nothing(stage: str) -> None:
    before = torch.cuda.memory_allocated()
    finished = run(out_of_memory_specs()[stage]()).finished
    assert (finished.status, finished.stage) == ("oom", stage)
    assert finished.step == (None if stage == "building" else 0)
    assert "out of memory" in finished.error
    assert len(finished.error.splitlines()) == 1
    assert finished.peak_allocated_bytes is not None
    assert torch.cuda.memory_allocated() - before < 64 * MEGABYTE
    assert_ok(run(gpu_spec(measure_steps=1)))


@pytest.mark.parametrize("precision", RECIPES)
def test_the_precision_asked_for_is_in_force(precision: Precision) -> None:
    needs(precision)
    report = assert_ok(run(gpu_spec(pass_="train-step", precision=precision)))
    found = report.built.in_force
    assert found.allow_tf32 == (precision == "tf32")
    assert found.matmul_precision == ("high" if precision == "tf32" else "highest")
    assert found.parameter_dtype == ("bfloat16" if precision == "bf16" else "float32")
    autocast = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16", "fp8-mixed": "bfloat16"}
    assert found.autocast_dtype == autocast.get(precision)
    assert (found.float8 is not None) == (precision == "fp8-mixed")
    assert found.grad_scaler == (precision == "fp16-mixed")
    assert found.optimizer == "AdamW (foreach)"
    assert found.device_name == torch.cuda.get_device_name(0)
    logits = {"fp32": "float32", "tf32": "float32", "fp16-mixed": "float16"}.get(precision, "bfloat16")
    assert report.finished.logits_dtype == logits


@pytest.mark.real_numbers
def test_tf32_changes_the_arithmetic_and_fp32_does_not() -> None:
    needs("tf32")
    a, b = (torch.randn(1024, 1024, device=DEVICE) for _ in range(2))
    exact = a.double() @ b.double()
    errors = {}
    for precision in ("fp32", "tf32"):
        torch.set_float32_matmul_precision(RECIPES[precision].matmul)
        errors[precision] = float(((a @ b) - exact).abs().max())
    assert errors["tf32"] > 10 * errors["fp32"]


@pytest.mark.numbers
def test_same_seed_same_parameters_and_tokens() -> None:
    first, again = (gpu_step(gpu_spec()) for _ in range(2))
    for ours, theirs in zip(first._model.parameters(), again._model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(first._batch.inputs, again._batch.inputs)


@pytest.mark.real_numbers
def test_initial_weights_are_a_truncated_normal() -> None:
    weight = gpu_step(gpu_spec())._model.token_embedding.weight.detach()
    assert float(weight.abs().max()) <= 3.0
    assert float(weight.abs().max()) > 2.99
    assert float(weight.std()) == pytest.approx(0.98658, abs=0.002)


def test_cancelling_a_window_tells_the_steps_so_far() -> None:
    asked = iter(range(1000))
    report = run(gpu_spec(sync="pipelined"), cancelled=lambda: next(asked) >= 6)
    assert report.finished.status == "cancelled"
    assert len(report.times_s("warm-up")) == 3
    assert len(report.times_s()) == 2


@pytest.mark.timed
@pytest.mark.real_numbers
def test_a_timed_step_costs_next_to_nothing_over_a_bare_one() -> None:
    """Events and their bookkeeping beside the same step bare; loose, and printed for the report."""
    step, clock = gpu_step(gpu_spec(context_length=128)), clock_for(DEVICE)
    timer = StepTimer(step, clock)
    timed: list[float] = []
    bare: list[float] = []
    for _ in range(30):
        timed.append(timer.time().total_s)
        torch.cuda.synchronize()
        started = time.perf_counter()
        run_whole(step)
        torch.cuda.synchronize()
        bare.append(time.perf_counter() - started)
        step.clear()
    print(f"a timed step {median(timed) * 1e3:.3f} ms, a bare one {median(bare) * 1e3:.3f} ms (medians of 30)")
    assert median(timed) < 1.05 * median(bare)


def test_the_probe_finds_the_gpu() -> None:
    (found,) = (device for device in probe().devices if device.name == "cuda:0")
    assert found.label == torch.cuda.get_device_name(0)
    assert found.memory_bytes == torch.cuda.get_device_properties(0).total_memory
    assert found.uuid.startswith(("GPU-", "MIG-"))
    assert {"fp32", "fp16-mixed"} <= set(found.precisions)
    assert ("bf16" in found.precisions) == torch.cuda.is_bf16_supported(including_emulation=False)


def test_the_driver_is_awake_once_cuda_is_used() -> None:
    torch.cuda.init()
    assert driver_initialised()
