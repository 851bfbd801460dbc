"""The machine's model: what a division of the node means for a request of each tenant. Deterministic; no time, no randomness.

For a run, ``Machine.outlook(shares, loads_rps)`` is all. An exhaustive search can have the same in parts, which are exact for
tenants that hold what they have alone and are not overloaded, because traffic hangs on loads and ways only:

- ``machine.traffic_bytes_per_s(tenant, load_rps, cache_bytes)``: memory traffic of a tenant;
- ``machine.job_stream_bytes_per_s(cores)``: that of best-effort jobs on cores of their own;
- ``machine.strain(traffic)``: what all traffic of the node together does to everybody;
- ``machine.busy_cores(tenant, load_rps)``: what a tenant counts for turbo;
- ``machine.turbo(groups)``: what the top step gives;
- ``machine.core_time_s(tenant, load_rps, cache_bytes, frequency_hz, strain)``: a request's core time;
- ``machine.conditions(tenant, load_rps, means, strain)``: everything, for ``Means`` (cores, cache, frequency, memory, disk,
  network);
- ``machine.killed(tenant, load_rps, memory_bytes)``: whether that much memory ends it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from parties.model import MILLICORES_PER_CORE, Usage
from simulator.conditions import Conditions, Outlook, Share, Station
from simulator.contention import (
    disk_bytes,
    fair_level,
    limited_turbo_hz,
    memory_pressure,
    miss_ratio,
    occupancy,
    page_set_bytes,
    power_milliwatts,
    process_bytes,
    turbo_hz,
    wake_delay_s,
)
from simulator.profile import JobModel, NodeProfile, ServiceModel
from simulator.profile_checks import ImpossibleProfileError, check_profile

LARGEST_LOAD = 2.0
"""Loads count up to twice the largest: beyond it everything is lost anyway, and powers of it would only overflow."""

_S_PER_NS = 1e-9
_KILLED = Conditions((), 0.0, killed=True)


class Means(NamedTuple):
    """What a tenant has to answer with: by itself, or as its part of what it shares.

    ``stretch`` is how much longer a request is on its core because others run there too; ``sibling_busy`` is the fraction of time
    that a foreign thread is on the core's other hyper-thread.
    """

    cores: float
    cache_bytes: float
    frequency_hz: float
    memory_bytes: float
    disk_bytes_per_s: float
    network_bits_per_s: float
    stretch: float = 1.0
    sibling_busy: float = 0.0
    wake_delay_s: float = 0.0


class Strain(NamedTuple):
    """What all traffic of a node together does to everybody: how much longer a memory access takes, and how busy the cache is."""

    memory_pressure: float = 1.0
    cache_use: float = 0.0


class Group(NamedTuple):
    """One share for turbo and power.

    ``active_cores`` are those that its load would keep busy, whatever it holds: turbo must not rise because a service has too few.
    ``drawing_cores`` are those that it can keep busy, weighted by what they draw. Frequency None is turbo.
    """

    active_cores: float
    drawing_cores: float
    frequency_hz: int | None


class _Asking(NamedTuple):
    """A tenant that lives, at its load: what can be said of it before the whole node's traffic is known."""

    name: str
    model: ServiceModel
    load_rps: float
    load: float  # over the largest
    cores: float  # that it would keep busy
    cache_bytes: float
    misses: float
    process_bytes: float


class _Division(NamedTuple):
    """A share with what its tenants ask for."""

    share: Share
    asking: Sequence[_Asking]
    job_cores: float


