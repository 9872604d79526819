"""Models that take a config object of their own repository in place of dimensions."""

from __future__ import annotations

import pytest
import torch

from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.imported_components import import_model
from tests.worker.measure.cells import small_spec
from tests.worker.workload.own_code import Folder

CPU = torch.device("cpu")
MODEL = """
from torch import nn
class Node: ...
class GPT(nn.Module):
    def __init__(self, {asks}):
        super().__init__()
"""


@pytest.mark.parametrize("asks", ["config", "cfg", "config: Node", "settings: Node"])
def test_one_that_cannot_be_made_by_name_asks_for_a_function(folder: Folder, asks: str) -> None:
    """minGPT's config is made by a function of its own: no text on a command line is one."""
    spec = small_spec(model=f"{folder.write(MODEL.format(asks=asks))}:GPT", model_path=folder.paths)
    word = asks.partition(":")[0]
    with pytest.raises(ImportProblem) as refused:
        import_model(spec, CPU, torch.float32)
    assert str(refused.value).endswith(
        f"needs {word}; it cannot be typed: name a function of the dimensions (d_model, num_layers, ...) that "
        f"makes {word} and returns the model"
    )


def test_the_config_beside_the_class_above_will_do(folder: Folder) -> None:
    """A few lines around nanoGPT's GPT that do not import its GPTConfig."""
    above = folder.write(
        """
from dataclasses import dataclass
from torch import nn
@dataclass
class GPTConfig:
    block_size: int = 1024
    n_layer: int = 12
class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.seen = config
"""
    )
    lines = folder.write(f"from {above} import GPT\nclass Whole(GPT): ...\n")
    spec = small_spec(model=f"{lines}:Whole", model_path=folder.paths, num_layers=3)
    config = import_model(spec, CPU, torch.float32).model.seen
    assert (config.n_layer, config.block_size) == (3, spec.context_length)
