"""Heracles: who shares with whom, and the rules of its top level."""

from __future__ import annotations

from typing import Any

import pytest
from heracles_kit import (
    GB,
    KEYS,
    TURBO_HZ,
    grown_to,
    make,
    view,
)

from parties.model import (
    BEST_EFFORT,
    IDLE,
    MoveStatus,
    Partition,
    Reason,
    Resource,
    ServiceState,
    Usage,
)

# Who shares with whom, and what is divided


def test_the_strictest_target_is_the_service_and_the_rest_is_best_effort() -> None:
    """The smallest target latency is cared for; every other service lives in the best-effort group."""
    scene = make("a", "b")
    assert scene.policy.sharing == {"a": BEST_EFFORT, "b": BEST_EFFORT}
    assert all(set(held) <= {"strict", BEST_EFFORT, IDLE} for held in scene.partition.amounts.values())


def test_memory_and_disk_are_not_partitioned() -> None:
    """Neither pool is in the partition, which says that everybody uses it."""
    assert {key.resource for key in make("a").partition.amounts} == set(KEYS)


def test_the_group_starts_with_a_core_and_a_tenth_of_the_cache() -> None:
    """One of 14 cores and two of 20 ways; both at the highest frequency; the partition is sound."""
    scene = make("a")
    assert (scene.cores(), scene.ways(), scene.cores("strict"), scene.ways("strict")) == (1, 2, 13, 18)
    assert scene.held(Resource.FREQUENCY) == scene.held(Resource.FREQUENCY, "strict") == TURBO_HZ
    scene.partition.check(scene.node, [scene.service])


def test_one_service_without_best_effort_has_everything_and_is_left_alone() -> None:
    """With nobody to share with there is nothing to decide."""
    scene = make(best_effort=False)
    assert (scene.cores("strict"), scene.ways("strict")) == (14, 20)
    assert scene.held(Resource.FREQUENCY) == 0
    decisions = scene.run(20, -1.0)
    assert {(decision.moves, decision.reason) for decision in decisions} == {((), Reason.HOLD_FIXED)}


def test_a_group_without_anybody_gives_its_cores_to_the_service() -> None:
    """When the last best-effort job has ended the service has all; when one comes back the group starts anew."""
    scene = make()
    scene.run(10, 0.5)
    scene.job_present = False
    assert scene.step(0.5).reason is Reason.ABSENT_RELEASED
    assert (scene.cores(), scene.ways()) == (0, 0)
    scene.job_present = True
    assert scene.step(0.5).reason is Reason.BEST_EFFORT_RESUMED
    assert (scene.cores(), scene.ways()) == (1, 2)


def test_limits_of_the_service_hold() -> None:
    """What it may not hold stays idle until the group grows into it; what it must hold the group does not get."""
    limits: dict[str, Any] = {"minimum": {Resource.CORES: 6000}, "maximum": {Resource.CORES: 10_000}}
    scene = make("a", **limits)
    assert (scene.cores("strict"), scene.cores(IDLE), scene.cores()) == (10, 3, 1)
    scene.run(60, 0.5)
    assert (scene.cores("strict"), scene.cores(IDLE), scene.cores()) == (6, 0, 8)
    scene.run(20, -0.1)
    assert (scene.cores("strict"), scene.cores(IDLE), scene.cores()) == (10, 4, 0)


# Top level


def test_a_violation_suspends_the_group_for_five_minutes() -> None:
    """Slack under 0 at the top level's turn: no core and no way for 300 s, however much slack there is meanwhile."""
    scene = make("a")
    scene.run(15, 0.3)
    decisions = scene.run(15.5, -0.01)
    assert (Resource.CORES, Reason.BEST_EFFORT_SUSPENDED) in scene.moved(decisions)
    assert (scene.cores(), scene.ways(), scene.cores("strict"), scene.ways("strict")) == (0, 0, 14, 20)
    quiet = scene.run(299, 0.5)
    assert scene.cores() == 0
    assert {decision.reason for decision in quiet} == {Reason.HOLD_SUSPENDED}
    scene.run(16, 0.5)
    assert scene.cores() >= 1
    assert scene.ways() >= 2


