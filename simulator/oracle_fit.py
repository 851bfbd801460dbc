"""One question to Oracle's search: does any division of the node meet every target? Exact on the model.

What couples services decides the order. *Cache*: every composition of the ways is tried; it fixes all memory traffic, and with it
each service's core time. *Frequency*: everybody at the top step is best unless the power limit lowers turbo; only then are levels
enumerated. *Cores*: the least that each service needs, found exactly because its tail only grows with its core time; they fit or
they do not. *Network*: the split with the least cores, by dynamic programming. *Memory and disk*: the least that an in-memory
service needs; a service that reads from the disk gets all the rest, and of several such every split is tried.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from parties.model import Resource
from simulator.machine import Group, Machine, Means, Strain
from simulator.queueing import percentile_s, respond

MOST_SPLITS = 2_000_000
"""So many splits of memory between services that read from the disk are looked at: all, for up to three of them. Of more, memory is
split in coarser steps, and in that the search is not exact."""

MOST_LEVELS = 25_000
"""So many choices of frequencies are looked at where power limits turbo: all, for up to four services of twelve levels. Of more,
every second level, and in that the search is not exact."""

ROUNDING = 1e-6
"""Of a limit that is only a bound, so that it cuts off nothing by an error of rounding."""

NEVER = 10_000  # cores; more than any node has

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Rates(NamedTuple):
    """What a service has beside cores and cache."""

    memory_bytes: int
    disk_bytes_per_s: int
    network_bits_per_s: int


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What the best-effort job has: cores, and the frequency that is set."""

    cores: int = 0
    level_hz: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """What each service has, and the job. Ways and cores are counts; ``level_hz`` is what is set, turbo being the top step."""

    cores: tuple[int, ...]
    ways: tuple[int, ...]
    level_hz: tuple[int, ...]
    rates: tuple[Rates, ...]
    job: Job


@cache
def compositions(total: int, parts: int) -> Ints:
    """All ways to write ``total`` as that many positive numbers in order, one in each row."""
    if total < parts:
        return np.empty((0, parts), np.int64)
    if parts == 1:
        return np.array([[total]], np.int64)
    bars = np.array(list(itertools.combinations(range(1, total), parts - 1)), np.int64)
    edges = np.hstack([np.zeros((len(bars), 1), np.int64), bars, np.full((len(bars), 1), total, np.int64)])
    return cast("Ints", np.diff(edges, axis=1))


@dataclasses.dataclass(frozen=True, slots=True)
class _Tenant:
    """A service as asked for: its latency limit, and the core time that the others are multiples of."""

    name: str
    load_rps: float
    limit_s: float
    percentile: float
    busy: float  # cores
    least_s: float  # its core time at the highest frequency, with all the cache and no traffic
    memory_steps: int  # the least
    reads: bool  # from the disk


class _Plan(NamedTuple):
    """What is decided of frequency: who is set to what, what that gives, and for turbo's sake the least and most cores of each."""

    level_hz: tuple[int, ...]
    hertz: tuple[float, ...]
    least: tuple[int, ...]
    most: tuple[int, ...]


def _only(strain: Strain, rows: npt.NDArray[np.generic]) -> Strain:
    """Some rows of a strain whose fields are arrays."""
    return Strain(*(cast("float", cast("Floats", column)[rows]) for column in strain))


