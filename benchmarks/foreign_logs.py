"""Logs of others that name code, folders, machines and shell commands, read by every command and in the app: nothing of
it may be imported or executed, as no command line names it. All of it is canaries, which write down that they ran."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click
import msgspec

from benchmarks import hostile
from benchmarks.fuzz_inputs import Answer, ask
from benchmarks.reporting import publish, table
from cs336_tui.cli.main import COMMANDS
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.tuning import Over, Tuning
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.events import (
    CellFinished,
    CellsQueued,
    EnvironmentRead,
    Event,
    JobSubmitted,
    SessionEnded,
    TuningStarted,
)
from cs336_tui.events.prediction import prediction_key
from cs336_tui.events.reports import ASKED_FOR
from cs336_tui.runner.jobs.job import JobCell, JobRequest, LaunchChoice, folder_of, request_path
from cs336_tui.runner.predictor import Predictor
from cs336_tui.tui.keys import MEANINGS
from tests.made_predictions import made_prediction
from tests.samples import ENVIRONMENT, START, cell_start, session_start, steps
from tests.watching import small_spec

PROGRAMS = ("sbatch", "srun", "scancel", "squeue", "sacct", "sinfo", "scontrol", "git")
"""Programs that a launcher starts, or that would run hooks of a foreign folder."""
_SHADOWS = ("torch", "numpy", "triton", "queue", "sitecustomize", "usercustomize", "submitit")
"""Modules that others import: in a foreign folder on Python's path they would be found there."""
_CALLED = ("Net", "attn", "norm", "loss", "AdamW", "get_ddp", "softmax")
_FIELDS = {
    "model": "Net", "attention": "attn", "norm": "norm", "loss": "loss", "optimizer": "AdamW", "parallel": "get_ddp",
    "annotations": "softmax",
}  # fmt: skip
_CELLS = 5
SMALL = """--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64 --context 8 --batch 1 --warmup 1
--steps 3 --device cpu --threads 1""".split()
"""Choices of a cell whose step takes about a millisecond."""


class Canaries:
    """A user's folder `here` with a module of their own, a foreign one beside it, and what has run of either."""

    def __init__(self, home: Path) -> None:
        self.home, self.here, self.foreign = home, home / "here", home / "foreign"
        self._marks = home / "marks"
        programs = home / "programs"
        site = self.here / ".venv" / "lib" / "site-packages"
        for folder in (self.here, self.foreign / "pack", programs, site):
            folder.mkdir(parents=True)
        calls = "".join(f"def {name}(*_, **__): mark('called {name}')\n" for name in _CALLED)
        text = f"""
def mark(what):
    with open({str(self._marks)!r}, "a") as file:
        file.write(f"{{__name__}} {{what}}\\n")

mark("imported")
import os, subprocess
from os import system as shell
{calls}"""
        for module in ("evil", "pack/__init__", "pack/inner", *_SHADOWS):
            (self.foreign / f"{module}.py").write_text(text)
        (site / "below.py").write_text(text)
        (self.here / "mine.py").write_text(text)
        (self.here / "linked").symlink_to(self.foreign)
        (self.here / "stolen.py").symlink_to(self.foreign / "evil.py")
        for program in PROGRAMS:
            path = programs / program
            path.write_text(f"#!/bin/sh\necho program {program} >>{self._marks}\nexit 1\n")
            path.chmod(0o755)
        self.environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home)}
        self.environment |= {
            f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "CACHE", "STATE")
        }
        self.command = f"sh -c 'echo command >>{self._marks}'"

    def marks(self) -> list[str]:
        """What has run since this was asked last."""
        with contextlib.suppress(FileNotFoundError):
            found = self._marks.read_text().splitlines()
            self._marks.unlink()
            return found
        return []

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """In the user's folder, with the canaries of programs on the path."""
        before, folder = dict(os.environ), Path.cwd()
        os.environ.update(self.environment)
        os.chdir(self.here)
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)

    def named(self, called: str, chance: random.Random) -> tuple[str, tuple[str, ...]]:
        """Foreign code by its name, and the folders to look in."""
        here, foreign = str(self.here), str(self.foreign)
        mark = chance.choice(["evil", "pack", "pack.inner"])
        return chance.choice(
            [
                (f"{mark}:{called}", (foreign,)),
                (f"{mark}:{called}", ("../foreign",)),
                (f"{mark}:{called}", (f"{here}/../foreign",)),
                (f"{mark}:{called}", (f"{here}/linked",)),
                (f"{mark}:{called}", (here, foreign)),
                (f"{mark}:{called}", (foreign, here)),
                (f"stolen:{called}", (here,)),
                (f"linked.{mark}:{called}", (here,)),
                (f"below:{called}", (f"{here}/.venv/lib/site-packages",)),
                (f"mine:{called}", (".",)),
                ("mine:os.system", (here,)),
                ("mine:shell", (here,)),
                ("mine:subprocess.call", (here,)),
                ("os:system", (here,)),
                ("subprocess:call", ()),
                (f"nowhere:{called}", (foreign,)),
            ]
        )


