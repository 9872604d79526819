"""Small cells run in this process, alone or in turns, their reports, and cells of models in a user's folder."""

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, Event, ModelBuilt, StageChanged, StepsTimed
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import MemoryReport, ReportRequest
from cs336_tui.worker.measure.ab import run_round
from cs336_tui.worker.measure.cell import run_cell
from cs336_tui.worker.measure.kernels import profile_kernels
from cs336_tui.worker.measure.memory_record import record_memory
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.compile_and_capture import run_whole, why_cannot_compile
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.imported_components import import_model
from cs336_tui.worker.workload.passes import Step
from tests import watching
from tests.worker.workload.own_code import Folder

multiplies_float8 = pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU"),
    reason="this torch multiplies in float8 on CUDA alone",
)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's address-space limit")
_WHY = why_cannot_compile("cpu")
can_compile = pytest.mark.skipif(_WHY is not None, reason=_WHY or "")


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """A test that has a C++ compiler work for seconds, on a busy machine for minutes. It shares the caches of all."""
    return can_compile(pytest.mark.usefixtures("warm_cache")(pytest.mark.timeout(300)(test)))


def c_library(path: Path, source: str) -> str:
    """A shared library of these lines of C; returns its path."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    written = path.with_suffix(".c")
    written.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, written], check=True, timeout=60)
    return str(path)


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """Let this process map `more_bytes` more than it has, as a machine with little memory left would."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def small_spec(**changes: Any) -> CellSpec:
    """A cell that takes milliseconds on a CPU, with `changes`."""
    fields: dict[str, Any] = {
        "d_model": 16,
        "d_ff": 24,
        "num_layers": 2,
        "vocab_size": 40,
        "batch_size": 2,
        "pass_": "forward+backward",
        "warmup_steps": 2,
        "check": "off",
    }
    return watching.small_spec(**(fields | changes))


USERS_MODELS = Path(__file__).with_name("users_models.py").read_text()


def of_user(folder: Path, model: str, lines: str = "", **changes: Any) -> dict[str, Any]:
    """Fields of a spec with a model of a user's own: of `users_models`, or of these lines, which follow them."""
    (folder / "own_models.py").write_text(USERS_MODELS + lines)
    small = {"d_model": 8, "num_heads": 2, "num_layers": 1}
    return {"model": f"own_models:{model}", "model_path": (str(folder),)} | small | changes


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


@dataclass
class Report:
    """The events of one cell, with queries for tests."""

    events: list[Event]

    @property
    def finished(self) -> CellFinished:
        last = self.events[-1]
        assert isinstance(last, CellFinished)
        return last

    @property
    def built(self) -> ModelBuilt:
        (built,) = (event for event in self.events if isinstance(event, ModelBuilt))
        return built

    @property
    def outline(self) -> list[str]:
        """Stages by name, every other event by type."""
        return [event.stage if isinstance(event, StageChanged) else type(event).__name__ for event in self.events]

    def steps(self, kind: str) -> list[StepsTimed]:
        return [event for event in self.events if isinstance(event, StepsTimed) and event.kind == kind]

    def times_s(self, kind: str = "measured") -> list[float]:
        return [time for event in self.steps(kind) for time in event.times_s]

    def phase_s(self, phase: str, kind: str = "measured") -> list[float]:
        return [time for event in self.steps(kind) for time in event.phases_s[phase]]


def run(
    spec: CellSpec,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    watch: Callable[[Event], None] = lambda _event: None,
    nvtx: bool = False,
) -> Report:
    """Run the cell here; `watch` sees each event as it is emitted."""
    events: list[Event] = []
    run_cell(spec, 7, lambda event: (events.append(event), watch(event)), cancelled, nvtx=nvtx)
    return Report(events)


A, B = 4, 5


class Rounded:
    """The events of a round of two cells here; `watch` sees each as it is emitted."""

    def __init__(
        self,
        a: CellSpec,
        b: CellSpec,
        *,
        b_first: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
        watch: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        self.events: list[Event] = []
        run_round((a, b), (A, B), lambda event: (self.events.append(event), watch(event)), cancelled, b_first=b_first)
        self.a, self.b = self.of(A), self.of(B)

    def of(self, cell: int) -> Report:
        return Report([event for event in self.events if getattr(event, "cell", None) == cell])

    def order(self, kind: str = "measured") -> str:
        steps = [event for event in self.events if isinstance(event, StepsTimed) and event.kind == kind]
        return "".join("AB"[event.cell - A] for event in steps)


class Operations(TorchDispatchMode):
    """Names of all that torch runs, and the dtypes of results; None of one that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.dtypes: list[torch.dtype | None] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        out = func(*args, **(kwargs or {}))
        self.dtypes.append(getattr(out[0] if isinstance(out, tuple) else out, "dtype", None))
        return out


def run_step(workload: Workload, spec: CellSpec) -> Step:
    """A step of the workload, which has run once; its gradients are there."""
    step = workload.step(spec)
    step.prepare()
    run_whole(step)
    return step


def saved_by_hooks(forward: Callable[[], Any], without: Iterable[torch.Tensor] = ()) -> tuple[Any, int]:
    """What it returns, and bytes of the storages that autograd saves in it, those of some tensors left out, by torch's
    own hooks."""
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = forward()
    for tensor in without:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    return out, sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def counted_flops(spec: CellSpec) -> dict[str, int]:
    """FLOPs that torch's own counter counts in each phase of a real step."""
    step = build(spec, configure_torch(spec)).step(spec)
    found = {}
    for phase in step.phases:
        with FlopCounterMode(display=False) as counter:
            step.run(phase)
        found[phase] = counter.get_total_flops()
    return found


def kernels_of(spec: CellSpec, folder: str | None = None) -> KernelReport:
    return profile_kernels(ReportRequest(kind="kernels", spec=spec, folder=folder), lambda _stage: None)


def live_totals(report: MemoryReport, *, of_tensors: bool = False) -> list[int]:
    """Live bytes after each event; `of_tensors` without the scratch space of running kernels, which a prediction does
    not see."""
    change = [0] * (report.events + 1)
    for size, born, died, form in zip(report.bytes, report.born, report.died, report.form_of, strict=True):
        if form >= 0 or not of_tensors:
            change[born] += size
            change[died if died >= 0 else report.events] -= size
    return list(accumulate(change))[:-1]


def memory_of(spec: CellSpec, stage: Callable[[str], object] = lambda _stage: None) -> MemoryReport:
    return record_memory(ReportRequest(kind="memory", spec=spec), stage)
