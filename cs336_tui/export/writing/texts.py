"""Text from outside made safe for what reads it: terminals, lines, spreadsheets and GitHub-flavoured markdown."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Container, Iterable, Mapping
from itertools import chain, count
from typing import Any

import msgspec

_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udc9f]"
)
"""Control sequences and whole control strings as ECMA-48 has them, then every other control character but newline and
tab, 8-bit ones included, also as Python keeps them in what it could not decode; and what turns the order of writing."""
_FORMULA = "=+-@＝＋－＠"
"""With these a spreadsheet's formula begins, https://owasp.org/www-community/attacks/CSV_Injection."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)

_ARRAY = r"\[(?:[\d.]+(?:, [\d.]+)*)?\](?![(\[:])"
_SPECIAL = re.compile(rf"({_ARRAY})|([\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
"""Characters that markdown could take as markup are the second group; an underscore in a word and an array are not."""
_OPENING = re.compile(r"^(\d+(?=[.)])|)([-+#=.)])")


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


def untaken(name: str, taken: Container[str]) -> str:
    """The name, with a number if it is taken: ``memory``, ``memory-2``."""
    numbered = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(each for each in numbered if each not in taken)


def json_text(data: object) -> str:
    """Indented, ending with a newline; what JSON has no word for, such as a path, is a text."""
    return msgspec.json.format(msgspec.json.encode(data, enc_hook=str), indent=2).decode() + "\n"


def csv_text(keys: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV under these keys. The items of a list are joined by ``;``, one inside a text is ``,``; what is
    missing, None or no number is empty."""
    import csv

    keys, text = tuple(keys), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_csv_field(row.get(key)) for key in keys] for row in rows)
    return text.getvalue()


def _csv_field(value: Any) -> Any:
    if isinstance(value, list | tuple):
        joined = ";".join(each.replace(";", ",") if isinstance(each, str) else repr(each) for each in value)
        return as_data(joined) if any(isinstance(each, str) for each in value) else joined
    if isinstance(value, float) and math.isnan(value):
        return None
    # Older Pythons leave a bare carriage return unquoted, and then cannot read the row back.
    return as_data(value) if isinstance(value, str) else value


def markdown_escape(text: str) -> str:
    """One line of text that renders as itself inside a line or a table cell."""
    return _SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", one_line(text))


def code_block(text: str, language: str = "") -> str:
    """A fenced block; the fence is longer than any run of backticks inside."""
    body = plain(text).strip("\n")
    longest = max(map(len, re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def bullets(lines: Iterable[str]) -> str:
    """A list; no line can begin a heading or a list of its own."""
    return "\n".join("- " + _OPENING.sub(r"\1\\\2", line) for line in lines)
