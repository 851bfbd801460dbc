"""Heracles (ISCA 2015), as PARTIES compares itself with it (section 5.1): one latency-critical service, and best effort around it.

The service with the strictest target is the one that Heracles cares for. Every other service lives with the best-effort jobs in one
group, unpartitioned among themselves, and its target counts for nothing. Memory and disk are not partitioned. Four controllers run
side by side, each in its own period: the top level switches the group on and off, the others divide cores, cache, power and network
between service and group. What the source leaves open, and what is chosen here, is in docs/policies.md.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Mapping, Sequence

from parties.model import (
    BEST_EFFORT,
    NS_PER_S,
    Decision,
    Holder,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    Reason,
    Resource,
    Service,
    ServiceState,
)
from parties.policies.fair import fair_start
from parties.policies.group import Desk, Group
from parties.policies.judgement import slacks, verdicts
from parties.policies.periods import Period, PeriodTail
from parties.settings import PartiesSettings

TOP_LEVEL_NS = 15 * NS_PER_S
CORES_AND_CACHE_NS = 2 * NS_PER_S
POWER_NS = 2 * NS_PER_S
NETWORK_NS = NS_PER_S
"""The periods of the four controllers (Heracles, Algorithms 1 to 4)."""

COOL_DOWN_NS = 300 * NS_PER_S
"""The group stays off so long after a violation (PARTIES, section 5.1: five minutes). As long does a resource not grow any more in
which a step was one too many."""

STEP_BLAMED_NS = TOP_LEVEL_NS
"""A violation is blamed on the group's last step for so long: later, the top level has seen that the service bears it."""

LOAD_OFF = 0.85
LOAD_ON = 0.80
"""Parts of the peak load above which the group is off, and under which it may be on (Heracles, Algorithm 1)."""

GROWTH_SLACK = 0.10
CUT_SLACK = 0.05
CUT_TO_CORES = 2
"""Slack under which the group does not grow, and under which it keeps two cores at most (Heracles, Algorithm 1)."""

MEMORY_BANDWIDTH_LIMIT = 0.90
"""Part of the memory bandwidth that may be used (Heracles, section 4.2: 90 % of peak streaming bandwidth)."""

MEASURABLE = 0.01
"""Traffic that falls by less than this part of it has not fallen. A value of our own: counters of real machines vary by as much."""

POWER_LIMIT = 0.90
"""Part of the sockets' power above which the group is slowed (Heracles, Algorithm 3)."""

LINK_RESERVE = 0.05
USE_RESERVE = 0.10
"""Headroom of the service's network: the larger of 5 % of the link and 10 % of its use (Heracles, Algorithm 4)."""

PARTITIONED = (Resource.CORES, Resource.CACHE, Resource.FREQUENCY, Resource.NETWORK)
"""Neither memory capacity nor disk (PARTIES, section 5.1)."""


