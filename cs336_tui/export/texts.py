"""Text from outside (logs, names, devices, errors) made safe for what reads it: terminals, lines and spreadsheets."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f]"
)
"""Control sequences and whole control strings as ECMA-48 has them, then every other control character but newline and
tab, 8-bit ones included,
also as Python keeps them in what it could not decode."""
_FORMULA = "=+-@＝＋－＠"
"""With these a spreadsheet's formula begins, https://owasp.org/www-community/attacks/CSV_Injection."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def plain(text: str) -> str:
    """Text without what a terminal would obey; newlines and tabs are kept."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """As `plain`, and every run of white space, line ends among it, as one space."""
    return plain(" ".join(text.split()))


def in_brief(text: str, most: int = 2000) -> str:
    """As `one_line`, the middle of a text of more than `most` characters left out."""
    text = one_line(text)
    half = most // 2 - 3
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def as_data(text: str) -> str:
    """As `plain`, as a spreadsheet takes it: a text that it would take for a formula gets an apostrophe before it."""
    text = plain(text)
    is_formula = text.lstrip().startswith(tuple(_FORMULA)) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text
