"""Activation checkpointing: the same gradients from less memory, in the reference and in users' models."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.flops import Segment, recomputed_blocks, segments
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import Nesting
from cs336_tui.worker.workload.building import Workload, build
from cs336_tui.worker.workload.model_parts import block_groups, block_list, blocks_of, checkpoint_blocks
from cs336_tui.worker.workload.transformer import Block
from tests.worker.measure.cells import run_step, small_spec

CPU = torch.device("cpu")


def a_step(spec: CellSpec) -> tuple[Workload, list[Tensor]]:
    """One step of the spec: the workload and its gradients."""
    workload = build(spec, CPU)
    run_step(workload, spec)
    return workload, [p.grad.clone() for p in workload.model.parameters() if p.grad is not None]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
@pytest.mark.parametrize(
    ("nesting", "groups", "changes"),
    [
        ("off", (1, 2, 5), {"pass_": "forward+backward"}),
        ("off", (1, 2, 5), {"pass_": "backward", "precision": "bf16"}),
        ("off", (1, 2, 5), {"pass_": "train-step", "precision": "bf16-mixed"}),
        ("off", (1, 2, 5), {"pass_": "train-step", "precision": "fp16-mixed"}),
        ("off", (1, 3), {"dropout": 0.5, "attention_dropout": 0.3}),  # drops what it dropped
        ("halves", (1, 3), {"dropout": 0.5, "attention_dropout": 0.3}),
        ("halves", (1, 2, 3, 7), {"pass_": "forward+backward", "num_layers": 7}),
        ("halves", (1, 2, 3, 7), {"pass_": "train-step", "precision": "bf16-mixed", "num_layers": 7}),
    ],
)
def test_gradients_are_those_of_the_model_as_it_is(
    nesting: Nesting, groups: tuple[int, ...], changes: dict[str, Any], arch: str
) -> None:
    fields = {"num_layers": 5, "arch": arch} | changes
    _, expected = a_step(small_spec(**fields))
    assert expected
    for every in groups:
        assert_same(a_step(small_spec(checkpoint=every, nesting=nesting, **fields))[1], expected)


def forwards(model: nn.Module, inputs: Tensor) -> tuple[int, int]:
    """Forwards of blocks that a step begins, in its forward and in its backward."""
    begun: list[int] = []
    for place, block in enumerate(blocks_of(model)):
        block.register_forward_pre_hook(lambda _module, _args, place=place: begun.append(place))
    output = model(inputs).sum()
    there = len(begun)
    output.backward()
    return there, len(begun) - there


@pytest.mark.parametrize(("layers", "every"), [(1, 1), (2, 1), (8, 1), (16, 1), (8, 2), (7, 1), (7, 3), (5, 5)])
def test_blocks_of_nested_groups_are_computed_again_as_often_as_is_counted(layers: int, every: int) -> None:
    for nesting in ("off", "halves"):
        spec = small_spec(num_layers=layers, checkpoint=every, nesting=nesting)
        workload = build(spec, CPU)
        assert forwards(workload.model, workload.batch.inputs) == (layers, recomputed_blocks(spec)), nesting
    if layers == 16:
        assert recomputed_blocks(spec) == 16 * (1 + 4) / 2


def kept_bytes(model: nn.Module, inputs: Tensor) -> int:
    """Bytes that autograd saves during a forward, without parameters and buffers."""
    there = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers(), inputs)}
    kept: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        held.append(tensor)  # so that no other storage gets its address
        if tensor.untyped_storage()._cdata not in there:
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs)
    return sum(kept.values())


def test_of_a_group_is_kept_what_enters_it_and_of_nested_ones_what_enters_the_halves() -> None:
    spec = small_spec(num_layers=6, context_length=32)
    entering = 4 * spec.tokens_per_step * spec.d_model
    found = {}
    for every in (0, 1, 2, 3, 4, 6):
        workload = build(small_spec(num_layers=6, context_length=32, checkpoint=every), CPU)
        found[every] = kept_bytes(workload.model, workload.batch.inputs)
    rest = found[6] - entering  # the final norm's and the head's
    assert {every: (bytes_ - rest) / entering for every, bytes_ in found.items() if every} == {
        1: 6, 2: 3, 3: 2, 4: 2, 6: 1
    }  # fmt: skip
    assert found[0] > 10 * found[1]
    halves = build(small_spec(num_layers=6, context_length=32, checkpoint=1, nesting="halves"), CPU)
    assert kept_bytes(halves.model, halves.batch.inputs) - rest == 2 * entering
    assert [(group.name, len(group.blocks)) for group in block_groups(halves.model)] == [
        ("layers.0-2", 3), ("layers.3-5", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("every", [0, 1, 2, 3])
def test_the_blocks_are_found_behind_what_stands_in_for_them(every: int) -> None:
    workload = build(small_spec(num_layers=3, checkpoint=every), CPU)
    blocks = blocks_of(workload.model)
    assert [type(block) for block in blocks] == [Block] * 3
    listed = block_list(workload.model)
    assert len(listed) == 3
    assert listed[1].attention is blocks[1].attention  # as model code may ask for it


def test_a_forward_without_gradients_is_the_model_s_own() -> None:
    plain, grouped = (build(small_spec(checkpoint=every, pass_="inference"), CPU) for every in (0, 2))
    with torch.inference_mode():
        assert torch.equal(plain.model(plain.batch.inputs), grouped.model(grouped.batch.inputs))


def test_nothing_of_a_step_outlives_it() -> None:
    """A group remembers its output until its last block was called, and no longer."""
    workload = build(small_spec(num_layers=3, checkpoint=2), CPU)
    seen: list[weakref.ref[Tensor]] = []
    for block in blocks_of(workload.model):
        block.register_forward_hook(lambda _module, _args, output: seen.append(weakref.ref(output)))
    workload.model(workload.batch.inputs).sum().backward()
    assert len(seen) > 3  # forward's, and those computed again
    gc.collect()
    assert all(found() is None for found in seen)


# Anybody's model


Through = Callable[[Any, Tensor], Any]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor, scale: Tensor, *, shift: Tensor | None = None) -> Tensor:
        hidden = self.down(torch.relu(self.up(x))) * scale
        return x + (hidden if shift is None else hidden + shift)


class Pair(Layer):
    """Returns two things, and takes both."""

    def forward(self, x: Any, scale: Tensor) -> Any:  # type: ignore[override]
        x = x[0] if isinstance(x, tuple) else x
        return super().forward(x, scale), scale


class Noisy(Layer):
    """Draws random numbers by a function, which is no module."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return F.dropout(super().forward(x, scale), 0.5)


