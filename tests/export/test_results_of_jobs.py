"""Tables of a session whose cells ran in jobs on several machines."""

from __future__ import annotations

import msgspec

from cs336_tui.events import events as ev
from cs336_tui.export.subjects.results import results_of, results_table
from cs336_tui.export.writeups import layout_tables
from cs336_tui.session.state import SessionState
from tests.samples import ENVIRONMENT, a_spec, cell_end, session_start, steps


def ran_on(*hosts: str, **other: str) -> SessionState:
    """A session of the same cell on each of these hosts; the last one differs from the first in `other`."""
    state = SessionState()
    specs = (a_spec(),) * len(hosts)
    for event in session_start(specs):
        state.apply(event)
    for cell, host in enumerate(hosts):
        state.apply(ev.JobSubmitted(at=1.0, job=str(cell), launcher="slurm", id=f"{host}:s/{cell}", cells=(cell,)))
        more = other if cell == len(hosts) - 1 else {}
        machine = msgspec.structs.replace(ENVIRONMENT, host=host, **more)
        state.apply(ev.EnvironmentRead(at=2.0, environment=machine))
        state.apply(ev.CellStarted(at=3.0, cell=cell, job=str(cell)))
        for event in (*steps(cell, (), [0.1] * 12), cell_end(cell)):
            state.apply(event)
    return state


def test_each_row_says_which_machine_it_is_from() -> None:
    table = results_table(results_of(ran_on("gpu1", "gpu2")))
    place = next(n for n, column in enumerate(table.columns) if column.header == "machine")
    assert [row[place].rpartition(" · ")[2] for row in table.rows] == ["gpu1", "gpu2"]
    assert not any("change of the machine" in note or "differs" in note for note in table.footnotes)


def test_a_machine_that_differs_in_more_than_its_name_is_marked() -> None:
    table = results_table(results_of(ran_on("gpu1", "gpu2", torch="2.0")))
    assert f"† ran on a different machine: torch 2.0 instead of {ENVIRONMENT.torch}" in table.footnotes


def test_one_machine_needs_no_column() -> None:
    table = results_table(results_of(ran_on("gpu1", "gpu1")))
    assert "machine" not in [column.header for column in table.columns]


def test_the_layout_of_devices_has_the_machines_side_by_side() -> None:
    (table,) = layout_tables(results_of(ran_on("gpu1", "gpu2")), "devices")
    groups = {column.group.rpartition(" · ")[2].rstrip(")") for column in table.columns if column.group}
    assert groups == {"gpu1", "gpu2"}
