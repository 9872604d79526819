"""Finds the blocks and the parts of any Transformer, by the names and classes of its modules; activation checkpointing:
groups of blocks whose activations are recomputed in backward (Chen et al. 2016)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cs336_tui.config.flops import Segment, segments
from cs336_tui.config.values import Nesting
from cs336_tui.config.variants import Range
from cs336_tui.worker.workload.transformer import Transformer

_NORM = re.compile(r"(^|_)(layer_?norm|rms_?norm|norm|ln)(_|\d|$)|norm$")
_EMBEDDING = re.compile(r"embed|^w[tp]e$|(^|_)(emb|tok|pos)(_|$)|position")
_ROTARY = re.compile(r"rotary|(^|_)rope(_|$)")
_ATTENTION = re.compile(r"attention|(^|_)attn(_|$)|(^|_)mha(_|$)")
_FEED_FORWARD = re.compile(r"mlp|feed_?forward|swi?glu|geglu|(^|_)(ffn?|ffwd|moe|experts)(_|$)")
_IN_A_BLOCK = re.compile(r"(linear|fc|w)_?[123]|c_(fc|proj)")  # Feed-forward layers directly in a block
_HEAD = re.compile(r"(lm_?)?head|output|out|unembed(ding)?|(lm_|output_|vocab_)?proj(ection)?|to_logits|embed_out")

_AFFIXES = re.compile(r"proj(ection)?|linear|lin(?=_|$)|layer|weight|(?<![a-z])w(?=_)|^to_|_")
"""Words of a projection's name beside its purpose."""
_QKV = frozenset(
    "q k v qkv kv query key value queries keys values querykeyvalue wq wk wv wqkv wkv cattn in inqkv".split()
)
_OUTPUT = frozenset("o out output wo c dense".split()) | {""}

_WRAPPER = re.compile(r"(^|(?<=\.))(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
"""Names of torch's wrappers in those of a model's parameters."""


_DIGESTED = 4096


def digest(tensors: Iterable[Tensor]) -> str:
    """A digest of these tensors in their order: of shape, dtype and the first and last `_DIGESTED` numbers of each (of
    a shard, of this rank's), which are copied without a kernel, so that a first step stays cold."""
    found = hashlib.sha256()
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor).detach()
        flat = local.reshape(-1)
        found.update(f"{tuple(local.shape)} {local.dtype}".encode())
        for part in (flat[:_DIGESTED], flat[-_DIGESTED:]):
            found.update(part.cpu().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def part_of_each(model: nn.Module) -> dict[nn.Module, Range]:
    """The modules that are parts of the model, with their parts; submodules of a part of one kind are left out. A
    shared module has the part of its first place. Unknown modules are left out."""
    found: dict[nn.Module, Range] = {}
    for module, part in _walk(model, set(blocks_of(model)), None):
        found.setdefault(module, part)
    return found


def _walk(
    parent: nn.Module, blocks: set[nn.Module], within: Range | None, at: str = ""
) -> Iterator[tuple[nn.Module, Range]]:
    """The parts below a module named `at`, which is itself part of `within`."""
    # A list or a dictionary is never called: a block calls its members, as in minGPT.
    holds_feed_forward = isinstance(parent, nn.ModuleList | nn.ModuleDict) and bool(_FEED_FORWARD.search(_snake(at)))
    for name, module in parent.named_children():
        part = _part(_snake(name), module, blocks, within)
        if part is None and holds_feed_forward:
            part = "feed-forward"
        if part is not None:
            yield module, part
        if part in (None, "residual", "attention rest"):
            yield from _walk(module, blocks, part or within, name)


def _part(name: str, module: nn.Module, blocks: set[nn.Module], within: Range | None) -> Range | None:
    if isinstance(module, nn.ModuleList | nn.ModuleDict):  # never called
        return None
    if module in blocks and any(_is_called(_ATTENTION, *each) for each in _inside(module)):
        return "residual"
    if next(module.children(), None) is None and _is_called(_NORM, name, module):
        return "norms"
    if _is_called(_ROTARY, name, module):
        return "rotary"
    if within == "attention rest":
        makes = _AFFIXES.sub("", name)
        if makes in _QKV:
            return "QKV projections"
        return "output projection" if makes in _OUTPUT and any(True for _ in module.parameters()) else None
    if within is None and _HEAD.fullmatch(name):
        return "head"
    if isinstance(module, nn.Dropout):
        return None
    if isinstance(module, nn.Embedding) or _is_called(_EMBEDDING, name, module):
        return "embedding"
    if _is_called(_ATTENTION, name, module):
        return "attention rest"
    if _is_called(_FEED_FORWARD, name, module):
        return "feed-forward"
    if within == "residual" and isinstance(module, nn.Linear) and _IN_A_BLOCK.fullmatch(name):
        return "feed-forward"
    return "residual" if module in blocks else None


def _inside(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name.rpartition(".")[2], inner) for name, inner in module.named_modules() if inner is not module)


def _is_called(pattern: re.Pattern[str], name: str, module: nn.Module) -> bool:
    return bool(pattern.search(_snake(name)) or pattern.search(_snake(type(module).__name__)))


def _snake(name: str) -> str:
    """``CausalMultiHeadSelfAttention`` as ``causal_multi_head_self_attention``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


BlockList: TypeAlias = nn.ModuleList | nn.Sequential


class StandIn(nn.Module):
    """Replaces a block in the model's list: runs it with its segment, and shows its attributes."""

    def __init__(self, block: nn.Module, segment: _Segment, place: int) -> None:
        super().__init__()
        self.block, self._segment, self.place = block, segment, place

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._segment.run(self.place, args, kwargs)

    @property
    def together(self) -> tuple[nn.Module, ...]:
        """All blocks of the segment."""
        return self._segment.blocks

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "block":
                raise
            return getattr(self.block, name)


