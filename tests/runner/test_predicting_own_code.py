"""Predictions of a user's own code: made in children, never kept on disk, and made again after a file has changed."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import prediction_key
from cs336_tui.runner import prediction_cache
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.prediction_cache import PredictionCache, fingerprint
from cs336_tui.runner.predictor import PredictionError, Predictor, TookTooLong
from cs336_tui.runner.trust import Trust
from tests.made_predictions import made_prediction
from tests.watching import small_spec
from tests.worker.workload.own_code import PLAIN


class _Everything(Trust):
    """As if the user had named all code."""

    def refusal(self, spec: CellSpec) -> str:  # noqa: ARG002
        return ""


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_cache, "KEPT_S", 0)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    found = Launcher(tmp_path_factory.mktemp("runner"), trust=_Everything())
    found.prepare()
    found.start()
    return found


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def predictor(launcher: Launcher, kept: Path) -> Iterator[Predictor]:
    found = Predictor(launcher, cache=PredictionCache(kept))
    yield found
    found.close()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of the user's."""
    folder = tmp_path / "own"
    folder.mkdir()
    path = folder / "mine.py"
    path.write_text(PLAIN)
    return path


def spec_of(own: Path, name: str = "Odd", **changes: Any) -> CellSpec:
    return small_spec(model=f"mine:{name}", model_path=(str(own.parent),), pass_="forward", **changes)


def test_it_is_kept_in_memory_alone_and_the_note_is_of_the_cell_that_is_asked_for(
    predictor: Predictor, own: Path, kept: Path
) -> None:
    """One prediction serves eager and compiled cells, since torch.compile changes nothing in it."""
    spec = spec_of(own)
    (found,) = predictor.predict([spec])
    assert found.num_params == spec.vocab_size * spec.d_model + spec.d_model**2
    assert predictor.known([spec]) == (found,)
    assert not kept.exists()
    plain, compiled = small_spec(), small_spec(compile="default")
    assert prediction_key(plain) == prediction_key(compiled)
    one, other = predictor.predict([plain, compiled])
    assert ("torch.compile" in one.note, "torch.compile" in other.note) == (False, True)
    assert one.peak_bytes == other.peak_bytes
    assert len(list(kept.iterdir())) == 1


def test_it_is_kept_for_the_files_as_they_were(own: Path, kept: Path) -> None:
    made = made_prediction(spec_of(own))
    cache = PredictionCache(kept)
    cache.put(made, files=(("before.py", 0, 0),))
    assert cache.get(made.spec) is None
    cache.put(made)
    assert cache.get(made.spec) is not None


def test_a_changed_file_is_predicted_anew(predictor: Predictor, own: Path) -> None:
    spec = spec_of(own)
    (before,) = predictor.predict([spec])
    own.write_text(PLAIN.replace("torch.randn(d_model, d_model)", "torch.randn(d_model, 2 * d_model)").replace(
        "@ self.table.T", "@ self.table.repeat(1, 2).T"
    ))  # fmt: skip
    os.utime(own, ns=(0, 1))  # a clock may be too coarse to tell
    assert predictor.known([spec]) == ()
    (after,) = predictor.predict([spec])
    assert after.num_params == before.num_params + spec.d_model**2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Asks", r"mine\.py:\d+ in forward: it depends on the value of a tensor, known"),
        ("Leaves", r"the model called sys\.exit\(3\) \(mine\.py:\d+ in forward\)"),
        ("Nothing", r"mine has no Nothing"),
    ],
)
def test_what_cannot_be_predicted_says_why_with_the_user_s_line(
    predictor: Predictor, own: Path, name: str, why: str
) -> None:
    with pytest.raises(PredictionError, match=f"no prediction: {why}"):
        predictor.predict([spec_of(own, name)])


def test_those_that_hang_cost_the_others_nothing(predictor: Predictor, own: Path) -> None:
    hangs = "class Hangs(Odd):\n    def forward(self, tokens):\n        import time; time.sleep(1000)\n"
    own.write_text(f"{PLAIN}\n{hangs}")
    asked = [small_spec(), spec_of(own, "Hangs"), spec_of(own), spec_of(own, "Nothing")]
    failed: dict[CellSpec, PredictionError] = {}
    found = predictor.predict(asked, within_s=4, give_up=failed.__setitem__)
    assert [each.spec for each in found] == [asked[0], asked[2]]
    assert list(failed) == [asked[1], asked[3]]
    assert isinstance(failed[asked[1]], TookTooLong)
    assert failed[asked[1]].why == "not computed within 4 s"
    assert "mine has no Nothing" in failed[asked[3]].why


