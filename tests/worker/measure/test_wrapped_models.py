"""A model wrapped by a user's file in another folder: messages name the model's own files and lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import ReportRequest
from cs336_tui.worker.measure.memory_record import record_memory
from cs336_tui.worker.workload.building import build
from tests.worker.measure.cells import small_spec
from tests.worker.workload.own_code import Folder
from tests.worker.workload.own_models import GPT

WRAPPERS = {
    "a class of its class": """
from {repository} import GPT
class Whole(GPT):
    def forward(self, tokens):
        return super().forward(tokens)
""",
    "a module that holds it": """
from torch import nn
from {repository} import GPT
class Whole(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd):
        super().__init__()
        self.model = GPT(vocab_size, block_size, n_layer, n_head, n_embd)
    def forward(self, tokens):
        return self.model(tokens)
""",
    "a function that makes it": """
from {repository} import GPT
def Whole(vocab_size, block_size, n_layer, n_head, n_embd):
    return GPT(vocab_size, block_size, n_layer, n_head, n_embd)
""",
}


@pytest.fixture(params=list(WRAPPERS))
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CellSpec, str, str]:
    """A cell of it, the file of its repository and the file of the few lines."""
    folders = [tmp_path / "repository", tmp_path / "mine"]
    for each in folders:
        each.mkdir()
    repository = Folder(folders[0]).write(GPT, "repository")
    lines = Folder(folders[1]).write(WRAPPERS[request.param].format(repository=repository), "mine")
    spec = small_spec(model=f"{lines}:Whole", model_path=(str(folders[1]), str(folders[0])), pass_="train-step")
    return spec, f"{repository}.py", f"{lines}.py"


def test_allocations_name_the_lines_of_the_repository(wrapped: tuple[CellSpec, str, str]) -> None:
    spec, repository, _ = wrapped
    report = record_memory(ReportRequest(kind="memory", spec=spec), lambda _stage: None)
    in_feed_forward = {site.frame for site in report.sites if site.range == "feed-forward"}
    assert in_feed_forward
    for frame in in_feed_forward:
        file, _, function = re.split("[: ]", frame)
        assert (file, function) == (repository, "forward")


def test_the_file_of_the_model_is_among_its_sources(wrapped: tuple[CellSpec, str, str]) -> None:
    spec, repository, lines = wrapped
    told = str(build(spec, torch.device("cpu")).facts.revision)
    assert re.fullmatch(
        rf"{re.escape(lines)} sha256 [0-9a-f]{{12}}; {re.escape(repository)} sha256 [0-9a-f]{{12}}", told
    )


def test_what_was_installed_into_a_folder_is_not_the_user_s(tmp_path: Path) -> None:
    """Files of ``pip install --target``: the user's line that called the library is shown, not the library's."""
    (installed := tmp_path / "installed").mkdir()
    (installed / "some_library-1.0.dist-info").mkdir()
    (mine := tmp_path / "mine").mkdir()
    library = Folder(installed).write(GPT, "library")
    lines = Folder(mine).write(WRAPPERS["a module that holds it"].format(repository=library), "mine")
    spec = small_spec(model=f"{lines}:Whole", model_path=(str(mine), str(installed)), pass_="forward")
    report = record_memory(ReportRequest(kind="memory", spec=spec), lambda _stage: None)
    frames = {site.frame.partition(":")[0] for site in report.sites if site.range == "feed-forward"}
    assert frames == {f"{lines}.py"}
    assert library not in str(build(spec, torch.device("cpu")).facts.revision)
