"""One published figure beside ours."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A figure of the paper and of the model, and whether they agree as closely as asked for."""

    kind: str  # max-load, use, cell, tuple or fact
    name: str
    paper: float
    ours: float
    within: bool
    unit: str = ""
