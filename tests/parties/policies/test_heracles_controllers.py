"""Heracles: the controllers of cores and cache, power and network."""

from __future__ import annotations

import pytest
from heracles_kit import (
    BANDWIDTH,
    GB,
    GROWTH,
    KEYS,
    LIMIT,
    TURBO_HZ,
    make,
)

from parties.model import (
    BEST_EFFORT,
    NS_PER_S,
    Partition,
    Reason,
    Resource,
    Usage,
)

# Cores and cache


def test_without_measured_bandwidth_a_core_every_two_seconds() -> None:
    """No gradient to follow, so cores alone grow, one in two seconds, down to the service's last."""
    scene = make("a")
    scene.run(0.5, 0.5)
    before = scene.cores()
    scene.run(4, 0.5)
    assert scene.cores() == before + 2
    scene.run(60, 0.5)
    assert (scene.cores("strict"), scene.ways()) == (1, 2)


def test_cores_grow_only_over_10_percent_of_slack_at_that_moment() -> None:
    """The top level allows growth for 15 s, and still no core is added while the last two seconds had less."""
    scene = make("a")
    scene.step(0.5)
    before = scene.cores()
    scene.run(12, 0.08)
    assert scene.cores() == before


def test_the_cache_grows_while_traffic_falls_and_the_last_way_comes_back_when_not() -> None:
    """A way a turn while each lowers traffic; the first that does not is taken back, and cores are next."""
    scene = make("a")
    scene.usage = Usage(memory_bandwidth_bytes_per_s=30 * GB)
    for ways in (3, 4, 5):
        scene.bandwidth = (40 - ways) * GB
        scene.run(2, 0.5)
        assert (scene.ways(), scene.cores()) == (ways, 1)
    scene.run(2, 0.5)  # the fifth changed nothing
    assert scene.decisions[-4].reason is Reason.BEST_EFFORT_GROWTH_UNDONE
    assert (scene.ways(), scene.cores()) == (4, 1)
    scene.run(2, 0.5)
    assert (scene.ways(), scene.cores()) == (4, 2)


def test_the_cache_stops_growing_when_best_effort_gains_nothing() -> None:
    """Traffic falls and the jobs' progress does not rise: the way stays, and cores are next."""
    scene = make("a")
    scene.usage = Usage(memory_bandwidth_bytes_per_s=34 * GB)
    scene.progress = 0.2
    scene.bandwidth = 40 * GB
    scene.run(2, 0.5)
    scene.progress, scene.bandwidth = 0.3, 39 * GB
    scene.run(2, 0.5)
    assert scene.ways() == 4
    scene.bandwidth = 38 * GB
    scene.run(2, 0.5)
    assert (scene.ways(), scene.cores()) == (4, 1)
    scene.bandwidth = 37 * GB
    scene.run(2, 0.5)
    assert (scene.ways(), scene.cores()) == (4, 2)


def test_a_predicted_excess_of_traffic_turns_from_cache_to_cores() -> None:
    """Traffic that rises so quickly that it will be over the limit is no time for another way."""
    scene = make("a")
    scene.bandwidth = 30 * GB
    scene.run(0.5, 0.5)
    scene.give(Resource.CACHE, 2)  # so that there is no trial to judge
    scene.bandwidth = LIMIT - GB
    scene.run(2, 0.5)
    assert scene.ways() == 2
    scene.bandwidth = 10 * GB
    scene.run(2, 0.5)
    assert scene.cores() == 2


def test_cores_do_not_grow_into_the_limit_of_bandwidth() -> None:
    """Another core's worth of traffic would be too much: the cache is next."""
    scene = make("a")
    scene.give(Resource.CORES, 4000)
    scene.bandwidth = 38 * GB  # 9.5 GB/s for each of the group's four cores
    scene.run(4, 0.5)  # a way that changes nothing, and back
    scene.run(4, 0.5)
    assert scene.cores() == 4
    assert [move.pool.resource for move in scene.decisions[-4].moves] == [Resource.CACHE]


def test_the_services_own_traffic_is_not_held_against_the_groups_cores() -> None:
    """The group's traffic for each core is what the service does not use: here 1 GB/s, so that there is room for another."""
    scene = make("a")
    scene.give(Resource.CORES, 4000)
    scene.bandwidth = 38 * GB
    scene.usage = Usage(memory_bandwidth_bytes_per_s=34 * GB)
    scene.run(6, 0.5)
    assert scene.cores() == 5


def test_traffic_over_the_limit_costs_the_cores_that_make_it() -> None:
    """5 GB/s too much, at 4 GB/s a core: two cores, whatever the slack."""
    scene = make("a")
    scene.give(Resource.CORES, 10_000)
    scene.bandwidth = LIMIT + 5 * GB
    scene.usage = Usage(memory_bandwidth_bytes_per_s=10 * GB)
    assert (Resource.CORES, Reason.BEST_EFFORT_CUT_BY_MEMORY_BANDWIDTH) in scene.moved([scene.step(0.5)])
    assert scene.cores() == 8
    scene.run(2, 0.5)
    assert scene.cores() < 8


