"""Declares a measure that no other code knows and prints, as JSON, where it appears. Run in a process of its own."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from cs336_tui.analysis import measures

MEASURE = measures.Measure(
    "sweetness",
    "sweetness_g",
    "sweetness",
    measures.Quantity("kg", lambda grams: f"{grams / 1e3:.2f}", 1e3),
    lambda runs: 2e3 * len(runs.counted) if runs.summary else None,
    pivoted=True,
    missing="no sugar",
    remark=lambda _: "tasted",
    note="sweetness: by tongue",
)
DEMO = str(Path(__file__).parents[1] / "data" / "demo-session.jsonl")


def appearances() -> dict[str, Any]:
    """What each place says of the measure; they are imported after it was declared."""
    from click.testing import CliRunner

    from cs336_tui.analysis.merge import merge
    from cs336_tui.analysis.pivot import VALUES
    from cs336_tui.cli.main import cli
    from cs336_tui.export.subjects.layout import Layout
    from cs336_tui.session.load import load
    from cs336_tui.tui.tabs.compare_pages import PivotChoice, pivot_page
    from cs336_tui.tui.tabs.results_columns import ShownRow, named_columns, result_columns

    def export(*words: str) -> str:
        result = CliRunner().invoke(cli, ["export", DEMO, *words])
        assert result.exit_code == 0, result.output
        return result.output

    state = load(Path(DEMO))
    results = merge([("demo", state)])
    cells = list(state.cells.values())
    (column,) = named_columns([MEASURE.key], result_columns(cells, {}))
    (table, *_) = Layout("Sweets", ("size", "pass", "precision"), {"Size": "size", "Sugar (kg)": MEASURE.key}).tables(
        results, None
    )
    page = pivot_page(PivotChoice(value=MEASURE.key), results, 100)
    return {
        "table": export("--columns", "size,sweetness", "--format", "markdown"),
        "data": json.loads(export("--columns", "size,sweetness", "--format", "json"))["rows"][0],
        "pivot": export("--pivot", "auto", "--value", "sweetness", "--format", "markdown"),
        "figures": json.loads(export("--pivot", "auto", "--value", "sweetness", "--format", "json"))["rows"][0],
        "json": json.loads(export("--format", "json"))["runs"][0][MEASURE.data],
        "csv": next(csv.DictReader(io.StringIO(export("--format", "csv"))))[MEASURE.data],
        "help": CliRunner().invoke(cli, ["export", "--help"]).output,
        "values": list(VALUES),
        "screen": [column.heading, column.cell(ShownRow(state, cells[0], None))],
        "compared": "".join(span.text for span in page.heading[0]),
        "layout": [dict(zip((c.heading for c in table.columns), table.rows[0], strict=True)), table.records[0]],
    }


if __name__ == "__main__":
    measures.MEASURES[MEASURE.key] = MEASURE
    print(json.dumps(appearances()))
