"""A user's folder whose models are made from specs."""

from typing import Any

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.imported_components import import_model
from tests.worker.measure.cells import small_spec
from tests.worker.workload.own_code import Folder


class UsersFolder(Folder):
    """Models on the CPU by the text of their module and their name in it."""

    def named(self, name: str, **changes: Any) -> CellSpec:
        """A small cell of a model that was written."""
        return small_spec(model=name, model_path=self.paths, **changes)

    def spec(self, text: str, attribute: str = "LM", **changes: Any) -> CellSpec:
        return self.named(f"{self.write(text)}:{attribute}", **changes)

    def model(self, text: str, attribute: str = "LM", **changes: Any) -> Any:
        return import_model(self.spec(text, attribute, **changes), torch.device("cpu"), torch.float32).model

    def problem(self, text: str, attribute: str = "LM", **changes: Any) -> str:
        """The reason for which the model cannot be made."""
        with pytest.raises(ImportProblem) as caught:
            self.model(text, attribute, **changes)
        assert "\n" not in str(caught.value)
        return str(caught.value)