def test_the_first_core_stays_whatever_the_traffic() -> None:
    """A group that is on has the core that it starts with, or it would be off without a reason."""
    scene = make("a")
    scene.give(Resource.CORES, 3000)
    scene.bandwidth = 10 * BANDWIDTH
    for _ in range(20):
        scene.step(0.5)
        assert scene.cores() == 1


def test_growth_waits_for_the_top_level() -> None:
    """What the top level forbade at its turn stays forbidden until the next, whatever slack there is meanwhile."""
    scene = make("a")
    scene.run(0.5, 0.09)
    scene.run(14, 0.5)
    assert scene.cores() == 1
    scene.run(4.5, 0.5)
    assert scene.cores() == 2


def test_where_no_core_is_left_the_cache_is_next() -> None:
    """The service has its last core: the group grows in the cache again."""
    scene = make("a")
    scene.bandwidth = 10 * GB
    scene.usage = Usage(memory_bandwidth_bytes_per_s=9 * GB)
    scene.run(2, 0.5)
    scene.run(2, 0.5)  # no less traffic: the way comes back, cores are next
    scene.give(Resource.CORES, 13_000)
    scene.run(2, 0.5)
    assert scene.ways() == 2
    scene.run(2, 0.5)
    assert scene.ways() == 3


def test_the_group_begins_with_the_cache_when_it_comes_back() -> None:
    """The phase of before does not count after it was off."""
    scene = make("a")
    scene.bandwidth = 10 * GB
    scene.usage = Usage(memory_bandwidth_bytes_per_s=9 * GB)
    scene.run(15, 0.5)
    assert scene.cores() > 1
    scene.step(0.5, 50)  # enough for the mean of 15 s
    assert scene.cores() == 0
    scene.run(18, 0.5)
    growth = [move.pool.resource for decision in scene.decisions[-36:] for move in decision.moves if move.reason in GROWTH]
    assert growth[0] is Resource.CACHE


def test_a_missed_turn_is_not_made_up_for_in_a_burst() -> None:
    """After a gap of ten seconds there is one turn, and the next two seconds later."""
    scene = make("a")
    scene.step(0.5)
    scene.now_ns += 10 * NS_PER_S
    before = scene.cores()
    scene.run(2, 0.5)
    assert scene.cores() == before + 1


# Power and network


@pytest.mark.parametrize(
    ("power", "frequency_hz", "level_hz", "expected_hz"),
    [
        (91_000, 2_100_000_000, 2_000_000_000, 1_900_000_000),
        (91_000, 2_200_000_000, 2_000_000_000, 2_000_000_000),
        (90_000, 2_100_000_000, 2_000_000_000, 2_000_000_000),
        (90_000, 2_200_000_000, 2_000_000_000, 2_100_000_000),
        (90_000, 2_200_000_000, TURBO_HZ, TURBO_HZ),
        (91_000, 2_100_000_000, 1_200_000_000, 1_200_000_000),
        (None, 2_100_000_000, 2_000_000_000, 2_000_000_000),
        (91_000, None, 2_000_000_000, 2_000_000_000),
    ],
    ids=["short", "short-but-quick", "slow-for-another-reason", "enough", "at-the-top", "at-the-bottom", "unknown", "unread"],
)
def test_the_group_is_slowed_where_power_is_short(
    power: int | None, frequency_hz: int | None, level_hz: int, expected_hz: int
) -> None:
    """Over 90 % of the power and the service under its nominal frequency: one level down; neither: one up; else nothing."""
    scene = make("a")
    scene.partition = Partition({**scene.partition.amounts, KEYS[Resource.FREQUENCY]: {"strict": TURBO_HZ, BEST_EFFORT: level_hz}})
    scene.power, scene.usage = power, Usage(frequency_hz=frequency_hz)
    scene.step(0.5)
    assert scene.held(Resource.FREQUENCY) == expected_hz
    scene.run(1, 0.5)
    assert scene.held(Resource.FREQUENCY) == expected_hz  # every two seconds
    assert scene.held(Resource.FREQUENCY, "strict") == TURBO_HZ


@pytest.mark.parametrize(
    ("use", "group"),
    [(int(0.4 * GB), 9 * GB), (8 * GB, GB), (int(9.7 * GB), 0), (0, 19 * GB // 2)],
    ids=["5-percent-of-the-link", "10-percent-of-use", "nothing-left", "no-use"],
)
def test_the_group_has_what_the_service_leaves_of_the_link(use: int, group: int) -> None:
    """Link less use less the larger of 5 % of the link and 10 % of the use, in whole steps."""
    scene = make("a")
    scene.usage = Usage(network_bits_per_s=use)
    scene.step(0.5)
    assert scene.held(Resource.NETWORK) == group
    scene.usage = Usage(network_bits_per_s=GB)
    scene.step(0.5)
    assert scene.held(Resource.NETWORK) == group  # every second
    scene.step(0.5)
    assert scene.held(Resource.NETWORK) == 17 * GB // 2


def test_unknown_network_use_leaves_the_halves_of_the_start() -> None:
    """Nothing measured, nothing moved."""
    scene = make("a")
    scene.run(5, 0.5)
    assert scene.held(Resource.NETWORK) == scene.held(Resource.NETWORK, "strict") == 5 * GB
