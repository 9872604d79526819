"""Parts of a model within lists or dictionaries of modules, which are never called themselves."""

from __future__ import annotations

from torch import nn

from cs336_tui.worker.workload.model_parts import part_of_each


class Activation(nn.Module):
    """An activation whose class name does not say its purpose."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_2 = nn.LayerNorm(4)
        self.attn = nn.MultiheadAttention(4, 2)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(4, 8), "act": Activation(), "c_proj": nn.Linear(8, 4)})


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))


def test_all_that_a_block_s_dictionary_of_a_feed_forward_network_holds_is_part_of_it() -> None:
    block = Block()
    parts = part_of_each(nn.ModuleDict({"h": nn.ModuleList([block, Block()])}))
    assert {parts[module] for module in block.mlp.values()} == {"feed-forward"}
    assert parts[block] == "residual"
    assert parts[block.ln_2] == "norms"


def test_experts_in_a_list_are_a_feed_forward_network() -> None:
    block = Routed()
    parts = part_of_each(nn.ModuleDict({"h": nn.ModuleList([block, Routed()])}))
    assert {parts[module] for module in block.experts} == {"feed-forward"}


def test_blocks_in_a_list_are_none() -> None:
    blocks = nn.ModuleList([Block(), Block()])
    parts = part_of_each(nn.ModuleDict({"layers": blocks}))
    assert {parts[block] for block in blocks} == {"residual"}