class Heracles:
    """One service and a best-effort group; the group is what is grown, cut, slowed and suspended."""

    name = "heracles"
    best_effort_idle_class = True
    sharing: Mapping[str, Holder]

    def __init__(
        self,
        node: Node,
        services: Sequence[Service],
        *,
        best_effort: bool,
        settings: PartiesSettings,  # noqa: ARG002 - every policy is made in the same way; the constants are Heracles' own
        rng: random.Random,  # noqa: ARG002 - the same; nothing is drawn
    ) -> None:
        """Raise ValueError where the node is too small for the service, or its limits admit no amount."""
        self._services = tuple(services)
        self._service = min(self._services, key=lambda service: service.target.latency_ns)
        self.sharing = {service.name: BEST_EFFORT for service in self._services if service is not self._service}
        self._group = Group(node, self._service)
        self._best_effort = best_effort
        self._initial = _start(self._group, anyone=best_effort or bool(self.sharing))
        self._top = _TopLevel(self._service)
        self._cores_and_cache = _CoresAndCache(self._service)
        self._power_due = Period(POWER_NS)
        self._network_due = Period(NETWORK_NS)

    def initial(self) -> Partition:
        """One core and a tenth of the cache for the group if anyone lives there, the rest for the service."""
        return self._initial

    def decide(self, observation: Observation) -> Decision:
        """What each controller that is due wants; all of it in one interval."""
        judged = verdicts(self._services, observation)
        seen = observation.services.get(self._service.name)
        if seen is None or seen.latency.state is ServiceState.ABSENT:
            return Decision((), Reason.HOLD_NOT_JUDGED, self._service.name, slacks(judged))
        verdict = judged.get(self._service.name)
        # A service that fails does not meet its target, however quickly it fails.
        slack = None if verdict is None else -math.inf if verdict.failing else verdict.slack
        desk = Desk(self._group, observation)
        self._top.see(slack, seen.latency.load_rps)
        self._cores_and_cache.see(slack)
        self._top.turn(observation.now_ns)
        off = self._top.off if self._inhabited(observation) else Reason.ABSENT_RELEASED
        self._run(desk, off)
        reason = desk.moves[0].reason if desk.moves else self._hold(desk, off, judged=verdict is not None)
        return Decision(tuple(desk.moves), reason, self._service.name, slacks(judged))

    def _inhabited(self, observation: Observation) -> bool:
        return bool(self.sharing) or (self._best_effort and observation.best_effort_present)

    def _run(self, desk: Desk, off: Reason | None) -> None:
        now_ns = desk.observation.now_ns
        if off is not None:
            desk.suspend(off)
            self._cores_and_cache.begin()  # for when it is switched on again
        else:
            desk.resume()
            if self._top.cut:
                desk.cut_to(CUT_TO_CORES)
            if not desk.moves:  # they would be moves of the same pools
                self._cores_and_cache.turn(desk, may_grow=self._top.may_grow)
            if self._power_due.now(now_ns):
                _share_power(desk)
        if self._network_due.now(now_ns):
            _share_network(desk)
        desk.sweep_idle()

    def _hold(self, desk: Desk, off: Reason | None, *, judged: bool) -> Reason:
        if desk.closed:
            return Reason.HOLD_PENDING
        if off is not None:
            return Reason.HOLD_FIXED if off is Reason.ABSENT_RELEASED else Reason.HOLD_SUSPENDED
        if not judged:
            return Reason.HOLD_NOT_JUDGED
        return Reason.HOLD_TARGETS_MET if self._top.may_grow else Reason.HOLD_NO_GROWTH


class _TopLevel:
    """Switches the group on and off by the service's slack and load (Heracles, Algorithm 1)."""

    def __init__(self, service: Service) -> None:
        self._peak_load_rps = service.peak_load_rps
        self._period = Period(TOP_LEVEL_NS)
        self._slacks: list[float] = []
        self._loads_rps: list[float] = []
        self._cool_until_ns = 0
        self.off: Reason | None = None
        self.may_grow = False
        self.cut = False

    def see(self, slack: float | None, load_rps: float) -> None:
        """An interval of the service."""
        if slack is not None:
            self._slacks.append(slack)
        self._loads_rps.append(load_rps)

    def turn(self, now_ns: int) -> None:
        """Decide if it is time; without a judged interval since the last turn it stays due."""
        if not self._period.due(now_ns):
            return
        if not self._slacks:
            return
        self._period.done(now_ns)
        slack = statistics.median_low(self._slacks)
        self._slacks.clear()
        load = statistics.fmean(self._loads_rps) / self._peak_load_rps if self._peak_load_rps else 0.0
        self._loads_rps.clear()
        if slack < 0:
            self.off = Reason.BEST_EFFORT_SUSPENDED
            self._cool_until_ns = now_ns + COOL_DOWN_NS
        elif load > LOAD_OFF:
            self.off = self.off or Reason.BEST_EFFORT_SUSPENDED_BY_LOAD
        elif load < LOAD_ON and now_ns >= self._cool_until_ns:
            self.off = None
        self.may_grow = slack >= GROWTH_SLACK
        self.cut = slack < CUT_SLACK


