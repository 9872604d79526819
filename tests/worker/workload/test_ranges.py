"""Ranges: the part of a model that each operation belongs to, in the reference and in users' models."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.model_parts import part_of_each
from cs336_tui.worker.workload.ranges import name_parts
from tests.worker.measure.cells import UsersFolder, small_spec
from tests.worker.workload.own_code import BASICS, GPT, PLAIN

CPU = torch.device("cpu")


class Entered:
    """Entered parts, each as the path from the outermost on."""

    def __init__(self) -> None:
        self.paths: list[tuple[str, ...]] = []
        self._at: tuple[str, ...] = ()

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        before, self._at = self._at, (*self._at, name)
        self.paths.append(self._at)
        try:
            yield
        finally:
            self._at = before

    @property
    def kinds(self) -> set[tuple[str, ...]]:
        return set(self.paths)


def entered(spec: CellSpec) -> Entered:
    """One step's forward, loss and backward of a model whose parts are named."""
    seen, workload = Entered(), build(spec, CPU)
    name_parts(workload.model, seen.around, spec.annotations)
    run_whole(workload.step(spec))
    return seen


def test_a_model_written_out_has_the_parts_of_the_reference(folder: UsersFolder) -> None:
    in_attention = {"QKV projections", "rotary", "attention core", "output projection"}
    assert entered(folder.spec(BASICS, "LM", num_layers=1)).kinds == {
        ("embedding",), ("residual",), ("residual", "norms"), ("residual", "attention rest"),
        *(("residual", "attention rest", name) for name in in_attention),
        ("residual", "attention rest", "attention core", "softmax"),
        ("residual", "feed-forward"), ("norms",), ("head",),
    }  # fmt: skip


def test_torch_s_own_fused_attention_is_the_core_of_whoever_calls_it(folder: UsersFolder) -> None:
    fused = F.scaled_dot_product_attention
    seen = entered(folder.spec(GPT, "GPT", num_layers=1))
    assert {path[-1] for path in seen.paths} == {
        "embedding", "residual", "norms", "attention rest", "QKV projections", "attention core", "output projection",
        "feed-forward", "head",
    }  # fmt: skip
    assert ("residual", "attention rest", "attention core") in seen.kinds
    assert F.scaled_dot_product_attention is fused


def test_a_model_without_telling_names_has_no_parts(folder: UsersFolder) -> None:
    assert entered(folder.spec(PLAIN, "Odd", num_layers=1)).paths == []


def test_torch_s_transformer_layers_have_parts() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    parts = part_of_each(nn.ModuleDict({"layers": nn.ModuleList([layer]), "lm_head": nn.Linear(16, 40)}))
    named = {name: parts.get(module) for name, module in layer.named_modules()}
    assert named[""] == "residual"
    assert named["self_attn"] == "attention rest"
    assert named["self_attn.out_proj"] == "output projection"
    assert named["linear1"] == named["linear2"] == "feed-forward"
    assert named["norm1"] == named["norm2"] == "norms"
    assert "head" in parts.values()


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("ln_f", nn.Linear, "norms"), ("input_layernorm", nn.Linear, "norms"), ("x", nn.RMSNorm, "norms"),
        ("wte", nn.Linear, "embedding"), ("tok_emb", nn.Linear, "embedding"), ("x", nn.Embedding, "embedding"),
        ("rope", nn.Linear, "rotary"), ("lm_head", nn.Linear, "head"), ("unembed", nn.Linear, "head"),
        ("output", nn.Linear, "head"), ("mlp", nn.Linear, "feed-forward"), ("ffwd", nn.Linear, "feed-forward"),
        ("self_attn", nn.Linear, "attention rest"), ("attn_drop", nn.Dropout, None), ("x", nn.Linear, None),
    ],
)  # fmt: skip
def test_a_part_is_told_by_the_name_or_the_class(name: str, kind: Any, part: str | None) -> None:
    module = kind() if kind is nn.Dropout else kind(4) if kind is nn.RMSNorm else kind(4, 4)
    assert part_of_each(nn.ModuleDict({name: module})).get(module) == part


@pytest.mark.parametrize(
    "name", ["q_proj", "Wk", "to_v", "qkv", "c_attn", "in_proj", "query", "w_q", "W_K", "linear_v"]
)
def test_projections_of_attention_are_told_by_their_names(name: str) -> None:
    projection = nn.Linear(4, 4)
    parts = part_of_each(nn.ModuleDict({"attn": nn.ModuleDict({"x": nn.Identity()})}))
    assert parts == {}  # a ModuleDict is never called, so that it is no attention

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, projection)
            self.o_proj = nn.Linear(4, 4)

    attention = Attention()
    found = part_of_each(nn.ModuleDict({"attn": attention}))
    assert found == {attention: "attention rest", projection: "QKV projections", attention.o_proj: "output projection"}


def test_an_annotated_function_is_its_part_while_the_model_runs_and_no_longer(folder: UsersFolder) -> None:
    spec = folder.spec(BASICS, "LM", num_layers=1)
    home = spec.model.partition(":")[0]
    notes = (("attention scores", f"{home}:scaled_dot_product_attention"),)
    seen = entered(folder.named(spec.model, num_layers=1, annotations=notes))
    function = sys.modules[home].scaled_dot_product_attention
    assert function.__name__ == "scaled_dot_product_attention"
    assert not hasattr(function, "__wrapped__")
    kinds = {path[-2:] for path in seen.paths}
    assert ("attention rest", "attention scores") in kinds
    assert ("attention scores", "softmax") in kinds
    assert "attention core" not in {path[-1] for path in seen.paths}