def test_what_a_model_does_to_torch_touches_no_other_prediction(predictor: Predictor, own: Path) -> None:
    own.write_text(PLAIN + "\ntorch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)\n")
    others = [small_spec(), small_spec(context_length=12)]
    alone = predictor.predict(others)
    mixed = [small_spec(context_length=10), spec_of(own), small_spec(context_length=14)]
    found = {each.spec.context_length: each for each in predictor.predict(mixed) if each.spec.model == "reference"}
    peaks = [alone[0].peak_bytes, found[10].peak_bytes, alone[1].peak_bytes, found[14].peak_bytes]
    assert peaks == sorted(peaks)
    assert found[14].by_category["parameters"] == alone[1].by_category["parameters"]


# What is looked at of the user's files


def test_a_module_s_neighbours_and_a_package_s_files_count(tmp_path: Path) -> None:
    package = tmp_path / "repo" / "deep"
    package.mkdir(parents=True)
    for path in (package / "model.py", tmp_path / "single.py", tmp_path / "helper.py"):
        path.write_text("")
    (package / "weights.bin").write_text("not Python")
    own_optimizer = {"model": "reference", "optimizer": "repo.optim:AdamW", "pass_": "train-step"}
    for changes in (*({"model": f"{name}:LM"} for name in ("repo.deep.model", "single", "not_there")), own_optimizer):
        found = fingerprint(small_spec(model_path=(str(tmp_path),), **changes))
        assert {Path(path).name for path, _, _ in found} == {"model.py", "single.py", "helper.py"}


def test_whatever_it_may_import_counts_and_nothing_installed(tmp_path: Path) -> None:
    mine, other = tmp_path / "repo", tmp_path / "other"
    counted = [mine / "train.py", mine / "lib" / "blocks.py", mine / "src" / "deep" / "er.py", other / "kernels.py"]
    left_out = [
        mine / "node_modules" / "a.py",
        mine / ".hidden" / "b.py",
        mine / "env" / "lib" / "c.py",
        mine / "lib" / "site-packages" / "d.py",
    ]
    for path in (*counted, *left_out, mine / "env" / "pyvenv.cfg"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    spec = small_spec(model="train:LM", model_path=(str(mine), str(other)))
    assert {Path(path) for path, _, _ in fingerprint(spec)} == set(counted)
    before = fingerprint(spec)
    for path in counted:
        path.write_text("changed = True")
        assert fingerprint(spec) != before
        before = fingerprint(spec)


def test_of_too_many_files_those_that_are_named_count_and_the_same_ones_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_cache, "_MOST_FILES", 3)
    for name in ("a", "b", "c", "d", "zoo"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text("")
    spec = small_spec(model="zoo.model:LM", model_path=(str(tmp_path),))
    assert [Path(path).parent.name for path, _, _ in fingerprint(spec)] == ["zoo", "a", "b", "c"]


def test_a_sweep_looks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_cache, "KEPT_S", 1e6)
    (tmp_path / "model.py").write_text("")
    specs = [small_spec(model="model:LM", model_path=(str(tmp_path),), context_length=length) for length in (4, 8)]
    first = fingerprint(specs[0])
    (tmp_path / "model.py").write_text("changed = True")
    assert fingerprint(specs[1]) is first


def test_what_was_mended_is_predicted_after_all(launcher: Launcher, own: Path, kept: Path) -> None:
    (own.parent / "lib").mkdir()
    wrong = own.parent / "lib" / "wrong.py"
    wrong.write_text("raise ValueError('a mistake')")
    own.write_text(f"import lib.wrong\n{PLAIN}")
    told: Queue[str] = Queue()
    told_of = (lambda found, _: told.put(f"{len(found)} predicted"), lambda _, why: told.put(why))
    with closing(Predictor(launcher, *told_of, cache=PredictionCache(kept))) as predictor:
        predictor.ask([spec_of(own)])
        assert "a mistake" in told.get(timeout=60)
        wrong.write_text("")
        predictor.ask([spec_of(own)])
        assert told.get(timeout=60) == "1 predicted"


def test_a_cell_of_ours_has_no_files_and_an_installed_package_is_found() -> None:
    assert fingerprint(small_spec()) == ()
    found = fingerprint(small_spec(model="msgspec.structs:replace", model_path=()))
    assert "structs.py" in {Path(path).name for path, _, _ in found}