def a_cell(canaries: Canaries, chance: random.Random) -> CellSpec:
    """A small cell whose spec names foreign code in one place, or in several."""
    while True:
        changes: dict[str, Any] = {"context_length": chance.choice([8, 16, 32]), "batch_size": chance.choice([1, 2])}
        for field in chance.sample(list(_FIELDS), chance.choice([1, 1, 1, 2, 3])):
            name, changes["model_path"] = canaries.named(_FIELDS[field], chance)
            changes[field] = (("softmax", name),) if field == "annotations" else name
            if field == "optimizer":
                changes["pass_"] = "train-step"
            if field == "parallel":
                changes |= {"ranks": 2, "pass_": "train-step"}
            if field == "model":
                touch = f"touch {canaries.home}/touched; {canaries.command}"
                changes["model_args"] = chance.choice([(), (("command", touch),), (("args", touch),)])
        with contextlib.suppress(SpecError):
            return small_spec(**changes)


def events_of(canaries: Canaries, chance: random.Random, *, jobs: bool = False) -> list[Event]:
    """A session of foreign cells: one is over, one failed, one was stopped, the others wait; perhaps of a race."""
    cells = [a_cell(canaries, chance) for _ in range(_CELLS)]
    device = DeviceInfo(name="cpu", label="Some CPU", precisions=("fp32", "bf16"))
    start = [
        msgspec.structs.replace(
            event, environment=msgspec.structs.replace(ENVIRONMENT, devices=(device,), host=os.uname().nodename)
        )
        if isinstance(event, EnvironmentRead)
        else msgspec.structs.replace(event, reports=chance.choice([(), ASKED_FOR]))
        if isinstance(event, CellsQueued)
        else event
        for event in session_start(cells)
    ]
    events = [*start, *cell_start(0), *steps(0, (0.1,), (0.1, 0.1, 0.1)), *cell_start(1)]
    events[len(start) : len(start)] = (
        [JobSubmitted(at=START + 3, job="1", launcher="slurm", id="s/1", cells=tuple(range(_CELLS)))] if jobs else []
    )
    events += [
        CellFinished(at=START + 20, cell=0, status="ok"),
        CellFinished(at=START + 21, cell=1, status="failed", error="no", unusable=chance.choice([None, "evil:Net"])),
        CellFinished(at=START + 22, cell=2, status="cancelled"),
    ]
    if not jobs and chance.random() < 0.3:
        base = small_spec(pass_="train-step")
        name, folders = canaries.named("attn", chance)
        over = (Over("attention", ("naive", name)), Over("optimizer", ("adamw", "evil:AdamW")))
        race = Tuning(base=base, over=over, budget_s=3.0, model_path=folders)
        events.append(TuningStarted(at=START + 23, tuning=race, candidates=(base, *cells[:2])))
    return [*events, *([SessionEnded(at=START + 30, reason="interrupted")] if chance.random() < 0.5 else [])]


def a_foreign_log(folder: Path, number: int, canaries: Canaries, chance: random.Random) -> Path:
    """Write a foreign session into the folder, perhaps damaged, perhaps with a folder of jobs."""
    jobs = chance.random() < 0.25
    events = events_of(canaries, chance, jobs=jobs)
    lines = [to_line(event) for event in events]
    match chance.randrange(6):
        case 0:
            lines = [line for line in lines if chance.random() < 0.9] or lines
        case 1:
            lines[-1] = lines[-1][: chance.randrange(len(lines[-1]))]
        case 2:
            lines = [msgspec.json.encode(each) + b"\n" for each in map(msgspec.json.decode, lines)]
            place = chance.randrange(len(lines))
            value = msgspec.json.decode(lines[place])
            path = hostile.a_place(value, chance)
            if path[-1] not in ("measure_steps", "warmup_steps", "type", "num_layers", "batch_size"):
                with contextlib.suppress(ValueError, TypeError, msgspec.MsgspecError):
                    lines[place] = hostile.line(hostile.put(value, path, lambda value: hostile.spoilt(value, chance)))
    log = folder / f"2026-02-{1 + number % 28:02}T00-00-00-{number:04}.jsonl"
    log.write_bytes(b"".join(lines))
    if jobs:
        command = canaries.command
        choice = chance.choice(
            [
                LaunchChoice(launcher="slurm", partition=f"a; {command}", parameters=(("prolog", command),)),
                LaunchChoice(launcher="local"),
            ]
        )
        beside = folder_of(log)
        beside.mkdir()
        (beside / "launcher.json").write_bytes(msgspec.json.encode(choice))
        specs = [spec for event in events if isinstance(event, CellsQueued) for spec in event.specs]
        cells = tuple(JobCell(number, spec) for number, spec in enumerate(specs))
        request = JobRequest(session=log.stem, job="1", cells=cells, predict=True)
        request_path(beside, "1").write_bytes(msgspec.json.encode(request))
        (beside / "launcher.mark").write_text(chance.choice(["", "0" * 64]))
    return log


