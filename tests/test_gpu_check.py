"""The one command for a GPU machine asks its parts for nothing that they do not know."""

from __future__ import annotations

import importlib

import click
import pytest

from benchmarks.gpu_check import STEPS

BENCHMARKS = [arguments for _, arguments, _ in STEPS if arguments[1].startswith("benchmarks.")]


@pytest.mark.parametrize("arguments", BENCHMARKS, ids=lambda arguments: arguments[1])
def test_every_benchmark_takes_its_options(arguments: list[str]) -> None:
    _, module, *options = arguments
    command = importlib.import_module(module).main
    assert isinstance(command, click.Command)
    command.make_context(module, [*options, "--output", "report.md"])


def test_there_are_benchmarks_to_run() -> None:
    assert len(BENCHMARKS) >= 3
