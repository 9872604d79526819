"""Containers of one's own, shared by one process of two whose collectives do nothing."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.ranks.parallel import share
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.passes import Shared
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

def get_ddp(module):
    return Container(module)

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
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "own_adapters.py").write_text(ADAPTERS)
    (folder / "parts.py").write_text(PARTS)
    return folder


def shared(parallel: str, folder: Path) -> tuple[Shared, CellSpec]:
    spec = small_spec(ranks=2, parallel=parallel, pass_="train-step", model_path=(str(folder),))
    return share(nn.Embedding(8, 4), spec=spec, device=CPU), spec


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
    found, _ = shared("own_adapters:get_fsdp", code)
    assert found.whole is None
    assert "get_fsdp sharded no parameter" in found.remarks[0]
    assert shared("own_adapters:get_ddp", code)[0].remarks == ()


def test_fsdp_shards_on_the_cells_device_in_its_own_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda: torch.device("cuda"))  # as where there is a GPU
    found, _ = shared("fsdp2", CODE)
    (weight,) = found.runs.parameters()
    assert isinstance(weight, DTensor)
    assert weight.device.type == weight.device_mesh.device_type == "cpu"
    assert weight.device_mesh.get_group() is dist.group.WORLD


def test_what_shards_is_known_by_its_parameters_not_by_its_name() -> None:
    found, _ = shared("adapters:Zero3", CODE)
    assert found.whole is not None
    assert found.whole()["weight"].shape == (8, 4)
    assert shared("adapters:get_ddp", CODE)[0].whole is None  # though fsdp_gather_full_params stands beside it


def test_the_revision_of_a_cell_has_the_file_of_the_container_too(code: Path) -> None:
    _, spec = shared("own_adapters:get_ddp", code)
    workload = build(spec, CPU, share=lambda model: share(model, spec=spec, device=CPU))
    revision = workload.facts.revision or ""
    assert [each.split()[0] for each in revision.split("; ")] == ["own_adapters.py", "parts.py"]


def test_the_state_of_a_sharded_optimizer_is_found_in_the_one_that_it_holds() -> None:
    _, spec = shared("adapters:get_ddp", CODE)
    spec = msgspec.structs.replace(spec, optimizer="adapters:get_sharded_optimizer")
    workload = build(spec, CPU)
    for parameter in workload.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    workload.training.optimizer.step()
    own = list(workload.model.parameters())[::2]
    assert sum(each.numel() for each in workload.optimizer_state() if each.dim()) == 2 * sum(p.numel() for p in own)