def test_the_top_level_looks_every_15_seconds() -> None:
    """A violation that begins after its turn is answered at the next one, not before."""
    scene = make("a")
    scene.step(0.3)  # its first turn
    scene.run(14.5, -0.5)
    assert scene.cores() == 1
    scene.step(-0.5)
    assert scene.cores() == 0


def test_the_median_of_its_period_counts() -> None:
    """A few bad intervals among many good ones do not suspend the group; nor does a last good one save it."""
    scene = make("a")
    scene.step(0.3)
    scene.run(6, -0.5)
    scene.run(9, 0.3)
    assert scene.cores() >= 1
    scene.run(14.5, -0.5)
    scene.step(0.3)
    assert scene.cores() == 0


def test_the_tail_of_two_seconds_allows_a_core() -> None:
    """One of four intervals far over the target keeps the group from growing, though the last was good."""
    scene = make("a")
    scene.run(0.5, 0.5)
    before = scene.cores()
    scene.step(-1.0)
    scene.run(1.5, 0.5)
    assert scene.cores() == before
    scene.run(2, 0.5)
    assert scene.cores() == before + 1


def test_a_core_that_costs_the_service_its_target_is_taken_back() -> None:
    """One core, at the next turn, and for five minutes cores do not grow again; the group is not suspended for it."""
    scene = grown_to(4)
    decisions = scene.run(2, -3.0)
    assert (Resource.CORES, Reason.BEST_EFFORT_GROWTH_UNDONE) in scene.moved(decisions)
    assert scene.cores() == 3
    scene.run(295, 0.5)
    assert scene.cores() == 3
    scene.run(10, 0.5)
    assert scene.cores() > 3


def test_a_way_that_costs_the_service_its_target_is_taken_back() -> None:
    """However much traffic fell; cores go on growing."""
    scene = make("a")
    scene.usage = Usage(memory_bandwidth_bytes_per_s=28 * GB)
    scene.bandwidth = 30 * GB
    scene.step(0.5)
    assert scene.ways() == 3
    scene.bandwidth = 29 * GB
    scene.run(2, -0.1)
    assert (scene.ways(), scene.cores()) == (2, 1)
    scene.run(4, 0.5)
    assert (scene.ways(), scene.cores()) == (2, 3)
    scene.give(Resource.CORES, 13_000)  # no core is left, and still the cache does not grow
    assert (Resource.CACHE, Reason.BEST_EFFORT_GROWN) not in scene.moved(scene.run(30, 0.5))


def test_a_refused_taking_back_is_tried_again_while_the_violation_lasts() -> None:
    """The core stays for two seconds more."""
    scene = grown_to(4)
    scene.fates[Resource.CORES] = MoveStatus.REFUSED
    scene.run(2, -3.0)
    assert scene.cores() == 4
    scene.fates.clear()
    scene.run(2, -3.0)
    assert scene.cores() == 3


def test_traffic_tells_of_a_way_once() -> None:
    """A way that lowered traffic is not taken back when traffic rises later on, for whatever reason."""
    scene = make("a")
    scene.progress, scene.bandwidth = 0.2, 30 * GB
    scene.step(0.5)
    scene.bandwidth = 29 * GB
    scene.run(2, 0.5)  # it fell, and the jobs gained nothing: cores are next, and there is no room for what one more would do
    scene.bandwidth = 30 * GB
    scene.run(4, 0.5)
    assert scene.ways() == 4


def test_only_one_step_is_taken_back() -> None:
    """What goes on after that is for the top level."""
    scene = grown_to(5)
    scene.run(6, -3.0)
    assert scene.cores() == 4


def test_an_old_step_is_not_blamed() -> None:
    """After 15 s without trouble the last core is not what a violation comes from."""
    scene = grown_to(4)
    scene.run(16.5, 0.09)
    scene.run(2.5, -0.1)
    assert scene.cores() == 4


def test_a_fall_of_traffic_that_cannot_be_measured_is_none() -> None:
    """Half a percent less with a way more: the way is taken back."""
    scene = make("a")
    scene.bandwidth = 30 * GB
    scene.run(2, 0.5)
    assert scene.ways() == 3
    scene.bandwidth = 30 * GB * 995 // 1000
    scene.run(2, 0.5)
    assert scene.ways() == 2


