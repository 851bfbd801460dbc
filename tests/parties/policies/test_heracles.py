"""Heracles: each rule of each controller, and what holds whatever happens."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parties.model import (
    BEST_EFFORT,
    IDLE,
    NS_PER_S,
    Core,
    Decision,
    Domain,
    LatencyView,
    Move,
    MoveOutcome,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Reason,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.policies.heracles import Heracles
from parties.settings import PartiesSettings

INTERVAL_NS = NS_PER_S // 2
GB = 1_000_000_000
GHZ = 1_000_000_000
TURBO_HZ = 2_300_000_000
PEAK_RPS = 1000.0
BANDWIDTH = 50 * GB
LIMIT = BANDWIDTH * 9 // 10
POWER = 100_000
KEYS = {
    Resource.CORES: PoolKey(Resource.CORES, 0),
    Resource.CACHE: PoolKey(Resource.CACHE, 0),
    Resource.FREQUENCY: PoolKey(Resource.FREQUENCY, 0),
    Resource.NETWORK: PoolKey(Resource.NETWORK),
}
POOLS = (
    Pool(KEYS[Resource.CORES], total=14_000, step=1000, floor=1000),
    Pool(KEYS[Resource.CACHE], total=20, step=1, floor=1),
    Pool(KEYS[Resource.FREQUENCY], levels=tuple(range(1_200_000_000, TURBO_HZ + 1, 100_000_000))),
    Pool(PoolKey(Resource.MEMORY, 0), total=120 * GB, step=GB, floor=GB),
    Pool(PoolKey(Resource.DISK), total=100_000_000, step=5_000_000, floor=5_000_000),
    Pool(KEYS[Resource.NETWORK], total=10 * GB, step=GB // 2, floor=GB // 2),
)
CORES = tuple(Core(core, (core,)) for core in range(14))
NODE = Node("stage", (Domain(0, CORES),), {pool.key: pool for pool in POOLS}, BANDWIDTH, POWER)
TARGET_NS = 10_000_000
GROWTH = {Reason.BEST_EFFORT_GROWN, Reason.BEST_EFFORT_GROWTH_UNDONE}


def view(slack: float, state: ServiceState = ServiceState.OK) -> LatencyView:
    """A fresh view with that slack of the strict service's target."""
    latency_ns = round(TARGET_NS * (1 - slack))
    return LatencyView(state, latency_ns, latency_ns, fresh=True)


@dataclass
class Stage:
    """Runs Heracles interval by interval. What is seen of the machine are fields that a test sets; ``fates`` befall moves."""

    node: Node
    services: tuple[Service, ...]
    policy: Heracles
    partition: Partition
    usage: Usage = field(default_factory=Usage)  # of the latency-critical service
    progress: float | None = None
    bandwidth: int | None = None
    power: int | None = None
    job_present: bool = True
    now_ns: int = 0
    tick: int = 0
    outcomes: tuple[MoveOutcome, ...] = ()
    fates: dict[Resource, MoveStatus] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    @property
    def service(self) -> Service:
        return min(self.services, key=lambda service: service.target.latency_ns)

    def held(self, resource: Resource, holder: str = BEST_EFFORT) -> int:
        return self.partition.amount(KEYS[resource], holder)

    def cores(self, holder: str = BEST_EFFORT) -> int:
        return self.held(Resource.CORES, holder) // 1000

    def ways(self, holder: str = BEST_EFFORT) -> int:
        return self.held(Resource.CACHE, holder)

    def give(self, resource: Resource, amount: int) -> None:
        """Set what the group holds; the service has the rest."""
        total = self.node.pools[KEYS[resource]].total
        held = {self.service.name: total - amount, BEST_EFFORT: amount, IDLE: 0}
        self.partition = Partition({**self.partition.amounts, KEYS[resource]: held})

    def step(self, slack: LatencyView | float, load: float = 0.5) -> Decision:
        """One interval with that slack of the service (or that view), at that part of its peak load."""
        self.now_ns += INTERVAL_NS
        self.tick += 1
        latency = slack if isinstance(slack, LatencyView) else view(slack)
        latency = dataclasses.replace(latency, load_rps=load * PEAK_RPS)
        seen = {service.name: ServiceObservation(view(-5.0)) for service in self.services}
        seen[self.service.name] = ServiceObservation(latency, self.usage)
        observation = Observation(
            self.now_ns,
            self.tick,
            seen,
            self.partition,
            self.outcomes,
            Usage(progress=self.progress),
            self.job_present,
            self.bandwidth,
            self.power,
        )
        decision = self.policy.decide(observation)
        self.outcomes = tuple(MoveOutcome(move, self.fates.get(move.pool.resource, MoveStatus.DONE)) for move in decision.moves)
        for outcome in self.outcomes:
            if outcome.status is MoveStatus.DONE:
                self.partition = self.partition.after([outcome.move])
                self.partition.check(self.node, [self.service])
        self.decisions.append(decision)
        return decision

    def run(self, seconds: float, slack: LatencyView | float, load: float = 0.5) -> list[Decision]:
        return [self.step(slack, load) for _ in range(round(seconds * 2))]

    def moved(self, decisions: Sequence[Decision]) -> list[tuple[Resource, Reason]]:
        return [(move.pool.resource, move.reason) for decision in decisions for move in decision.moves]


