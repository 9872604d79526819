"""Programs that only report steps, for tests of taking turns. Run as a script, it has programs take turns."""

import re
import sys
from pathlib import Path

from cs336_tui.cli.run import StopOnSignal
from cs336_tui.selftest.programs import Program, read_lines
from cs336_tui.selftest.turns import Plan, TurnsProgress, take_turns

STEPS = """
import sys, time
file, took = open(sys.argv[1], "w", buffering=1), float(sys.argv[2])
while True:
    began = time.perf_counter()
    time.sleep(took)
    print(time.time(), time.perf_counter() - began, file=file)
"""
FAMILY = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);" + STEPS
ASKED = "import sys; print('ready 1', flush=True); assert sys.stdin.readline() == 'go\\n';" + STEPS


def stepper(name: str, folder: Path, *, took_s: float = 0.005, code: str = STEPS) -> Program:
    """A process whose steps take about `took_s`."""
    file = folder / f"{name}.steps"
    command = [sys.executable, "-I", "-S", "-c", code, str(file), str(took_s)]
    return Program(name, command, lambda: read_lines(file))


def asked(name: str, folder: Path) -> Program:
    """A stepper in a terminal, which steps only on request."""
    program = stepper(name, folder, code=ASKED)
    return program._replace(in_terminal=True, prompt=re.compile(rb"ready \d"), keys="go\n")


def crew(folder: Path) -> tuple[Program, ...]:
    """Two steppers: one with a child process, one in a terminal."""
    return stepper("family", folder, code=FAMILY), asked("asked", folder)


def tell(progress: TurnsProgress) -> None:
    print(f"round {progress.round}", flush=True)


if __name__ == "__main__":
    with StopOnSignal(lambda: False):
        take_turns(crew, Plan(starts=1, rounds=1000, turn_s=0.3, steps=1), tell)
