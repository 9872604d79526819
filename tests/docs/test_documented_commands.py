"""Every command of the docs is understood: presets, options, names and choices, up to where processes would start.
Those that run cells run, with small ones."""

import contextlib
import gzip
import io
import itertools
import os
import pickle
import re
import shlex
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import click
import msgspec
import pytest

from cs336_tui.cli.bench import examples
from cs336_tui.cli.main import COMMANDS, cli
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.presets import preset
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.events.codec import from_line, to_line
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import Event
from cs336_tui.export.bundle import make_bundle
from cs336_tui.runner.bench import Bench
from tests.analysis.test_agreement import report_of
from tests.analysis.test_scaling import events_of
from tests.docs.test_docs import ROOT, WRITTEN, tokens
from tests.export.grids import grid_events
from tests.made_kernels import a_kernel_report
from tests.made_memory import a_memory_report
from tests.made_predictions import MadePredictor
from tests.made_race import race_events
from tests.repositories import git
from tests.samples import a_spec, cell_end, cell_start, machine_of_gpus, report_events, session_start, steps
from tests.session.recordings.nsys_exports import A_STEP, export

PAGES = [page for page in sorted(WRITTEN) if page == "README.md" or page.startswith("docs/")]
PLACEHOLDERS = ("SESSION", "BENCH", "AB", "TIMED", "PROFILED", "BEFORE", "AFTER")
"""Sessions in commands that stand for one's own."""


def commands_of(page: str) -> list[str]:
    """The command lines of a page's code blocks, without prompts and comments."""
    found = []
    for content, info in tokens(WRITTEN[page], "fence"):
        for line in content.replace("\\\n", " ").splitlines() if info in ("sh", "text", "console", "") else ():
            for part in line.split("&&"):
                words = re.fullmatch(r"(?:\$ |nsys profile -- )?(cs336-tui(?: (?! ).*)?)", part.strip())
                if words:
                    found.append(words[1])
    return found


class Reached(BaseException):
    """All is resolved, and processes would start."""


def reach(*_: object, **__: object) -> NoReturn:
    raise Reached


def stand_ins() -> Mapping[str, Callable[..., Any]]:
    """Stand-ins for machines, predictions and processes."""
    predictor = MadePredictor()

    def probed(*_: object) -> Environment:
        return machine_of_gpus(8)

    return {
        "cs336_tui.runner.bench.probe_machine": probed,
        "cs336_tui.runner.launcher.Launcher.prepare": lambda _: None,
        "cs336_tui.runner.launcher.Launcher.start": lambda _: None,
        "cs336_tui.runner.predictor.Predictor.predict": lambda _, *given, **more: predictor.predict(*given, **more),
        "cs336_tui.runner.bench.Bench._work": reach,
        "cs336_tui.runner.bench.Bench.resume": reach,
        "cs336_tui.runner.tuning.Tuner.run": reach,
        "cs336_tui.cli.machine.measure_peak": reach,
        "cs336_tui.runner.jobs.bench.JobsBench.submit": reach,
        "cs336_tui.runner.jobs.bench.JobsBench.watch": reach,
        "cs336_tui.cli.selftest._watched": reach,
        "cs336_tui.cli.launch._run": reach,
        "cs336_tui.export.writing.drawing.Drawing.files": lambda *_: {},
    }


@contextlib.contextmanager
def without_processes() -> Iterator[None]:
    """Commands know a machine with GPUs and predictions, and end where their cells would run."""
    with contextlib.ExitStack() as kept:
        for name, stand_in in stand_ins().items():
            kept.enter_context(mock.patch(name, stand_in))
        yield