class Machine:
    """A node with its tenants. Raises ImpossibleProfileError if the node is impossible or the tenants do not fit on it."""

    def __init__(self, profile: NodeProfile, tenants: Mapping[str, ServiceModel], job: JobModel | None = None) -> None:
        check_profile(profile)
        for model in {id(model): model for model in tenants.values()}.values():
            check_profile(model)
        if job is not None:
            check_profile(job)
        check_room(profile, len(tenants), best_effort=job is not None)
        self.profile = profile
        self._top_hz = profile.top_hz
        self._way_bytes = profile.way_bytes
        self.tenants = dict(tenants)
        self.job = job
        self._least_s = {name: core_time_s(model, 0.0, profile.top_hz, Strain()) for name, model in tenants.items()}
        weight = job.core_power if job is not None else 1.0
        self._alone_hz = self.turbo([Group(profile.cores, profile.cores * weight, None)])
        self._busy_s = {name: core_time_s(model, 0.0, profile.turbo_hz[-1], Strain()) for name, model in tenants.items()}

    def outlook(self, shares: Sequence[Share], loads_rps: Mapping[str, float]) -> Outlook:
        """What each tenant's requests meet and what best-effort jobs get done, if the node is divided like this."""
        divisions = [self._division(share, loads_rps) for share in shares]
        groups = [self._group(division) for division in divisions]
        turbo = self.turbo(groups)
        served = streamed = 0.0
        for division in divisions:
            cores = division.share.cores
            for asking in division.asking:
                most = cores / self._least_s[asking.name]
                served += (min(most, asking.load_rps)) * asking.model.memory_traffic_bytes * asking.misses
            streamed += self.job_stream_bytes_per_s(division.job_cores)
        strain = self.strain(served + streamed)
        services: dict[str, Conditions] = {}
        for division in divisions:
            hertz = self._granted(division.share, turbo)
            if len(division.asking) < len(division.share.tenants):
                services.update(dict.fromkeys(division.share.tenants, _KILLED))
            for asking in division.asking:
                services[asking.name] = self._conditions(asking, self._means(division, asking, hertz), strain)
        bandwidth = self.profile.memory_bandwidth_bytes_per_s
        power = power_milliwatts(self.profile, [(group.drawing_cores, group.frequency_hz or turbo) for group in groups])
        best_effort = self._job_usage(divisions, turbo, served, streamed)
        return Outlook(services, best_effort, int(min(served + streamed, bandwidth)), int(power))

    def conditions(self, tenant: str, load_rps: float, means: Means, strain: Strain) -> Conditions:
        """What one request meets; ``load_rps`` is what is asked for, whether or not it can be answered."""
        model = self.tenants[tenant]
        load = min(load_rps / model.max_load_rps, LARGEST_LOAD)
        misses = miss_ratio(model, means.cache_bytes, load)
        asking = _Asking(tenant, model, load_rps, load, 0.0, means.cache_bytes, misses, process_bytes(model, load))
        return self._conditions(asking, means, strain)

    def core_time_s(self, tenant: str, load_rps: float, cache_bytes: float, frequency_hz: float, strain: Strain) -> float:
        """A request's core time, without the software limit of the largest load."""
        model = self.tenants[tenant]
        load = min(load_rps / model.max_load_rps, LARGEST_LOAD)
        return core_time_s(model, miss_ratio(model, cache_bytes, load), frequency_hz, strain)

    def traffic_bytes_per_s(self, tenant: str, load_rps: float, cache_bytes: float, cores: float = math.inf) -> float:
        """Memory traffic of a tenant: what of its load can be served at best, times what a request misses in the cache."""
        model = self.tenants[tenant]
        load = min(load_rps / model.max_load_rps, LARGEST_LOAD)
        served = min(load_rps, cores / self._least_s[tenant])
        return served * model.memory_traffic_bytes * miss_ratio(model, cache_bytes, load)

    def job_stream_bytes_per_s(self, cores: float) -> float:
        """What the memory threads of the best-effort job ask of the memory on so many cores; its threads take turns."""
        if self.job is None or cores <= 0.0:
            return 0.0
        threads = self.job.compute_threads + self.job.memory_threads
        running = min(1.0, cores * self.profile.threads_per_core / threads)
        return self.job.memory_threads * running * self.job.stream_bytes_per_s

    def strain(self, traffic_bytes_per_s: float) -> Strain:
        """What so much memory traffic does to everybody."""
        use = traffic_bytes_per_s / self.profile.memory_bandwidth_bytes_per_s
        pressure = memory_pressure(self.profile, use)
        return Strain(pressure, min(1.0, traffic_bytes_per_s / self.profile.cache_bandwidth_bytes_per_s))

    def busy_cores(self, tenant: str, load_rps: float, cores: float = math.inf) -> float:
        """How many cores a tenant keeps busy on average, for turbo and power: by its load, whatever else it has."""
        return min(load_rps * self._busy_s[tenant], cores)

    def turbo(self, groups: Iterable[Group]) -> float:
        """What the top step of the frequency gives: the bin of all active cores, under the power limit."""
        groups = tuple(groups)
        bin_hz = turbo_hz(self.profile, sum(group.active_cores for group in groups))
        fixed = power_milliwatts(self.profile, ((g.drawing_cores, g.frequency_hz) for g in groups if g.frequency_hz is not None))
        return limited_turbo_hz(self.profile, bin_hz, sum(g.drawing_cores for g in groups if g.frequency_hz is None), fixed)

    def killed(self, tenant: str, load_rps: float, memory_bytes: float) -> bool:
        """Whether a tenant with that much memory of its own is ended for want of it."""
        model = self.tenants[tenant]
        return model.in_memory and process_bytes(model, load_rps / model.max_load_rps) > memory_bytes

    def _conditions(self, asking: _Asking, means: Means, strain: Strain) -> Conditions:
        name, model, load_rps, load, _, _, misses, process = asking
        cores, stretch, hertz = means.cores, means.stretch, means.frequency_hz
        core_s = core_time_s(model, misses, hertz, strain, means.sibling_busy)
        slowness = core_s * stretch / self._least_s[name]
        if model.software_limit:
            limited = 1.0 + model.software_limit * math.pow(load, model.software_limit_power)
            core_s *= limited
            slowness *= limited
        held_s = core_s * stretch
        fixed_s = model.fixed_ns * _S_PER_NS * slowness
        if model.fixed_growth:
            busy = min(1.0, load_rps * held_s / cores) if cores > 0 else 1.0
            fixed_s *= 1.0 + model.fixed_growth * math.pow(busy, model.fixed_growth_power)
        stations: tuple[Station, ...] = (Station(cores, held_s, model.service_scv, model.arrival_scv),)
        read_bytes = 0.0
        if model.disk_bytes:
            read_bytes = disk_bytes(model, means.memory_bytes, load)
            stations += (_transfer(read_bytes, means.disk_bytes_per_s, model.disk_scv),)
        if model.network_bits:
            stations += (_transfer(model.network_bits, means.network_bits_per_s, 1.0),)
        resident = process if model.in_memory else means.memory_bytes  # the page cache fills whatever the data set is larger than
        fetched = model.memory_traffic_bytes * misses
        sent = float(model.network_bits)
        fixed_s += means.wake_delay_s
        return Conditions(stations, fixed_s, False, core_s, read_bytes, sent, fetched, int(resident), int(hertz))

    def _division(self, share: Share, loads_rps: Mapping[str, float]) -> _Division:
        """What a share's tenants ask for; those that its memory cannot hold are left out, the largest process first."""
        asking = [self._asking(name, loads_rps.get(name, 0.0), share) for name in share.tenants]
        if len(asking) == 1 and not share.best_effort:
            alive = not asking[0].model.in_memory or asking[0].process_bytes <= share.memory_bytes
            return _Division(share, asking if alive else (), 0.0)
        needs = [(one.process_bytes, one.name) for one in asking if one.model.in_memory]
        if needs and sum(size for size, _ in needs) > share.memory_bytes:
            asking = _survivors(asking, sorted(needs), share.memory_bytes)
        has_job = share.best_effort and self.job is not None
        job_cores = fair_level(share.cores, [one.cores for one in asking]) if has_job else 0.0
        if len(asking) + has_job > 1:
            asking = self._sharing_cache(asking, share, job_cores)
        return _Division(share, asking, job_cores)

    def _asking(self, name: str, load_rps: float, share: Share) -> _Asking:
        """A tenant with the whole cache of its share."""
        model = self.tenants[name]
        load = min(load_rps / model.max_load_rps, LARGEST_LOAD)
        cache_bytes = share.ways * self._way_bytes
        cores = load_rps * self._busy_s[name]
        misses = miss_ratio(model, cache_bytes, load)
        return _Asking(name, model, load_rps, load, cores, cache_bytes, misses, process_bytes(model, load))

    def _sharing_cache(self, asking: Sequence[_Asking], share: Share, job_cores: float) -> list[_Asking]:
        """The tenants with the part of their share's cache that their accesses give them."""
        accesses = [min(one.load_rps, share.cores / self._least_s[one.name]) * one.model.memory_traffic_bytes for one in asking]
        total = sum(accesses) + self.job_stream_bytes_per_s(job_cores)
        parts = [one.cache_bytes * occupancy(intensity, total) for one, intensity in zip(asking, accesses, strict=True)]
        return [
            one._replace(cache_bytes=part, misses=miss_ratio(one.model, part, one.load))
            for one, part in zip(asking, parts, strict=True)
        ]

    def _group(self, division: _Division) -> Group:
        share, asking, job_cores = division
        asked = asking[0].cores if len(asking) == 1 else sum([one.cores for one in asking])
        left = share.cores - job_cores
        busy = min(left, asked)
        hertz = share.frequency_hz
        fixed = None if hertz is None or hertz >= self._top_hz else hertz
        weight = self.job.core_power if self.job is not None else 1.0
        return Group(asked + job_cores, busy + weight * job_cores, fixed)

    def _granted(self, share: Share, turbo: float) -> float:
        """What a share's cores run at: its level, or turbo for the top step and under the ``ondemand`` governor."""
        hertz = share.frequency_hz
        return turbo if hertz is None or hertz >= self._top_hz else float(hertz)

    def _means(self, division: _Division, asking: _Asking, hertz: float) -> Means:
        share = division.share
        if len(division.asking) == 1 and not division.job_cores:
            rates = (share.memory_bytes, share.disk_bytes_per_s, share.network_bits_per_s)
            return Means(share.cores, asking.cache_bytes, hertz, *rates)
        others = [other for other in division.asking if other is not asking]
        cores_of_others = [other.cores for other in others]
        job = division.job_cores > 0.0
        level = fair_level(share.cores, cores_of_others, 2 if job else 1)
        others_busy = 1.0 if job else min(1.0, sum(cores_of_others) / share.cores) if share.cores else 0.0
        memory = fair_level(share.memory_bytes, [_memory_bytes(other) for other in others])
        reads = [other.load_rps * disk_bytes(other.model, memory, other.load) for other in others]
        sent = [other.load_rps * other.model.network_bits for other in others]
        return Means(
            share.cores,
            asking.cache_bytes,
            hertz,
            memory,
            fair_level(share.disk_bytes_per_s, reads),
            fair_level(share.network_bits_per_s, sent),
            stretch=share.cores / level if level > 0.0 else 1.0,
            sibling_busy=others_busy,
            wake_delay_s=wake_delay_s(self.profile, others_busy),
        )

    def _job_usage(self, divisions: Sequence[_Division], turbo: float, served: float, streamed: float) -> Usage:
        """What best-effort jobs use, and their work over what they do alone on the whole node, mean over the threads."""
        if self.job is None:
            return Usage()
        cores = sum(division.job_cores for division in divisions)
        if cores <= 0.0:
            return Usage(0, 0, 0, 0, 0, progress=0.0)
        hertz = sum(d.job_cores * self._granted(d.share, turbo) for d in divisions) / cores
        bandwidth = float(self.profile.memory_bandwidth_bytes_per_s)
        moved = min(streamed, max(bandwidth - served, bandwidth * streamed / (served + streamed)) if streamed else 0.0)
        whole = min(self.job_stream_bytes_per_s(self.profile.cores), bandwidth)
        threads = self.job.compute_threads + self.job.memory_threads
        work = self.job.compute_threads * cores / self.profile.cores * hertz / self._alone_hz + self.job.memory_threads * (
            moved / whole if whole else 0.0
        )
        millicores = int(cores * MILLICORES_PER_CORE)
        return Usage(millicores, 0, 0, 0, int(moved), frequency_hz=int(hertz), progress=min(1.0, work / threads))


