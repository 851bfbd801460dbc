"""The simulated platform between a machine and clients that do what the test says: time, division, moves, faults, restarts."""

from __future__ import annotations

import random

import pytest
from platform_kit import CORES, FREQUENCY, GB, MEMORY, MS, NETWORK, WAYS, Stage

from parties.loop import Loop
from parties.membership import Membership
from parties.model import (
    BEST_EFFORT,
    IDLE,
    Decision,
    InvariantError,
    Move,
    MoveStatus,
    Observation,
    Partition,
    Reason,
    ServiceState,
)
from parties.policies.equal import Equal
from parties.policies.fair import fair_start
from parties.record import Timing
from parties.settings import PartiesSettings
from simulator.conditions import Share
from simulator.faults import REFUSED_DETAIL, Faults, Restart, Silence, random_faults
from simulator.load_profile import LoadProfile
from simulator.platform import LOADING_NS, RESTART_NS, SimulatedPlatform

WHY = Reason.UPSIZE_FROM_BEST_EFFORT


def started(stage: Stage, platform: SimulatedPlatform, *, job: bool = True) -> SimulatedPlatform:
    """The platform after a fair start."""
    partition = fair_start(stage.node, stage.services, best_effort=job)
    platform.start(partition, best_effort_idle_class=True, sharing={})
    return platform


def tick(platform: SimulatedPlatform, number: int) -> bool:
    """Wait for a tick as the loop does."""
    return platform.wait_until(number * 500 * MS + 10 * MS)


def test_time_passes_in_whole_windows_and_none_is_lost_or_told_twice() -> None:
    """Stretches that are answered adjoin each other and end with the last window before the tick."""
    stage = Stage()
    platform = started(stage, stage.platform())
    assert tick(platform, 1)
    platform.observe(1)
    assert tick(platform, 2)
    assert platform.now_ns() == 1010 * MS
    assert [(start, end) for _, start, end in stage.clients.seen] == [(0, 500 * MS), (500 * MS, 1000 * MS)]
    assert stage.signal.counters()["windows"] == 20
    assert platform.observe(2).services["a"].latency.completed == 500


def test_the_run_is_over_after_its_duration() -> None:
    """The interval that ends with the duration is held, the next one is not; a stop request ends it earlier."""
    stage = Stage()
    platform = started(stage, stage.platform(duration_s=1.0))
    assert tick(platform, 2)
    assert not tick(platform, 3)
    stopped = started(stage, stage.platform())
    stopped.stop()
    assert not tick(stopped, 1)


def test_without_management_there_is_one_share_with_everybody() -> None:
    """No partition: all tenants and the job have the whole node together, at the governor's frequency."""
    stage = Stage()
    platform = stage.platform()
    platform.start(None, best_effort_idle_class=False, sharing={})
    tick(platform, 1)
    ((shares, _),) = stage.machine.asked
    assert shares == (Share(("a", "b"), True, 14, 20, None, 120 * GB, 100_000_000, 10 * GB),)
    assert platform.observe(1).partition == Partition({})
    assert platform.placement is None


def test_a_partition_gives_each_holder_its_share() -> None:
    """Each service by itself and the best-effort job as well, with the amounts of the partition."""
    stage = Stage()
    platform = started(stage, stage.platform())
    tick(platform, 1)
    shares = stage.machine.asked[0][0]
    partition = platform.observe(1).partition
    assert [(share.tenants, share.best_effort) for share in shares] == [(("a",), False), (("b",), False), ((), True)]
    for share, holder in zip(shares, ("a", "b", BEST_EFFORT), strict=True):
        assert share.cores * 1000 == partition.amount(CORES, holder)
        assert share.ways == partition.amount(WAYS, holder)
        assert share.frequency_hz == partition.amount(FREQUENCY, holder)
        assert share.memory_bytes == partition.amount(MEMORY, holder)
        assert share.network_bits_per_s == partition.amount(NETWORK, holder)


def test_services_that_share_live_with_the_job_and_unpartitioned_pools_are_everybodys() -> None:
    """A holder's services are in one share with it; of a pool that the partition leaves out, each share has all."""
    stage = Stage()
    platform = stage.platform()
    fair = fair_start(stage.node, stage.services[:1], best_effort=True)
    partition = Partition({key: held for key, held in fair.amounts.items() if key != MEMORY})
    platform.start(partition, best_effort_idle_class=True, sharing={"b": BEST_EFFORT})
    tick(platform, 1)
    alone, together = stage.machine.asked[0][0]
    assert alone.tenants == ("a",)
    assert not alone.best_effort
    assert together.tenants == ("b",)
    assert together.best_effort
    assert alone.memory_bytes == together.memory_bytes == 120 * GB
    assert alone.cores + together.cores == 14


