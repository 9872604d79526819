"""Modules that the fork server has loaded, and devices that it must not touch. Each test has a fresh interpreter."""

import ctypes.util
import json
import os
from pathlib import Path

import pytest

from cs336_tui.worker.measure.process import driver_initialised
from tests.loading import python
from tests.worker.measure.cells import c_library

SERVER = """
import gc, json, os, sys
import cs336_tui.worker.measure.preload
torch = sys.modules["torch"]
report = {
    "threads": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1,
    "cuda": torch.cuda.is_initialized(),
    "frozen": gc.get_freeze_count(),
    "collects": gc.isenabled(),
    "environment": sorted({"OPENBLAS_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK"} & os.environ.keys()),
}
print("said on standard output", flush=True)
print("said on standard error", file=sys.stderr, flush=True)
"""

CHILD = """
before = set(sys.modules)
reader, writer = os.pipe()
if os.fork() == 0:
    from tests.worker.measure.cells import run, small_spec
    before = set(sys.modules)
    statuses = [
        run(small_spec(pass_=pass_, precision=precision, warmup_steps=0)).finished.status
        for pass_, precision in (("train-step", "fp32"), ("train-step", "fp16-mixed"), ("inference", "bf16-mixed"))
    ]
    answer = {"statuses": statuses, "late": sorted(m for m in set(sys.modules) - before if m.startswith("torch"))}
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)
os.wait()
report |= json.loads(os.read(reader, 65536))
"""

TELL = """
with open(sys.argv[1], "w") as file:
    json.dump(report, file)
"""


def serve(tmp_path: Path, code: str, **environment: str) -> tuple[dict[str, object], str]:
    """Run the server's code in a fresh interpreter; returns its report and its output."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_NUM_THREADS", "CS336_TUI_SERVER_OUTPUT")}
    result = python(code, str(tmp_path / "report.json"), env=inherited | environment)
    return json.loads((tmp_path / "report.json").read_text()), result.stdout + result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_finds_everything_loaded_and_nothing_disturbed(tmp_path: Path) -> None:
    output = tmp_path / "server.log"
    report, seen = serve(tmp_path, SERVER + CHILD + TELL, CS336_TUI_SERVER_OUTPUT=str(output))
    assert report["threads"] == 1, "threads do not survive a fork"
    assert report["cuda"] is False
    assert report["frozen"] > 100_000
    assert report["collects"]
    assert report["environment"] == []
    assert report["statuses"] == ["ok"] * 3
    assert report["late"] == [], "an import inside a cell shows in its first step"
    assert seen == ""
    assert output.read_text().splitlines()[:2] == ["said on standard output", "said on standard error"]


@pytest.mark.parametrize("output", [None, "no/such/folder/server.log"])
def test_without_a_file_the_server_is_silent(tmp_path: Path, output: str | None) -> None:
    environment = {} if output is None else {"CS336_TUI_SERVER_OUTPUT": str(tmp_path / output)}
    # The imports are another test's business; without them this one is quick.
    code = "import sys; sys.modules['torch'] = None\n" + SERVER.partition("torch =")[0] + "import json; report = {}\n"
    _, seen = serve(tmp_path, code + "print('x'); print('y', file=sys.stderr)" + TELL, **environment)
    assert seen == ""


def test_the_server_outlives_a_broken_torch(tmp_path: Path) -> None:
    """The reason is in the server's output; children meet the same error and report it as theirs."""
    output = tmp_path / "server.log"
    code = "import sys, json; sys.modules['torch'] = None\n"
    code += "import cs336_tui.worker.measure.preload\nreport = {'alive': True}"
    report, _ = serve(tmp_path, code + TELL, CS336_TUI_SERVER_OUTPUT=str(output))
    assert report == {"alive": True}
    assert "torch" in output.read_text()


def a_driver(folder: Path, answer: int) -> str:
    """A CUDA driver library that gives the same answer to every question."""
    source = f"int cuDeviceGetCount(int *count) {{ *count = 1; return {answer}; }}"
    return c_library(folder / f"libdriver{answer}.so", source)


def test_a_driver_is_awake_unless_it_says_that_it_is_not(tmp_path: Path) -> None:
    assert driver_initialised(a_driver(tmp_path, 0))
    assert driver_initialised(a_driver(tmp_path, 100)), "no device found, but initialised"
    assert not driver_initialised(a_driver(tmp_path, 3))
    assert not driver_initialised("libno-such-driver.so.1")
    if ctypes.util.find_library("cuda") is None:
        assert not driver_initialised()


def test_each_child_meets_the_error_that_importing_torch_met_first(tmp_path: Path) -> None:
    """From 2.15 on torch can be imported only once in a process, and the error of a second import says only that."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import sys\n"
        "first, sys.torch_began = not hasattr(sys, 'torch_began'), True\n"
        "raise OSError('no room') if first else ImportError('once per process')\n"
    )
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import cs336_tui.worker.measure.preload
try:
    import torch
except Exception as error:
    open(sys.argv[1] + "/met", "w").write(repr(error))
"""
    python(code, str(tmp_path))
    assert (tmp_path / "met").read_text() == "OSError('no room')"
