"""Where results are kept: finished points as JSON lines, rows as CSV, the summary as JSON, the figure as PNG.

A points file belongs to one measure function. Its first line says so; each further line is one finished point with the fingerprint
of the code and data that it was measured with. A line that was cut short by a crash is measured again. Nothing is overwritten that
this program did not write.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from workloads.experiments.experiment import Experiment, Point, Row

FORMAT = "parties-experiment-points"
SUMMARY_FORMAT = "parties-experiment"
VERSION = 1
POINTS, TABLE, SUMMARY, PICTURE = ".points.jsonl", ".csv", ".json", ".png"
REPORT = "report.html"


class StoreError(Exception):
    """The output directory cannot be used; the text is the message."""


class Points:
    """The finished points of one points file, open for more. ``broken`` lines were passed over."""

    def __init__(self, name: str, file: IO[str], finished: dict[tuple[str, str], dict[str, Any]], broken: int) -> None:
        self.name = name
        self.broken = broken
        self._file = file
        self._finished = finished

    def rows(self, point: Point, fingerprint: str) -> list[Row] | None:
        """The rows of a finished point; None if it has to be measured."""
        found = self._finished.get((point.identity(), fingerprint))
        return None if found is None else found["rows"]

    def cost_s(self, points: Sequence[Point], fingerprint: str) -> float:
        """The CPU time that measuring these points took."""
        lines = (self._finished.get((point.identity(), fingerprint)) for point in points)
        return sum(float(line["cost_s"]) for line in lines if line is not None)

    def add(self, point: Point, fingerprint: str, rows: Sequence[Row], cost_s: float) -> None:
        """Keep a finished point. Raises StoreError if the disk is full or gone; ValueError for a row that JSON cannot hold."""
        line = {"point": point.identity(), "fingerprint": fingerprint, "cost_s": round(cost_s, 3), "rows": list(rows)}
        text = json.dumps(line, allow_nan=False)
        try:
            self._file.write(text + "\n")
            self._file.flush()
        except OSError as error:
            raise _unusable(Path(self._file.name), error) from error
        self._finished[point.identity(), fingerprint] = line


class Store:
    """The results in one directory. Raises StoreError from everything that it does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def prepare(self, experiments: Sequence[Experiment]) -> None:
        """Make the directory, and see before anything is computed that it can be written and holds nobody else's results."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise _unusable(self.directory, error) from error
        for experiment in experiments:
            self._refuse_foreign(experiment)

    def _refuse_foreign(self, experiment: Experiment) -> None:
        points = self.path(experiment.stored_as, POINTS)
        if points.exists():
            with points.open(encoding="utf-8", errors="replace") as file:
                _check_head(points, experiment.stored_as, file.readline())
            return
        for suffix in (TABLE, SUMMARY, PICTURE):
            if (path := self.path(experiment.name, suffix)).exists():
                raise StoreError(
                    f"{path} is there and {points.name} is not, so it is not from here; choose another --out or remove it"
                )

    def path(self, name: str, suffix: str) -> Path:
        """The file of an experiment."""
        return self.directory / f"{name}{suffix}"

    @contextmanager
    def points(self, name: str) -> Iterator[Points]:
        """Open a points file and lock it against another run."""
        path = self.path(name, POINTS)
        try:
            file = path.open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise _unusable(path, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(f"{path}: another run is writing it; wait for it, or choose another --out") from None
            yield _read(name, path, file)

    def write_table(self, name: str, rows: Sequence[Row]) -> None:
        """All rows as CSV, the columns in the order in which they first appear."""
        columns = list(dict.fromkeys(column for row in rows for column in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.write(self.path(name, TABLE), lambda path: path.write_text(text.getvalue(), encoding="utf-8"))

    def write_summary(self, name: str, summary: dict[str, Any]) -> None:
        """The summary as JSON."""
        text = json.dumps(summary, indent=1, allow_nan=False) + "\n"
        self.write(self.path(name, SUMMARY), lambda path: path.write_text(text, encoding="utf-8"))

    def write(self, path: Path, fill: Callable[[Path], object]) -> None:
        """Put a whole file in place, or leave the old one."""
        beside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
        try:
            fill(beside)
            beside.replace(path)
        except OSError as error:
            raise _unusable(path, error) from error
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Every summary found here, by experiment; other JSON files are left alone."""
        if not self.directory.is_dir():
            raise StoreError(f"{self.directory}: no such directory; run experiments with --out {self.directory} first")
        found = {}
        for path in sorted(self.directory.glob(f"*{SUMMARY}")):
            try:
                summary = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(summary, dict) and summary.get("format") == SUMMARY_FORMAT and summary.get("experiment") == path.stem:
                found[path.stem] = summary
        return found


def _head(name: str) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "points_of": name}


def _check_head(path: Path, name: str, line: str) -> None:
    if not line:
        return
    try:
        head = json.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise StoreError(f"{path} is no points file of an experiment; choose another --out or remove it")
    if head != _head(name):
        raise StoreError(
            f"{path} is of version {head.get('version')} for {head.get('points_of')!r}, not {VERSION} for {name!r}; "
            "choose another --out or remove it"
        )


def _read(name: str, path: Path, file: IO[str]) -> Points:
    """Take in what is finished, and leave the file so that the next line starts on a line of its own."""
    file.seek(0)
    text = file.read()
    lines = text.splitlines()
    _check_head(path, name, lines[0] if lines else "")
    try:
        if not lines:
            file.write(json.dumps(_head(name)) + "\n")
        elif not text.endswith("\n"):
            file.write("\n")
        file.flush()
    except OSError as error:
        raise _unusable(path, error) from error
    finished, broken = {}, 0
    for line in lines[1:]:
        try:
            found = json.loads(line)
            key = (str(found["point"]), str(found["fingerprint"]))
            whole = isinstance(found["cost_s"], int | float) and all(isinstance(row, dict) for row in found["rows"])
        except (ValueError, KeyError, TypeError):
            whole = False
        if whole:
            finished[key] = found
        else:
            broken += bool(line.strip())
    return Points(name, file, finished, broken)


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path}: {error.strerror or error}; choose a directory for --out that can be written")