@pytest.mark.parametrize("state", [ServiceState.STALLED, ServiceState.FAILING])
def test_stalled_and_failing_are_violations(state: ServiceState) -> None:
    """A service that completes nothing, or fails quickly, misses its target."""
    scene = make("a")
    scene.step(view(0.9, state=state))
    assert scene.cores() == 0


@pytest.mark.parametrize(("load", "off"), [(0.79, False), (0.84, False), (0.86, True)], ids=["under-80", "between", "over-85"])
def test_near_its_peak_the_service_is_alone(load: float, off: bool) -> None:  # noqa: FBT001 - a row of the table
    """Over 85 % of the peak load the group is off."""
    scene = make("a")
    scene.run(16, 0.5, load)
    assert (scene.cores() == 0) is off
    assert (scene.decisions[0].reason is Reason.BEST_EFFORT_SUSPENDED_BY_LOAD) is off


def test_between_80_and_85_percent_load_nothing_is_switched() -> None:
    """Off by load, the group comes back under 80 %, without the cool-down of a violation."""
    scene = make("a")
    scene.run(16, 0.5, 0.9)
    scene.run(30, 0.5, 0.82)
    assert scene.cores() == 0
    scene.run(16, 0.5, 0.7)
    assert scene.cores() >= 1


def test_without_a_known_peak_load_does_not_count() -> None:
    """The rule of 85 % needs a peak; without one the slack alone decides."""
    scene = make("a", peak_load_rps=0.0)
    scene.run(16, 0.5, 5.0)
    assert scene.cores() >= 1


def test_under_10_percent_slack_the_group_does_not_grow() -> None:
    """It keeps what it has, and that is the reason told."""
    scene = make("a")
    decisions = scene.run(20, 0.09)
    assert scene.cores() == 1
    assert decisions[-1].reason is Reason.HOLD_NO_GROWTH


def test_under_5_percent_slack_the_group_keeps_two_cores() -> None:
    """Cut to two; with two or fewer nothing is taken."""
    scene = make("a")
    scene.give(Resource.CORES, 9000)
    assert (Resource.CORES, Reason.BEST_EFFORT_CUT_BY_SLACK) in scene.moved([scene.step(0.04)])
    assert scene.cores() == 2
    scene.run(20, 0.04)
    assert scene.cores() == 2


def test_a_slack_between_5_and_10_percent_cuts_nothing() -> None:
    """The group keeps its cores, without more."""
    scene = make("a")
    scene.give(Resource.CORES, 9000)
    scene.run(20, 0.07)
    assert scene.cores() == 9


@pytest.mark.parametrize("state", [ServiceState.STALE, ServiceState.FEW_SAMPLES])
def test_without_a_value_nothing_is_switched_or_grown(state: ServiceState) -> None:
    """A silent service is held; its turn is made up for at the first value."""
    scene = make("a")
    decisions = scene.run(40, view(0.5, state=state))
    assert set(scene.moved(decisions)) <= {(Resource.NETWORK, Reason.BEST_EFFORT_NETWORK)}
    assert decisions[-1].reason is Reason.HOLD_NOT_JUDGED
    scene.step(-0.1)
    assert scene.cores() == 0


def test_an_absent_service_is_left_to_the_loop() -> None:
    """No move while the loop gives its resources away; what is idle when it is back is the service's."""
    scene = make("a")
    scene.usage = Usage(network_bits_per_s=GB)
    assert scene.moved(scene.run(5, view(0.5, state=ServiceState.ABSENT))) == []
    held = {"strict": 1000, BEST_EFFORT: 1000, IDLE: 12_000}
    scene.partition = Partition({**scene.partition.amounts, KEYS[Resource.CORES]: held})
    assert (Resource.CORES, Reason.IDLE_TO_SERVICE) in scene.moved([scene.step(0.05)])
    assert scene.cores("strict") == 13


def test_other_services_count_for_nothing() -> None:
    """Those in the group violate all the time (as the stage has it), and the group grows and shrinks as if they did not."""
    alone, shared = make(), make("a", "b")
    for scene in (alone, shared):
        scene.run(40, 0.5)
    assert alone.cores() == shared.cores() > 10
    assert shared.decisions[-1].slack["a"] == pytest.approx(-2.0)
