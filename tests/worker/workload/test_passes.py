"""Steps of each pass: phases, contexts and leftovers."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.spec import PASSES, ModelDims, Pass
from cs336_tui.config.values import PHASES, WITHOUT_BACKWARD
from cs336_tui.worker.workload.building import make_optimizer
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.passes import Shared, Step, Training
from cs336_tui.worker.workload.precision import Context
from cs336_tui.worker.workload.transformer import Batch, Transformer, random_batch

DIMS = ModelDims(d_model=16, d_ff=24, num_layers=2, num_heads=2, vocab_size=40)


def a_model() -> Transformer:
    model = Transformer(DIMS, arch="swiglu-rope", context_length=8, device="cpu")
    model.initialise(0)
    return model


def a_batch() -> Batch:
    return random_batch(2, 8, DIMS.vocab_size, device="cpu", seed=0)


def a_step(
    pass_: Pass, model: Transformer, autocast: Context = nullcontext, *, scale_gradients: bool = False, **options: Any
) -> Step:
    training = a_training(model, scale_gradients=scale_gradients) if pass_ == "train-step" else None
    return Step(pass_, model, a_batch(), autocast, training, **options)


def a_training(model: nn.Module, *, scale_gradients: bool = False) -> Training:
    return Training(*make_optimizer("adamw", model, "cpu"), "cpu", scale_gradients=scale_gradients)


def run(step: Step) -> None:
    step.prepare()
    run_whole(step)


def plain_loss(model: Transformer) -> Tensor:
    batch = a_batch()
    return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())


def gradients(model: Transformer) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("pass_", PASSES)
def test_phases(pass_: Pass) -> None:
    expected = {
        "inference": "forward",
        "forward": "forward",
        "forward+loss": "forward loss",
        "backward": "backward",
        "forward+backward": "forward loss backward",
        "train-step": "zero_grad forward loss backward optimizer",
    }
    assert a_step(pass_, a_model()).phases == PHASES[pass_] == tuple(expected[pass_].split())


@pytest.mark.parametrize("pass_", ["backward", "forward+backward"])
def test_gradients_are_those_of_a_plain_backward_and_do_not_add_up_over_steps(pass_: Pass) -> None:
    model, plain = a_model(), a_model()
    plain_loss(plain).backward()
    step = a_step(pass_, model)
    for _ in range(2):
        run(step)
        torch.testing.assert_close(gradients(model), gradients(plain))
        step.clear()
        assert set(gradients(model).values()) == {None}


def test_train_step_is_adamw() -> None:
    model, plain = a_model(), a_model()
    optimizer = torch.optim.AdamW(plain.parameters())
    step = a_step("train-step", model)
    for _ in range(3):
        run(step)
        step.clear()
        optimizer.zero_grad()
        plain_loss(plain).backward()
        optimizer.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(plain.named_parameters()))


def test_train_step_with_scaled_gradients_learns() -> None:
    model = a_model()
    before = plain_loss(model).item()
    step = a_step("train-step", model, lambda: torch.autocast("cpu", torch.float16), scale_gradients=True)
    for _ in range(5):
        run(step)
    assert plain_loss(model).item() < before


@pytest.mark.parametrize("pass_", PASSES)
def test_autocast_covers_forward_but_never_backward_and_only_inference_records_no_graph(pass_: Pass) -> None:
    model = a_model()
    forward: list[bool] = []
    backward: list[bool] = []

    def watch(_module: object, _inputs: object, output: Tensor) -> None:
        assert output.is_inference() == (output.grad_fn is None) == (pass_ == "inference")
        forward.append(torch.is_autocast_enabled("cpu"))
        if output.requires_grad:
            output.register_hook(lambda _grad: backward.append(torch.is_autocast_enabled("cpu")))

    model.layers[0].register_forward_hook(watch)
    step = a_step(pass_, model, lambda: torch.autocast("cpu", torch.bfloat16))
    run(step)
    assert forward == [True]
    assert backward == ([] if pass_ in WITHOUT_BACKWARD else [False])
    assert step.logits_dtype == torch.bfloat16


def test_loss_is_computed_under_autocast() -> None:
    entered: list[bool] = []

    class Watching(nullcontext[None]):
        def __enter__(self) -> None:
            entered.append(True)

    step = a_step("forward+backward", a_model(), Watching)
    for phase, contexts in (("forward", 1), ("loss", 2), ("backward", 2)):
        step.run(phase)
        assert len(entered) == contexts, phase


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Switch the garbage collector off, so that objects are freed by their reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("pass_", PASSES)
def test_no_step_keeps_the_graph_of_the_one_before(pass_: Pass) -> None:
    model = a_model()
    alive: list[weakref.ref[Tensor]] = []
    for part in (model, *model.layers):
        part.register_forward_hook(lambda _module, _inputs, output: alive.append(weakref.ref(output)))
    before_forward: list[int] = []
    model.register_forward_pre_hook(
        lambda _module, _inputs: before_forward.append(sum(ref() is not None for ref in alive))
    )
    step = a_step(pass_, model)
    for _ in range(3):
        run(step)
        step.clear()
    assert before_forward == [0, 0, 0]
    if not step.back_to_back:
        assert not [ref for ref in alive if ref() is not None]


@pytest.mark.usefixtures("no_collector")
def test_everything_goes_with_the_step() -> None:
    model = a_model()
    step = a_step("train-step", model)
    run(step)
    kept = [weakref.ref(model), weakref.ref(step), weakref.ref(next(model.parameters()))]
    del model, step
    assert [ref() for ref in kept] == [None, None, None]


def test_training_belongs_to_train_step() -> None:
    model = a_model()
    with pytest.raises(ValueError, match="train-step"):
        Step("train-step", model, a_batch(), nullcontext)
    with pytest.raises(ValueError, match="forward"):
        Step("forward", model, a_batch(), nullcontext, a_training(model))


def test_micro_batches_add_up_to_the_gradients_of_the_whole_batch() -> None:
    whole, parts = a_model(), a_model()
    assert len(a_batch().inputs) == 2
    step = a_step("train-step", parts, accumulate=2)
    assert step.phases == ("zero_grad", "accumulation", "forward", "loss", "backward", "optimizer")
    plain_loss(whole).backward()
    for _ in range(2):  # nor do they add up over steps
        for phase in step.phases[:-1]:
            step.run(phase)
        torch.testing.assert_close(gradients(parts), gradients(whole))


def test_ranks_communicate_at_the_last_micro_batch_alone_where_their_wrapper_can_wait() -> None:
    told: list[str] = []

    @contextmanager
    def quiet() -> Iterator[None]:
        told.append("quiet")
        yield
        told.append("loud")

    def calls(unsynced: Context | None) -> list[str]:
        told.clear()
        model = a_model()
        before, after = (lambda *_, word=word: told.append(word) for word in ("before", "after"))
        shared = Shared(model, before=before, after=after, unsynced=unsynced)
        run(a_step("train-step", model, shared=shared, accumulate=2))
        return list(told)

    assert calls(quiet) == ["before", "quiet", "loud", "after"]
    assert calls(None) == ["before", "after", "before", "after"]
