"""The experiments by name. A new one is one file in ``figures`` and one name here."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable

from workloads.experiments.experiment import Experiment

NAMES = (
    "calibration",
    "load-latency",
    "sensitivity",
    "memory-disk",
    "interference",
    "pairs",
    "triples",
    "six",
    "emu",
    "managers",
    "fluctuating",
    "convergence",
    "signal",
)
"""In the order in which they are run and reported: what the node is like, then what managers make of it."""

ALL = "all"


class UnknownExperimentError(ValueError):
    """No experiment has that name; the message gives the nearest names, or all."""


def experiments_named(names: Iterable[str]) -> tuple[Experiment, ...]:
    """The experiments of these names, each once and in the order of ``NAMES``; ``all`` is all. Raises UnknownExperimentError."""
    wanted = list(names)
    unknown = [_unknown(name) for name in wanted if name not in (*NAMES, ALL)]
    if unknown:
        raise UnknownExperimentError("\n".join(unknown))
    return tuple(_load(name) for name in NAMES if name in wanted or ALL in wanted)


def _load(name: str) -> Experiment:
    module = importlib.import_module(f"workloads.experiments.figures.{name.replace('-', '_')}")
    experiment = module.EXPERIMENT
    assert isinstance(experiment, Experiment)  # noqa: S101 - the files are ours
    return experiment


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, (*NAMES, ALL), cutoff=0.5)
    return f"there is no experiment {name!r}; " + (
        f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(NAMES)}, {ALL}"
    )
