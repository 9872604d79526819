"""The corpus of the referee: what it holds, and that a sample of it is judged rightly. All of it:
``python -m benchmarks.referee``."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from cs336_tui.analysis.judgement import VerdictName
from cs336_tui.analysis.verdicts import judge
from cs336_tui.session.states import CellState
from tests.referee.corpus import CHEATS, DOUBTS, FAILED, USERS, Cheat, Honest, components, spec_of
from tests.referee.honest_cells import HONEST
from tests.runner.running import Running

FOUND = (
    "model/MemoisedByIdentity",
    "model/Constant/train-step",
    "model/FirstTwoSequences",
    "model/EveryOtherBlock",
    "model/NoGradients/train-step",
    "model/WorkInZeroGrad/forward+backward",
    "model/PatchesTimer",
    "model/InBfloat16",
    "attention/first_two_sequences",
    "attention/not_causal",
    "attention/ZeroBackward/train-step",
    "optimizer/Nothing",
    "optimizer/WrongSign",
    "optimizer/FixedState",
    "optimizer/SignAlone",
    "optimizer/OneElement",
    "model/DrawsAndSkips",
    "model/SwitchesToTf32",
    "attention/MemoisedBackward/backward/alone",
    "loss/every_second_token",
    "loss/smoothed_every_second_token",
    "loss/smoothed_of_leaves",
    "loss/of_no_value",
    "parallel/StopsLater",
    "model/OneBlockLessWhileMeasured",
    "model/PatchesActivation",
    "model/PatchesModule",
    "optimizer/EveryFourthStep",
    "optimizer/MatricesEveryFourthStep",
    "optimizer/LeftColumns",
    "optimizer/ClearsAndStays",
)
"""Cheats that the test runs; add to them what was missed once."""
CLEAN = (
    "size/2024/tiny/train-step",
    "size/2026/10B/inference",
    "shape/feed-forward network as wide as the vocabulary",
    "pass/backward",
    "attention/sdpa/train-step",
    "attention/honest:Tiled/train-step",
    "checkpoint/1/train-step",
    "accumulate/2/train-step",
    "optimizer/adamw-fused/train-step",
    "optimizer/honest:AdamW/train-step",
    "optimizer/honest:Clips/train-step",
    "optimizer/honest:ClearsGradients/train-step",
    "optimizer/honest:MomentumInPlace/train-step",
    "dropout/0.1/train-step",
    "precision/bf16-mixed/train-step",
    "model/honest_models:HuggingFaceLike/train-step",
    "model/honest_models:GPT/train-step",
    "model/arguments",
    "attention alone/sdpa/bf16",
    "optimizer/two steps",
    "model/honest_models:QuantisesTheBatch/inference",
    "model/honest_models:BatchedExperts/train-step",
    "model/honest_models:Convolutions/train-step",
    "model/honest_models:DropsBlocks/train-step",
    "model/honest_models:TorchsEncoder/inference",
    "model/honest_models:SlowFirstForward/forward",
    "model/honest_models:PadsVocabulary/forward",
    "loss/honest:logsumexp_loss/forward+backward",
    "loss/honest:label_smoothing/train-step",
    "loss/honest:z_loss/train-step",
    "parallel/ddp",
)
"""Honest cells that the test runs; add to them what was doubted once."""
OF_TIMES = {"work-outside-steps", "impossible", "remembers-inputs"}
"""Doubts that rest on times, which other tests beside it change: `benchmarks.referee` counts those."""
CASES: dict[str, Cheat | Honest] = {case.id: case for case in (*CHEATS, *HONEST)}
judges = pytest.mark.skipif(DOUBTS.isdisjoint(get_args(VerdictName)), reason="there is no referee yet")


def test_every_case_has_a_name_of_its_own_and_there_are_enough() -> None:
    assert len(CASES) == len(CHEATS) + len(HONEST)
    assert len(CHEATS) >= 45
    assert len(HONEST) >= 64
    kinds = {case.id.partition("/")[0] for case in CHEATS}
    assert kinds == {"model", "attention", "optimizer", "loss", "norm", "parallel"}


def test_verdicts_are_the_tools() -> None:
    said: frozenset[str] = frozenset().union(*(case.verdicts for case in CHEATS))
    assert said <= {*get_args(VerdictName), *DOUBTS, FAILED}
    assert said >= DOUBTS


def test_every_cell_can_be() -> None:
    assert {*FOUND, *CLEAN} <= CASES.keys()
    for case in CASES.values():
        spec = spec_of(case)
        assert spec.device == "cpu"
        assert isinstance(case, Honest) or spec != spec_of(case, twin=True), case.id


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The components' modules can be imported; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(USERS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == USERS:
            del sys.modules[name]


@pytest.mark.usefixtures("users")
def test_every_component_is_there_and_cheats_say_what_they_do() -> None:
    named = {name for case in CASES.values() for name in components(case)}
    assert sum(name.startswith("cheating_") for name in named) >= 45
    for name in named:
        module, _, attribute = name.partition(":")
        if attribute[:1].isdigit():  # the size of buckets
            continue
        found = getattr(importlib.import_module(module), attribute)
        if module.startswith("cheating_") and attribute not in ("honest", "AdamW", "DDP"):
            assert found.__doc__, name


@pytest.mark.usefixtures("users")
def test_no_cheat_is_left_out() -> None:
    """Each public component with a docstring is named by a case, or another one inherits it."""
    used = {name for case in CASES.values() for name in components(case)}
    for file in USERS.glob("cheating_*.py"):
        module = importlib.import_module(file.stem)
        own = [each for each in vars(module).values() if getattr(each, "__module__", "") == file.stem and each.__doc__]
        bases = {base for each in own if isinstance(each, type) for base in each.__mro__[1:]}
        unused = {
            each.__name__
            for each in own
            if not each.__name__.startswith("_") and each not in bases and f"{file.stem}:{each.__name__}" not in used
        }
        assert unused == set(), file.name


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.bench.close()


def doubts_of(cell: CellState) -> set[Any]:
    judgement = judge(cell)
    return set(judgement.names) if judgement else {FAILED}


@judges
@pytest.mark.timeout(300)
def test_cheats_are_found(running: Running) -> None:
    """One test, so that no second worker runs the sample again."""
    cells = running.run(*(spec_of(CASES[name]) for name in FOUND))
    missed = {}
    for name, cell in zip(FOUND, cells, strict=True):
        case, doubts = CASES[name], doubts_of(cell)
        assert isinstance(case, Cheat)
        if not doubts & case.verdicts:
            missed[name] = (doubts, cell.finished and cell.finished.error)
    assert missed == {}


@pytest.mark.timeout(300)
def test_honest_cells_are_not_doubted(running: Running) -> None:
    cells = dict(zip(CLEAN, running.run(*(spec_of(CASES[name]) for name in CLEAN)), strict=True))
    assert {name: cell.finished for name, cell in cells.items() if cell.status != "ok"} == {}
    assert {name: doubts for name, cell in cells.items() if (doubts := doubts_of(cell) & DOUBTS - OF_TIMES)} == {}
    for name in ("pass/backward", "parallel/ddp"):  # the window, on the clock of the process that runs the cell
        audit = cells[name].finished.audit  # type: ignore[union-attr]
        assert audit is not None
        assert audit.books is not None
        assert audit.books.parent_s is not None
