"""Caches of torch.compile: each cell starts with empty ones, or uses the folder that the user names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.config.processes import CACHE_FOLDER
from cs336_tui.worker.workload.compiling import why_cannot_compile

WHY = why_cannot_compile("cpu")
pytestmark = pytest.mark.skipif(WHY is not None, reason=WHY or "")

TELLING = """
import json, os, sys
from pathlib import Path
from torch import nn
from torch._inductor import codecache

told = Path(__file__).with_name("told.jsonl")


class Telling(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        caches = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])  # importing codecache sets it where nobody else has
        headers = getattr(codecache, "_HEADER_DIR", None)  # torch 2.6 keeps no precompiled headers
        found = {"caches": str(caches), "files": [each.name for each in caches.rglob("*")], "headers": headers}
        with told.open("a") as file:
            file.write(json.dumps(found) + "\\n")
        (caches / "left").touch()
        sys.exit(0)  # compiling itself takes long
"""


def found_by_cells(folder: Path, *options: str, users: Path | None = None) -> list[dict[str, Any]]:
    """Caches that each cell of one run found when its model was made: two eager cells and two compiled ones.

    The environment holds no setting of torch.compile but the folder that the user names.
    """
    (folder / "telling_model.py").write_text(TELLING)
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    with tempfile.TemporaryDirectory() as short:  # the path of a socket in it may have 107 bytes
        subprocess.run(
            [sys.executable, "-m", "cs336_tui", "bench", "--model", "telling_model:Telling",
             "--model-path", str(folder), "--compile", "off,default", "--repeats", "2", "--pass", "forward",
             "--context", "8", "--device", "cpu", "--session-dir", str(folder / "sessions"), *options],
            env=kept | {"TMPDIR": short} | ({CACHE_FOLDER: str(users)} if users else {}),
            capture_output=True,
            check=False,  # the cells fail
        )  # fmt: skip
    return [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("options", [(), ("--in-process",)])
def test_every_compiled_cell_finds_empty_caches_of_its_own(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = [each for each in found_by_cells(tmp_path, *options) if "compile-" in each["caches"]]
    assert len({each["caches"] for each in found}) == len(found) == 2
    assert [each["files"] for each in found] == [[], []]
    assert all(each["headers"].startswith(each["caches"]) for each in found if each["headers"])
    assert not any(Path(each["caches"]).exists() for each in found)


@pytest.mark.parametrize("options", [(), ("--in-process",)])
def test_a_folder_that_the_user_names_is_used_as_it_is(tmp_path: Path, options: tuple[str, ...]) -> None:
    users = tmp_path / "mine"
    users.mkdir()
    (users / "kept").touch()
    found = found_by_cells(tmp_path, *options, users=users)
    assert {each["caches"] for each in found} == {str(users)}
    assert all("kept" in each["files"] for each in found)
    headers = [each["headers"] for each in found if each["headers"]]
    assert not headers or sum(each.startswith(str(users)) for each in headers) == 2, "those of the compiled cells"
    assert (users / "left").exists()