SMALL: Mapping[str, Any] = {
    "device": "cpu", "threads": 1, "batch_size": 2, "warmup_steps": 1, "measure_steps": 2, "warmup_auto": False,
    "steps_auto": None, "warmup_for": None, "steps_for": None, "timer": "step", "flush_l2": False, "sync": "each-step",
    "inputs": "auto", "compile": "off", "cuda_graph": "off", "backend": "auto", "checkpoint": 0, "nesting": "off",
    "check": "off",
}  # fmt: skip
"""Choices of cells that take next to no time on any machine."""
OF_MODEL = {"d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 64, "context_length": 8}
OF_WORKLOAD: Mapping[str, Mapping[str, Any]] = {
    "collective": {"size": "1KB", "d_model": 250, "batch_size": 1},
    "attention": {"d_model": 32, "num_heads": 2, "context_length": 8},
    "norm": {"d_model": 32, "context_length": 8},
}
MOST_CELLS = 2


def small(spec: CellSpec) -> CellSpec:
    """The choices of the cell, without its size, on the CPU."""
    changes = {**SMALL, **OF_WORKLOAD.get(spec.workload, {"size": "custom"} | OF_MODEL), "ranks": min(spec.ranks, 2)}
    if spec.attention in AXES["attention"].values:
        changes["attention"] = "naive"
    if spec.precision == "fp8-mixed":
        changes["precision"] = "bf16-mixed"
    return msgspec.structs.replace(spec, **changes, accumulate=min(spec.accumulate, 2))


@contextlib.contextmanager
def with_small_cells() -> Iterator[None]:
    """Commands choose on a machine with GPUs, and run the first cells, small ones, in processes of this one."""
    add, ask_report = Bench.add, Bench.ask_report

    def add_small(bench: Bench, cells: Sequence[tuple[CellSpec, int]], *words: Any, **more: Any) -> None:
        kept = list(cells) if more.get("in_turns") else list(cells)[:MOST_CELLS]
        add(bench, [(small(spec), repeat) for spec, repeat in kept], *words, **(more | {"lanes": ()}))

    made = {
        "_probe_for_cells": lambda _: machine_of_gpus(8),
        "add": add_small,
        "ask_report": lambda bench, kind, spec, cell=None: ask_report(bench, kind, small(spec), cell),
    }
    with contextlib.ExitStack() as kept:
        for name, stand_in in made.items():
            kept.enter_context(mock.patch.object(Bench, name, stand_in))
        for name, stand_in in stand_ins().items():
            if not name.startswith(("cs336_tui.runner.bench.", "cs336_tui.runner.launcher.")):
                kept.enter_context(mock.patch(name, stand_in))
        yield


NEEDS: Mapping[str, str] = {
    "--report race": "race",
    "--report agreement": "reports",
    "--report kernels": "reports",
    "--report memory": "reports",
    "--report ab": "ab",
    "--measured": "measured",
    "--pivot size:pass": "passes",
    "--layout collectives": "collectives",
    "--layout data-parallel": "ranks",
    "--layout sharding": "ranks",
    "--layout scaling": "ranks",
    "--layout attention": "attention",
    "--layout norm": "norm",
    "--layout compiled": "compiled",
    "--layout checkpointing": "checkpointing",
    "--layout optimizers": "optimizers",
    "--layout leaderboard": "leaderboard",
    "--pivot pass:model": "models",
    "attention-arg.BLOCK_M": "kernels",
    "--pivot pass:cuda-graph": "graphs",
}
"""The session that a command with these words reads; the others read the usual one."""
SWEEPS: Mapping[str, Mapping[str, Any]] = {
    "usual": {"sizes": ("small", "medium"), "passes": ("forward", "train-step"), "precisions": ("fp32", "bf16-mixed")},
    "passes": {"sizes": ("small", "medium")},
    "collectives": {"workload": "collective", "ranks": (2, 4)},
    "ranks": {"passes": ("train-step",), "ranks": (1, 2), "parallels": ("ddp", "zero1", "none")},
    "attention": {"workload": "attention", "attentions": ("naive", "sdpa")},
    "norm": {"workload": "norm", "norms": ("rmsnorm", "layernorm")},
    "compiled": {"compiles": ("off", "default")},
    "checkpointing": {"passes": ("train-step",), "checkpoints": (0, 1)},
    "optimizers": {"passes": ("train-step",), "optimizers": ("adamw-fused", "adamw-foreach")},
    "kernels": {
        "attentions": ("mine:flash", "sdpa"),
        "attention_args": (("BLOCK_M", "16,32"), ("BLOCK_N", "32,64")),
        "passes": ("forward",),
    },
    "models": {"models": ("my_gpt:GPT", "reference")},
    "graphs": {"cuda_graphs": ("off", "step"), "passes": ("forward", "train-step")},
}


def rounds_in_turns() -> list[Event]:
    """Two rounds of two cells, each round in a process of its own."""
    events = session_start([a_spec(), a_spec(precision="tf32")] * 2)
    for cell in range(4):
        begun, *more = cell_start(cell)
        events += [msgspec.structs.replace(begun, pid=cell // 2), *more]
    for cell in range(4):
        events += [*steps(cell, (), [0.01, 0.011] * 6), cell_end(cell)]
    return events


def cells_of(name: str) -> tuple[CellSpec, ...]:
    if name == "leaderboard":
        return preset("2026/leaderboard").sweep.with_devices(("cuda:0",)).cells()
    return sweep_from(devices=("cuda:0",), **SWEEPS[name]).cells()


@cache
def session(name: str) -> bytes:
    """The log of a session that commands read."""
    if name == "race":
        events = race_events(ended="decided")
    elif name == "measured":
        events = list(events_of((spec, 0.01) for spec in (*cells_of("collectives"), a_spec(precision="bf16-mixed"))))
    elif name == "ab":
        events = rounds_in_turns()
    elif name == "reports":
        spec = a_spec()
        kernels = a_kernel_report(spec)
        in_step = [msgspec.structs.replace(group, path=("step 3", group.phase)) for group in kernels.groups]
        kernels = msgspec.structs.replace(kernels, groups=tuple(in_step))
        sdpa = msgspec.structs.replace(report_of().spec, attention="sdpa")
        reports = (kernels, a_memory_report(spec=spec), report_of(), report_of(spec=sdpa))
        events = [*grid_events([spec]), *report_events(*reports)]
    else:
        events = grid_events(cells_of(name), times=lambda _: [0.01, 0.011] * 6)
    return b"".join(map(to_line, events))


CODE = re.compile(r"\b([a-z_][a-z_0-9.]*):[A-Za-z_]")
"""Modules of code of one's own, as commands name them."""


OWN_CODE = (
    "\n".join(example["code"] for example in examples().values())
    + """

TransformerLM = GPT = BasicsTransformerLM = Model
attn, rmsnorm, get_naive, naive_on_after_backward = attend, norm, get_ddp, ddp_on_after_backward


def flash(q, k, v, is_causal=False, BLOCK_M=16, BLOCK_N=16):
    return attend(q, k, v, is_causal)
"""
)
"""A module that has all the code of one's own that commands name."""


def words_of(line: str) -> list[str]:
    """The words after the program's name."""
    words = shlex.split(line.replace("SESSION SESSION", "SESSION OTHER"), comments=True)[1:]
    return words[: words.index(">")] if ">" in words else words


def outcome(
    line: str,
    cwd: Path,
    stand_in: Callable[[], contextlib.AbstractContextManager[None]] = without_processes,
    more: Sequence[str] = (),
    exits: Container[object] = (0, None),
) -> str:
    """Run a command line in a folder of its own; empty if all of it was understood, else why not."""
    words = [*words_of(line), *more]
    folder = cwd / "data" / "cs336-tui" / "sessions"
    folder.mkdir(parents=True)
    log = session(next((name for needed, name in NEEDS.items() if needed in line), "usual"))
    for name in (*PLACEHOLDERS, "2026-01-01T00-00-00-aaaaaaa"):
        (folder / f"{name}.jsonl").write_bytes(log)
    (folder / "OTHER.jsonl").write_bytes(log.replace(b'"session":"', b'"session":"other-', 1))
    for name in ("laptop", "gpu-box"):
        (cwd / f"{name}.jsonl").write_bytes(log)
    trace = (ROOT / "tests" / "data" / "v100-training.trace.json").read_bytes()
    for name in ("trace", "rank0", "rank1"):
        (cwd / f"{name}.json.gz").write_bytes(gzip.compress(trace, 1))
    snapshot = {"segments": [], "device_traces": [[{"action": "alloc", "addr": 0, "size": 512, "stream": 0}]]}
    (cwd / "step.pickle").write_bytes(pickle.dumps(snapshot))
    export(cwd / "step.nsys-rep", A_STEP)  # as nsys itself would export it
    if "run.zip" in line:
        (cwd / "run.zip").write_bytes(make_bundle([*map(from_line, log.splitlines())], {})[0])
    for name in ("cs336-basics", "FOLDER"):
        (cwd / name).mkdir()
    for home, module in itertools.product((cwd, cwd / "FOLDER", cwd.parent / "cs336-basics"), CODE.findall(line)):
        file = home.joinpath(*module.removesuffix(".py").split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(OWN_CODE)
    if words[0] == "gate":
        git(cwd, "init", "--quiet")
        for words_of_git in ("add .", "commit --quiet --message all", "tag v1.2"):
            git(cwd, *words_of_git.split())
    is_app = not any(word in COMMANDS for word in words[:1])
    streams = {name: io.TextIOWrapper(io.BytesIO(), write_through=True) for name in ("stdin", "stdout", "stderr")}
    for stream in streams.values():
        stream.isatty = lambda: is_app  # type: ignore[method-assign]
    homes = {f"XDG_{kind}_HOME": str(cwd / kind.lower()) for kind in ("DATA", "CONFIG", "CACHE", "STATE")}
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, homes),
        mock.patch.multiple(sys, **streams),
        stand_in(),
    ):
        try:
            cli.main(args=words, prog_name="cs336-tui", standalone_mode=False)
        except Reached:
            pass
        except SystemExit as ended:
            if ended.code not in exits:
                return f"exit {ended.code}: {streams['stderr'].buffer.getvalue().decode()[-400:]}"
        except click.ClickException as error:
            return error.format_message()
    return ""


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_every_command_of_the_docs_is_understood(page: str, tmp_path: Path) -> None:
    wrong = {}
    for number, line in enumerate(commands_of(page)):
        cwd = tmp_path / str(number) / "cwd"
        cwd.mkdir(parents=True)
        if said := outcome(line, cwd):
            wrong[line] = said
    assert not wrong, "\n".join(f"{line}\n    {said}" for line, said in wrong.items())


RUN = ("bench", "ab", "comm", "kernels", "memory", "precision", "gate")
"""Commands that run cells. `tune` and `selftest` take minutes, and have small runs of their own in tests/cli."""
NOT_RUN = ("--launcher", "--in-process")
MORE = {"gate": ("--budget", "1s"), "ab": ("--rounds", "2")}
"""Words that keep a command short."""


def runs(page: str) -> list[str]:
    lines = (line for line in commands_of(page) if not any(word in line for word in NOT_RUN))
    return [line for line in lines if words_of(line)[:1] and words_of(line)[0] in RUN]


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)])
def test_every_command_of_the_docs_that_runs_cells_runs_with_small_ones(page: str, tmp_path: Path) -> None:
    wrong = {}
    for number, line in enumerate(runs(page)):
        cwd = tmp_path / str(number) / "cwd"
        cwd.mkdir(parents=True)
        name = words_of(line)[0]
        exits = (0, 3) if name == "gate" else (0, None)
        if said := outcome(line, cwd, with_small_cells, MORE.get(name, ()), exits):
            wrong[line] = said
    assert not wrong, "\n".join(f"{line}\n    {said}" for line, said in wrong.items())
