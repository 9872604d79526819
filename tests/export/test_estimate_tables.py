"""Predictions and estimates as tables: for people and as data."""

from __future__ import annotations

import pytest

from cs336_tui.analysis.estimates import Estimate, Unpredicted, judge_all
from cs336_tui.analysis.targets import named_target, search
from cs336_tui.events.gpus import find_gpu
from cs336_tui.events.prediction import CATEGORIES
from cs336_tui.export.subjects.estimates import (
    Fitted,
    category_table,
    estimate_table,
    fit_document,
    fit_table,
    prediction_tables,
)
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Table
from tests.made_predictions import MIB, made_prediction
from tests.samples import a_spec
from tests.session.made import Cell, session_of

H100 = named_target(find_gpu("H100"))


def estimates(*changes: dict[str, object]) -> tuple[Estimate, ...]:
    return judge_all([made_prediction(a_spec(**each)) for each in changes], H100)


def shown(table: Table, header: str) -> list[str]:
    place = [column.header for column in table.columns].index(header)
    return [row[place] for row in table.rows]


def test_what_was_not_predicted_is_counted_apart_from_what_does_not_fit() -> None:
    found = estimates({}, {"batch_size": 4000})
    lost = Unpredicted(a_spec(batch_size=9), found[0].target, "it hangs")
    notes = estimate_table([*found, lost]).footnotes
    assert any(note.startswith("of 3 cells 1 not predicted, 1 too large; the others, warm-up and") for note in notes)
    assert "of 2 cells 1 not predicted, 1 too large" in estimate_table([found[1], lost]).footnotes


def test_a_row_a_cell_with_what_it_needs() -> None:
    table = estimate_table(estimates({}, {"pass_": "forward", "context_length": 512}))
    assert shown(table, "context") == ["128", "512"]
    assert shown(table, "parameters (M)") == ["128.63", "128.63"]
    assert shown(table, "less head (M)") == ["120.95", "120.95"]
    assert shown(table, "residual stream (MiB)") == ["1.5", "6"]
    assert shown(table, "fits") == ["fits, 82.8 GB to spare", "fits, 81.7 GB to spare"]
    assert all(time.startswith("at least ") and time.endswith(" ms") for time in shown(table, "time per step"))
    assert table.caption == "What cells need on H100 SXM 80GB"
    assert any("0.5 GiB" in note for note in table.footnotes)
    assert "forward has no gradients" in table.footnotes


def test_records_are_in_base_units_and_not_rounded() -> None:
    (estimate,) = estimates({})
    (record,) = estimate_table([estimate]).records
    assert record["num_params"] == 128_634_624
    assert record["peak_bytes"] == estimate.prediction.peak_bytes
    assert record["flops"] == sum(estimate.prediction.flops.values())
    assert record["low_s"] == estimate.low_s
    assert record["high_s"] is None
    assert (record["fits"], record["pass"], record["context"]) == (True, "forward+backward", 128)


def test_choices_that_differ_between_cells_get_a_column() -> None:
    table = estimate_table(estimates({"arch": "gelu-learned"}, {}))
    assert shown(table, "arch") == ["gelu-learned", "swiglu-rope"]
    assert "arch" not in [column.header for column in estimate_table(estimates({})).columns]


def test_several_cells_are_summed_up_and_those_that_do_not_fit_are_counted() -> None:
    table = estimate_table(estimates({}, {"batch_size": 4000}))
    assert shown(table, "fits")[1].startswith("does not fit, by ")
    (note,) = (note for note in table.footnotes if "do not fit" in note)
    assert note.startswith("1 of 2 cells do not fit; the others, warm-up and measured steps: at least ")
    none = estimate_table(estimates({"batch_size": 4000}, {"batch_size": 5000}))
    assert "none of 2 cells fits" in none.footnotes


def test_categories_at_both_moments_sum_to_their_total() -> None:
    found = estimates({}, {"pass_": "inference"})
    table = category_table(found)
    assert shown(table, "moment") == ["end of forward", "peak, in backward", "end of forward", "peak, in forward"]
    for record in table.records:
        assert sum(record[f"{category}_bytes"] for category in CATEGORIES) == record["total_bytes"]
    assert table.records[0]["total_bytes"] == found[0].prediction.forward_end_bytes
    assert table.records[1]["total_bytes"] == found[0].prediction.peak_bytes
    assert shown(table, "gradients (GB)") == ["0.00", "0.524", "0.00", "0.00"]