def blocks_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """The blocks in their order, without stand-ins; none if no list is found."""
    found = block_list(model)
    return tuple(each.block if isinstance(each, StandIn) else each for each in found) if found is not None else ()


def block_list(model: nn.Module) -> BlockList | None:
    """The longest outermost list of modules of one class, lists of modules with submodules first; None without one."""
    return max(_lists(model), key=lambda found: (any(found[0].children()), len(found)), default=None)


def _lists(module: nn.Module) -> Iterator[BlockList]:
    if isinstance(module, nn.ModuleList | nn.Sequential) and len({type(child) for child in module}) == 1:
        yield module
    else:
        for child in module.children():
            yield from _lists(child)


class BlockGroup(NamedTuple):
    """Blocks that are recomputed together, or one that is not: ``layers.0-3``, ``layers.0``. `entry` runs them all."""

    name: str
    entry: nn.Module
    blocks: tuple[nn.Module, ...]


def block_groups(model: nn.Module) -> tuple[BlockGroup, ...]:
    """All blocks in their order, by outermost segments; none if no list is found."""
    found, first = [], 0
    for entry in block_list(model) or ():
        if isinstance(entry, StandIn) and entry.place:
            continue
        blocks = entry.together if isinstance(entry, StandIn) else (entry,)
        last = first + len(blocks) - 1
        found.append(BlockGroup(f"layers.{first}" if last == first else f"layers.{first}-{last}", entry, blocks))
        first = last + 1
    return tuple(found)


def checkpoint_blocks(model: nn.Module, every: int, nesting: Nesting = "off") -> None:
    """Make the model keep for backward only the input of each group of `every` blocks; the last may be smaller. With
    `nesting` the groups lie in halves of halves: forward keeps the inputs of two, and recomputing one keeps those of
    its own two. Raises ValueError if no blocks are found; a model whose blocks cannot be grouped raises it at its first
    run."""
    blocks = block_list(model)
    if blocks is None:
        name = type(model).__name__
        raise ValueError(f"checkpoint {every}: {name} has no ModuleList or Sequential of blocks; use checkpoint 0")
    # What is drawn at random, as by F.dropout, has to be drawn again alike; a user's model may draw anywhere.
    draws = (not isinstance(model, Transformer) or model.draws) and not any(
        parameter.is_meta for parameter in model.parameters()
    )
    members = list(blocks)
    for layout in segments(len(members), every, nesting):
        segment = _Segment(members, layout, every, draws)
        for place, block in enumerate(segment.blocks):
            blocks[layout.blocks.start + place] = StandIn(block, segment, place)


class _Ran(NamedTuple):
    """The expected inputs of a segment's blocks after its first."""

    output: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Segment:
    """Consecutive blocks that are recomputed together, when the first is called; others return their input."""

    def __init__(self, members: Sequence[nn.Module], layout: Segment, every: int, draws: bool) -> None:
        self._members = tuple(members)
        self.blocks = tuple(members[place] for place in layout.blocks)
        self._layout = layout
        self._every = every
        self._draws = draws
        self._ran: _Ran | None = None

    def run(self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of the block at this place."""
        if not torch.is_grad_enabled():
            return self.blocks[place](*args, **kwargs)
        if len(self.blocks) == 1:
            return self._recomputed(self.blocks[0], args, kwargs)
        if place == 0:
            output = self._recomputed(partial(self._chain, self._layout), args, kwargs)
            self._ran = _Ran(output, args[1:], kwargs)
            return output
        ran = self._ran
        if place == len(self.blocks) - 1:
            self._ran = None  # else it outlives the step
        if ran is None or not args or args[0] is not ran.output or not _alike(args[1:], kwargs, ran):
            raise self._refusal("are not called one right after the other with the same arguments")
        return ran.output

    def _recomputed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=self._draws, **kwargs)

    def _chain(self, layout: Segment, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Run a segment's blocks, or its parts, each recomputed on its own."""
        for part in layout.parts:
            x = self._recomputed(partial(self._chain, part), (x, *args), kwargs)
        for block in () if layout.parts else (self._members[place] for place in layout.blocks):
            x = block(x, *args, **kwargs)
            if not isinstance(x, Tensor):
                raise self._refusal(f"return {type(x).__name__}, not one tensor")
        return x

    def _refusal(self, why: str) -> ValueError:
        blocks, instead = type(self.blocks[0]).__name__, "nesting off" if self._layout.parts else "checkpoint 1"
        return ValueError(
            f"checkpoint {self._every}: blocks of {blocks} {why}, so they cannot be grouped; use {instead}"
        )


def _alike(args: tuple[Any, ...], kwargs: dict[str, Any], ran: _Ran) -> bool:
    if len(args) != len(ran.args) or kwargs.keys() != ran.kwargs.keys():
        return False
    pairs = (*zip(args, ran.args, strict=True), *((kwargs[name], ran.kwargs[name]) for name in kwargs))
    return all(one is other for one, other in pairs)


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Its parameters by their names in the model as written, without those of checkpointing and of torch's wrappers."""
    inside = [f"{name}.block." for name, module in model.named_modules() if isinstance(module, StandIn)]
    for name, parameter in model.named_parameters():
        for prefix in inside:
            if name.startswith(prefix):
                name = name.removeprefix(prefix)
                name = f"{prefix.removesuffix('block.')}{name}"
                break
        yield _WRAPPER.sub("", name), parameter