class Model(nn.Module):
    def __init__(self, through: Through, layer: type[Layer] = Layer) -> None:
        super().__init__()
        self.embedding = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(layer() for _ in range(5))
        self._through = through
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        out = self._through(self, self.embedding(x))
        found = out[0] if isinstance(out, tuple) else out
        return found.square().mean()


def by_iterating(model: Any, x: Tensor) -> Any:
    for block in model.blocks:
        x = block(x, model.scale)
    return x


def by_index(model: Any, x: Tensor) -> Any:
    for number in range(len(model.blocks)):
        x = model.blocks[number](x, model.scale, shift=model.scale)
    return x


def with_something_of_each(model: Any, x: Tensor) -> Any:
    for block, number in zip(model.blocks, range(5), strict=True):
        x = block(x, model.scale * number)
    return x


def with_something_between(model: Any, x: Tensor) -> Any:
    for block in model.blocks:
        x = block(x, model.scale) * 2
    return x


def gradients(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(1)
    model(torch.ones(3, 4)).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def made(through: Through, layer: type[Layer] = Layer, every: int = 0, nesting: Nesting = "off") -> nn.Module:
    torch.manual_seed(0)
    model = Model(through, layer)
    if every:
        checkpoint_blocks(model, every, nesting)
    return model


@pytest.mark.parametrize("nesting", ["off", "halves"])
@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize(("through", "layer"), [(by_iterating, Layer), (by_index, Layer), (by_iterating, Noisy)])
def test_groups_of_any_model_have_its_gradients(through: Through, layer: type[Layer], every: int, nesting: str) -> None:
    assert_same(gradients(made(through, layer, every, nesting)), gradients(made(through, layer)))


@pytest.mark.parametrize(
    ("through", "layer", "every", "why"),
    [
        (with_something_of_each, Layer, 2, "Layer are not called .* use checkpoint 1"),
        (with_something_between, Layer, 2, "Layer are not called .* use checkpoint 1"),
        (by_iterating, Pair, 3, "Pair return tuple, .* use checkpoint 1"),
        (with_something_between, Layer, 1, "Layer .* use nesting off"),
        (by_iterating, Pair, 1, "Pair .* use nesting off"),
    ],
)
def test_blocks_that_cannot_be_grouped_say_what_to_choose_and_are_recomputed_one_by_one(
    through: Through, layer: type[Layer], every: int, why: str
) -> None:
    assert_same(gradients(made(through, layer, every=1)), gradients(made(through, layer)))
    with pytest.raises(ValueError, match=rf"^checkpoint {every}: blocks of {why}$"):
        gradients(made(through, layer, every, "off" if every > 1 else "halves"))


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7, 12, 32])
@pytest.mark.parametrize("every", [1, 2, 3, 32])
def test_halves_hold_each_block_once_and_groups_of_no_more_than_asked_for(layers: int, every: int) -> None:
    def leaves(parts: tuple[Segment, ...]) -> list[range]:
        return [leaf for part in parts for leaf in (leaves(part.parts) if part.parts else [part.blocks])]

    def depth(parts: tuple[Segment, ...]) -> int:
        return 1 + max((depth(part.parts) for part in parts if part.parts), default=0)

    outer = segments(layers, every, "halves")
    groups = [part.blocks for part in segments(layers, every)]
    assert leaves(outer) == groups
    assert [place for group in groups for place in group] == list(range(layers))
    assert depth(outer) == max((len(groups) - 1).bit_length(), 1)
    assert all(len(part.parts) in (0, 2) for part in outer)


