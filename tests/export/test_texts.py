"""Text that LaTeX and markdown would take for markup is escaped."""

import pytest

from cs336_tui.export.writing.formats import latex_escape
from cs336_tui.export.writing.texts import bullets, markdown_escape, one_line, untaken


def test_latex_sets_every_sign_that_tables_use() -> None:
    assert latex_escape("2²⁰ B ≥ √2 ≤ 10⁹ – ü").isascii() is False  # what LaTeX knows by itself stays
    assert latex_escape("2²⁰ B ≥ √2 ≤ 10⁹") == r"2$^2$$^0$ B $\geq$ $\surd$2 $\leq$ 10$^9$"


@pytest.mark.parametrize("text", ["[1, 2]", "*"])
def test_latex_takes_no_text_after_a_line_s_end_for_a_part_of_it(text: str) -> None:
    assert latex_escape(text) == "{}" + text


def test_dollars_in_markdown_are_no_mathematics() -> None:
    assert markdown_escape("costs $1 or $2") == r"costs \$1 or \$2"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("2026-01-02: ok", "2026-01-02: ok"),
        ("2. a list", r"2\. a list"),
        ("- a list", r"\- a list"),
        ("# no", r"\# no"),
    ],
)
def test_only_what_would_open_something_in_a_list_is_escaped(line: str, shown: str) -> None:
    assert bullets([line]) == f"- {shown}"


def test_a_taken_name_gets_the_first_free_number() -> None:
    assert [untaken("peak", taken) for taken in ((), ("peak",), ("peak", "peak-2", "peak-4"))] == [
        "peak", "peak-2", "peak-3",
    ]  # fmt: skip


def test_what_turns_the_order_of_writing_is_left_out() -> None:
    """As terminals and browsers obey it, a name could pass for another."""
    assert one_line("a\u202egnp\u2066\u2069b") == "agnpb"
