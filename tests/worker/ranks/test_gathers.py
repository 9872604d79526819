"""All-gathers of a step and the modules that use them, under torch's FSDP and under users' own.

Of two ranks this process is the first; the other is not there, and what it would send is not known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from cs336_tui.worker.ranks.parallel import Gathered, _Follower, follow_gathers, mark_begins, mesh_on, shard_fully
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.passes import Shared
from cs336_tui.worker.workload.ranges import READY
from cs336_tui.worker.workload.transformer import Linear
from tests.runner.ranks.adapters import Sharded
from tests.watching import small_spec

SPEC = small_spec(ranks=2, num_layers=2, pass_="train-step", device="cpu")
DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


class Prefetching(nn.Module):
    """Gathers the weight of each Linear for its forward and again for its backward, that of the next one ahead, by the
    old way of a list of parts."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.linears = [each for each in module.modules() if isinstance(each, Linear)]
        self.coming: dict[nn.Module, tuple[dist.Work, list[torch.Tensor]]] = {}
        for number, linear in enumerate(self.linears):
            linear.weight = nn.Parameter(linear.weight.detach().chunk(2)[0].clone())
            linear.shard = linear.weight.data
            linear.register_forward_pre_hook(lambda each, _, number=number: self.install(each, number + 1))
            linear.register_forward_hook(lambda each, *_: self.free(each))
            linear.register_full_backward_pre_hook(lambda each, _, number=number: self.install(each, number - 1))
            linear.weight.register_post_accumulate_grad_hook(lambda _, each=linear: self.free(each))

    def gather(self, linear: nn.Module) -> None:
        if linear not in self.coming:
            parts = [torch.empty_like(linear.shard) for _ in range(2)]
            self.coming[linear] = dist.all_gather(parts, linear.shard, async_op=True), parts

    def install(self, linear: nn.Module, following: int) -> None:
        self.gather(linear)
        work, parts = self.coming.pop(linear)
        work.wait()
        linear.weight.data = torch.cat(parts)
        if 0 <= following < len(self.linears):
            self.gather(self.linears[following])

    def free(self, linear: nn.Module) -> None:
        linear.weight.data = linear.shard
        linear.weight.grad = None

    def forward(self, *arguments):
        return self.module(*arguments)


def followed(share) -> tuple[tuple[Gathered, ...], nn.Module, list[str]]:
    """The all-gathers of a step, the model, and the marks that its next step leaves."""
    workload = build(SPEC, DEVICE, share=share)
    step = workload.step(SPEC)
    found = follow_gathers(step, workload.model)
    mark_begins(workload.model, found)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for phase in step.phases:
            step.run(phase)
    names = [each.name() for each in sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns())]
    return found, workload.model, [name.removeprefix(READY) for name in names if name.startswith(READY)]


def whole_bytes(model: nn.Module, *names: str) -> int:
    """Of the shards in these modules, twice."""
    parts = [model.get_submodule(name) for name in names]
    return 2 * sum(p.to_local().nbytes if hasattr(p, "to_local") else p.nbytes for m in parts for p in m.parameters())


def test_each_all_gather_of_fully_shard_is_of_a_block_or_of_the_rest() -> None:
    found, model, marks = followed(lambda model: shard_fully(model, mesh_on("cpu")))
    rest = "token_embedding, final_norm, head"
    assert [(each.module, each.unit, each.pass_) for each in found] == [
        (rest, "", "forward"), ("layers.0", "layers.0", "forward"), ("layers.1", "layers.1", "forward"),
        ("layers.1", "layers.1", "backward"), ("layers.0", "layers.0", "backward"),
    ]  # fmt: skip
    assert found[0].bytes == whole_bytes(model, "token_embedding", "final_norm", "head")
    assert found[1].bytes == found[4].bytes == whole_bytes(model, "layers.0")
    assert marks == ["", "layers.0", "layers.1", "", "layers.1", "layers.0"]


def test_weights_that_come_ahead_are_of_the_module_that_waits_for_them() -> None:
    found, model, marks = followed(lambda model: Shared(Prefetching(model)))
    names = {each: name for name, each in model.named_modules()}
    linears = [names[each] for each in model.modules() if isinstance(each, Linear)]
    assert sorted((each.module, each.pass_) for each in found) == sorted(
        (name, pass_) for name in linears for pass_ in ("forward", "backward")
    )
    assert all(each.unit == each.module for each in found)
    assert {each.module: each.bytes for each in found}["head"] == 2 * model.head.shard.nbytes
    assert marks[: len(linears)] == linears


def finish(runs: nn.Module) -> None:
    runs.finish_gradient_synchronization()


def test_weights_gathered_before_the_model_runs_are_of_their_own_modules() -> None:
    found, _, _ = followed(
        lambda model: Shared(Sharded(model), after=lambda runs, _: runs.finish_gradient_synchronization())
    )
    own = {each.module: each for each in found}
    assert len(own) == len(found) > 10
    assert {each.pass_ for each in found} == {"forward"}
    assert {"layers.0.ffn_norm", "layers.1.attention.query", "head"} <= set(own)


def test_operators_that_take_functions_are_followed_too() -> None:
    """Such as flex_attention, which is run by its function's name alone."""
    follower = _Follower(nn.Linear(2, 2))
    with follower:
        assert torch.equal(torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.zeros(2),)), torch.zeros(2))


def test_ranks_that_train_alone_have_none() -> None:
    assert followed(Shared)[0] == ()
