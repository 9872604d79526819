"""Tables and figures as texts that tests keep in `__snapshots__`, and as rows by heading."""

import csv
import io
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from cs336_tui.export.writing.drawing import Absent, Drawing
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Table

Tables = Mapping[str, Iterable[Table]]


def as_text(tables: Tables) -> str:
    """The tables as Markdown, with the order in which columns give way in little room, and each first record. Every
    other format takes them, too."""
    parts: list[str] = []
    for name, several in tables.items():
        several = list(several)
        assert all(render_all(several, format_).strip() for format_ in FORMATS if several)
        first = [
            f"{key} = {agreed(value)!r}" for table in several for key, value in [*table.records[:1], {}][0].items()
        ]
        ranks = [" ".join(str(column.rank) for column in table.columns) for table in several]
        parts += [f"# {name}", render_all(several, "markdown"), "; ".join(ranks), "; ".join(first)]
    return "\n\n".join(parts)


def agreed(value: object) -> object:
    """A number with as many digits as the linear algebra of all processors agrees on; anything else itself."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def kept(*tables: Table) -> str:
    """As `as_text`, each by its number."""
    return as_text({f"table {number}": [table] for number, table in enumerate(tables, 1)})


def csv_rows(text: str) -> list[dict[str, str]]:
    """The rows of a CSV, by heading."""
    return list(csv.DictReader(io.StringIO(text)))


def by_header(table: Table) -> list[dict[str, str]]:
    """The texts of each row, by heading."""
    return [dict(zip((column.header for column in table.columns), row, strict=True)) for row in table.rows]


def shown(table: Table, header: str) -> list[str]:
    """The texts of a column."""
    return [row[header] for row in by_header(table)]


def rounded(point: Iterable[float]) -> str:
    """A point with as many digits as all platforms agree on."""
    return ", ".join(f"{x:.5g}" for x in point)


def as_drawn(drawing: Drawing | Absent) -> str:
    """A figure's axes: their titles, scales, lines, bars, areas and words, and the legends; or why there is none."""
    if isinstance(drawing, Absent):
        return str(drawing)
    figure = Figure(figsize=drawing.size, layout="constrained")
    drawing.draw(figure)
    found = [f"{drawing.name}: {drawing.title} {drawing.size}"]
    for axis in figure.axes:
        found.append(f"{axis.get_title()} | {axis.get_xlabel()} | {axis.get_ylabel()}")
        found += [f"{each.get_transform()}" for each in (axis.xaxis, axis.yaxis)]
        found += [f"{text.get_text()} {text.get_position()}" for text in axis.texts]
        found += [
            ", ".join(tick.get_text() for tick in ticks) for ticks in (axis.get_xticklabels(), axis.get_yticklabels())
        ]
        shapes = [(line.get_xydata(), f", line {line.get_linestyle()}") for line in axis.lines]
        shapes += [(patch.get_patch_transform().transform(patch.get_path().vertices), "") for patch in axis.patches]
        shapes += [(path.vertices, "") for collection in axis.collections for path in collection.get_paths()]
        found += [
            f"{len(at)} points, mean {rounded(at.mean(0))}, from {rounded(at.min(0))} to {rounded(at.max(0))}{how}"
            for at, how in shapes
            if len(at)
        ]
    texts = [text for legend in figure.legends for text in (*legend.get_texts(), legend.get_title())]
    return "\n".join([*found, *(f"legend: {text.get_text()}" for text in texts if text.get_text())])
