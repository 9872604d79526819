"""Containers of one's own, and all-gathers of a step with the modules that use them, under torch's FSDP and under
users' own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.estimate.several import fake_ranks
from cs336_tui.worker.ranks.parallel import (
    Gathered,
    _Follower,
    follow_gathers,
    mark_begins,
    mesh_on,
    shard_fully,
    share,
)
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.passes import Shared
from cs336_tui.worker.workload.ranges import READY
from cs336_tui.worker.workload.transformer import Linear
from tests.runner.ranks.adapters import Sharded
from tests.watching import small_spec

CODE = Path(__file__).parents[2] / "runner" / "ranks"
CPU = torch.device("cpu")

ADAPTERS = """
import torch.distributed as dist
from torch import nn
from parts import Container

def get_twice(module):
    dist.init_process_group("gloo")
    return Container(module)

def get_lacking(module):
    import package_that_nobody_has
    return Container(module)

def get_fsdp(module, compute_dtype=None):
    return Container(module)

get_ddp = get_fsdp

def fsdp_gather_full_params(model):
    raise AssertionError("of nothing that is sharded")
"""
PARTS = """
from torch import nn

class Container(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, tokens):
        return self.module(tokens)

    def finish_gradient_synchronization(self):
        pass
"""


@pytest.fixture(scope="module", autouse=True)
def two_ranks() -> Iterator[None]:
    with fake_ranks(2):
        yield


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "own_adapters.py").write_text(ADAPTERS)
    (folder / "parts.py").write_text(PARTS)
    return folder


def spec_of(parallel: str, folder: Path, **changes: str) -> CellSpec:
    return small_spec(ranks=2, parallel=parallel, pass_="train-step", model_path=(str(folder),), **changes)


def shared(parallel: str, folder: Path) -> Shared:
    return share(nn.Embedding(8, 4), spec=spec_of(parallel, folder), device=CPU)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("get_twice", r"own_adapters.py:7 in get_twice\); the ranks have joined one: put `if not dist.is_initialized"),
        ("get_lacking", r"own_adapters.py:11 in get_lacking\); install it beside cs336-tui"),
    ],
)
def test_an_error_of_a_container_names_its_line_and_the_remedy(code: Path, name: str, hint: str) -> None:
    with pytest.raises(ImportProblem, match=hint):
        shared(f"own_adapters:{name}", code)


def test_fsdp_that_shards_nothing_of_this_model_says_so(code: Path) -> None:
    found = shared("own_adapters:get_fsdp", code)
    assert found.whole is None
    assert "get_fsdp sharded no parameter" in found.remarks[0]
    assert shared("own_adapters:get_ddp", code).remarks == ()


def test_fsdp_shards_on_the_cells_device_in_its_own_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda: torch.device("cuda"))  # as where there is a GPU
    (weight,) = shared("fsdp2", CODE).runs.parameters()
    assert weight.device.type == weight.device_mesh.device_type == "cpu"
    assert weight.device_mesh.get_group() is dist.group.WORLD


def test_what_shards_is_known_by_its_parameters_not_by_its_name() -> None:
    assert shared("adapters:Zero3", CODE).whole()["weight"].shape == (8, 4)
    assert shared("adapters:get_ddp", CODE).whole is None  # though fsdp_gather_full_params stands beside it


def test_the_revision_of_a_cell_has_the_file_of_the_container_too(code: Path) -> None:
    spec = spec_of("own_adapters:get_ddp", code)
    workload = build(spec, CPU, share=lambda model: share(model, spec=spec, device=CPU))
    assert [each.split()[0] for each in workload.facts.revision.split("; ")] == ["own_adapters.py", "parts.py"]


def test_the_state_of_a_sharded_optimizer_is_found_in_the_one_that_it_holds() -> None:
    workload = build(spec_of("adapters:get_ddp", CODE, optimizer="adapters:get_sharded_optimizer"), CPU)
    for parameter in workload.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    workload.training.optimizer.step()
    own = list(workload.model.parameters())[::2]
    assert sum(each.numel() for each in workload.optimizer_state() if each.dim()) == 2 * sum(p.numel() for p in own)


SPEC = small_spec(ranks=2, num_layers=2, pass_="train-step", device="cpu")


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


def followed(container) -> tuple[tuple[Gathered, ...], nn.Module, list[str]]:
    """The all-gathers of a step, the model, and the marks that its next step leaves."""
    workload = build(SPEC, CPU, share=container)
    step = workload.step(SPEC)
    found = follow_gathers(step, workload.model)
    mark_begins(workload.model, found)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run_whole(step)
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