def test_without_a_job_nobody_is_best_effort() -> None:
    """No job: no share for it, no use, and the policy is told."""
    stage = Stage()
    platform = started(stage, stage.platform(job=False), job=False)
    tick(platform, 1)
    assert [share.best_effort for share in stage.machine.asked[0][0]] == [False, False]
    observation = platform.observe(1)
    assert not observation.best_effort_present
    assert observation.best_effort.progress is None


def test_a_group_without_a_job_is_a_share_like_any_other() -> None:
    """Services may live in the best-effort holder where there is no job."""
    stage = Stage()
    platform = stage.platform(job=False)
    fair = fair_start(stage.node, stage.services[:1], best_effort=True)
    platform.start(fair, best_effort_idle_class=True, sharing={"b": BEST_EFFORT})
    tick(platform, 1)
    assert [(share.tenants, share.best_effort) for share in stage.machine.asked[0][0]] == [(("a",), False), (("b",), False)]


def test_an_unsound_first_partition_is_refused() -> None:
    """Conservation is checked before anything is placed."""
    stage = Stage()
    fair = fair_start(stage.node, stage.services, best_effort=True)
    unsound = Partition({**fair.amounts, CORES: {**fair.amounts[CORES], "a": 13_000}})
    with pytest.raises(InvariantError, match="adds up"):
        stage.platform().start(unsound, best_effort_idle_class=True, sharing={})


def test_a_move_takes_effect_from_the_tick_on_and_is_told_of() -> None:
    """The next stretch runs under the new division; the outcome is in the next observation, once; placement follows."""
    stage = Stage()
    platform = started(stage, stage.platform())
    tick(platform, 1)
    before = platform.observe(1).partition
    move = Move(1, CORES, BEST_EFFORT, "a", 1000, WHY)
    platform.apply([move])
    tick(platform, 2)
    seen = platform.observe(2)
    assert stage.machine.asked[1][0][0].cores == stage.machine.asked[0][0][0].cores + 1
    assert seen.partition == before.after([move])
    assert [(outcome.move, outcome.status) for outcome in seen.outcomes] == [(move, MoveStatus.DONE)]
    assert platform.placement is not None
    assert len(platform.placement.cpus["a"]) == 2 * seen.partition.amount(CORES, "a") // 1000
    tick(platform, 3)
    assert platform.observe(3).outcomes == ()


def test_the_signal_judges_a_service_by_what_came_after_its_move() -> None:
    """A done move begins the window of the services concerned anew, and of no other."""
    stage = Stage()
    noted: list[tuple[str, int]] = []
    stage.signal.note_change = lambda service, now_ns: noted.append((service, now_ns))  # type: ignore[method-assign]
    platform = started(stage, stage.platform())
    tick(platform, 1)
    platform.apply([Move(1, CORES, BEST_EFFORT, "a", 1000, WHY)])
    platform.apply([Move(1, FREQUENCY, None, "b", 1_400_000_000, WHY)])
    assert noted == [("a", 510 * MS), ("b", 510 * MS)]


def test_a_move_that_is_not_of_cores_or_ways_moves_nobody() -> None:
    """Memory changes hands, and every core and way stays where it was; the placement tells of the new partition."""
    stage = Stage()
    platform = started(stage, stage.platform())
    tick(platform, 1)
    before = platform.placement
    platform.apply([Move(1, MEMORY, BEST_EFFORT, "a", GB, WHY)])
    after = platform.placement
    assert before is not None
    assert after is not None
    assert (after.cpus, after.way_masks) == (before.cpus, before.way_masks)
    assert after.partition.amount(MEMORY, "a") == before.partition.amount(MEMORY, "a") + GB


def test_the_model_is_asked_only_for_what_it_was_not_asked_before() -> None:
    """The outlook of a division is kept until division or load change, and found again when they come back."""
    stage = Stage()
    platform = started(stage, stage.platform())
    for number in range(1, 4):
        tick(platform, number)
    assert len(stage.machine.asked) == 1
    there = Move(3, CORES, BEST_EFFORT, "a", 1000, WHY)
    platform.apply([there])
    tick(platform, 4)
    platform.apply([there.reversed(4, WHY)])
    tick(platform, 5)
    assert len(stage.machine.asked) == 2


def test_the_model_is_asked_for_the_mean_load_of_the_stretch() -> None:
    """A rising load is handed on interval by interval, as requests per second."""
    stage = Stage()
    platform = started(stage, stage.platform(load=LoadProfile(((0.0, 0.0), (1.0, 1.0)))))
    tick(platform, 1)
    tick(platform, 2)
    assert [loads["a"] for _, loads in stage.machine.asked] == pytest.approx([250.0, 750.0])