def check_room(profile: NodeProfile, services: int, *, best_effort: bool) -> None:
    """Raise ImpossibleProfileError if so many services, and a best-effort job beside them, cannot each have a part of the node."""
    holders = services + best_effort
    limits = (("cores", profile.cores), ("cache ways", profile.cache_ways), ("cache classes", profile.cache_classes))
    what = f"{services} services{' and best-effort jobs' if best_effort else ''}"
    short = [f"{what} do not fit on {there} {name}; take fewer, or a larger node" for name, there in limits if holders > there]
    if short:
        raise ImpossibleProfileError(f"node {profile.name}", short)


def core_time_s(model: ServiceModel, misses: float, frequency_hz: float, strain: Strain, sibling_busy: float = 0.0) -> float:
    """A request's core time: a part that scales with frequency and hyper-threads, and one that waits for memory."""
    compute_ns = model.compute_ns * (model.reference_hz / frequency_hz) * (1.0 + (model.sibling_slowdown - 1.0) * sibling_busy)
    memory_ns = model.memory_ns * misses * strain.memory_pressure
    return (compute_ns + memory_ns) * (1.0 + model.cache_contention * strain.cache_use) * _S_PER_NS


def _survivors(asking: Sequence[_Asking], needs: list[tuple[float, str]], memory_bytes: float) -> list[_Asking]:
    """Who is left when the largest processes (last in ``needs``) are killed until the rest fits."""
    killed = set()
    while sum(size for size, _ in needs) > memory_bytes:
        killed.add(needs.pop()[1])
    return [one for one in asking if one.name not in killed]


def _memory_bytes(asking: _Asking) -> float:
    return max(asking.process_bytes, page_set_bytes(asking.model, asking.load))


def _transfer(amount: float, rate: float, scv: float) -> Station:
    """A disk or a link as a station; without any rate it has no server."""
    return Station(1.0, amount / rate, scv) if rate > 0.0 else Station(0.0, amount, scv)