def test_a_sequential_is_a_list_of_blocks_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in "abc")))
    x = torch.ones(2, 8)
    expected = model(x)
    assert len(blocks_of(model)) == 3
    checkpoint_blocks(model, 2)
    assert len(blocks_of(model)) == 3
    assert torch.equal(model(x), expected)


def test_experts_in_a_block_are_not_taken_for_the_blocks() -> None:
    model = nn.Module()
    model.tables = nn.ModuleList(nn.Embedding(4, 4) for _ in range(3))
    model.layers = nn.ModuleList(nn.ModuleDict({"experts": nn.ModuleList(Layer() for _ in range(8))}) for _ in "ab")
    assert blocks_of(model) == tuple(model.layers)


def test_a_model_without_blocks_says_so() -> None:
    with pytest.raises(ValueError, match=r"^checkpoint 1: Layer has no ModuleList or Sequential of blocks; use"):
        checkpoint_blocks(Layer(), 1)


@pytest.mark.parametrize("changes", [{"num_layers": 2, "checkpoint": 2}, {"checkpoint": 1, "nesting": "halves"}])
def test_compiled_it_is_one_graph_with_the_same_gradients(changes: dict[str, Any]) -> None:
    workload = build(small_spec(**({"num_layers": 4} | changes)), CPU)
    found = []
    for run in (workload.model, torch.compile(workload.model, backend="aot_eager", fullgraph=True)):
        run(workload.batch.inputs).square().mean().backward()
        found.append([parameter.grad for parameter in workload.model.parameters()])
        workload.model.zero_grad(set_to_none=True)
    assert None not in found[0]
    torch.testing.assert_close(*found)