def test_use_is_what_was_completed_times_what_a_request_costs() -> None:
    """CPU, disk, network and memory bandwidth from the throughput of the interval; memory and frequency from the model."""
    stage = Stage()
    platform = started(stage, stage.platform())
    tick(platform, 1)
    observation = platform.observe(1)
    usage = observation.services["a"].usage
    assert usage.cpu_millicores == 1000  # 1,000 requests/s of 1 ms
    assert (usage.disk_bytes_per_s, usage.network_bits_per_s, usage.memory_bandwidth_bytes_per_s) == (3000, 5000, 7000)
    assert usage.memory_bytes == GB
    assert usage.frequency_hz == observation.partition.amount(FREQUENCY, "a")
    assert (observation.memory_bandwidth_bytes_per_s, observation.power_milliwatts) == (11, 13)
    assert observation.best_effort.progress == 0.5


# Faults


def test_a_refused_plan_changes_nothing_and_says_why() -> None:
    """The second plan is refused: its moves come back with the detail, the partition stays, and so does the model's division."""
    stage = Stage()
    platform = started(stage, stage.platform(faults=Faults(refused={1: REFUSED_DETAIL})))
    tick(platform, 1)
    move = Move(1, CORES, BEST_EFFORT, "a", 1000, WHY)
    platform.apply([move, Move(1, WAYS, BEST_EFFORT, "a", 1, WHY)])
    tick(platform, 2)
    seen = platform.observe(2)
    assert [(o.status, o.detail) for o in seen.outcomes] == [(MoveStatus.DONE, ""), (MoveStatus.REFUSED, REFUSED_DETAIL)]
    assert stage.machine.asked[-1][0][0].cores == stage.machine.asked[0][0][0].cores + 1
    assert stage.machine.asked[-1][0][0].ways == stage.machine.asked[0][0][0].ways


def test_a_slow_plan_is_pending_for_its_intervals_and_closes_its_pool() -> None:
    """Two intervals pending, then done; until then the partition is as before and another plan of the pool is refused."""
    stage = Stage()
    platform = started(stage, stage.platform(faults=Faults(pending_ticks={0: 3})))
    tick(platform, 1)
    move = Move(1, MEMORY, "b", "a", GB, WHY)
    before = platform.observe(1).partition
    platform.apply([move])
    statuses = []
    for number in range(2, 6):
        tick(platform, number)
        seen = platform.observe(number)
        statuses.append([outcome.status for outcome in seen.outcomes])
        assert (seen.partition == before) == (number < 4)
        if number == 2:
            platform.apply([Move(2, MEMORY, BEST_EFFORT, "a", GB, WHY)])
    pending, done, refused = MoveStatus.PENDING, MoveStatus.DONE, MoveStatus.REFUSED
    assert statuses == [[pending], [refused, pending], [done], []]


def test_shrinking_memory_can_be_made_slow_as_on_a_real_machine() -> None:
    """What takes memory from a holder waits; what takes it from idle, or is not memory, does not."""
    stage = Stage()
    faults = Faults(memory_ticks=4)
    assert faults.pending(0, [Move(1, MEMORY, "b", "a", GB, WHY)]) == 4
    assert faults.pending(0, [Move(1, MEMORY, IDLE, "a", GB, WHY)]) == 0
    assert faults.pending(0, [Move(1, CORES, "b", "a", 1000, WHY)]) == 0
    platform = started(stage, stage.platform(faults=faults))
    tick(platform, 1)
    platform.apply([Move(1, MEMORY, "b", "a", GB, WHY)])
    tick(platform, 2)
    assert [outcome.status for outcome in platform.observe(2).outcomes] == [MoveStatus.PENDING]


