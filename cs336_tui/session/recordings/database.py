"""An SQLite database of others: ordinary tables of it are read, and nothing in it is run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cs336_tui.session.recordings.recording import Watch
from cs336_tui.session.recordings.trace import MOST_ROWS, TooLarge

_LONGEST_TEXT = 1 << 20
_STEPS = 20_000
"""Of SQLite's machine, between two looks at the watch."""
_AT_ONCE = 10_000


class Damaged(Exception):
    """A value that cannot be."""


class Database:
    """One database, opened so that it can only be read: no other file, no function, no view. `tables` has the columns
    of each ordinary table. `expected` are the tables that will be read, by whose rows the watch is told of progress."""

    def __init__(self, path: Path, watch: Watch, expected: Sequence[str]) -> None:
        self._watch, self._size = watch, path.stat().st_size
        self._stopped: BaseException | None = None
        self._rows = self._expected = 0
        self._base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
        self._base.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._base.text_factory = partial(str, encoding="utf-8", errors="replace")
        self._base.execute("PRAGMA trusted_schema = OFF")
        self._base.execute("PRAGMA query_only = ON")
        self._base.execute("PRAGMA mmap_size = 0")
        self._base.set_progress_handler(self._look, _STEPS)
        self._base.set_authorizer(_allowed)
        self.tables = self._columns()
        self._expected = sum(map(self._most_rows, expected))

    def close(self) -> None:
        self._base.close()

    def _look(self) -> int:
        """Called while SQLite works: a watch that raises stops it."""
        try:
            self._tell()
        except BaseException as error:
            self._stopped = error
            return 1
        return 0

    def _tell(self) -> None:
        """Tell the watch of the share of rows that has been read, in bytes of the file."""
        self._watch(self._size * min(self._rows, self._expected) // max(self._expected, 1), self._size)

    def _columns(self) -> dict[str, frozenset[str]]:
        """The columns of each ordinary table; a view or a virtual table may run anything."""
        found = {}
        for name, sql in self._all("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
            if (
                isinstance(name, str)
                and isinstance(sql, str)
                and sql[:13].upper() == "CREATE TABLE "
                and '"' not in name
            ):
                found[name] = frozenset(str(row[1]) for row in self._all(f'PRAGMA table_info("{name}")'))
        return found

    def _all(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, a part of them at once."""
        try:
            cursor = self._base.execute(sql)
            while rows := cursor.fetchmany(_AT_ONCE):
                self._rows += len(rows)
                if self._rows > MOST_ROWS:
                    raise TooLarge("rows")
                self._tell()
                yield from rows
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if self._stopped is not None:
                raise self._stopped from None
            if isinstance(error, UnicodeDecodeError):  # of SQLite's own message, or of a name that is none
                raise Damaged("a name in it is no text") from None
            raise

    def select(
        self, table: str, needed: Sequence[str], more: Sequence[str] = (), where: str = "TRUE"
    ) -> Iterator[tuple[Any, ...]]:
        """The named columns of a table; None for one of `more` that it lacks. Nothing without the table. Raises
        `Damaged`, `TooLarge`, `sqlite3.Error` and what the watch raises."""
        has = self.tables.get(table)
        if has is None:
            return iter(())
        if missing := [column for column in needed if column not in has]:
            raise Damaged(f"{table} has no {missing[0]}")
        columns = [f'"{column}"' if column in has else "NULL" for column in (*needed, *more)]
        return self._all(f'SELECT {", ".join(columns)} FROM "{table}" WHERE {where}')

    def _most_rows(self, table: str) -> int:
        """The last number of a row, which is quick to find."""
        if table not in self.tables:
            return 0
        found = [row[0] for row in self._all(f'SELECT rowid FROM "{table}" ORDER BY rowid DESC LIMIT 1')]
        return found[0] if found and 0 < found[0] < MOST_ROWS else 0


def _allowed(action: int, what: str | None, _more: str | None, _base: str | None, _inner: str | None) -> int:
    """SQLite's question before a statement: reading tables and their columns' names is all there is."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action == sqlite3.SQLITE_PRAGMA and what == "table_info" else sqlite3.SQLITE_DENY
