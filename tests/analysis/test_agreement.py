"""Agreement of made reports: which cells share one, tolerances, errors of parts, and what cannot be compared."""

import math
import struct
from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.agreement import agreement, agreement_key, tolerance_of
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.values import PRECISIONS
from cs336_tui.events.reports import AgreementReport, ParameterSketch, PositionsSketch, Sketch
from cs336_tui.export.reports import tables_of_reports
from cs336_tui.export.writing.tables import Table
from tests.watching import small_spec

BASE = small_spec(pass_="train-step", num_layers=4, batch_size=8)


def sketch_of(*values: float, not_finite: int = 0) -> Sketch:
    """Of a tensor whose elements all have a bucket of their own."""
    return Sketch(math.hypot(*values), struct.pack(f"<{len(values)}f", *values), not_finite)


def report_of(**changes: Any) -> AgreementReport:
    """Two positions, two parameters of 4 and 1 elements."""
    fields: dict[str, Any] = {
        "spec": agreement_key(BASE, BASE),
        "device_name": "CPU",
        "torch": "2.9.0",
        "shape": (1, 2, 2),
        "dtype": "float32",
        "logits": (PositionsSketch(0, 1, sketch_of(3.0, 4.0)), PositionsSketch(1, 2, sketch_of(0.0, 12.0))),
        "loss": 4.0,
        "parameters": (A, B),
    }
    return AgreementReport(**(fields | changes))


def parameter(name: str, gradient: tuple[float, ...] | None, value: float = 1.0) -> ParameterSketch:
    shape = (len(gradient) if gradient else 1,)
    of = sketch_of(*gradient) if gradient else None
    return ParameterSketch(name=name, shape=shape, dtype="float32", value=sketch_of(value), gradient=of)


A, B = parameter("a", (2.0, 2.0, 2.0, 2.0)), parameter("b", (1.0,))


def test_choices_that_only_cost_otherwise_share_a_report() -> None:
    cells = Sweep(
        sizes=("tiny",),
        passes=("train-step",),
        attentions=("naive", "sdpa"),
        compiles=("off", "default", "reduce-overhead"),
        optimizers=("adamw", "adamw-for-loop"),
        checkpoints=(0, 1),
        batches=(2, 4),
        accumulations=(1, 2),
        devices=("cpu",),
    ).cells()
    base = cells[0]
    keys = {agreement_key(spec, base) for spec in cells}
    assert len(cells) == 96
    assert {(key.attention, key.compile, key.checkpoint) for key in keys} == {
        (attention, compile_, checkpoint)
        for attention in ("naive", "sdpa")
        for compile_ in ("off", "default")
        for checkpoint in (0, 1)
    }
    assert len(keys) == 8
    assert {(key.batch_size, key.accumulate, key.pass_) for key in keys} == {(2, 1, "forward+backward")}
    for pass_ in ("inference", "forward", "forward+loss"):
        assert agreement_key(msgspec.structs.replace(BASE, pass_=pass_), BASE).pass_ == pass_, "without a backward"


@pytest.mark.parametrize(
    ("base", "batch"),
    [
        ({"batch_size": 8}, 2),
        ({"batch_size": 8, "accumulate": 8}, 1),
        ({"batch_size": 8, "ranks": 8, "batch_is": "global", "parallel": "ddp"}, 1),
        ({"batch_size": 1, "ranks": 2, "parallel": "ddp"}, 1),
    ],
)
def test_the_batch_is_two_sequences_unless_the_starting_point_has_one(base: dict[str, Any], batch: int) -> None:
    start = msgspec.structs.replace(BASE, **base)
    for spec in (start, msgspec.structs.replace(BASE, batch_size=64)):
        key = agreement_key(spec, start)
        assert (key.batch_size, key.ranks, key.accumulate, key.parallel) == (batch, 1, 1, "none")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_coarser_precision_gives_the_tolerance(precision: Precision) -> None:
    other = msgspec.structs.replace(BASE, precision=precision)
    both = tolerance_of(other, BASE), tolerance_of(BASE, other)
    assert both[0] == both[1]
    assert both[0].precision == precision
    assert both[0].part >= tolerance_of(BASE, BASE).part
    assert tolerance_of(msgspec.structs.replace(other, num_layers=16), BASE).part == pytest.approx(2 * both[0].part)


