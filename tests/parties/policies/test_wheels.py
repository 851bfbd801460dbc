"""The trading wheels against the table of the paper's Figure 4, written down here a second time."""

from __future__ import annotations

import itertools
import random

import pytest

from parties.model import Resource
from parties.policies.wheels import TRADING_WHEELS, Action, Direction, kept, next_action, possible_action

CORE, CACHE, FREQ, MEM, DISK = Resource.CORES, Resource.CACHE, Resource.FREQUENCY, Resource.MEMORY, Resource.DISK
UP, DOWN = Direction.UP, Direction.DOWN
ALL = {CORE, CACHE, FREQ, MEM, DISK}
COMPUTE = {CORE, CACHE, FREQ}
STORAGE = {MEM, DISK}
BOTH = (UP, DOWN)
SEEDS = range(60)

# (resource, tried on this wheel) -> where it can lead when not kept: for up with memory to spare, up with memory nearly full, down.
NOT_KEPT = {
    (MEM, (MEM,)): ({DISK}, {DISK}, {DISK}),
    (MEM, (MEM, DISK)): (COMPUTE, COMPUTE, COMPUTE),
    (DISK, (DISK,)): ({MEM}, {MEM}, {MEM}),
    (DISK, (DISK, MEM)): (COMPUTE, COMPUTE, COMPUTE),
    (CORE, (CORE,)): ({CACHE}, {CACHE}, {CACHE}),
    (CORE, (CORE, FREQ)): ({CACHE}, {CACHE}, {CACHE}),
    (CORE, (CACHE, FREQ, CORE)): ({CACHE}, STORAGE, STORAGE),
    (CACHE, (CACHE,)): ({FREQ}, {FREQ}, {FREQ}),
    (CACHE, (CACHE, CORE)): ({FREQ}, {FREQ}, {FREQ}),
    (CACHE, (FREQ, CORE, CACHE)): ({FREQ}, STORAGE, STORAGE),
    (FREQ, (FREQ,)): ({CORE}, {CORE}, {CORE}),
    (FREQ, (FREQ, CACHE)): ({CORE}, {CORE}, {CORE}),
    (FREQ, (CORE, CACHE, FREQ)): ({CORE}, STORAGE, STORAGE),
}


