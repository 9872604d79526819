"""Formatting of texts and numbers on the screen."""

import pytest

from cs336_tui.tui import format


@pytest.mark.parametrize(
    ("seconds", "spread", "text"),
    [
        (0.1532, 0.00041, "153.20"),
        (0.1532, 0.012, "153"),
        (0.0001532, 0.0000004, "0.15320"),
        (0.1532, None, "153.2"),
        (None, None, "–"),
    ],
)
def test_milliseconds_have_the_digits_that_the_spread_justifies(
    seconds: float | None, spread: float | None, text: str
) -> None:
    assert format.ms(seconds, spread) == text


def test_the_std_is_labelled_and_left_out_while_unknown() -> None:
    assert format.mean_std(0.1532, 0.00041, 6) == "153.20 ms ± 0.41 std (n=6)"
    assert format.mean_std(0.1532, None, 1) == "153.2 ms (n=1)"


def test_what_a_device_does_not_report_is_not_available() -> None:
    assert format.percent(None) == format.number(None) == format.used_of(None, None) == "n/a"
    assert format.used_of(None, 80_000_000_000) == "n/a/80.0 GB"
    assert format.used_of(61_200_000_000, 80_000_000_000) == "61.2/80.0 GB"


def test_foreign_text_loses_what_could_drive_the_terminal() -> None:
    assert format.plain("\x1b[31mred\x1b[0m\x1b]52;c;AAAA\x07 \x07bell\tend") == "red bell    end"
    assert format.plain("[bold]not markup[/]") == "[bold]not markup[/]"


LONG = "not predicted: RuntimeError: " + "aten::something has no kernel for these " * 4 + "(model.py:64 in forward)"


@pytest.mark.parametrize("width", [30, 34, 78])
@pytest.mark.parametrize("most", [2, 3])
def test_a_text_that_is_cut_says_so_and_keeps_the_line_it_ends_with(width: int, most: int) -> None:
    lines = format.cut_to_lines(LONG, width, most)
    assert len(lines) <= most
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert text.startswith("not predicted:")
    assert text.endswith("(model.py:64 in forward)")
    assert ("…" in text) == (len(LONG) > width * most)


def test_a_text_that_fits_is_whole_and_one_without_a_place_ends_with_the_sign() -> None:
    assert " ".join(format.cut_to_lines(LONG, 40, 9)) == LONG
    assert format.cut_to_lines("word " * 50, 20, 2)[-1].endswith("…")
    assert format.cut_to_lines("x" * 50, 20, 2) == ["x" * 20, "x" * 20]
