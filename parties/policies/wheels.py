"""The trading wheels: which resource is tried next (section 4.3, Figure 4).

A service remembers its last *action*, a direction and a resource. An action that helped is kept; one that did not, or that cannot
be done, turns the wheel. Compute and storage are wheels of their own, since one resource of a wheel stands in for another.

The table, as it is walked (the same for both directions):

    state      kept       not kept, or cannot be done   ... if that one has been tried already
    memory     memory     disk                          random of cores, cache, frequency
    disk       disk       memory                        random of cores, cache, frequency
    cores      cores      cache                         the turn's end
    cache      cache      frequency                     the turn's end
    frequency  frequency  cores                         the turn's end

    the turn's end    memory nearly full      memory not nearly full
    up                random of the storage   another turn
    down              random of the storage   random of the storage

A service without an action, or with one of the other direction, starts at random among the five. On the storage wheel a resource
has been tried if it was the action since the wheel was entered; on the compute wheel if it was not kept since the last one that
was: three in a row not kept make a turn.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Container, Mapping
from dataclasses import dataclass

from parties.model import Resource

COMPUTE = (Resource.CORES, Resource.CACHE, Resource.FREQUENCY)
STORAGE = (Resource.MEMORY, Resource.DISK)
TRADED = COMPUTE + STORAGE
"""What the wheels trade; network bandwidth has a rule of its own (``parties.policies.network``)."""


class Direction(enum.StrEnum):
    """Whether a service is given something or gives something."""

    UP = "up"
    DOWN = "down"


class Onward(enum.Enum):
    """Where a wheel leads whose next resource has been tried already."""

    RANDOM_COMPUTE = "random of cores, cache, frequency"
    RANDOM_STORAGE = "random of memory, disk"
    END_OF_TURN = "the turn's end"
    ANOTHER_TURN = "another turn"


@dataclass(frozen=True, slots=True)
class Action:
    """What a service does: a direction, a resource, and which resources of this wheel have been tried (see the module)."""

    direction: Direction
    resource: Resource
    tried: frozenset[Resource]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    kept: Resource
    otherwise: Resource
    if_tried: Onward


TRADING_WHEELS: Mapping[Resource, Row] = {
    Resource.MEMORY: Row(Resource.MEMORY, Resource.DISK, Onward.RANDOM_COMPUTE),
    Resource.DISK: Row(Resource.DISK, Resource.MEMORY, Onward.RANDOM_COMPUTE),
    Resource.CORES: Row(Resource.CORES, Resource.CACHE, Onward.END_OF_TURN),
    Resource.CACHE: Row(Resource.CACHE, Resource.FREQUENCY, Onward.END_OF_TURN),
    Resource.FREQUENCY: Row(Resource.FREQUENCY, Resource.CORES, Onward.END_OF_TURN),
}

END_OF_TURN: Mapping[tuple[Direction, bool], Onward] = {  # by direction and whether memory is nearly full
    (Direction.UP, True): Onward.RANDOM_STORAGE,
    (Direction.UP, False): Onward.ANOTHER_TURN,
    (Direction.DOWN, True): Onward.RANDOM_STORAGE,
    (Direction.DOWN, False): Onward.RANDOM_STORAGE,
}


def kept(action: Action) -> Action:
    """The action after one that helped: the same; on the compute wheel the turn begins anew with it."""
    row = TRADING_WHEELS[action.resource]
    tried = frozenset({row.kept}) if row.kept in COMPUTE else action.tried
    return Action(action.direction, row.kept, tried)


def next_action(action: Action | None, direction: Direction, *, memory_nearly_full: bool, rng: random.Random) -> Action:
    """The action after one that did not help or cannot be done, and the first one of a direction."""
    if action is None or action.direction is not direction:
        return _enter(direction, TRADED, rng)
    row = TRADING_WHEELS[action.resource]
    if row.otherwise not in action.tried:
        return Action(direction, row.otherwise, action.tried | {row.otherwise})
    onward = row.if_tried
    if onward is Onward.END_OF_TURN:
        onward = END_OF_TURN[direction, memory_nearly_full]
    if onward is Onward.ANOTHER_TURN:
        return _enter(direction, (row.otherwise,), rng)
    return _enter(direction, COMPUTE if onward is Onward.RANDOM_COMPUTE else STORAGE, rng)


def possible_action(
    action: Action | None,
    direction: Direction,
    possible: Container[Resource],
    *,
    memory_nearly_full: bool,
    rng: random.Random,
) -> Action | None:
    """The action to take now: the present one if it is of that direction and possible, else the wheels turned until one is.

    None where nothing is possible; the wheels stay where they are then. A compute wheel of which nothing is possible is exhausted
    and left at the turn's end even if memory is not nearly full (caption of Figure 4).
    """
    if action is not None and action.direction is direction and action.resource in possible:
        return action
    if not any(resource in possible for resource in TRADED):
        return None
    leave_compute = memory_nearly_full or not any(resource in possible for resource in COMPUTE)
    if action is None or action.direction is not direction:
        action = next_action(action, direction, memory_nearly_full=leave_compute, rng=rng)
    while action.resource not in possible:
        action = next_action(action, direction, memory_nearly_full=leave_compute, rng=rng)
    return action


def _enter(direction: Direction, resources: tuple[Resource, ...], rng: random.Random) -> Action:
    resource = rng.choice(resources)
    return Action(direction, resource, frozenset({resource}))
