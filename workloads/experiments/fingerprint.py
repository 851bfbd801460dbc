"""What a finished point depends on beside its parameters: code and data. A change of either makes it worth measuring again.

Taken in are the sources of everything that a simulated run executes, the configuration files that describe nodes, services, jobs
and scenarios, the shared modules of the experiments, and the source of the measure function itself. Summaries and drawings are
not: they are made anew from the rows each time.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import configs
import monitors
import parties
import simulator
from parties import __version__
from workloads.experiments.experiment import Experiment

_CODE = (
    (simulator, ("**/*.py",)),
    (parties, ("policies/*.py", "model.py", "loop.py", "placement.py", "membership.py", "settings.py", "histogram.py")),
    (monitors, ("signal.py", "signal_window.py", "histogram_message.py")),
    (configs, ("nodes/*.toml", "services/*.toml", "jobs/*.toml", "scenarios/*.toml")),
)
_SHARED = ("experiment.py", "trials.py", "frontier.py", "model.py", "timeline.py")


def fingerprint(experiment: Experiment) -> str:
    """A short digest; equal only for points that would give the same rows."""
    digest = hashlib.sha256(__version__.encode())
    for path in _files():
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    digest.update(inspect.getsource(experiment.measure).encode())
    return digest.hexdigest()[:16]


def _files() -> Iterator[Path]:
    for package, patterns in _CODE:
        root = Path(str(package.__file__)).parent
        for pattern in patterns:
            yield from sorted(root.glob(pattern))
    for name in _SHARED:
        yield Path(__file__).with_name(name)