def test_errors_are_of_the_whole_and_of_the_worst_part() -> None:
    other = report_of(
        logits=(PositionsSketch(0, 1, sketch_of(3.0, 4.5)), PositionsSketch(1, 2, sketch_of(0.0, 12.0))),
        parameters=(A, parameter("b", (1.5,))),
    )
    found = agreement(other, report_of())
    assert found.logits == pytest.approx((0.5 / 13, "position 1", 0.5 / 5))
    assert found.gradients == pytest.approx((0.5 / math.sqrt(17), "b", 0.5))
    said = "differs in logits by 10 % (position 1), gradients by 50 % (b); fp32 explains 0.0015 %, 0.00057 % in all"
    assert (found.agrees, found.why) == (False, said)
    assert agreement(report_of(), report_of()).agrees
    assert agreement(report_of(loss=8.0), report_of()).why.startswith("differs in loss by 100 %;"), "a sum"


def test_products_in_tf32_are_named_where_they_would_explain_it() -> None:
    near, far = (report_of(parameters=(A, parameter("b", (1 + by,)))) for by in (5e-4, 0.05))
    assert agreement(near, report_of()).why.endswith("; products in TF32 would explain it")
    assert "TF32" not in agreement(far, report_of()).why


def test_a_gradient_that_is_nearly_0_is_compared_with_the_others() -> None:
    base, other = (report_of(parameters=(A, parameter("b", (tiny,)))) for tiny in (1e-9, -1e-9))
    assert agreement(other, base).agrees
    gone = report_of(parameters=(A, parameter("b", None)))
    assert agreement(gone, base).agrees
    assert agreement(gone, report_of()).agrees is False


def test_what_is_not_finite_differs_unless_the_starting_point_is_not_either() -> None:
    lost = report_of(loss=None)
    assert agreement(lost, report_of()) == (False, "loss is not finite", None, None)
    assert agreement(report_of(), lost).why == "the starting point's loss is not finite"
    assert agreement(report_of(), lost).agrees is None
    bad = msgspec.structs.replace(B, gradient=sketch_of(0.0, not_finite=1))
    found = agreement(report_of(parameters=(A, bad)), report_of())
    assert found.why == "gradient of b is not finite: 1 of 1"
    beyond_float32 = msgspec.structs.replace(bad, gradient=Sketch(1e39, struct.pack("<f", math.inf)))
    huge = report_of(parameters=(A, beyond_float32))
    assert agreement(huge, huge).agrees is False


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shape": (1, 2, 3)}, "logits of shape (1, 2, 3), the starting point's of (1, 2, 2)"),
        ({"parameters": (parameter("a", (1.0,)),)}, "other parameters than the starting point: it has no b"),
        ({"parameters": (parameter("a", (2.0,) * 2), B)}, "a has shape (2,), the starting point's (4,)"),
        (
            {"parameters": (A, parameter("b", (1.0,), value=1.1))},
            "b begins with other values than the starting point's",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(changes: dict[str, Any], why: str) -> None:
    assert agreement(report_of(**changes), report_of()) == (None, why, None, None)


def test_reports_of_the_same_work_are_a_table_beside_the_first() -> None:
    def of(spec: CellSpec, **changes: Any) -> AgreementReport:
        return report_of(spec=agreement_key(spec, BASE), **changes)

    sdpa, wide = (
        msgspec.structs.replace(BASE, **{field: value}) for field, value in (("attention", "sdpa"), ("d_ff", 128))
    )
    (table,) = tables_of_reports([of(BASE), of(wide), of(sdpa, loss=5.0)])
    assert isinstance(table, Table)
    assert table.texts("result") == ("compared with", "differs")
    assert [record["variants"] for record in table.records] == ["", "sdpa"]
    assert tables_of_reports([of(BASE), of(wide)]) == []