def test_predictions_alone_need_no_device() -> None:
    needs, memory = prediction_tables([made_prediction(a_spec())])
    headers = [column.header for column in needs.columns]
    assert "peak (GB)" in headers
    assert "fits" not in headers
    assert len(memory.rows) == 2


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_takes_them(format_: str) -> None:
    found = estimates({}, {"pass_": "forward"})
    text = render_all([estimate_table(found), category_table(found)], format_)
    assert "forward" in text


def fitted(limit: int | None = None, room: int | None = None) -> Fitted:
    spec = a_spec(pass_="train-step")
    free = H100.free_bytes if room is None else room
    assert free is not None
    fit = search(spec, "batch", lambda each: made_prediction(each).peak_bytes, free - H100.context_bytes, limit=limit)
    found, following = (made_prediction(each) if each else None for each in (fit.spec, fit.next_spec))
    return Fitted(spec, fit, H100, found, following)


def test_what_fits_and_what_no_longer_does() -> None:
    table = fit_table([fitted()])
    (row,) = table.rows
    (record,) = table.records
    largest = record["largest"]
    assert isinstance(largest, int)
    assert row[:6] == ("small", "128", "train-step", "fp32", "H100 SXM 80GB", str(largest))
    assert record["next"] == largest + 1
    assert record["next_peak_bytes"] - record["peak_bytes"] == 128 * MIB
    assert record["peak_bytes"] <= H100.free_bytes - H100.context_bytes < record["next_peak_bytes"]


def test_a_limit_that_ended_the_search_is_said() -> None:
    table = fit_table([fitted(limit=8)])
    assert shown(table, "largest batch") == ["8"]
    assert shown(table, "next larger batch") == ["not tried (limit 8)"]


def test_where_nothing_fits_it_is_said_by_how_much() -> None:
    result = fitted(room=2 * 10**9)
    table = fit_table([result])
    assert shown(table, "largest batch") == ["none"]
    short = made_prediction(a_spec(pass_="train-step", batch_size=1)).peak_bytes + H100.context_bytes - H100.free_bytes
    assert short < 0  # on the whole GPU it would fit
    assert any(note.startswith("small, train-step, fp32: not even batch 1 fits, by") for note in table.footnotes)
    assert fit_document(result)["spec"] is None


def test_how_it_went_when_it_was_run() -> None:
    result = fitted()
    assert result.fit.spec is not None
    assert result.fit.next_spec is not None
    state = session_of(
        Cell(result.fit.spec, [0.1], peak=84_000_000_000), Cell(result.fit.next_spec, status="oom", peak=None)
    )
    ran, ran_next = state.cells.values()
    table = fit_table([result._replace(ran=ran, ran_next=ran_next)])
    following = result.fit.next_spec.batch_size
    assert shown(table, "outcome") == [f"ran, peak allocated 84.0 GB; {following}: out of memory"]
    assert table.records[0]["measured_peak_bytes"] == 84_000_000_000
    assert table.records[0]["next_status"] == "oom"


def test_a_variant_that_all_cells_have_is_named() -> None:
    own = {"model": "mine:GPT", "model_path": ("/somewhere",)}
    for table in (estimate_table(estimates(own)), *prediction_tables([made_prediction(a_spec(**own))])):
        assert set(shown(table, "variant")) == {"GPT"}
        assert {record["variants"] for record in table.records} == {"GPT"}
    assert "variant" not in [column.header for column in estimate_table(estimates({}, {"batch_size": 8})).columns]


def test_a_fit_names_its_variants() -> None:
    spec = a_spec(pass_="train-step", attention="sdpa")
    result = fitted(room=1)._replace(asked=spec)
    table = fit_table([result])
    assert table.records[0]["variants"] == "sdpa"
    assert any(note.startswith("small, train-step, fp32, sdpa: not even batch 1 fits") for note in table.footnotes)
