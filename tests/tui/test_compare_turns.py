"""Compare on cells in turns: the rounds, and the communication that a step of several ranks waits for."""

from __future__ import annotations

import pytest

from cs336_tui.tui.tabs.compare_pages import turns_page
from cs336_tui.tui.widgets.lines import width_of
from tests.export.grids import merged
from tests.export.test_ab_tables import RANKS, A, a_round, flat, rounds_of
from tests.samples import ranks_session, state_of


def page_text(results, width: int = 78) -> str:
    page = turns_page(results, width)
    assert all(width_of(row) <= width for row in (*page.heading, *page.rows))
    return " ".join("".join(span.text for span in row) for row in (*page.heading, *page.rows))


@pytest.mark.parametrize("width", [78, 118, 198])
def test_exposed_communication_stands_above_the_rounds(width: int) -> None:
    rounds = rounds_of(*(a_round(1.25, base_s) for base_s in (0.010, 0.012, 0.011)), **RANKS)
    text = " ".join(page_text(flat(rounds), width).split())
    assert "Exposed communication of A: 3.1" in text
    assert "20.0 % of the step (" in text
    assert text.index("Exposed") < text.index("▲ A takes 1.25") < text.index("round A ± std (ms)") < text.index(" all ")
    assert "Differs, A | B: parallel: ddp | none." in text


def test_other_pairs_have_their_rounds_alone() -> None:
    text = page_text(flat(rounds_of(a_round(1.03), a_round(1.03, 0.012))))
    assert "Exposed" not in text
    assert "A takes 1.03" in " ".join(text.split())


def test_without_turns_a_cell_of_several_ranks_has_the_command_that_tells_what_its_steps_wait_for() -> None:
    text = " ".join(page_text(merged(state_of(ranks_session(4)))).split())
    assert "No cells of this session ran in turns" in text
    assert "cs336-tui ab --a '--parallel ddp' --b '--parallel none'" in text
    assert "--ranks 4" in text
    one = page_text([round_[0] for round_ in rounds_of(a_round(1.0))])
    assert A.ranks == 1
    assert "--parallel" not in one