def questions(log: Path) -> dict[str, list[str]]:
    """A command line for each command that reads a session, which names this one."""
    name = str(log)
    quick = [*SMALL, "--pass", "forward"]
    request = request_path(folder_of(log), "1")
    return {
        "problems": ["problems", name, "--edition", "2024"],
        "estimate": ["estimate", *quick, "--session", name],
        "tune": ["tune", *SMALL, "--over", "attention=naive,sdpa", "--dry-run", "--session", name],
        "resume": ["resume", name, "--timeout", "10"],
        "resume, failed": ["resume", name, "--failed", "--timeout", "10"],
        "show": ["show", name],
        "sessions": ["sessions"],
        "compare": ["compare", name, name],
        "export": ["export", name, "--format", "json"],
        "reference": ["reference", name],
        "plan": ["plan", "--size", "small", "--measured", name, "--link", "400Gb/s"],
        "watch": ["watch", name, "--format", "json"],
        "cancel": ["cancel", name],
        "open": ["open", name],
        "rename": ["rename", name, "a name"],
        "annotate": ["annotate", name, "a note"],
        "run-job": ["run-job", str(request if request.exists() else name)],
        "bundle": ["bundle", name, "-o", str(log.with_suffix(".zip"))],
        "verify": ["verify", str(log.with_suffix(".zip")), "--rerun"],
    }


def others(log: Path) -> dict[str, list[str]]:
    """A command line for each other command, in a folder of sessions that are foreign."""
    given = [*SMALL, "--session-dir", str(log.parent)]
    return {
        "bench": ["bench", *given, "--pass", "forward"],
        "ab": ["ab", "--a", "--precision fp32", "--b", "--precision bf16", "--rounds", "2", *given],
        "gate": ["gate", "--help"],
        "comm": ["comm", "--size", "1MB", "--ranks", "2", "--device", "cpu", "--session-dir", str(log.parent)],
        "fit": ["fit", *SMALL, "--limit", "4"],
        **{kind: [kind, *given] for kind in ASKED_FOR},
        "presets": ["presets"],
        "example": ["example", "attention"],
        "config": ["config"],
        "doctor": ["doctor", "--code", "evil:Net", "--model-path", str(log.parent)],
        "peak": ["peak", "--device", "nowhere"],
        "selftest": ["selftest", "--help"],
        "completion": ["completion", "bash"],
        "run-ranks": ["run-ranks", "--help"],
        "summary": ["summary", str(log), "--output", str(log.with_suffix(".summary"))],
        "delete": ["delete", str(log), "--yes"],
    }


@contextlib.contextmanager
def quick_predictions() -> Iterator[None]:
    """Have cells without code of their own predicted at once: those of the handouts take minutes."""
    predict = Predictor.predict

    def quick(self: Predictor, specs: Sequence[CellSpec], on_each: Any = lambda _: None, **more: Any) -> Any:
        found: dict[CellSpec, Any] = {}
        for spec in {prediction_key(spec): spec for spec in specs}.values():
            if spec.brings_own_code or spec.annotations:
                found |= {each.spec: each for each in predict(self, [spec], on_each, **more)}
            else:
                found[spec] = made_prediction(spec)
                on_each(found[spec])
        return tuple(found.values())

    with mock.patch.object(Predictor, "predict", quick):
        yield


class Finding(NamedTuple):
    """Something that ran, and what it ran for."""

    log: Path
    asked: str
    marks: tuple[str, ...]


def ask_commands(log: Path, canaries: Canaries, asked: dict[str, list[str]]) -> Iterator[tuple[Answer, Finding | None]]:
    """Run these command lines in this process, whose fork server is warm."""
    for name, words in asked.items():
        answer = ask(words)
        marks = tuple(canaries.marks())
        yield answer, Finding(log, name, marks) if marks else None


KEYS = [
    key
    for meaning, each in MEANINGS.items()
    if meaning not in ("run", "quit", "quit-now", "pause", "save-file")
    for key in each.keys.split(",")[:1]
]
"""Every key with a meaning, but those that run the choices of the form, and leave."""
_TABS = "1234567890ilpC"


