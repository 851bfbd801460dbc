"""Which control groups belong to which holder, and how a holder's amount is divided among several of them.

The rule of division: equal parts in the smallest unit that the kernel takes (a microsecond of quota, a page, a byte/s); what is
over goes to the first groups, one unit each, so that the sum is always the amount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from actuators.cgroup.files import vanished
from actuators.cgroup.group import ENABLED, ControlGroup, Controller, GroupLayer
from actuators.cgroup.hierarchy import GroupMissingError, SetupError
from parties.knob import Effect, KnobError, KnobWrite
from parties.model import BEST_EFFORT, SPECIAL_HOLDERS, Holder, PoolKey
from parties.placement import Placement

T = TypeVar("T")

ManagedGroups = Mapping[Holder, tuple[str, ...]]
"""The paths of each holder's groups below the mount points. Idle and reserved own none."""


class HolderGroups:
    """The groups of every holder, opened. ``needs`` are the controllers in which each of them has to exist.

    Raises SetupError where two holders share a group or one lies below another, GroupMissingError where some do not exist, all of
    them in one message.
    """

    def __init__(self, layer: GroupLayer, managed: ManagedGroups, needs: Sequence[Controller]) -> None:
        check_disjoint(managed)
        self._needs = tuple(needs)
        self._groups = {holder: tuple(layer.group(path) for path in paths) for holder, paths in managed.items()}
        missing = [
            f"{holder}: {place}" for holder, groups in self._groups.items() for group in groups for place in group.missing(needs)
        ]
        if missing:
            raise GroupMissingError(
                f"control groups that do not exist: {'; '.join(missing)}; start what makes them, or mend their paths"
            )

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._groups)

    def lacks(self) -> str:
        """Why some of the groups cannot do what is needed, and what to do; empty if all can, once enabled. Raises KnobError."""
        reasons = {group.path: group.lacks(self._needs) for groups in self._groups.values() for group in groups}
        return "; ".join(reason for reason in reasons.values() if reason)

    def enabling(self) -> list[KnobWrite]:
        """The writes without which the groups' own knobs are not there: the first of a start's plan. Raises KnobError."""
        knobs = {
            knob.ref: KnobWrite(knob, ENABLED, holder, Effect.TAKE)
            for holder, groups in self._groups.items()
            for group in groups
            for knob in group.enabling(self._needs)
        }
        return list(knobs.values())

    def of(self, holder: Holder) -> tuple[ControlGroup, ...]:
        """The groups of a holder; none for one that is not managed."""
        return self._groups.get(holder, ())

    @property
    def best_effort(self) -> tuple[ControlGroup, ...]:
        """The groups of the best-effort pool."""
        return self.of(BEST_EFFORT)

    def services(self) -> tuple[Holder, ...]:
        """The holders other than the best-effort pool."""
        return tuple(holder for holder in self._groups if holder != BEST_EFFORT)

    def read(self, holder: Holder, reader: Callable[[ControlGroup], T]) -> tuple[T, ...] | None:
        """``reader`` of each of the holder's groups that is still there; None if none is. Raises KnobError."""
        found = []
        for group in self.of(holder):
            try:
                found.append(reader(group))
            except KnobError as error:
                if not vanished(error):
                    raise
        return tuple(found) or None

    def close(self) -> None:
        """Give up descriptors."""
        for groups in self._groups.values():
            for group in groups:
                group.close()


def check_disjoint(managed: ManagedGroups) -> None:
    """Raise SetupError unless every group belongs to one holder and none lies below another's or is the root."""
    owners: list[tuple[str, Holder]] = []
    for holder, paths in managed.items():
        if holder in SPECIAL_HOLDERS - {BEST_EFFORT}:
            raise SetupError(f"{holder} owns no control group: {', '.join(paths)}")
        if not paths and holder != BEST_EFFORT:
            raise SetupError(f"{holder}: no control group; give at least one in cgroups")
        owners += [("/" + path.strip("/"), holder) for path in paths]
    for index, (path, holder) in enumerate(owners):
        if path == "/":
            raise SetupError(f"{holder}: the root group cannot be managed; give the service a group of its own")
        for other, owner in owners[index + 1 :]:
            if path == other:
                raise SetupError(f"{path}: given to {holder} and to {owner}; each control group belongs to one")
            if path.startswith(other + "/") or other.startswith(path + "/"):
                raise SetupError(f"{path} of {holder} and {other} of {owner}: one lies below the other; give groups side by side")


class Change(NamedTuple):
    """What a holder is to have of a pool and what it has; ``old`` is None at the start, where that has to be read."""

    holder: Holder
    new: int
    old: int | None


def changes(holders: Iterable[Holder], pool: PoolKey, placement: Placement, before: Placement | None) -> Iterator[Change]:
    """The holders whose amount of a pool changes; at the start all of them. Of a pool that is not partitioned, none."""
    if pool not in placement.partition.amounts:
        return
    for holder in holders:
        new = placement.partition.amount(pool, holder)
        old = None if before is None else before.partition.amount(pool, holder)
        if new != old:
            yield Change(holder, new, old)


def split(amount: int, parts: int) -> tuple[int, ...]:
    """``amount`` in ``parts`` equal whole parts, the remainder one each to the first."""
    share, over = divmod(amount, parts)
    return tuple(share + 1 if index < over else share for index in range(parts))


def effect(old: int, new: int) -> Effect:
    """What going from ``old`` to ``new`` does to the holder."""
    if new == old:
        return Effect.NEUTRAL
    return Effect.GIVE if new > old else Effect.TAKE
