"""The tests that want a CUDA GPU, on the simulated one: environment, build, run and report in one command.

Usage: ``python -m tests.simgpu [PART ...] [--torch 2.11.0]``, by any Python from 3.11 on. The environment (`.venv-gpu`,
3 GB) and the build are made once and kept.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import NamedTuple
from xml.etree import ElementTree

from tests.simgpu.build import build, environment

ROOT = Path(__file__).resolve().parents[2]
USUAL_TORCH = "2.11.0"
_LEFT_OUT_OF_DEV = (
    "build", "hatchling", "import-linter", "mypy", "pipx", "pypandoc",
    "ruff", "twine", "types-", "typst", "uv",
)  # fmt: skip
"""Packages of the development environment that no test on the simulated GPU needs, by how their names begin."""
_SEVERAL_GPUS = ("collectives", "gpus_of_ranks", "lanes", "ranks")


class Part(NamedTuple):
    """Tests of one run of pytest. `workers`: processes beside each other, more than cores where tests mostly wait for
    the device; 0 for none. `lane`: parts of one run one after another, lanes beside each other. Lane 0 measures times,
    and the others leave it the processor."""

    name: str
    tests: Sequence[str]
    devices: int = 2
    workers: int = 2
    settings: Sequence[tuple[str, str]] = ()
    markers: str = "not real_numbers"
    lane: int = 0


def _truth(name: str, *topics: str, workers: int = 0, lane: int = 0) -> Part:
    """Tests that set the simulation's variables themselves."""
    return Part(name, [f"tests/simgpu/test_{topic}.py" for topic in topics], workers=workers, lane=lane)


_BUSY = (("KERNEL_US", "200"), ("TFLOPS_TF32", "370"))
"""Kernels so long that a host that others slow down stays ahead of the device; the ratio of TF32 is an H100's."""
_CARRIED_OUT = (("COMPUTE", "1"), ("COMPUTE_MB", "32"), ("COMPUTE_MFLOP", "500"), ("COMPUTE_MAX_MB", "64"))
_OF_SEVERAL = [f"tests/gpu/test_{topic}_cuda.py" for topic in _SEVERAL_GPUS]
_RUN_AS_THEY_ARE = "not real_numbers and not numbers"
PARTS = (
    _truth("times", "times", "kernels", "verdicts", "selftest"),
    _truth("several", "communication", "lanes"),
    Part("gpu-times", ["tests/gpu"], workers=0, settings=_BUSY, markers=f"timed and {_RUN_AS_THEY_ARE}"),
    Part("gpu", ["tests/gpu"], workers=3, settings=_BUSY, markers=f"not timed and {_RUN_AS_THEY_ARE}", lane=1),
    _truth("faults", "faults", workers=4, lane=1),
    Part("gpus-4", _OF_SEVERAL, devices=4, settings=_BUSY, markers=_RUN_AS_THEY_ARE, lane=1),
    Part("gpus-8", _OF_SEVERAL, devices=8, settings=_BUSY, markers=_RUN_AS_THEY_ARE, lane=1),
    _truth("memory", "memory", workers=3, lane=2),
    Part("numbers", ["tests/gpu"], devices=4, settings=_CARRIED_OUT, markers="numbers and not real_numbers", lane=2),
)
_GIVE_WAY = 10
"""Niceness of the lanes above 0."""


_PATIENCE_S = 300
"""The longest that a test may take, unless it says otherwise: others may have the processor."""
_FEW = 10
"""Failed tests of a part that are tried again."""


class Counts(NamedTuple):
    """Numbers of tests by their ends. `alone` of those that passed did so when tried again with nothing beside them."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    alone: int = 0


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts that are named, by default all, and return the exit code: 1 if a test failed."""
    parser = argparse.ArgumentParser("python -m tests.simgpu", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--torch", default=USUAL_TORCH, help="Release of torch, a CUDA build: %(default)s.")
    parser.add_argument("--where-possible", action="store_true", help="Exit with 0 where that torch cannot be had.")
    options = parser.parse_args(words)
    unknown = set(options.parts) - {part.name for part in PARTS}
    if unknown:
        parser.error(f"no part: {', '.join(sorted(unknown))}")
    venv = ROOT / (".venv-gpu" if options.torch == USUAL_TORCH else f".venv-gpu-{options.torch}")
    missing = [program for program in ("g++", "gcc", "readelf", "nm") if not shutil.which(program)]
    if why := f"needs {', '.join(missing)}" if missing else make_environment(venv, options.torch):
        print(f"gpu-sim: torch {options.torch} with CUDA cannot be had here, so its tests are left out: {why}")
        return 0 if options.where_possible else 1
    libraries = venv / "simgpu"
    build(venv, libraries)
    began = time.monotonic()
    parts = [part for part in PARTS if not options.parts or part.name in options.parts]

    def run_lane(lane: int) -> list[tuple[Part, Counts]]:
        return [(part, run(part, venv, libraries)) for part in parts if part.lane == lane]

    lanes = sorted({part.lane for part in parts})
    with ThreadPoolExecutor(len(lanes)) as beside:
        rows = [row for found in beside.map(run_lane, lanes) for row in found]
    rows = [(part, try_again(part, counts, venv, libraries)) for part, counts in rows]
    failed = any(counts.failed for _, counts in rows)
    text = report(venv, rows, time.monotonic() - began)
    (libraries / "report.md").write_text(text)
    print(f"\n{text}\nwrote {(libraries / 'report.md').relative_to(ROOT)}")
    total = [sum(counts[i] for _, counts in rows) for i in range(3)]
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return int(failed)


def make_environment(venv: Path, torch: str) -> str | None:
    """Make the virtual environment unless it is whole; why it cannot be made, in a line."""
    done = venv / ".installed"
    newest = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    if done.exists() and done.stat().st_mtime > newest:
        return None
    print(f"making {venv.name} with the CUDA build of torch {torch}, without NVIDIA's libraries ...", flush=True)
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    constraints = venv / "constraints.txt"
    pins = (ROOT / "constraints.txt").read_text()
    constraints.write_text(re.sub(rf"^({_pinned_by_torch()})==.*\n", "", pins, flags=re.MULTILINE))
    if why := _pip(python, "--no-deps", f"torch=={torch}"):
        return why
    asked = [line for line in _requirements(python, "torch") if not re.match(r"nvidia|cuda", line)]
    kernels = [line for line in asked if line.startswith("triton")]
    if why := _pip(python, "--no-deps", *kernels):
        return why
    others = [line for line in asked if line not in kernels]
    if why := _pip(python, "--constraint", str(constraints), *others, *_of_project()):
        return why
    if why := _pip(python, "--no-deps", "--editable", str(ROOT)):
        return why
    done.touch()
    return None


def _pinned_by_torch() -> str:
    """Packages that each release of torch asks for in versions of its own."""
    found = re.search(r"^PINNED_BY_TORCH := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    return found[1]


def _pip(python: Path, *words: str) -> str | None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *words]
    without = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=without)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or [f"pip ended with {done.returncode}"])[-1] if done.returncode else None