async def press_keys(folder: Path, logs: Sequence[Path], chance: random.Random, most: int = 20) -> int:
    """Open each session in an app that runs cells, and press keys on tabs in a random order, `most` on each session;
    no dialog is agreed to. Returns the number of keys."""
    from textual.widgets import Input

    from cs336_tui.runner.bench import Bench
    from cs336_tui.tui.app import Cs336App
    from cs336_tui.tui.tabs.sessions import SessionsPane

    def make_bench(sink: Any, log: Path | None) -> Bench:
        return Bench(
            sink,
            session_dir=log.parent if log else folder,
            session=log.stem if log else None,
            timeout_s=10,
            device_interval_s=0,
        )

    app, pressed = Cs336App(make_bench, session_dir=folder), 0
    async with app.run_test(size=(120, 40)) as pilot:

        async def press(*keys: str) -> None:
            nonlocal pressed
            for key in keys:
                await pilot.press(key)
                pressed += 1
                while len(app.screen_stack) > 1:
                    await pilot.press("escape")
                if isinstance(app.focused, Input):
                    await pilot.press("escape")

        async def wait(over: Callable[[], bool], within_s: float = 30.0) -> None:
            give_up_at = time.monotonic() + within_s
            while not over() and time.monotonic() < give_up_at:
                await pilot.pause(0.02)

        await wait(lambda: app.live.state.environment is not None)
        for log in logs:
            await press("7")
            pane = app.query_one(SessionsPane)
            await wait(lambda pane=pane, log=log: any(info.path == log for info in pane.infos), 5.0)  # type: ignore[misc]
            places = [place for place, info in enumerate(pane.infos) if info.path == log]
            await press("home", *["down"] * (places or [0])[0], "enter")
            await pilot.pause(0.1)
            for key in chance.sample(KEYS, most):
                await press(chance.choice(_TABS), key)
            for key in (*_TABS, "n", "7", "u", "6", "A", "R", "u"):
                await press(key)
            await press("7", "home", *["down"] * (places or [0])[0], "u")
            await wait(lambda: not app.run_in_progress, 15.0)
            await press("s", "b")
    await asyncio.to_thread(app.close)
    return pressed


@click.command()
@click.option("--count", default=200, show_default=True, help="Foreign logs.")
@click.option("--others", "each_other", default=20, show_default=True, help="Other commands at each so many logs.")
@click.option("--app", "each_app", default=10, show_default=True, help="Logs in one start of the app.")
@click.option("--seed", default=2612, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(count: int, each_other: int, each_app: int, seed: int, output: Path | None) -> None:
    findings: list[Finding] = []
    faults, asked, keys, used = 0, 0, 0, set[str]()
    with tempfile.TemporaryDirectory(prefix="cs336-foreign-") as home:
        canaries = Canaries(Path(home))
        with canaries.entered(), quick_predictions():
            for first in range(0, count, each_app):
                folder = Path(home, f"sessions-{first}")
                folder.mkdir()
                logs = [
                    a_foreign_log(folder, number, canaries, random.Random(f"{seed} foreign {number}"))
                    for number in range(first, min(first + each_app, count))
                ]
                for number, log in enumerate(logs, first):
                    lines = questions(log) | (others(log) if number % each_other == 0 else {})
                    for answer, finding in ask_commands(log, canaries, lines):
                        asked, faults = asked + 1, faults + bool(answer.raised)
                        used.add(answer.words[0])
                        if answer.raised:
                            click.echo(f"{answer.words!r:.200}\n{answer.raised[-1500:]}", err=True)
                        findings += [finding] if finding else []
                keys += asyncio.run(press_keys(folder, logs, random.Random(f"{seed} keys {first}")))
                if marks := canaries.marks():
                    findings.append(Finding(folder, "the app", tuple(marks)))
                click.echo(f"{first + len(logs)}/{count} logs, {len(findings)} findings", err=True)
        touched = Path(home, "touched").exists()
    for finding in findings:
        click.echo(
            f"{finding.asked} ran code of {finding.log.name}: {', '.join(dict.fromkeys(finding.marks))}", err=True
        )
    ran = sum(len(finding.marks) for finding in findings) + touched
    missing = sorted(COMMANDS.keys() - used)
    body = table(
        ["foreign logs", "command lines", "commands", "keys in the app", "imports and executions", "tracebacks"],
        [[str(count), str(asked), f"{len(used)} of {len(COMMANDS)}", str(keys), str(ran), str(faults)]],
    )
    command = f"python -m benchmarks.foreign_logs --count {count} --seed {seed}"
    publish("Foreign logs", command, body + (f"\n\nnot asked: {', '.join(missing)}" if missing else ""), output)
    sys.exit(bool(ran or faults or missing))


if __name__ == "__main__":
    main()
