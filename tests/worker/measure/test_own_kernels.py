"""Kernels of a user's own: the check of an attention against naive attention, the time that they take to compile, and
the choices of their autotuners. Triton's own classes stand in for it, as far as they keep these choices."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from cs336_tui.analysis.referee import agreeing, refereed
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import Precision
from cs336_tui.events import events as ev
from cs336_tui.events.audit import AttentionCheck, Audit
from cs336_tui.runner.ranks import RankFold
from cs336_tui.worker.measure.autotuned import autotuned, kernels
from cs336_tui.worker.measure.cell import run_cell
from cs336_tui.worker.measure.referee.kernels import LENGTHS, attention_checks
from cs336_tui.worker.workload.import_problems import in_one_line, is_users_file, remember
from cs336_tui.worker.workload.precision import RECIPES, autocast_for
from tests.analysis.judging import ON_CPU, a_cell
from tests.worker.measure.cells import UsersFolder, small_spec

CPU = torch.device("cpu")
ATTENTION = """
import torch

def flash(q, k, v, is_causal=False, wrong: str = "", block: int = 16):
    length = q.shape[-2]
    if wrong == "raises" and length % block:
        raise RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448")
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if is_causal and not (wrong == "looks ahead"):
        scores = scores.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), float("-inf"))
    out = scores.softmax(-1) @ v
    if wrong == "odd" and length % 2:
        out = torch.cat([out[..., :-1, :], out[..., -1:, :] * 0], -2)
    if wrong == "gradient":
        out = out.detach() + (out - out.detach()) * 1.5
    return out.detach() if wrong == "no backward" else out
"""


@pytest.fixture
def folder(folder: Path) -> UsersFolder:
    return UsersFolder(folder)


def checked(folder: UsersFolder, wrong: str = "", **choices: Any) -> tuple[CellSpec, tuple[AttentionCheck, ...]]:
    arguments = (("wrong", wrong),)
    spec = small_spec(
        attention=f"{folder.write(ATTENTION)}:flash", attention_args=arguments, model_path=folder.paths, **choices
    )
    return spec, tuple(attention_checks(spec, CPU, autocast_for(RECIPES[spec.precision], "cpu")))


def judged(spec: CellSpec, checks: tuple[AttentionCheck, ...]) -> tuple[tuple[int, int] | None, Any]:
    cell = a_cell([0.1] * 10, spec=ON_CPU | {"precision": spec.precision}, audit=Audit(attention=checks))
    return agreeing(cell), refereed(cell)["differs-elsewhere"]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_a_right_attention_agrees_in_every_form(folder: UsersFolder, precision: Precision) -> None:
    spec, checks = checked(folder, precision=precision)
    assert [each.form for each in checks] == [
        f"{mask}, {length} tokens" for mask in ("causal", "not causal") for length in LENGTHS
    ]
    found, finding = judged(spec, checks)
    assert found == (6, 6)
    assert finding.holds is False
    assert finding.evidence == "its attention is naive attention in 6 of 6 forms"


@pytest.mark.parametrize(
    ("wrong", "agree", "evidence"),
    [
        ("looks ahead", 3, "it differs in 3, causal, 33 tokens: output by"),
        ("odd", 2, "it differs in 4, causal, 33 tokens: output by"),
        ("gradient", 0, "gradient of queries by 50 %"),
    ],
)
def test_a_wrong_attention_differs_in_the_forms_in_which_it_is_wrong(
    folder: UsersFolder, wrong: str, agree: int, evidence: str
) -> None:
    found, finding = judged(*checked(folder, wrong))
    assert found == (agree, 6)
    assert finding.holds is True
    assert evidence in finding.evidence


def test_a_form_that_raises_is_no_difference_but_has_its_reason(folder: UsersFolder) -> None:
    found, finding = judged(*checked(folder, "raises"))
    assert found == (2, 6)
    assert finding.holds is False
    assert "no result in 4, causal, 33 tokens: RuntimeError: out of resource: shared memory" in finding.evidence


def test_a_cell_without_a_backward_needs_no_gradients(folder: UsersFolder) -> None:
    assert judged(*checked(folder, "no backward", pass_="forward"))[0] == (6, 6)
    assert judged(*checked(folder, "no backward", pass_="forward+backward"))[0] == (0, 6)


TRITON = """
import time
import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

kernel = JITFunction(0.2)
tuned = Autotuner(kernel)


class Metaclass(type):
    __module__ = property(lambda _: "of no text")


class Odd(metaclass=Metaclass): ...


odd = Odd()

def flash(q, k, v, is_causal=False, BLOCK_M: int = 16):
    kernel.run(BLOCK_M)
    tuned.choose((q.shape[-2], "torch.float32"))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
