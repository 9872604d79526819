"""`cs336-tui estimate` and `fit` as people and scripts call them."""

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.cli import estimate as estimate_cli
from cs336_tui.cli.targets import settle
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.runner.predictor import PredictionError
from cs336_tui.session import store
from cs336_tui.session.log import LogError
from tests.cli import a_machine
from tests.made_predictions import MadePredictor, made_prediction
from tests.samples import write_log
from tests.session.made import cell, events_of

USUAL: dict[str, Any] = {
    "output": None, "overwrite": True, "session_dir": None, "sizes": ("small",), "passes": ("train-step",),
}  # fmt: skip


def estimate(format_: str = "json", gpu: str | None = "H100", **more: Any) -> str:
    text = asked(format_, gpu=gpu, **more)
    assert isinstance(text, str), "a cell was not predicted"
    return text


def asked(format_: str, predictor: Any = MadePredictor, **more: Any) -> str | int:
    """What the command returns: its text, or the exit code where a cell was not predicted."""
    made = predictor() if predictor is MadePredictor else predictor
    with a_machine(made):
        return estimate_cli.estimate.callback(format_=format_, **(USUAL | more))


def fit(gpu: str | None = "H100", predictor: Any = MadePredictor, **more: Any) -> int:
    options = {"by": "batch", "limit": None, "confirm": False, "format_": "json"}
    with a_machine(predictor() if predictor is MadePredictor else predictor):
        return estimate_cli.fit.callback(gpu=gpu, **(USUAL | options | more))


def the_estimate(**options: Any) -> Any:
    """The one estimate of `options`, read from JSON."""
    (found,) = json.loads(estimate(**options))["estimates"]
    return found


def the_fit(printed: str) -> Any:
    (found,) = json.loads(printed)["fits"]
    return found


def test_one_cell_as_data(snapshot: SnapshotAssertion) -> None:
    found = the_estimate()
    assert found.pop("spec")["device"] == "cuda:0"
    assert found == snapshot
    assert the_estimate(peak=100.0)["low_s"] == pytest.approx(found["flops"] / 100e12), "a stated peak"


def test_json_has_one_shape_for_one_cell_and_for_several(capsys: pytest.CaptureFixture[str]) -> None:
    one, several = (json.loads(estimate(batches=batches)) for batches in ((1,), (1, 2)))
    assert one.keys() == several.keys() == {"estimates", "total_low_s", "total_high_s", "not_predicted"}
    assert several["not_predicted"] == []
    assert one["estimates"] == several["estimates"][:1]
    assert one["total_low_s"] == one["estimates"][0]["run_low_s"]
    assert several["total_low_s"] == pytest.approx(sum(each["run_low_s"] for each in several["estimates"]))
    assert several["total_high_s"] is None
    fits = []
    for passes in (("forward",), ("forward", "train-step")):
        assert fit(passes=passes) == 0
        fits.append(json.loads(capsys.readouterr().out))
    assert fits[0].keys() == fits[1].keys() == {"fits"}
    assert fits[0]["fits"] == fits[1]["fits"][:1]
    forward, train = fits[1]["fits"]
    assert forward["largest"] > train["largest"]


def test_one_cell_has_a_card_and_several_a_listing_that_says_once_what_all_share(snapshot: SnapshotAssertion) -> None:
    assert estimate("table") == snapshot
    assert estimate("table", passes=("forward", "train-step"), precisions=("fp32", "bf16-mixed")) == snapshot


def test_without_a_gpu_it_is_for_this_machines_best_device() -> None:
    found = the_estimate(gpu=None)
    assert (found["device"], found["gpu"]) == ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB")
    assert found["capacity_bytes"] == 85_029_158_912
    cpu = the_estimate(gpu=None, devices=("cpu",))
    assert (cpu["device"], cpu["free_bytes"]) == ("Some CPU 9000", 500_000_000_000)
    assert cpu["low_s"] is None
    text = estimate("markdown", gpu=None, devices=("every",))
    assert text.index("What cells need on Some CPU 9000") < text.index("What cells need on NVIDIA H100")


def test_a_sessions_cells_tell_how_fast_the_gpu_is(tmp_path: Path) -> None:
    write_log(tmp_path / "one.jsonl", events_of(cell([0.1, 0.1], pass_="train-step")))
    predictor = MadePredictor()
    found = the_estimate(session="last", session_dir=tmp_path, batches=(8,), predictor=predictor)
    assert found["low_s"] == found["high_s"] == pytest.approx(0.2)
    assert found["basis"].startswith("from 1 measured cell: ")
    assert [spec.batch_size for spec in predictor.asked] == [4, 8]
    with pytest.raises(LogError, match="no session 'none'"):
        estimate(session="none", session_dir=tmp_path)