def _start(group: Group, *, anyone: bool) -> Partition:
    """The service with all that it may hold, less what the group starts with."""
    amounts = dict(fair_start(group.node, (group.service,), best_effort=False).amounts)
    for pool in group.node.managed_pools():
        if pool.key.resource not in PARTITIONED:
            del amounts[pool.key]
        elif pool.levels:
            amounts[pool.key] = _highest_levels(group, pool, anyone=anyone)
    partition = Partition(amounts)
    if not anyone:
        return partition
    desk = Desk(group, Observation(0, 0, {}, partition))
    desk.resume()
    for pool in group.pools(Resource.NETWORK):
        desk.to_group(pool, pool.total // 2, Reason.BEST_EFFORT_NETWORK)  # until the service's use is known
    return desk.partition


def _highest_levels(group: Group, pool: Pool, *, anyone: bool) -> dict[Holder, int]:
    """The service as fast as it may, turbo included, and the group as fast as it can until power is short."""
    service = group.service
    held = {BEST_EFFORT: pool.levels[-1]} if anyone else {}
    if group.divided(pool):
        held[service.name] = max(level for level in pool.levels if service.floor(pool) <= level <= service.ceiling(pool))
    return held


@dataclasses.dataclass(frozen=True, slots=True)
class _Traffic:
    """Memory bandwidth in bytes/s: the node's, the group's part of it, and how much there may be."""

    total: int
    group: int
    limit: float


def _traffic(desk: Desk) -> _Traffic | None:
    """None where it is not measured. The group's part is what the service does not use; all of it where that is unknown."""
    total, peak = desk.observation.memory_bandwidth_bytes_per_s, desk.group.node.memory_bandwidth_bytes_per_s
    if total is None or peak is None:
        return None
    own = desk.usage.memory_bandwidth_bytes_per_s or 0
    return _Traffic(total, max(0, total - own), MEMORY_BANDWIDTH_LIMIT * peak)


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """The last growth: what the group holds after it, and traffic and progress of before."""

    pool: Pool
    held: int
    at_ns: int
    traffic: int
    progress: float | None


class _CoresAndCache:
    """Gradient descent in two alternating phases, within the limit of memory bandwidth (Heracles, Algorithm 2).

    A step after which the service misses its target is taken back, and that resource has then converged for a while (section 4.3:
    cores go over "one at a time, each time checking for ... SLO violations").
    """

    def __init__(self, service: Service) -> None:
        self._period = Period(CORES_AND_CACHE_NS)
        self._tail = PeriodTail(service.target.percentile)
        self._converged_until_ns: dict[PoolKey, int] = {}
        self.begin()

    def see(self, slack: float | None) -> None:
        """An interval of the service."""
        self._tail.see(slack)

    def begin(self) -> None:
        """Forget the phase: the group starts anew when it is switched on again."""
        self._grows_cache = True
        self._step: _Step | None = None
        self._judged = True  # whether traffic and progress have told of the last step
        self._earlier_traffic: int | None = None

    def turn(self, desk: Desk, *, may_grow: bool) -> None:
        """Take back a step that costs the service its target, cut cores where memory bandwidth is short, else grow if it may."""
        now_ns = desk.observation.now_ns
        if not self._period.now(now_ns) or (self._step is not None and self._step.pool.key in desk.closed):
            return
        slack = self._tail.take_slack()
        traffic = _traffic(desk)
        earlier, self._earlier_traffic = self._earlier_traffic, None if traffic is None else traffic.total
        if self._step is not None and (self._step.held != desk.held(self._step.pool) or now_ns > self._step.at_ns + STEP_BLAMED_NS):
            self._step = None
        if slack is not None and slack < 0 and self._step is not None:
            self._converged_until_ns[self._step.pool.key] = now_ns + COOL_DOWN_NS
            self._take_back(desk, self._step)
        elif traffic is not None and traffic.total > traffic.limit:
            self._cut(desk, traffic)
        elif not may_grow or slack is None:
            return
        elif self._grows_cache:
            self._grow_cache(desk, traffic, 0 if traffic is None or earlier is None else traffic.total - earlier)
        else:
            self._grow_cores(desk, traffic, slack)

    def _take_back(self, desk: Desk, step: _Step) -> None:
        desk.from_group(step.pool, step.pool.step, Reason.BEST_EFFORT_GROWTH_UNDONE)
        self._grows_cache = step.pool.key.resource is Resource.CORES

    def _cut(self, desk: Desk, traffic: _Traffic) -> None:
        """Remove the cores that make the excess; the one that the group starts with stays."""
        pool = desk.group.home(Resource.CORES)
        if pool is None:
            return
        held = desk.held(pool)
        excess = math.ceil((traffic.total - traffic.limit) / _per_step(traffic, held, pool)) * pool.step
        desk.from_group(pool, min(excess, held - desk.group.start(pool)), Reason.BEST_EFFORT_CUT_BY_MEMORY_BANDWIDTH)

    def _grow_cache(self, desk: Desk, traffic: _Traffic | None, derivative: int) -> None:
        pool = desk.group.home(Resource.CACHE)
        # Without a measurement there is no gradient to follow.
        if pool is None or traffic is None or self._converged(pool, desk):
            self._grows_cache = False
            return
        step, progress = self._step, desk.observation.best_effort.progress
        if step is not None and not self._judged and step.pool.key == pool.key:
            self._judged = True
            if traffic.total > (1.0 - MEASURABLE) * step.traffic:
                self._take_back(desk, step)
                return
            if step.progress is not None and progress is not None and progress <= step.progress:
                self._grows_cache = False
                return
        if traffic.total + derivative > traffic.limit or not self._grow(desk, pool, traffic):
            self._grows_cache = pool.key in desk.closed

    def _grow_cores(self, desk: Desk, traffic: _Traffic | None, slack: float) -> None:
        pool = desk.group.home(Resource.CORES)
        if (
            pool is None
            or self._converged(pool, desk)
            or (traffic is not None and traffic.total + _per_step(traffic, desk.held(pool), pool) > traffic.limit)
        ):
            self._grows_cache = True
        elif slack > GROWTH_SLACK and not self._grow(desk, pool, traffic):
            self._grows_cache = pool.key not in desk.closed

    def _converged(self, pool: Pool, desk: Desk) -> bool:
        return desk.observation.now_ns < self._converged_until_ns.get(pool.key, 0)

    def _grow(self, desk: Desk, pool: Pool, traffic: _Traffic | None) -> bool:
        if not desk.to_group(pool, pool.step, Reason.BEST_EFFORT_GROWN):
            return False
        total, progress = 0 if traffic is None else traffic.total, desk.observation.best_effort.progress
        self._step = _Step(pool, desk.held(pool), desk.observation.now_ns, total, progress)
        self._judged = False
        return True


def _per_step(traffic: _Traffic, held: int, pool: Pool) -> float:
    """The traffic of one step of the group's cores; at least one byte/s, so that it can be divided by."""
    return max(1.0, traffic.group / max(1, held // pool.step))


def _share_power(desk: Desk) -> None:
    """Slow the group where power is short and the service under its nominal frequency (Heracles, Algorithm 3)."""
    power, limit = desk.observation.power_milliwatts, desk.group.node.power_milliwatts
    pool, frequency_hz = desk.group.home(Resource.FREQUENCY), desk.usage.frequency_hz
    if power is None or limit is None or pool is None or frequency_hz is None:
        return
    guaranteed = pool.nominal_level
    level = desk.held(pool)
    if power > POWER_LIMIT * limit and frequency_hz < guaranteed:
        lower = pool.below(level, pool.levels[0])
        if lower is not None:
            desk.set_level(pool, lower, Reason.BEST_EFFORT_SLOWED_BY_POWER)
    elif power <= POWER_LIMIT * limit and frequency_hz >= guaranteed:
        higher = pool.above(level)
        if higher is not None:
            desk.set_level(pool, higher, Reason.BEST_EFFORT_QUICKENED)


def _share_network(desk: Desk) -> None:
    """The group has what the service leaves of the link, less some headroom (Heracles, Algorithm 4)."""
    pool, use = desk.group.home(Resource.NETWORK), desk.usage.network_bits_per_s
    if pool is None or use is None:
        return
    wanted = max(0, int(pool.total - use - max(LINK_RESERVE * pool.total, USE_RESERVE * use))) // pool.step * pool.step
    change = wanted - desk.held(pool)
    if change > 0:
        desk.to_group(pool, change, Reason.BEST_EFFORT_NETWORK)
    else:
        desk.from_group(pool, -change, Reason.BEST_EFFORT_NETWORK)