def make(*others: str, best_effort: bool = True, **strict: Any) -> Stage:  # noqa: ANN401 - fields of a service
    """A stage with a strict service, and others by their names."""
    services = (
        *(Service(name, QosTarget(2 * TARGET_NS)) for name in others),
        Service("strict", QosTarget(TARGET_NS), **({"peak_load_rps": PEAK_RPS} | strict)),
    )
    policy = Heracles(NODE, services, best_effort=best_effort, settings=PartiesSettings(), rng=random.Random(1))  # noqa: S311 - replayable
    return Stage(NODE, services, policy, policy.initial(), job_present=best_effort)


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


def grown_to(cores: int) -> Stage:
    """A scene in which the group has just been given its last core."""
    scene = make("a")
    while scene.cores() < cores:
        scene.step(0.5)
    return scene


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


# What becomes of moves


def test_a_pending_pool_is_left_alone_and_the_rest_goes_on() -> None:
    """While a move of cores is under way no other is made; it is made up for when that is through."""
    scene = make("a")
    scene.run(0.5, 0.5)
    under_way = Move(1, KEYS[Resource.CORES], "strict", BEST_EFFORT, 1000, Reason.BEST_EFFORT_GROWN)
    scene.fates[Resource.CORES] = MoveStatus.PENDING
    for _ in range(40):
        scene.outcomes = (MoveOutcome(under_way, MoveStatus.PENDING),)
        decision = scene.step(-0.1)
        assert Resource.CORES not in {move.pool.resource for move in decision.moves}
    assert (scene.cores() > 0, scene.ways()) == (True, 0)
    assert decision.reason is Reason.HOLD_PENDING
    scene.fates.clear()
    scene.outcomes = ()
    scene.step(-0.1)
    assert scene.cores() == 0


def test_a_refused_suspension_is_tried_again() -> None:
    """The group is to be off, and has cores: it is told again until it has none."""
    scene = make("a")
    scene.fates[Resource.CORES] = MoveStatus.REFUSED
    scene.run(3, -0.1)
    assert (scene.cores(), scene.ways()) == (1, 0)
    scene.fates.clear()
    scene.step(-0.1)
    assert scene.cores() == 0


def test_a_way_that_was_refused_is_not_taken_back() -> None:
    """The trial never took place: nothing to roll back, and the way is asked for again."""
    scene = make("a")
    scene.bandwidth = 30 * GB
    scene.fates[Resource.CACHE] = MoveStatus.REFUSED
    scene.run(4, 0.5)
    assert scene.ways() == 2
    scene.fates.clear()
    scene.run(2, 0.5)
    assert scene.ways() == 3


