"""Parameters of a user's model that was not built: unknown, not those of a reference with its dimensions."""

import pytest

from cs336_tui.analysis.fields import FIELDS, num_params
from cs336_tui.analysis.merge import Result, merge
from cs336_tui.events.events import ModelBuilt
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writeups import layout_tables
from tests.samples import state_of
from tests.session.made import cell, events_of


def unbuilt(model: str, status: str = "failed") -> Result:
    """A cell whose log does not tell of a model that was built."""
    events = events_of(cell((0.1, 0.2), status=status, model=model, pass_="forward"))
    (result,) = merge([("one", state_of(event for event in events if not isinstance(event, ModelBuilt)))])
    return result


@pytest.mark.parametrize(("model", "shown"), [("reference", "120.95M"), ("my_gpt:GPT", "n/a")])
def test_the_dimensions_tell_those_of_the_reference_alone(model: str, shown: str) -> None:
    result, known = unbuilt(model), shown != "n/a"
    assert (num_params(result) is not None) == known
    assert (FIELDS["params"].show(result) != "n/a") == known
    table = results_table((result,), columns=["pass", "params"])
    assert (table.rows[0][1] != "n/a", table.records[0]["num_params"] is not None) == (known, known)
    (devices,) = layout_tables((unbuilt(model, "ok"),), "devices")
    assert devices.rows[0][[column.header for column in devices.columns].index("num_params")] == shown