"""


class Config(str):
    __slots__ = ()


class JITFunction:
    def __init__(self, compile_s: float) -> None:
        self.compile_s, self.compiled = compile_s, set[int]()

    def run(self, block: int) -> None:
        if block not in self.compiled:
            self.compiled.add(block)
            time.sleep(self.compile_s)


class Autotuner:
    """Keeps what Triton's does: `cache`, and the `configs_timings` of what was tuned last, in ms."""

    def __init__(self, fn: JITFunction) -> None:
        self.fn, self.base_fn = fn, SimpleNamespace(__name__="attn_fwd")
        self.cache: dict[Any, Config] = {}
        self.configs_timings: dict[Config, list[float]] = {}

    def choose(self, key: tuple[object, ...]) -> None:
        self.configs_timings = {Config("BLOCK_M: 64"): [2.0, 1.9, 2.1], Config("BLOCK_M: 128"): [3.0, 2.9, 3.1]}
        self.cache[key] = min(self.configs_timings, key=lambda each: self.configs_timings[each])


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, members in {"jit": [JITFunction], "autotuner": [Autotuner, Config]}.items():
        module = ModuleType(f"triton.runtime.{name}")
        for member in members:
            monkeypatch.setattr(member, "__module__", module.__name__)
            setattr(module, member.__name__, member)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("triton", "triton.runtime"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    yield
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("triton")
def test_own_kernels_are_compiled_before_the_first_step_and_their_choices_recorded(folder: UsersFolder) -> None:
    spec = small_spec(
        attention=f"{folder.write(TRITON)}:flash", model_path=folder.paths, warmup_steps=0, check="off", pass_="forward"
    )
    events: list[ev.Event] = []
    run_cell(spec, 0, events.append, lambda: False)
    prepared = next(event for event in events if isinstance(event, ev.ModelPrepared))
    assert prepared.compile_s is not None
    assert 0.2 <= prepared.compile_s < 2.0
    end = events[-1]
    assert isinstance(end, ev.CellFinished)
    assert end.status == "ok"
    ((choice,),) = end.autotuned
    assert choice == ev.Autotuned(
        by="triton",
        kernel="attn_fwd",
        key=f"{spec.context_length}, torch.float32",
        chosen="BLOCK_M: 64",
        times_s={"BLOCK_M: 64": 0.002, "BLOCK_M: 128": 0.003},
    )
    assert end.summary is not None
    assert end.summary.mean_s is not None
    assert end.summary.mean_s < 0.2


@pytest.mark.usefixtures("triton")
def test_kernels_of_an_installed_package_are_no_own_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = ModuleType("own_installed")
    installed.kernel = JITFunction(0.0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, installed.__name__, installed)
    remember(str(tmp_path), named=True)
    for place, is_own in (("site-packages", False), ("mine", True)):
        installed.__file__ = str(tmp_path / place / "library.py")
        assert any(kernels(is_users_file)) is is_own
        assert any(kernels())


def test_without_triton_nothing_is_looked_for() -> None:
    assert not any(kernels())
    assert autotuned() == ()


def test_inductors_choices_are_read_from_what_it_keeps(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("cache") / "cache"
    timings = {"extern-mm": 2.0, "triton_mm-1": 1.5, "failed": float("inf")}
    kept = {"mm": {"(8, 8)": {"high": timings}, "(9, 9)": {"high": {"extern-mm": 1.0}}}}
    file.write_bytes(msgspec.json.encode({"cache": kept}).replace(b"null", b"Infinity"))
    code = ModuleType("compiled")
    code.triton_poi_0 = SimpleNamespace(autotune_time_taken_ns=5, launchers=[SimpleNamespace(config="XBLOCK: 8")])  # type: ignore[attr-defined]
    code.triton_poi_1 = SimpleNamespace(autotune_time_taken_ns=0, launchers=[SimpleNamespace(config="XBLOCK: 8")])  # type: ignore[attr-defined]
    cache = SimpleNamespace(
        PyCodeCache=SimpleNamespace(modules=[code]), CacheBase=SimpleNamespace(get_local_cache_path=lambda: file)
    )
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", cache)  # type: ignore[arg-type]
    generated, product = autotuned()
    assert generated == ev.Autotuned(by="inductor", kernel="triton_poi_0", chosen="XBLOCK: 8")
    times_s = {"triton_mm-1": 0.0015, "extern-mm": 0.002}
    assert product == ev.Autotuned(by="inductor", kernel="mm", key="(8, 8)", chosen="triton_mm-1", times_s=times_s)
    monkeypatch.setattr("cs336_tui.worker.measure.autotuned.USERS_CACHE_FOLDER", str(file.parent))
    assert autotuned() == (generated,)  # the file may be of other cells


def test_a_cell_of_several_ranks_has_the_choices_of_each() -> None:
    fold = RankFold(0, 3)
    choices = [(ev.Autotuned(by="triton", kernel="k", chosen=chosen),) for chosen in ("A", "B")]
    for rank, choice in enumerate([(), *choices]):
        list(fold.add(rank, ev.CellFinished(at=1.0, cell=0, status="ok", autotuned=(choice,) if choice else ())))
    assert fold.end().autotuned == ((), *choices)


class CompilationError(Exception):
    """As Triton's: the source first, the reason last; of a function that a kernel calls in its cause."""


def test_the_reason_of_a_kernel_that_does_not_compile_is_told_not_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompilationError, "__module__", "triton.compiler.errors")
    inner = CompilationError("at 3:4:\n    x = tl.dot(a, b)\n        ^\nAssertionError('shapes')\n")
    outer = CompilationError("at 9:1:\n    inner(x)\n    ^")
    outer.__cause__ = inner
    assert in_one_line(outer) == "CompilationError: AssertionError('shapes')"