def without_batch_2(spec: CellSpec) -> Prediction:
    if spec.batch_size == 2:
        raise PredictionError("the process that predicts ended early", spec.title)
    return made_prediction(spec)


def with_a_failure(format_: str, capsys: pytest.CaptureFixture[str], **more: Any) -> str:
    """The output if one of three cells could not be predicted."""
    options = {"batches": (1, 2, 4), "predictor": MadePredictor(without_batch_2)} | more
    assert asked(format_, gpu="H100", **options) == 1
    printed = capsys.readouterr()
    assert printed.err == "1 of 3 cells not predicted\n"
    return printed.out


def test_the_only_cell_that_cannot_be_predicted_is_one_line() -> None:
    with pytest.raises(PredictionError, match="no prediction: the process that predicts ended early") as error:
        estimate(predictor=MadePredictor(without_batch_2), batches=(2,))
    assert error.value.exit_code == 1


@pytest.mark.parametrize("format_", ["markdown", "csv"])
def test_one_that_cannot_be_predicted_costs_its_own_row(
    format_: str, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert with_a_failure(format_, capsys) == snapshot


def test_one_that_cannot_be_predicted_is_no_estimate_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(with_a_failure("json", capsys))
    assert [each["spec"]["batch_size"] for each in found["estimates"]] == [1, 4]
    (failed,) = found["not_predicted"]
    assert (failed["spec"]["batch_size"], failed["why"]) == (2, "the process that predicts ended early")
    assert found["total_low_s"] == pytest.approx(sum(each["run_low_s"] for each in found["estimates"]))


@pytest.mark.parametrize("format_", ["table", *FORMATS])
def test_where_none_can_be_predicted_each_row_says_why(format_: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(spec: CellSpec) -> Prediction:
        raise PredictionError(f"not batch {spec.batch_size}")

    assert asked(format_, MadePredictor(fails), gpu="H100", batches=(1, 2)) == 1
    printed = capsys.readouterr()
    assert "not batch 1" in printed.out
    assert "not batch 2" in printed.out
    assert printed.err == "2 of 2 cells not predicted\n"


def test_the_time_limit_is_each_prediction_s() -> None:
    predictor = MadePredictor()
    estimate(predictor=predictor, timeout_s=2.5)
    assert predictor.within_s == 2.5


def test_a_measured_cell_that_cannot_be_predicted_keeps_no_estimate_from_the_others(tmp_path: Path) -> None:
    write_log(tmp_path / "one.jsonl", events_of(cell([0.1, 0.1], pass_="train-step", batch_size=2)))
    found = the_estimate(session="last", session_dir=tmp_path, predictor=MadePredictor(without_batch_2))
    assert found["basis"].startswith("lower bound")


def test_the_largest_batch_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    predictor = MadePredictor()
    assert fit(predictor=predictor) == 0
    found = the_fit(capsys.readouterr().out)
    assert found["spec"]["batch_size"] == found["largest"] == found["next"] - 1
    assert len(predictor.asked) == found["predictions"] <= 5
    assert fit(by="context") == 0
    assert the_fit(capsys.readouterr().out)["largest"] % 16 == 0


def test_what_does_not_fit_at_all_is_told_by_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    huge = MadePredictor(lambda spec: made_prediction(spec, peak_bytes=10**11 + spec.batch_size))
    assert fit(predictor=huge, format_="table") == 1
    assert "not even batch 1 fits, by 15.6 GB" in capsys.readouterr().out


def test_what_was_found_is_run_if_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The smallest size on a CPU, with the real predictor and bench."""
    code = fit(gpu=None, confirm=True, limit=2, devices=("cpu",), sizes=("tiny",), contexts=(16,), passes=("forward",),
               session_dir=tmp_path, predictor=None)  # fmt: skip
    found = the_fit(capfd.readouterr().out)
    assert (code, found["largest"], found["status"], found["next_status"]) == (0, 2, "ok", None)
    (ran,) = store.load(store.find("last", tmp_path)).cells.values()
    assert (ran.spec.batch_size, ran.spec.warmup_steps, ran.spec.measure_steps) == (2, 1, 2)


def test_this_machine_has_a_cpu_with_memory() -> None:
    asked = settle(sweep_from(devices=("cpu",)), None)
    target = asked.targets["cpu"]
    assert 0 < target.free_bytes < target.capacity_bytes
    assert target.source == "free now"
