"""Summaries of rows that say how far a manager gets in a mix: what the frontier's experiments have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from workloads.experiments.experiment import Row

Key = tuple[str, ...]


def number(row: Row, column: str) -> float:
    """A number of a row. Raises TypeError for what is none."""
    value = row[column]
    if not isinstance(value, int | float):
        raise TypeError(f"{column} is {value!r}, not a number")
    return float(value)


def optional(row: Row, column: str) -> float | None:
    """A number of a row, or None where there is none."""
    return None if row.get(column) is None else number(row, column)


def mean(values: Iterable[float]) -> float | None:
    """The mean; None of nothing."""
    found = list(values)
    return fmean(found) if found else None


def rounded(value: float | None, digits: int = 1) -> float | None:
    """For people."""
    return None if value is None else round(value, digits)


def percent_more(ours: float | None, theirs: float | None) -> float | None:
    """How many per cent ours is over theirs; None where either is missing or theirs is nothing."""
    return None if ours is None or not theirs else 100 * (ours / theirs - 1)


def levels(rows: Sequence[Row], column: str) -> list[float]:
    """The different values of a column, ascending."""
    return sorted({number(row, column) for row in rows})


def cells(rows: Sequence[Row], across: str, up: str, value: str = "largest") -> dict[tuple[int, int], float | None]:
    """A heat map's cells, by the order of two columns; a value of 0 is a combination that is not served."""
    columns, lines = levels(rows, across), levels(rows, up)
    return {(columns.index(number(row, across)), lines.index(number(row, up))): optional(row, value) or None for row in rows}


def by_manager(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each manager, in the order in which managers first appear."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["manager"]), []).append(row)
    return found


def aligned(rows: Sequence[Row], keys: Sequence[str]) -> list[Mapping[str, Row]]:
    """Rows of the same combination side by side, by manager."""
    found: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in keys), {})[str(row["manager"])] = row
    return list(found.values())