def test_a_function_is_annotated_where_it_was_imported_by_name(folder: UsersFolder) -> None:
    helpers = folder.write("import torch\ndef squash(x):\n    return torch.tanh(x)\n", "helpers")
    name = folder.write(PLAIN.replace("torch.tanh(", "squash(") + f"\nfrom {helpers} import squash\n")
    spec = folder.named(f"{name}:Odd", annotations=(("feed-forward", f"{helpers}:squash"),))
    assert entered(spec).kinds == {("feed-forward",)}
    assert sys.modules[name].squash is sys.modules[helpers].squash


def test_classes_and_autograd_functions_are_annotated_too(folder: UsersFolder) -> None:
    text = (
        PLAIN.replace("torch.tanh(", "Twice.apply(self.keep(").replace("@ self.mixer)", "@ self.mixer))")
        + """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

class Keep(nn.Module):
    def forward(self, x):
        return x

Odd.keep = Keep()
"""
    )
    name = folder.write(text)
    notes = (("softmax", f"{name}:Twice"), ("final matmul", f"{name}:Odd.keep"))
    spec = folder.named(f"{name}:Odd", annotations=notes)
    assert entered(spec).kinds == {("softmax",), ("final matmul",)}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("softmx", r"\S+ has no softmx \(\S+\.py\); did you mean softmax\?"),
        ("softmax.more", r"\S+\.softmax has no more \(\S+\.py\)"),
        ("F", "it is no function but module"),
    ],
)
def test_what_cannot_be_annotated_is_refused_in_one_line(folder: UsersFolder, function: str, said: str) -> None:
    name = folder.write(BASICS + "\nimport torch.nn.functional as F\n")
    spec = folder.named(f"{name}:LM", annotations=(("softmax", f"{name}:{function}"),))
    with pytest.raises(ImportProblem, match=rf"^annotate softmax={name}:{function}: {said}.*$"):
        entered(spec)


def test_a_module_that_is_not_there_cannot_be_annotated(folder: UsersFolder) -> None:
    spec = folder.spec(BASICS, "LM", num_layers=1, annotations=(("softmax", "no_such_module_at_all:f"),))
    with pytest.raises(ImportProblem, match=r"^annotate softmax=no_such_module_at_all:f: ModuleNotFoundError"):
        entered(spec)


def test_an_unknown_part_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"^annotate attn: did you mean attention scores, attention core or "):
        small_spec(annotations=(("attn", "a.b:c"),))
    with pytest.raises(SpecError, match=r"expected RANGE=package\.module:function"):
        small_spec(annotations=(("softmax", "a.b.c"),))


def test_the_reference_with_a_fused_kernel_has_a_core_in_place_of_its_steps() -> None:
    naive, fused = (
        {path[-1] for path in entered(small_spec(num_layers=1, attention=each)).paths} for each in ("naive", "sdpa")
    )
    assert naive - fused == {"attention scores", "softmax", "final matmul"}
    assert fused - naive == {"attention core"}


def test_attention_alone_has_its_steps_or_a_core() -> None:
    naive = entered(small_spec(workload="attention", pass_="forward"))
    assert naive.kinds == {
        ("attention core",), *(("attention core", name) for name in ("attention scores", "softmax", "final matmul"))
    }  # fmt: skip
    fused = entered(small_spec(workload="attention", pass_="forward", attention="sdpa"))
    assert {path[-1] for path in fused.paths} == {"attention core"}


@pytest.mark.parametrize("every", [1, 2])
def test_what_is_computed_again_runs_inside_the_same_parts(folder: UsersFolder, every: int) -> None:
    """Forward runs every part once; backward runs those of the blocks once more, with annotated functions."""
    again = entered(folder.spec(BASICS, checkpoint=every))
    plain = entered(folder.spec(BASICS))
    in_blocks = [path for path in plain.paths if path[0] == "residual"]
    assert len(in_blocks) < len(plain.paths)
    assert sorted(again.paths) == sorted([*plain.paths, *in_blocks])


class Block(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(4, 2)
        for name, part in parts.items():
            self.add_module(name, part)


class Activation(nn.Module):
    """An activation whose class name does not say its purpose."""


def parts_in_blocks(**parts: nn.Module) -> dict[nn.Module, str]:
    """The parts of a model whose first of two blocks has these modules beside its attention."""
    blocks = nn.ModuleList([Block(**parts), Block()])
    found = part_of_each(nn.ModuleDict({"h": blocks}))
    assert {found[block] for block in blocks} == {"residual"}, "a list of blocks is none itself"
    return found


def test_all_that_a_block_s_dictionary_of_a_feed_forward_network_holds_is_part_of_it() -> None:
    mlp = nn.ModuleDict({"c_fc": nn.Linear(4, 8), "act": Activation(), "c_proj": nn.Linear(8, 4)})
    parts = parts_in_blocks(mlp=mlp, ln_2=(norm := nn.LayerNorm(4)))
    assert {parts[module] for module in mlp.values()} == {"feed-forward"}
    assert parts[norm] == "norms"


def test_experts_in_a_list_are_a_feed_forward_network() -> None:
    experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    parts = parts_in_blocks(experts=experts)
    assert {parts[module] for module in experts} == {"feed-forward"}
