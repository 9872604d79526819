"""The table of gains."""

from __future__ import annotations

from cs336_tui.export.subjects.tuning import gains_table
from tests.analysis.test_findings import a_race


def test_a_row_a_value_with_both_ratios() -> None:
    table = gains_table(a_race({"attention=sdpa": 0.8, "checkpoint=1": 0.9}))

    assert table
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["attention sdpa"] == ("0.800 [0.784, 0.816]", "0.800 [0.784, 0.816]", "not shown", "yes")
    assert rows["nesting halves"][0] == "n/a"
    assert "together: 0.720 [0.706, 0.734]; the product of what its choices gain alone: 0.720" in table.footnotes


def test_choices_that_spoil_each_other_are_said_to_interact() -> None:
    table = gains_table(a_race({"attention=sdpa": 0.8, "checkpoint=1": 0.9}, interaction=1.4))

    assert table
    (checkpoint,) = (record for record in table.records if record["choice"] == "checkpoint")
    assert checkpoint["interacts"] is True
    assert not any(note.startswith("together: ") for note in table.footnotes)