class Fit:
    """One question: does anything meet every target with this slack, beside this job?"""

    def __init__(
        self, machine: Machine, loads_rps: Mapping[str, float], slack: float, job: Job, *, all_at_top: bool = False
    ) -> None:
        """``all_at_top`` leaves out that some run slower for the others' turbo where power is short."""
        self._machine = machine
        self._profile = machine.profile
        self._job = job
        self._all_at_top = all_at_top
        self._pools = {pool.key.resource: pool for pool in machine.profile.node().managed_pools()}
        self._tenants = [self._tenant(name, loads_rps.get(name, 0.0), slack) for name in machine.tenants]
        self._spare_cores = self._profile.cores - job.cores
        self._met: dict[tuple[int, int, float, Rates], bool] = {}
        others = len(self._tenants) - 1
        self._most_network = self._pools[Resource.NETWORK].total // self._pools[Resource.NETWORK].step - others

    def found(self) -> Allocation | None:
        """An allocation, the one that needs the fewest cores of the first kind that fits; None if there is none."""
        memory_steps = self._pools[Resource.MEMORY].total // self._pools[Resource.MEMORY].step
        if sum(tenant.memory_steps for tenant in self._tenants) > memory_steps or self._spare_cores < len(self._tenants):
            return None
        # More than one way is of no use to the job: what it streams is in the cache once.
        ways = compositions(self._profile.cache_ways - (self._job.cores > 0), len(self._tenants))
        strain = self._strain(ways)
        # First as if power were no limit, which is a bound, and mostly so.
        count, highest = len(self._tenants), self._turbo([0.0] * len(self._tenants), job_draws=False)
        bound = _Plan((self._profile.top_hz,) * count, (highest,) * count, (1,) * count, (NEVER,) * count)
        rows = self._promising(bound, ways, strain)
        ways, strain = ways[rows], _only(strain, rows)
        found = self._with_plan(bound, ways, strain)
        if found is None or self._turbo([tenant.busy for tenant in self._tenants]) == highest:
            return found
        return self._with_less_turbo(highest, ways, strain)

    def _tenant(self, name: str, load_rps: float, slack: float) -> _Tenant:
        machine, model = self._machine, self._machine.tenants[name]
        step = self._pools[Resource.MEMORY].step
        steps = range(1, self._pools[Resource.MEMORY].total // step + 1)
        enough = next((count for count in steps if not machine.killed(name, load_rps, count * step)), NEVER)
        return _Tenant(
            name,
            load_rps,
            model.target_ns * 1e-9 * (1.0 - slack),
            model.percentile,
            machine.busy_cores(name, load_rps),
            machine.core_time_s(name, load_rps, self._profile.cache_size_bytes, self._profile.top_hz, Strain()),
            enough,
            model.disk_bytes > 0,
        )

    # Cache

    def _strain(self, ways: Ints) -> Strain:
        """What all traffic does under each composition of the ways, as arrays."""
        traffic = np.full(len(ways), self._machine.job_stream_bytes_per_s(self._job.cores))
        for index, tenant in enumerate(self._tenants):
            by_ways = [
                self._machine.traffic_bytes_per_s(tenant.name, tenant.load_rps, count * self._profile.way_bytes)
                for count in range(self._profile.cache_ways + 1)
            ]
            traffic += np.array(by_ways)[ways[:, index]]
        strains = [self._machine.strain(float(amount)) for amount in traffic]
        return Strain(*(cast("float", np.array(column)) for column in zip(*strains, strict=True)))

    def _core_times_s(self, index: int, hertz: float, ways: Ints, strain: Strain) -> Floats:
        """A tenant's core time under each composition."""
        tenant, times = self._tenants[index], np.empty(len(ways))
        for count in np.unique(ways[:, index]):
            rows = ways[:, index] == count
            here = _only(strain, rows)
            cache_bytes = count * self._profile.way_bytes
            times[rows] = self._machine.core_time_s(tenant.name, tenant.load_rps, cache_bytes, hertz, here)
        return times

    # Frequency

    def _with_less_turbo(self, highest: float, ways: Ints, strain: Strain) -> Allocation | None:
        """By every number of cores with which a tenant may draw power, and every choice of levels that no other one betters."""
        for chosen in itertools.product(*(self._drawing_choices(tenant, highest) for tenant in self._tenants)):
            asked = list(zip(self._tenants, chosen, strict=True))
            drawing = [tenant.busy if cores is None else float(cores) for tenant, cores in asked]
            least = tuple(math.ceil(tenant.busy) or 1 if cores is None else cores for tenant, cores in asked)
            most = tuple(NEVER if cores is None else cores for cores in chosen)
            if sum(least) > self._spare_cores:
                continue
            failed: list[tuple[float, ...]] = []
            for level_hz, hertz in self._levels(drawing, highest):
                if any(all(mine <= other for mine, other in zip(hertz, others, strict=True)) for others in failed):
                    continue
                found = self._with_plan(_Plan(level_hz, hertz, least, most), ways, strain)
                if found is not None:
                    return found
                failed.append(hertz)
        return None

    def _levels(self, drawing: Sequence[float], highest: float) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
        """What is set and what it gives: everybody at the top; where power lowers turbo every other choice too, high ones first."""
        top, count = self._profile.top_hz, len(drawing)
        turbo = self._turbo(drawing)
        yield (top,) * count, (turbo,) * count
        if self._all_at_top or turbo >= highest:
            return
        levels = [top, *reversed(self._profile.levels_hz)]
        while len(levels) ** count > MOST_LEVELS:
            levels = [top, *levels[1::2]]
        for level_hz in itertools.product(levels, repeat=count):
            turbo = self._turbo(drawing, level_hz)
            yield level_hz, tuple(turbo if level == top else float(level) for level in level_hz)

    def _drawing_choices(self, tenant: _Tenant, highest: float) -> list[int | None]:
        """Power for as many cores as it keeps busy (None), or for all it has where they are fewer and serve it all the same."""
        time_s = self._machine.core_time_s(tenant.name, tenant.load_rps, self._profile.cache_size_bytes, highest, Strain())
        return [None, *range(math.floor(tenant.load_rps * time_s) + 1, math.ceil(tenant.busy))]

    def _turbo(self, drawing: Sequence[float], levels: Sequence[int] | None = None, *, job_draws: bool = True) -> float:
        """Turbo beside the job, if the tenants draw power for so many cores; without ``levels`` everybody is at the top step."""
        top, job = self._profile.top_hz, self._machine.job
        levels = (top,) * len(drawing) if levels is None else levels
        groups = [
            Group(tenant.busy, cores, None if level >= top else level)
            for tenant, cores, level in zip(self._tenants, drawing, levels, strict=True)
        ]
        if job is not None and self._job.cores:
            level_hz = None if self._job.level_hz >= top else self._job.level_hz
            groups.append(Group(self._job.cores, self._job.cores * job.core_power * job_draws, level_hz))
        return self._machine.turbo(groups)

    # Cores, network, memory and disk

    def _promising(self, plan: _Plan, ways: Ints, strain: Strain) -> Ints:
        """The compositions whose cores fit if nobody takes any network, memory or disk from another."""
        best = self._best_storage()
        rows = np.arange(len(ways))
        needed = np.zeros(len(ways), np.int64)
        for index in range(len(self._tenants)):
            times = self._core_times_s(index, plan.hertz[index], ways[rows], _only(strain, rows))
            needed[rows] += self._least_cores(index, plan, times, self._rates(best[index], self._most_network))
            rows = rows[needed[rows] <= self._spare_cores - (len(self._tenants) - 1 - index)]
        return rows

    def _with_plan(self, plan: _Plan, ways: Ints, strain: Strain) -> Allocation | None:
        rows = self._promising(plan, ways, strain)
        if not len(rows):
            return None
        times = [self._core_times_s(index, hertz, ways[rows], _only(strain, rows)) for index, hertz in enumerate(plan.hertz)]
        best = self._best_storage()
        failed: list[Floats] = []
        for storage, slowness in self._storages(best, plan, times):
            if any((slowness >= other).all() for other in failed):
                continue
            found = self._with_storage(plan, times, storage)
            if found is not None:
                row, cores, network = found
                held = tuple(int(count) for count in ways[rows[row]])
                step = self._pools[Resource.NETWORK].step
                rates = tuple(Rates(*amounts, count * step) for amounts, count in zip(storage, network, strict=True))
                return Allocation(cores, held, plan.level_hz, rates, self._job)
            failed.append(slowness)
        return None

    def _with_storage(
        self, plan: _Plan, times: Sequence[Floats], storage: Sequence[tuple[int, int]]
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
        """The row, cores and network steps with the fewest cores, if they fit."""
        costs = [self._network_costs(index, plan, times[index], storage[index]) for index in range(len(times))]
        total = self._pools[Resource.NETWORK].total // self._pools[Resource.NETWORK].step
        rows = len(times[0])
        least = np.zeros((total + 1, rows), np.int64)  # cores of those so far, with so many steps at most
        taken: list[Ints] = []
        for by_steps in costs:
            following = np.full_like(least, NEVER)
            choice = np.zeros_like(least)
            for count, cores in by_steps.items():
                with_count = least[: total + 1 - count] + cores
                better = with_count < following[count:]
                following[count:] = np.where(better, with_count, following[count:])
                choice[count:] = np.where(better, count, choice[count:])
            least = following
            taken.append(choice)
        row = int(np.argmin(least[total]))
        if least[total, row] > self._spare_cores:
            return None
        network: list[int] = []
        left = total
        for choice in reversed(taken):
            network.insert(0, int(choice[left, row]))
            left -= network[0]
        return row, tuple(int(costs[index][count][row]) for index, count in enumerate(network)), tuple(network)

    def _network_costs(self, index: int, plan: _Plan, times: Floats, storage: tuple[int, int]) -> dict[int, Ints]:
        """The least cores by steps of network, for those numbers of steps that make a difference."""

        def cost(count: int) -> Ints:
            return self._least_cores(index, plan, times, self._rates(storage, count))

        most = self._most_network
        costs = {1: cost(1), most: cost(most)}
        gaps = [(1, most)]
        while gaps:
            low, high = gaps.pop()
            if high - low > 1 and not np.array_equal(costs[low], costs[high]):
                middle = (low + high) // 2
                costs[middle] = cost(middle)
                gaps += [(low, middle), (middle, high)]
        useful: dict[int, Ints] = {}
        for count in sorted(costs):
            if not useful or not np.array_equal(costs[count], useful[max(useful)]):
                useful[count] = costs[count]
        return useful

    def _least_cores(self, index: int, plan: _Plan, times: Floats, rates: Rates) -> Ints:
        """The fewest cores with which a tenant meets its target, for each core time; NEVER where it cannot."""
        tenant = self._tenants[index]
        distinct, rows = np.unique(times, return_inverse=True)
        cores = np.full(len(distinct), NEVER, np.int64)
        served = 0  # of the distinct times, from the shortest on
        most = min(plan.most[index], self._spare_cores - len(self._tenants) + 1)
        for count in range(max(plan.least[index], 1), most + 1):
            low, high = served, len(distinct)
            while low < high:
                middle = (low + high) // 2
                if self._meets(tenant, index, count, float(distinct[middle]), rates):
                    low = middle + 1
                else:
                    high = middle
            cores[served:low] = count
            served = low
            if served == len(distinct):
                break
        return cores[rows]

    def _meets(self, tenant: _Tenant, index: int, cores: int, time_s: float, rates: Rates) -> bool:
        """Whether a core time is short enough; ``Means.stretch`` makes it."""
        key = (index, cores, time_s, rates)
        known = self._met.get(key)
        if known is None:
            cache_bytes, hertz = self._profile.cache_size_bytes, self._profile.top_hz
            means = Means(cores, cache_bytes, hertz, *rates, stretch=time_s / tenant.least_s)
            response = respond(self._machine.conditions(tenant.name, tenant.load_rps, means, Strain()), tenant.load_rps)
            known = response.capacity_rps > tenant.load_rps and percentile_s(response, tenant.percentile) <= tenant.limit_s
            self._met[key] = known
        return known

    def _rates(self, storage: tuple[int, int], network_steps: int) -> Rates:
        return Rates(*storage, network_steps * self._pools[Resource.NETWORK].step)

    def _best_storage(self) -> list[tuple[int, int]]:
        """Memory and disk of each tenant if the others that read had only the least."""
        memory, disk = self._pools[Resource.MEMORY], self._pools[Resource.DISK]
        needs = [tenant.memory_steps * memory.step for tenant in self._tenants]
        return [
            (memory.total - sum(needs) + need, disk.total - (len(needs) - 1) * disk.step) if tenant.reads else (need, disk.step)
            for tenant, need in zip(self._tenants, needs, strict=True)
        ]

    def _storages(
        self, best: list[tuple[int, int]], plan: _Plan, times: Sequence[Floats]
    ) -> Iterator[tuple[list[tuple[int, int]], Floats]]:
        """Splits of memory and disk, the even ones first, with how slow each reader's disk is."""
        readers = [index for index, tenant in enumerate(self._tenants) if tenant.reads]
        if len(readers) <= 1:
            yield best, np.zeros(1)
            return
        memory, disk = self._pools[Resource.MEMORY], self._pools[Resource.DISK]
        disks = compositions(disk.total // disk.step - len(self._tenants) + len(readers), len(readers))
        free = best[readers[0]][0] // memory.step + sum(self._tenants[index].memory_steps for index in readers[1:])
        unit = 1
        while len(disks) * math.comb(free // unit - 1, len(readers) - 1) > MOST_SPLITS:
            unit += 1
        memories = compositions(free // unit, len(readers)) * unit
        slowness, longest = [], []
        for column, index in enumerate(readers):
            table = self._read_times_s(index)
            slowness.append(table[np.ix_(memories[:, column], disks[:, column])].ravel())
            longest.append(self._longest_read_s(index, plan, times[index], best[index], np.unique(slowness[-1])))
        slow = np.stack(slowness, axis=1)
        share = (slow / np.array(longest)).max(axis=1)
        for option in np.argsort(share, kind="stable"):
            if share[option] > 1.0 + ROUNDING:
                return
            storage = list(best)
            for column, index in enumerate(readers):
                steps = memories[option // len(disks), column], disks[option % len(disks), column]
                storage[index] = (int(steps[0]) * memory.step, int(steps[1]) * disk.step)
            yield storage, slow[option]

    def _read_times_s(self, index: int) -> Floats:
        """How long a tenant's reads for a request take, by steps of memory and of disk."""
        memory, disk = self._pools[Resource.MEMORY], self._pools[Resource.DISK]
        tenant = self._tenants[index]
        read = np.full(memory.total // memory.step + 1, math.inf)
        for count in range(tenant.memory_steps, len(read)):
            means = Means(1.0, 0.0, self._profile.top_hz, count * memory.step, disk.step, self._pools[Resource.NETWORK].step)
            read[count] = self._machine.conditions(tenant.name, tenant.load_rps, means, Strain()).disk_bytes
        rates = np.arange(disk.total // disk.step + 1) * disk.step
        with np.errstate(divide="ignore"):
            times: Floats = read[:, None] / rates[None, :]
        return times

    def _longest_read_s(self, index: int, plan: _Plan, times: Floats, best: tuple[int, int], reads_s: Floats) -> float:
        """The longest of these that the tenant bears with the shortest core time and all the network; under all of them if none."""
        cores = min(plan.most[index], self._spare_cores - len(self._tenants) + 1)
        tenant, time_s = self._tenants[index], float(times.min())
        memory, disk = best
        read = self._machine.conditions(
            tenant.name, tenant.load_rps, Means(1.0, 0.0, self._profile.top_hz, memory, disk, 1), Strain()
        ).disk_bytes
        low, high = 0, len(reads_s)
        while low < high:
            middle = (low + high) // 2
            # The same memory with a disk that is as much slower: what counts is how long a read takes.
            rates = Rates(memory, max(1, round(read / reads_s[middle])), self._most_network * self._pools[Resource.NETWORK].step)
            if self._meets(tenant, index, cores, time_s, rates):
                low = middle + 1
            else:
                high = middle
        return float(reads_s[low - 1]) if low else float(reads_s[0]) / 2
