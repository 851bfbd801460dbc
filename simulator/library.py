"""Nodes, services and jobs by name (``configs/nodes``, ``configs/services``, ``configs/jobs``) or by the path of a file.

A name is a file of the project without ``.toml``; anything with a ``/`` or that ends in ``.toml`` is a path.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import TypeVar

from parties.config import load_data
from parties.config_schema import Mistake
from simulator.profile import JobModel, NodeProfile, ServiceModel
from simulator.profile_checks import job_mistakes, node_mistakes, service_mistakes

CONFIGS = Path(str(resources.files("configs")))

DEFAULT_NODE = "e5-2699v4"

_SUFFIX = ".toml"
T = TypeVar("T")


class UnknownProfileError(LookupError):
    """There is no node, service or job of that name: an operator's mistake.

    The text is the whole message, with the nearest names.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        near = difflib.get_close_matches(name, self.known, n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(self.known)}"
        super().__init__(f'there is no {kind} "{name}"{meant} (or say the path of a {_SUFFIX} file)')

    def __str__(self) -> str:
        return str(self.args[0])


def node_profile(name: str | Path) -> NodeProfile:
    """A node. Raises UnknownProfileError, or ``parties.config.ConfigError`` with every mistake of its file."""
    return _load("node", name, NodeProfile, node_mistakes)


def service_model(name: str | Path) -> ServiceModel:
    """A service. Raises as ``node_profile``."""
    return _load("service", name, ServiceModel, service_mistakes)


def job_model(name: str | Path) -> JobModel:
    """A best-effort job. Raises as ``node_profile``."""
    return _load("job", name, JobModel, job_mistakes)


def names(kind: str) -> list[str]:
    """The nodes, services or jobs that come with the project; ``kind`` is "node", "service" or "job"."""
    return sorted(file.stem for file in (CONFIGS / f"{kind}s").glob(f"*{_SUFFIX}"))


def _load(kind: str, name: str | Path, root: type[T], check: Callable[[T], Iterable[Mistake]]) -> T:
    text = str(name)
    if isinstance(name, Path) or "/" in text or text.endswith(_SUFFIX):
        return load_data(Path(name), root, check)
    known = names(kind)
    if text not in known:
        raise UnknownProfileError(kind, text, known)
    return load_data(CONFIGS / f"{kind}s" / f"{text}{_SUFFIX}", root, check)