def test_a_way_that_is_still_under_way_is_judged_when_it_has_come() -> None:
    """The turn at which its move pends passes; the next one takes it back, as traffic has not fallen."""
    scene = make("a")
    scene.bandwidth = 30 * GB
    scene.run(2, 0.5)
    assert scene.ways() == 3
    under_way = scene.decisions[0].moves[0]
    assert under_way.pool.resource is Resource.CACHE
    for _ in range(4):
        scene.outcomes = (MoveOutcome(under_way, MoveStatus.PENDING),)
        assert not scene.step(0.5).moves
    scene.run(2, 0.5)
    assert scene.ways() == 2


# Whatever happens


@dataclass(frozen=True)
class Seen:
    """What is drawn for an interval."""

    state: ServiceState
    slack: float
    load: float
    fresh: bool
    bandwidth: int | None
    power: int | None
    progress: float | None
    usage: Usage
    job_present: bool
    fates: Mapping[Resource, MoveStatus]


def seen() -> st.SearchStrategy[Seen]:
    return st.builds(
        Seen,
        state=st.sampled_from([*ServiceState, *[ServiceState.OK] * 8]),
        slack=st.sampled_from([-1.0, -0.01, 0.0, 0.04, 0.06, 0.2, 0.2, 0.5, 0.5]),
        load=st.sampled_from([0.0, 0.5, 0.5, 0.79, 0.82, 0.9, 1.2]),
        fresh=st.sampled_from([True, True, True, False]),
        bandwidth=st.none() | st.integers(0, 2 * BANDWIDTH),
        power=st.none() | st.integers(0, 2 * POWER),
        progress=st.none() | st.floats(0, 1),
        usage=st.builds(
            Usage,
            network_bits_per_s=st.none() | st.integers(0, 12 * GB),
            memory_bandwidth_bytes_per_s=st.none() | st.integers(0, BANDWIDTH),
            frequency_hz=st.none() | st.integers(GHZ, 3 * GHZ),
        ),
        job_present=st.sampled_from([True, True, False]),
        fates=st.dictionaries(st.sampled_from(list(KEYS)), st.sampled_from(list(MoveStatus)), max_size=2),
    )


@settings(max_examples=60)
@given(
    st.lists(st.tuples(seen(), st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([{}, {Resource.CORES: 4000, Resource.CACHE: 3}]),
    st.sampled_from([{}, {Resource.CORES: 9000}]),
)
def test_every_moment_conserves_and_the_service_keeps_its_floor(
    intervals: list[tuple[Seen, int]],
    others: int,
    best_effort: bool,  # noqa: FBT001 - drawn
    minimum: Mapping[Resource, int],
    maximum: Mapping[Resource, int],
) -> None:
    """After every single move: sums are the pools', the service within its limits, nobody negative, closed pools untouched."""
    scene = make(*map(str, range(others)), best_effort=best_effort, minimum=minimum, maximum=maximum)
    scene.partition.check(scene.node, [scene.service])
    for drawn, times in intervals:
        scene.bandwidth, scene.power, scene.progress, scene.usage = drawn.bandwidth, drawn.power, drawn.progress, drawn.usage
        scene.job_present, scene.fates = drawn.job_present, dict(drawn.fates)
        latency = dataclasses.replace(view(drawn.slack, drawn.state), fresh=drawn.fresh)
        for _ in range(times):
            before, closed = scene.partition, {o.move.pool for o in scene.outcomes if o.status is MoveStatus.PENDING}
            decision = scene.step(latency, drawn.load)
            assert not closed & {move.pool for move in decision.moves}
            after = before.after(decision.moves)
            after.check(scene.node, [scene.service])
            for pool in scene.node.managed_pools():
                if pool.key in after.amounts and any(move.pool == pool.key for move in decision.moves):
                    assert scene.service.floor(pool) <= after.amount(pool.key, "strict") <= scene.service.ceiling(pool)
