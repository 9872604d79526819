"""Predictor with real child processes: caching, waiting while held, and children that fail."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import cs336_tui
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction
from cs336_tui.runner.launcher import Child, Launcher
from cs336_tui.runner.prediction_cache import SOURCES, PredictionCache, source_files
from cs336_tui.runner.predictor import PredictionError, Predictor
from tests.watching import PATIENCE_S, small_spec


class Watched(Launcher):
    """A launcher whose children that predict can be counted and killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.children: list[Child] = []
        self.kill_next = False
        self.may_start = threading.Event()
        self.may_start.set()

    def start_answers(
        self, name: str, answers: Callable[[], Iterable[msgspec.Struct]], specs: Sequence[CellSpec] = ()
    ) -> Child:
        assert self.may_start.wait(PATIENCE_S)
        child = super().start_answers(name, answers, specs)
        self.children.append(child)
        if self.kill_next:
            self.kill_next = False
            child.process.kill()
        return child


class Delivered:
    """Keeps the predictions that were delivered and lets a test wait for them."""

    def __init__(self) -> None:
        self.found: list[Prediction] = []
        self.elsewhere: list[tuple[int, int] | None] = []
        self.given_up: list[tuple[CellSpec, str]] = []
        self._came = threading.Condition()

    def __call__(self, predictions: Sequence[Prediction], elsewhere: tuple[int, int] | None) -> None:
        with self._came:
            self.found += predictions
            self.elsewhere += [elsewhere] * len(predictions)
            self._came.notify_all()

    def wait_for(self, count: int) -> list[int]:
        """Context lengths of the first `count` predictions delivered."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.found) >= count, PATIENCE_S), self.found
            return [prediction.spec.context_length for prediction in self.found[:count]]


@pytest.fixture
def launcher(tmp_path: Path) -> Watched:
    found = Watched(tmp_path)
    found.prepare()
    found.start()
    return found


@pytest.fixture
def delivered() -> Delivered:
    return Delivered()


@pytest.fixture
def predictor(tmp_path: Path, launcher: Watched, delivered: Delivered) -> Iterator[Predictor]:
    given_up = delivered.given_up.append
    with closing(
        Predictor(launcher, delivered, lambda *told: given_up(told), cache=PredictionCache(tmp_path / "cache"))
    ) as made:
        yield made


def specs(*contexts: int) -> list[CellSpec]:
    return [small_spec(context_length=context) for context in contexts]


def test_each_cell_gets_its_prediction_in_order_and_what_needs_the_same_is_worked_out_once_and_known_ever_after(
    tmp_path: Path, launcher: Watched, predictor: Predictor
) -> None:
    seen: list[int] = []
    found = predictor.predict(specs(8, 16), lambda prediction: seen.append(prediction.spec.context_length))
    assert [prediction.spec for prediction in found] == specs(8, 16)
    assert sorted(seen) == [8, 16]
    (spec, _), (first, _) = specs(8, 16), found
    longer = small_spec(context_length=8, measure_steps=7, seed=5)
    (again,) = predictor.predict([longer])
    assert (again.spec, again.peak_bytes) == (longer, first.peak_bytes)
    assert Predictor(launcher, cache=PredictionCache(tmp_path / "cache")).known([spec]) == (first,)
    assert len(launcher.children) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"{", lambda text: text.replace(b"custom", b"cust\xffm"), lambda _: b"", lambda _: b"[]",
     lambda another: another.replace(b'"key":[', b'"key":[1,', 1)],
)  # fmt: skip
def test_a_damaged_file_of_the_cache_is_worked_out_again(
    tmp_path: Path, launcher: Watched, predictor: Predictor, damage: Callable[[bytes], bytes]
) -> None:
    (first,) = predictor.predict(specs(8))
    (file,) = (tmp_path / "cache").glob("*.json")
    file.write_bytes(damage(file.read_bytes()))
    with closing(Predictor(launcher, cache=PredictionCache(tmp_path / "cache"))) as another:
        assert another.predict(specs(8)) == (first,)


def test_a_prediction_holds_for_one_kind_of_the_allocators_segments(
    tmp_path: Path, launcher: Watched, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor.predict(specs(8))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, expandable_segments: True")
    another = Predictor(launcher, cache=PredictionCache(tmp_path / "cache"))
    assert another.known(specs(8)) == ()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    assert len(another.known(specs(8))) == 1


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, launcher: Watched) -> None:
    (tmp_path / "file").write_text("")
    with closing(Predictor(launcher, cache=PredictionCache(tmp_path / "file" / "cache"))) as predictor:
        assert [len(predictor.predict(specs(8))) for _ in range(2)] == [1, 1]
    assert len(launcher.children) == 1


def test_a_gpu_elsewhere_is_predicted_as_where_it_is_the_only_one(
    launcher: Watched, predictor: Predictor, delivered: Delivered, tmp_path: Path
) -> None:
    spec = small_spec(device="cuda:0")
    predictor.ask([spec], [spec], (8, 0))
    delivered.wait_for(2)
    predictor.ask([spec], [spec], (8, 0))
    delivered.wait_for(4)
    assert sorted(map(str, delivered.elsewhere)) == ["(8, 0)", "(8, 0)", "None", "None"]
    peaks = {where: found.peak_bytes for where, found in zip(delivered.elsewhere, delivered.found, strict=True)}
    assert peaks[8, 0] < peaks[None], "cuBLAS takes a smaller workspace on an A100 than on an H100"
    alone = Predictor(launcher, cache=PredictionCache(tmp_path / "alone"), capability_of=lambda _: (8, 0))
    with closing(alone):
        assert [peaks[8, 0]] == [found.peak_bytes for found in alone.predict([spec])]


def test_nothing_is_worked_out_while_held_but_what_somebody_waits_for(
    launcher: Watched, predictor: Predictor, delivered: Delivered
) -> None:
    predictor.predict(specs(8))
    begun = len(launcher.children)
    predictor.hold()
    predictor.ask(specs(8, 16))
    assert delivered.wait_for(1) == [8]  # what is known costs nothing
    assert len(launcher.children) == begun
    assert [found.spec.context_length for found in predictor.predict(specs(32))] == [32]
    assert len(delivered.found) == 1
    predictor.go_on()
    assert delivered.wait_for(2) == [8, 16]


def test_holding_ends_what_is_under_way_and_it_comes_later(
    launcher: Watched, predictor: Predictor, delivered: Delivered
) -> None:
    predictor.ask(specs(*range(8, 48, 2)))
    delivered.wait_for(1)
    predictor.hold()
    assert all(child.process._closed for child in launcher.children)
    predictor.go_on()
    assert sorted(delivered.wait_for(20)) == [*range(8, 48, 2)]


def test_a_new_wish_replaces_the_old_one(predictor: Predictor, delivered: Delivered) -> None:
    predictor.hold()
    predictor.ask(specs(8, 16))
    predictor.ask(specs(16, 32))
    predictor.go_on()
    assert delivered.wait_for(2) == [16, 32]
    predictor.close()
    assert [prediction.spec.context_length for prediction in delivered.found] == [16, 32]


def test_the_one_that_a_child_died_of_does_not_keep_the_others(
    launcher: Watched, predictor: Predictor, delivered: Delivered
) -> None:
    launcher.kill_next = True
    predictor.ask(specs(8, 16, 32))
    assert delivered.wait_for(2) == [16, 32]
    ((spec, why),) = delivered.given_up
    assert (spec.context_length, "ended early" in why) == (8, True)


def test_who_asks_does_not_wait_for_a_process_that_is_slow_to_start(
    launcher: Watched, predictor: Predictor, delivered: Delivered
) -> None:
    launcher.may_start.clear()
    predictor.ask(specs(8))
    asked = threading.Thread(target=predictor.ask, args=(specs(16),))
    asked.start()
    asked.join(PATIENCE_S / 4)
    assert not asked.is_alive()
    launcher.may_start.set()
    assert delivered.wait_for(1) == [16]


def test_what_somebody_waits_for_comes_before_what_was_asked_for(
    launcher: Watched, predictor: Predictor, delivered: Delivered
) -> None:
    launcher.may_start.clear()
    predictor.ask(specs(*range(8, 48, 2)))
    waiting = threading.Thread(target=predictor.predict, args=(specs(64, 128),))
    waiting.start()
    while not predictor._awaited:
        waiting.join(0.01)
    launcher.may_start.set()
    waiting.join(PATIENCE_S)
    assert predictor.known(specs(64, 128)) != ()
    assert len(delivered.found) < 20
    assert sorted(delivered.wait_for(20)) == [*range(8, 48, 2)]


@pytest.mark.parametrize("end", [Predictor.stop, Predictor.close])
@pytest.mark.parametrize("takes_failures", [True, False])
def test_who_waits_is_told_of_a_stop_at_once(
    launcher: Watched, predictor: Predictor, end: Callable[[Predictor], None], takes_failures: bool
) -> None:
    launcher.may_start.clear()
    told: list[str] = []

    def waits() -> None:
        with pytest.raises(PredictionError) as caught:
            predictor.predict(specs(8, 16), give_up=(lambda _spec, _why: None) if takes_failures else None)
        told.append(caught.value.why)

    waiting = threading.Thread(target=waits)
    waiting.start()
    while not predictor._running:
        waiting.join(0.01)
    ending = threading.Thread(target=end, args=(predictor,))
    ending.start()
    launcher.may_start.set()
    for thread in (ending, waiting):
        thread.join(PATIENCE_S)
    assert told == ["stopped"]
    assert all(child.process._closed for child in launcher.children)


def test_who_takes_failures_gets_the_others(launcher: Watched, predictor: Predictor) -> None:
    endless = small_spec(batch_size=2**16, context_length=10**7)
    failed: list[tuple[CellSpec, str]] = []
    launcher.kill_next = True  # of the first, of which nothing is known but that its process died
    found = predictor.predict([*specs(8), endless, *specs(16, 32)],
                              give_up=lambda spec, error: failed.append((spec, error.why)))  # fmt: skip
    assert [each.spec for each in found] == specs(16, 32)
    assert [spec for spec, _ in failed] == [*specs(8), endless]
    assert "ended early" in failed[0][1]
    assert "no device can hold it" in failed[1][1]
    assert len(launcher.children) == 2


def test_predictions_on_disk_depend_on_files_that_exist() -> None:
    package = Path(cs336_tui.__file__).parent
    for pattern in SOURCES:
        assert list(package.glob(pattern)), f"{pattern} matches no file: predictions of older code would be taken"
    torch, *files = source_files()
    assert "__version__" in torch.read_text()
    assert {str(file.relative_to(package)) for file in files} >= {
        "worker/estimate/tracker.py",
        "worker/estimate/predict.py",
        "worker/workload/transformer.py",
        "worker/workload/imported_components.py",
        "events/prediction.py",
        "config/flops.py",
    }


def test_what_no_device_can_hold_ends_all_that_its_caller_waits_for_and_what_is_only_huge_is_predicted(
    predictor: Predictor,
) -> None:
    endless = small_spec(batch_size=2**16, context_length=10**7)
    with pytest.raises(PredictionError, match="no device can hold it"):
        predictor.predict([endless, *specs(*range(8, 48, 2))])
    assert predictor._awaited == []
    huge = small_spec(
        d_model=4608, d_ff=12288, num_layers=4, num_heads=36, batch_size=2**14, context_length=2**17, pass_="train-step"
    )
    (found,) = predictor.predict([huge])
    assert sum(found.flops.values()) > 2**64
