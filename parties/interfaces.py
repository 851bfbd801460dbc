"""The interfaces that the loop knows: policy, platform, and what a platform is made of.

A *platform* is the set of monitors, actuators and a clock that the loop is given. The loop does not know which one it has. To add
a policy: one file in ``parties/policies``. A resource: one file in ``actuators`` that offers an ``Actuator``. A source of latency:
one file in ``monitors`` that feeds the histogram socket.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from parties.knob import KnobRef, KnobWrite
from parties.model import (
    Decision,
    Holder,
    Move,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    Resource,
    Service,
    Usage,
)
from parties.placement import Placement
from parties.settings import PartiesSettings


class Policy(Protocol):
    """What decides. It opens nothing, reads no clock, and draws only from the random generator that it was given."""

    name: str
    best_effort_idle_class: bool
    """Whether best-effort jobs run in the idle scheduling class where cores are divided."""
    sharing: Mapping[str, Holder]
    """Services that have no holder of their own but live in that one, unpartitioned among themselves; mostly empty."""

    def initial(self) -> Partition | None:
        """The partition of a fresh start, or None for a policy that partitions nothing."""

    def decide(self, observation: Observation) -> Decision:
        """The moves of this interval and why."""


class PolicyFactory(Protocol):
    """Makes a policy for a node and its services."""

    def __call__(
        self, node: Node, services: Sequence[Service], *, best_effort: bool, settings: PartiesSettings, rng: random.Random
    ) -> Policy:
        """Raise ValueError, naming the setting, for settings that contradict each other or the node."""


class Platform(Protocol):
    """A machine that can be observed and changed: the host's kernel, or a model of a node."""

    node: Node

    def now_ns(self) -> int:
        """The platform's monotonic clock."""

    def wait_until(self, deadline_ns: int) -> bool:
        """Take in what arrives until the deadline; False if asked to stop."""

    def start(self, partition: Partition | None, *, best_effort_idle_class: bool, sharing: Mapping[str, Holder]) -> None:
        """Put a fresh start's partition in force; None manages nothing. The last two are the policy's of the same name."""

    def observe(self, tick: int) -> Observation:
        """The interval that ends now."""

    def apply(self, moves: Sequence[Move]) -> None:
        """Place and enforce; the outcomes appear in the next observations."""

    def close(self) -> None:
        """Put back everything, by the exit policy."""


class Actuator(Protocol):
    """The only writer of one resource."""

    resource: Resource

    def pools(self) -> tuple[Pool, ...]:
        """What of the resource this machine offers; unmanaged pools carry the reason."""

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """The knob writes that bring ``placement`` about, unordered; ``before`` is what is in force, None at the start."""

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """What each holder really has, as the kernel says; holders that vanished are left out."""

    def close(self) -> None:
        """Give up descriptors. Writes nothing."""


@runtime_checkable
class FollowsCores(Protocol):
    """An actuator whose writes depend on which CPUs a holder has: it takes part in the plan of every move of cores."""

    follows_cores: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """What an upkeep task came to: writes to be carried out now, in a plan of their own, and what an operator should know.

    ``apart``: each write is a plan by itself, so that one that is refused undoes no other.
    """

    writes: Sequence[KnobWrite] = ()
    warnings: Sequence[str] = ()
    apart: bool = False


class UpkeepTask(Protocol):
    """Something that has to be looked after while the loop runs, and is too slow for the tick: new threads, a slow sensor.

    Every ``period_ns`` the knob ``ref`` is set to ``value`` by a process of its own; what is read back of it is judged here.
    """

    ref: KnobRef
    value: str
    period_ns: int

    def judge(self, found: str | None, error: OSError | None) -> Finding:
        """What follows from what was found, or from why it could not be."""


@runtime_checkable
class NeedsUpkeep(Protocol):
    """An actuator that has upkeep tasks. They are done once before the loop begins."""

    def upkeep(self) -> Sequence[UpkeepTask]:
        """The tasks, the same at each call."""


@runtime_checkable
class HasProblems(Protocol):
    """An actuator that manages its resource, but not as it should be; the words are known once ``pools`` has been asked."""

    problems: tuple[str, ...]


class Journalled(Protocol):
    """What a journal knows."""

    def __contains__(self, ref: KnobRef, /) -> bool:
        """Whether the knob's earlier value is on disk."""


@runtime_checkable
class Tidies(Protocol):
    """An actuator that can find what an earlier run left and no journal knows. Never asked where nothing may be written."""

    def tidy(self, journalled: Journalled) -> Sequence[str]:
        """Remove it; what was done, in words."""


class UsageMonitor(Protocol):
    """Reads what holders use."""

    def sample(self, now_ns: int) -> Mapping[Holder, Usage]:
        """Use since the last call, per service and for the best-effort pool together; the first call gives memory only."""

    def populated(self) -> Mapping[Holder, bool]:
        """Whether a holder has any process."""

    def close(self) -> None:
        """Give up descriptors."""