def generator(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - replayable


def action(direction: Direction, resource: Resource, *tried: Resource) -> Action:
    return Action(direction, resource, frozenset({resource, *tried}))


def followers(state: Action | None, direction: Direction, *, full: bool) -> set[Resource]:
    """Where a state can lead, over many seeds."""
    found = set()
    for seed in SEEDS:
        following = next_action(state, direction, memory_nearly_full=full, rng=generator(seed))
        assert following.direction is direction
        found.add(following.resource)
    return found


@pytest.mark.parametrize(("state", "expected"), NOT_KEPT.items(), ids=["+".join((state, *tried)) for state, tried in NOT_KEPT])
@pytest.mark.parametrize(("column", "direction", "full"), [(0, UP, False), (1, UP, True), (2, DOWN, False), (2, DOWN, True)])
def test_not_kept_leads_where_the_table_says(
    state: tuple[Resource, tuple[Resource, ...]],
    expected: tuple[set[Resource], ...],
    column: int,
    direction: Direction,
    full: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    """Every state of both wheels, in both directions and with memory nearly full or not, leads exactly where the table says."""
    assert followers(Action(direction, state[0], frozenset(state[1])), direction, full=full) == expected[column]


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("resource", sorted(ALL))
def test_kept_stays(resource: Resource, direction: Direction) -> None:
    """An action that helped is taken again."""
    following = kept(action(direction, resource))
    assert (following.direction, following.resource) == (direction, resource)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("direction", BOTH)
def test_a_new_direction_starts_at_random_among_five(direction: Direction, full: bool) -> None:  # noqa: FBT001 - a parameter
    """Without an action, or with one of the other direction, each of the five can come first, about equally often."""
    other = DOWN if direction is UP else UP
    for state in (None, *(action(other, resource) for resource in sorted(ALL))):
        counts = dict.fromkeys(ALL, 0)
        for seed in range(1000):
            counts[next_action(state, direction, memory_nearly_full=full, rng=generator(seed)).resource] += 1
        assert all(130 < count < 270 for count in counts.values())


@pytest.mark.parametrize("direction", BOTH)
def test_a_kept_compute_action_begins_the_turn_anew(direction: Direction) -> None:
    """Only three compute resources not kept in a row make a turn: one that was kept in between counts as the first."""
    state = action(direction, CACHE, CORE)  # core not kept, cache tried
    state = kept(state)
    rng = generator(1)
    walked = []
    for _ in range(2):
        state = next_action(state, direction, memory_nearly_full=True, rng=rng)
        walked.append(state.resource)
    assert walked == [FREQ, CORE]
    assert followers(state, direction, full=True) == STORAGE


@pytest.mark.parametrize("direction", BOTH)
def test_a_kept_storage_action_does_not_forget_what_was_tried(direction: Direction) -> None:
    """Both storage resources are tried once since entering, whatever was kept in between."""
    state = next_action(action(direction, MEM), direction, memory_nearly_full=False, rng=generator(1))
    assert state.resource is DISK
    assert followers(kept(state), direction, full=False) == COMPUTE


def test_another_turn_goes_round_in_order() -> None:
    """Upsizing with memory to spare stays on the compute wheel, turn after turn: queues must drain first."""
    state = action(UP, CORE)
    walked = []
    for _ in range(9):
        state = next_action(state, UP, memory_nearly_full=False, rng=generator(1))
        walked.append(state.resource)
    assert walked == [CACHE, FREQ, CORE] * 3


@pytest.mark.parametrize("direction", BOTH)
def test_each_wheel_is_entered_afresh(direction: Direction) -> None:
    """What was tried on one wheel does not count after the other one was visited."""
    rng = generator(3)
    state = Action(direction, FREQ, frozenset(COMPUTE))
    for wheel, size in ((STORAGE, 2), (COMPUTE, 3), (STORAGE, 2)):
        visited = []
        for _ in range(size):
            state = next_action(state, direction, memory_nearly_full=True, rng=rng)
            visited.append(state.resource)
        assert set(visited) == wheel


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("resource", "tried"), [(state[0], state[1]) for state in NOT_KEPT])
@pytest.mark.parametrize("count", range(6))
def test_every_skip_lands_on_something_possible(
    resource: Resource,
    tried: tuple[Resource, ...],
    direction: Direction,
    full: bool,  # noqa: FBT001 - a parameter
    count: int,
) -> None:
    """From every state and for every set of possible resources: one of them is reached, or none and the wheel stays."""
    state = Action(direction, resource, frozenset(tried))
    for possible in itertools.combinations(sorted(ALL), count):
        for seed in range(3):
            following = possible_action(state, direction, possible, memory_nearly_full=full, rng=generator(seed))
            if not possible:
                assert following is None
            elif resource in possible:
                assert following == state
            else:
                assert following is not None
                assert following.resource in possible


def test_a_skip_is_a_step_of_the_wheel() -> None:
    """A resource at its end is passed over in the wheel's order, not at random."""
    state = action(UP, CORE)
    for possible, expected in (({FREQ, MEM, DISK}, FREQ), ({CACHE, FREQ, MEM, DISK}, CACHE)):
        for seed in SEEDS:
            following = possible_action(state, UP, possible, memory_nearly_full=False, rng=generator(seed))
            assert following is not None
            assert following.resource is expected


def test_an_exhausted_compute_wheel_is_left_though_memory_is_not_full() -> None:
    """Where no compute resource is possible, upsizing goes to storage (caption of Figure 4); where one is, it does not."""
    for seed in SEEDS:
        rng = generator(seed)
        stuck = possible_action(action(UP, CORE), UP, {DISK}, memory_nearly_full=False, rng=rng)
        turned = possible_action(action(UP, CACHE), UP, {CORE, DISK, MEM}, memory_nearly_full=False, rng=rng)
        assert stuck is not None
        assert stuck.resource is DISK
        assert turned is not None
        assert turned.resource is CORE


def test_a_turn_that_ends_while_skipping_is_followed_by_another() -> None:
    """With a compute resource to be had and memory to spare, upsizing does not leave the wheel however far it skips."""
    for seed in SEEDS:
        end = Action(UP, FREQ, frozenset(COMPUTE))
        following = possible_action(end, UP, {CACHE, MEM, DISK}, memory_nearly_full=False, rng=generator(seed))
        assert following == Action(UP, CACHE, frozenset({CORE, CACHE}))


def test_the_choice_is_the_generator_s() -> None:
    """The same generator gives the same walk, a different one another."""

    def walk(seed: int) -> list[Resource]:
        rng = generator(seed)
        state: Action | None = None
        walked = []
        for _ in range(50):
            state = next_action(state, DOWN, memory_nearly_full=False, rng=rng)
            walked.append(state.resource)
        return walked

    assert walk(7) == walk(7)
    assert walk(7) != walk(8)


def test_the_table_has_a_row_for_each_traded_resource() -> None:
    """Network bandwidth is not on the wheels; everything else is."""
    assert set(TRADING_WHEELS) == ALL