def _requirements(python: Path, package: str) -> list[str]:
    """What a package asks for on this machine, without its extras."""
    ask = f"import importlib.metadata as m; print(*m.requires({package!r}), sep='\\n')"
    lines = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.partition(";")[0].strip() for line in lines if "extra ==" not in line]


def _of_project() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dev = [line for line in project["optional-dependencies"]["dev"] if not line.startswith(_LEFT_OUT_OF_DEV)]
    return [line for line in project["dependencies"] if not line.startswith("torch")] + dev


def run(part: Part, venv: Path, libraries: Path, *, failed_alone: bool = False) -> Counts:
    """Run the tests of a part and count them, or one by one those that failed. A run that ends without a summary counts
    as one failure."""
    results = libraries / f"{part.name}{'-again' if failed_alone else ''}.xml"
    results.unlink(missing_ok=True)
    settings = {f"SIMGPU_{name}": value for name, value in part.settings}
    variables = os.environ | environment(libraries) | settings | {"SIMGPU_DEVICES": str(part.devices)}
    workers = ["-n", str(part.workers), "--dist", "worksteal"] if part.workers else []
    which = ["--last-failed", "--last-failed-no-failures=none"] if failed_alone else workers
    own = [
        f"--junitxml={results}",
        "-o",
        f"cache_dir={libraries / 'failed' / part.name}",
        "-o",
        f"timeout={_PATIENCE_S}",
    ]
    words = ["-m", "pytest", "-q", "-m", part.markers, *which, *own, *part.tests]
    niceness = _GIVE_WAY if part.lane and not failed_alone else 0
    command = ["nice", "-n", str(niceness), venv / "bin" / "python", *words]
    print(f"{results.stem}: begun on {part.devices} simulated GPUs", flush=True)
    began = time.monotonic()
    ran = subprocess.run(command, cwd=ROOT, env=variables, stdout=PIPE, stderr=STDOUT, text=True, check=False)
    seconds = time.monotonic() - began
    print(f"== {results.stem}\n{ran.stdout}", flush=True)
    if not results.exists():
        return Counts(0, 1, 0, seconds)
    suite = ElementTree.parse(results).getroot()[0]
    number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    bad = number["failures"] + number["errors"]
    return Counts(number["tests"] - bad - number["skipped"], bad, number["skipped"], seconds)


def try_again(part: Part, counts: Counts, venv: Path, libraries: Path) -> Counts:
    """Run the tests that failed once more, with nothing beside them, if they are few: a claim about times may fail on a
    machine with other work."""
    if not 0 < counts.failed <= _FEW:
        return counts
    found = run(part, venv, libraries, failed_alone=True)
    if found.passed + found.failed != counts.failed:
        return counts
    passed, seconds = counts.passed + found.passed, counts.seconds + found.seconds
    return Counts(passed, found.failed, counts.skipped, seconds, found.passed)


def report(venv: Path, rows: Sequence[tuple[Part, Counts]], seconds: float) -> str:
    ask = "import platform, torch, triton; print(platform.python_version(), torch.__version__, triton.__version__)"
    command, variables = [venv / "bin" / "python", "-c", ask], os.environ | environment(venv / "simgpu")
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout
    versions = dict(zip(("Python", "torch", "triton"), said.split(), strict=True))
    lines = [
        f"Simulated GPUs: {', '.join(f'{name} {version}' for name, version in versions.items())}; {seconds:.0f} s",
        "",
        "| part | GPUs | passed | of these alone | failed | skipped | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {part.name} | {part.devices} | {counts.passed} | {counts.alone} | {counts.failed} | {counts.skipped} |"
            f" {counts.seconds:.0f} |"
            for part, counts in rows
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
