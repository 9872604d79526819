"""The parts of an estimate: the chosen cells, the devices that they are for, and the predictor."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from cs336_tui.analysis.targets import Target, named_target, target_here
from cs336_tui.cli.streams import StatusLines
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.sweep import UNRESOLVED, Sweep
from cs336_tui.events.environment import Environment, capability_pair
from cs336_tui.events.events import CellsPredicted, DeviceSampled
from cs336_tui.events.gpus import find_gpu
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.predictor import Predictor
from cs336_tui.runner.trust import HasCode, Trust
from cs336_tui.session.state import SessionState


class Machine(NamedTuple):
    """This machine, and what was in use on it just now."""

    environment: Environment
    samples: tuple[DeviceSampled, ...]

    def target(self, device: str) -> Target:
        info = self.environment.device(device)
        assert info is not None, "only cells of devices that are here are asked for"
        return target_here(info, self.environment, [(sample, None) for sample in self.samples])


class AskedCells(NamedTuple):
    """Cells, and what each device of theirs is, by its name; this machine, if they are for it."""

    specs: tuple[CellSpec, ...]
    targets: dict[str, Target]
    machine: Machine | None = None

    def capability_of(self, spec: CellSpec) -> tuple[int, int] | None:
        """The compute capability of the GPU that the spec is for, where it is known."""
        target = self.targets.get(spec.device)
        return capability_pair(target.gpu.capability) if target and target.gpu else None


def settle(
    sweep: Sweep, gpu: str | None, peak: float | None = None, link_bytes_per_s: float | None = None
) -> AskedCells:
    """The sweep's cells and what they are to run on: the GPU of that name, or this machine's devices.

    `peak` states TFLOP/s, `link_bytes_per_s` what a device sends. Raises `SpecError` or `click.UsageError` for what a
    device cannot do.
    """
    asked = _on_named(sweep, gpu) if gpu is not None else _on_this_machine(sweep, read_machine())
    if words := sweep.once_words:
        click.echo(f"note: {words}", err=True)
    flops = None if peak is None else peak * 1e12
    stated = {
        name: msgspec.structs.replace(each, stated_flops=flops, stated_link=link_bytes_per_s)
        for name, each in asked.targets.items()
    }
    return asked._replace(targets=stated)


def _on_named(sweep: Sweep, name: str) -> AskedCells:
    others = [device for device in sweep.devices if device not in UNRESOLVED and not device.startswith("cuda")]
    if others:
        raise click.UsageError(f"--gpu {name}: --device {others[0]} is another device; use one of the two")
    gpu = find_gpu(name)
    specs = sweep.with_devices(("cuda:0",)).cells()
    for precision in (spec.precision for spec in specs if spec.precision not in gpu.precisions):
        can = f"{gpu.name} (compute capability {gpu.capability}) can do {', '.join(gpu.precisions)}"
        raise SpecError("precision", precision, can)
    return AskedCells(specs, {"cuda:0": named_target(gpu)})


def _on_this_machine(sweep: Sweep, here: Machine) -> AskedCells:
    specs = sweep.with_devices(here.environment.resolve(sweep.devices)).cells()
    for spec in specs:
        try:
            here.environment.check(spec)
        except SpecError as error:
            if error.field == "device" and spec.device.startswith("cuda"):
                raise click.UsageError(f"{error}; use --gpu NAME for a GPU that is not in this machine") from None
            raise
    targets = {device: here.target(device) for device in dict.fromkeys(spec.device for spec in specs)}
    return AskedCells(specs, targets, here)


def best_device(gpu: str | None) -> AskedCells:
    """No cells yet, and the one device that they are for: the GPU of that name, or this machine's best."""
    if gpu is not None:
        return AskedCells((), {"cuda:0": named_target(find_gpu(gpu))})
    machine = read_machine()
    (device,) = machine.environment.resolve(("auto",))
    return AskedCells((), {device: machine.target(device)}, machine)


def read_environment() -> Environment:
    """This machine's devices and versions; asks torch in a child process."""
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(lambda _: None, session_dir=Path(scratch), device_interval_s=0)
        with closing(bench):
            bench.prepare()
            return bench.probe()


def read_machine() -> Machine:
    """This machine's devices and what is in use on them. Raises `click.ClickException` when torch offers no device."""
    from cs336_tui.runner.device.gpu import GpuMonitor
    from cs336_tui.runner.device.host import HostReader

    environment = read_environment()
    if not environment.devices:
        raise click.ClickException("; ".join(environment.problems) or "torch finds no device here")
    host = HostReader().sample()
    samples = [DeviceSampled(at=time.time(), host=host)]
    monitor = GpuMonitor()
    for device in environment.devices:
        if device.uuid is not None:
            monitor.follow(device.uuid)
            gpu, why = monitor.sample(time.monotonic())
            samples.append(DeviceSampled(at=time.time(), host=host, gpu=gpu, why=why))
    monitor.close()
    return Machine(environment, tuple(samples))


@contextmanager
def predicting(
    asked: AskedCells,
    also: Iterable[HasCode] = (),
    *,
    state: SessionState | None = None,
    trusted: bool = False,
    within_s: float | None = None,
) -> Iterator[Predictor]:
    """A predictor, whose child processes import the code of what is asked and of `also`. It has predicted the measured
    cells of the session in `state`, where it can be done: they tell how fast a device is."""
    measured = _unpredicted(state, asked, trusted=trusted) if state else ()
    with child_processes() as launcher, closing(Predictor(launcher, capability_of=asked.capability_of)) as predictor:
        launcher.trust.name(*asked.specs, *also, *measured)
        if state and measured:
            found = predictor.predict(measured, within_s=within_s, give_up=lambda _spec, _why: None)
            state.apply(CellsPredicted(at=time.time(), predictions=found))
        yield predictor


def _unpredicted(state: SessionState, asked: AskedCells, *, trusted: bool) -> tuple[CellSpec, ...]:
    """The session's measured cells that are of the targets' kinds and that nobody has predicted yet. Leaves out, with a
    line on standard error, those whose code the log alone names, unless it is `trusted`."""
    trust = Trust()
    trust.name(*asked.specs)
    kinds = {target.kind for target in asked.targets.values()}
    found: list[CellSpec] = []
    withheld: dict[str, None] = {}
    for spec in (cell.spec for cell in state.cells.values() if cell.running.n):
        if spec.device.partition(":")[0] not in kinds or state.prediction_of(spec) is not None:
            continue
        if not trusted and (why := trust.refusal(spec)):
            withheld[why] = None
        else:
            found.append(spec)
    for why in withheld:
        click.echo(f"note: {why}, and the speed of its cells is left out; --trust imports it", err=True)
    return tuple(found)


@contextmanager
def child_processes() -> Iterator[Launcher]:
    """Starts child processes, in a folder of its own while this is entered."""
    with tempfile.TemporaryDirectory(prefix="cs336-tui-") as scratch:
        launcher = Launcher(Path(scratch))
        launcher.prepare()
        launcher.start()
        yield launcher


class Counter:
    """Counts calls on one line of standard error, where that is a terminal; `total` calls clear it."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what, self._total, self._done = what, total, 0
        self._line = StatusLines(sys.stderr)

    def __call__(self, *_: object) -> None:
        self._done += 1
        if self._done == self._total:
            self.clear()
        else:
            self._line.say(f"{self._what} {self._done}" + (f"/{self._total}" if self._total else ""))

    def clear(self) -> None:
        self._line.clear()