def test_a_restarted_service_is_absent_for_a_time_and_then_returns() -> None:
    """While it is down it is absent, uses nothing, completes nothing, and is no part of the model; then it is back."""
    stage = Stage()
    platform = started(stage, stage.platform(faults=Faults(restarts=(Restart("a", 1.0),))))
    states = {}
    for number in range(1, 20):
        tick(platform, number)
        seen = platform.observe(number).services["a"]
        states[number] = seen.latency.state
        if seen.latency.state is ServiceState.ABSENT:
            assert seen.latency.latency_ns is None
            assert seen.usage.cpu_millicores == 0
    down = [number for number, state in states.items() if state is ServiceState.ABSENT]
    assert down == list(range(3, 3 + RESTART_NS // (500 * MS)))
    assert states[19] is ServiceState.OK
    assert platform.restarts == {"a": 1, "b": 0}
    assert any("a" not in loads for _, loads in stage.machine.asked)
    assert all(conditions["a"].killed == (1000 * MS <= start < 6000 * MS) for conditions, start, _ in stage.clients.seen)


def test_restarts_come_when_they_are_due_in_whatever_order_they_are_given() -> None:
    """Two services, the later one named first."""
    stage = Stage()
    platform = started(stage, stage.platform(faults=Faults(restarts=(Restart("b", 8.0), Restart("a", 1.0)))))
    down: dict[str, int] = {}
    for number in range(1, 30):
        tick(platform, number)
        for name, seen in platform.observe(number).services.items():
            if seen.latency.state is ServiceState.ABSENT:
                down.setdefault(name, number)
    assert down == {"a": 3, "b": 17}


def test_who_does_not_fit_into_memory_is_ended_counted_and_comes_back_when_it_fits() -> None:
    """Out of memory: down for the restart time, seen without an answer for the loading time, again and again, until it fits."""
    stage = Stage(needs_bytes={"a": 60 * GB})
    platform = started(stage, stage.platform(duration_s=30))
    present = []
    for number in range(1, 25):
        tick(platform, number)
        seen = platform.observe(number).services["a"]
        assert seen.usage.cpu_millicores == 0
        assert not any(window.completed for window in platform.windows if window.service == "a")
        if seen.latency.state is not ServiceState.ABSENT:
            present.append(number)
    assert platform.restarts == {"a": 2, "b": 0}
    down, loading = RESTART_NS // (500 * MS), LOADING_NS // (500 * MS)
    assert present == [number for number in range(1, 25) if (number - 1) % (down + loading) >= down]
    platform.apply([Move(24, MEMORY, BEST_EFFORT, "a", 40 * GB, WHY)])
    for number in range(25, 40):
        tick(platform, number)
        last = platform.observe(number)
    assert platform.restarts["a"] == 2
    assert last.services["a"].latency.state is ServiceState.OK


@pytest.mark.parametrize(("gone", "memory_ticks"), [(("a",), 0), (("a", "b"), 0), (("a",), 4)])
def test_who_was_away_for_longer_than_the_grace_time_gets_its_memory_back_and_stays(
    gone: tuple[str, ...], memory_ticks: int
) -> None:
    """The loop has cut it to the floor; it is seen before it is ended for that, and gets back what it had, however slowly."""
    stage = Stage(needs_bytes=dict.fromkeys(gone, 20 * GB))
    faults = Faults(restarts=tuple(Restart(name, 1.0) for name in gone), memory_ticks=memory_ticks)
    platform = started(stage, stage.platform(duration_s=20, faults=faults))
    before = platform.observe(0).partition
    policy = Equal(stage.node, stage.services, best_effort=True, settings=PartiesSettings(), rng=random.Random(1))  # noqa: S311 - repeatable
    least: dict[str, int] = {}

    class Memory:
        def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
            del decision, timing
            for name in gone:
                held = observation.partition.amount(MEMORY, name)
                least[name] = min(held, least.get(name, held))

    membership = Membership(stage.node, stage.services, grace_ns=2000 * MS)
    Loop(platform, policy, interval_ns=500 * MS, membership=membership, listeners=(Memory(),)).run()
    assert least == dict.fromkeys(gone, GB)
    after = platform.observe(99)
    assert platform.restarts == {name: int(name in gone) for name in ("a", "b")}
    assert {seen.latency.state for seen in after.services.values()} == {ServiceState.OK}
    assert {name: after.partition.amount(MEMORY, name) for name in gone} == {name: before.amount(MEMORY, name) for name in gone}


def test_silent_clients_go_stale_while_their_requests_go_on() -> None:
    """Nothing reaches the signal from one time to the other, but the clients are still asked and still measured."""
    stage = Stage()
    platform = started(stage, stage.platform(faults=Faults(silences=(Silence("a", 1.0, 4.0),))))
    states = []
    for number in range(1, 12):
        tick(platform, number)
        states.append(platform.observe(number).services["a"].latency.state)
        assert {window.service for window in platform.windows} == {"a", "b"}
    assert ServiceState.STALE in states[3:7]
    assert states[-1] is ServiceState.OK


def test_random_faults_are_the_same_for_the_same_seed() -> None:
    """A schedule drawn twice from one seed is equal, and another seed gives another."""

    def drawn(seed: int) -> Faults:
        return random_faults(
            random.Random(seed),  # noqa: S311 - repeatable
            ("a", "b"),
            duration_s=60,
            refused=0.2,
            pending=0.2,
        )

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1).refused
    assert drawn(1).pending_ticks


def test_the_fakes_run_under_a_policy() -> None:
    """A policy's own start is accepted as it is."""
    stage = Stage()
    policy = Equal(stage.node, stage.services, best_effort=True, settings=PartiesSettings(), rng=random.Random(1))  # noqa: S311 - repeatable
    platform = stage.platform()
    platform.start(policy.initial(), best_effort_idle_class=True, sharing=policy.sharing)
    assert tick(platform, 1)
    assert policy.decide(platform.observe(1)).moves == ()
