"""The simulated node as a platform: virtual time, the model for monitors, and moves that take effect at once.

What the loop, the policy, the placement and the signal do here is what they do on the host; it is the same code. Time passes in
``wait_until`` alone: requests of the stretch up to the deadline are answered under the conditions that the last moves left, and the
windows of the clients that ended by then are fed to the signal. Windows end on multiples of 100 ms and ticks fall 10 ms later
(``parties.loop.PHASE_NS``); a move counts from the start of the window in which it was made, which is those 10 ms early.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from monitors.histogram_message import Window
from monitors.signal import Signal
from parties.model import (
    BEST_EFFORT,
    IDLE,
    MILLICORES_PER_CORE,
    NS_PER_S,
    Holder,
    LatencyView,
    Move,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.move_ledger import MoveLedger, Plan, plans
from parties.placement import Placement, place
from simulator.conditions import Conditions, Outlook, Share
from simulator.faults import NO_FAULTS, Faults
from simulator.load_profile import LoadProfile

WINDOW_NS = 100_000_000  # what clients report in, as the project's own client does
RESTART_NS = 5 * NS_PER_S
"""From a service's end to its return. A value of our own: the paper has no restarts. Long enough to be seen as absent, shorter than
the grace time after which the loop gives its resources away."""
LOADING_NS = NS_PER_S
"""From a service's return until it needs all of its memory, if it does not fit at once. A value of our own: two intervals, in which
the loop sees it and gives back what it took from it (it admits one service in an interval). Until then it answers nothing."""

KEPT_OUTLOOKS = 4096  # a policy comes back to divisions that it tried before
_DOWN = Conditions((), 0.0, killed=True)
_NOTHING_USED = Usage(0, 0, 0, 0, 0)


class MachineModel(Protocol):
    """What a division of the node means (``simulator.machine``)."""

    def outlook(self, shares: Sequence[Share], loads_rps: Mapping[str, float]) -> Outlook:
        """Conditions of each tenant and use of the node, until something changes."""


class Clients(Protocol):
    """Who asks, and reports what came of it (``simulator.traffic``)."""

    def advance(self, conditions: Mapping[str, Conditions], start_ns: int, end_ns: int) -> Sequence[Window]:
        """The windows of all tenants between two moments, in the order of their ends."""


class SimulatedPlatform:
    """A platform for a run of ``duration_ns``. ``loads`` are in requests per second by tenant."""

    def __init__(  # noqa: PLR0913 - the parts of a simulated machine, each given by name
        self,
        node: Node,
        services: Sequence[Service],
        *,
        machine: MachineModel,
        clients: Clients,
        signal: Signal,
        loads: Mapping[str, tuple[LoadProfile, float]],
        job_present: bool,
        duration_ns: int,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.node = node
        self.windows: Sequence[Window] = ()  # of the stretch up to the last tick
        self.restarts: dict[str, int] = {service.name: 0 for service in services}
        self._services = {service.name: service for service in services}
        self._machine = machine
        self._clients = clients
        self._signal = signal
        self._loads = loads
        self._job_present = job_present
        self._duration_ns = duration_ns
        self._faults = faults
        self._due_restarts = sorted(faults.restarts, key=lambda restart: -restart.at_s)  # the next one is the last
        self._now_ns = 0
        self._stopping = False
        self._division = Division(node, self._services, job_present=job_present)
        self._partition = Partition({})
        self._placement: Placement | None = None
        self._unplaced: list[Plan] = []
        self._ledger = MoveLedger()
        self._plans = 0
        self._ready: dict[int, int] = {}  # ticket -> intervals left
        self._down: dict[str, int] = {}  # service -> when it is back
        self._loading: dict[str, int] = {}  # service that is back -> until when it need not fit into its memory
        self._outlooks: dict[tuple[object, ...], Outlook] = {}
        self._outlook = Outlook({})
        self._steady = all(load.constant for load, _ in loads.values())
        self._foreseen: tuple[Share, ...] | None = None  # the shares that the outlook is of, if it is of nothing else
        self._span_ns = 1

    @property
    def placement(self) -> Placement | None:
        """Which cores and ways each holder has, as a host would have placed every move; None if nothing is partitioned.

        The model counts cores and ways, and does not ask which; so they are placed when somebody looks.
        """
        for plan in self._unplaced:
            if self._placement is not None:
                self._placement = place(self.node, self._placement.partition.after(plan), self._placement)
        self._unplaced.clear()
        return self._placement

    def now_ns(self) -> int:
        """Virtual time since the start."""
        return self._now_ns

    def stop(self) -> None:
        """Ask for an end: ``wait_until`` returns False from now on."""
        self._stopping = True

    def wait_until(self, deadline_ns: int) -> bool:
        """Let time pass; False when the run is over."""
        end_ns = deadline_ns - deadline_ns % WINDOW_NS
        if self._stopping or end_ns > self._duration_ns:
            return False
        start_ns = self._now_ns - self._now_ns % WINDOW_NS
        if end_ns > start_ns:
            self._pass(start_ns, end_ns)
        self._now_ns = max(self._now_ns, deadline_ns)
        return True

    def start(self, partition: Partition | None, *, best_effort_idle_class: bool, sharing: Mapping[str, Holder]) -> None:
        """Put the first partition in force; the idle class is for divided cores, and a simulated node hands out whole ones."""
        del best_effort_idle_class
        self._division.sharing = sharing
        if partition is not None:
            partition.check(self.node, [service for name, service in self._services.items() if name not in sharing])
            self._placement = place(self.node, partition, None)
            self._partition = partition
        self._division.divide(partition)

    def observe(self, tick: int) -> Observation:
        """The interval that ends now: what the signal says, what the model says was used, and what became of earlier moves."""
        self._collect()
        views = self._signal.views(self._now_ns)
        usage = self._usage()
        return Observation(
            now_ns=self._now_ns,
            tick=tick,
            services={
                name: ServiceObservation(
                    views[name] if name not in self._down else _absent(views[name]), usage[name], service.in_memory
                )
                for name, service in self._services.items()
            },
            partition=self._partition,
            outcomes=self._ledger.outcomes(),
            best_effort=self._outlook.best_effort if self._job_present else Usage(),
            best_effort_present=self._job_present,
            memory_bandwidth_bytes_per_s=self._outlook.memory_bandwidth_bytes_per_s,
            power_milliwatts=self._outlook.power_milliwatts,
        )

    def apply(self, moves: Sequence[Move]) -> None:
        """Enforce one plan for each pool; what became of the moves is in the next observations."""
        for key, plan in plans(moves).items():
            number, self._plans = self._plans, self._plans + 1
            if self._ledger.busy(key):
                self._ledger.end(plan, MoveStatus.REFUSED, f"{key}: an earlier move is still under way")
            elif (detail := self._faults.refused.get(number)) is not None:
                self._ledger.end(plan, MoveStatus.REFUSED, detail)
            elif ticks := self._faults.pending(number, plan):
                self._ledger.pending[number] = plan
                self._ready[number] = ticks
            else:
                self._carry_out(plan)

    def close(self) -> None:
        """Nothing to put back."""

    # Time

    def _pass(self, start_ns: int, end_ns: int) -> None:
        """Requests from one moment to the other, under the conditions of now."""
        self._end_and_return(start_ns)
        self._foresee(start_ns, end_ns)
        conditions: Mapping[str, Conditions] = self._outlook.services
        if self._down:
            conditions = {**conditions, **dict.fromkeys(self._down, _DOWN)}
        self._span_ns = end_ns - start_ns
        self.windows = self._clients.advance(conditions, start_ns, end_ns)
        for window in self.windows:
            if not (self._faults.silences and self._faults.silent(window.service, window.window_end_ns / NS_PER_S)):
                self._signal.feed(window)

    def _end_and_return(self, now_ns: int) -> None:
        """Services whose restart is due go, and those whose time is over come back."""
        if self._loading:
            self._loading = {
                name: until_ns for name, until_ns in self._loading.items() if until_ns > now_ns or self._is_being_given(name)
            }
        if self._down:
            for name in [name for name, back_ns in self._down.items() if back_ns <= now_ns]:
                del self._down[name]
                self._loading[name] = now_ns + LOADING_NS
        while self._due_restarts and self._due_restarts[-1].at_s * NS_PER_S <= now_ns:
            self._end(self._due_restarts.pop().service, now_ns)

    def _end(self, service: str, now_ns: int) -> None:
        self._loading.pop(service, None)
        self._down[service] = now_ns + RESTART_NS
        self.restarts[service] += 1

    def _is_being_given(self, service: str) -> bool:
        """Whether memory for a service is under way in a slow plan."""
        pending = self._ledger.pending.values()
        return any(move.taker == service and move.pool.resource is Resource.MEMORY for plan in pending for move in plan)

    def _foresee(self, start_ns: int, end_ns: int) -> None:
        """The outlook for a stretch of time. Who does not fit into memory is ended, and the others look again.

        One that has just returned is left alone, so that it is seen: who was absent for long holds the floor of memory, and would
        be ended before the loop could give any back.
        """
        shares = self._division.shares
        if shares is self._foreseen and not self._down and not self._loading:
            return
        while True:
            loads = self._loads_between(start_ns / NS_PER_S, end_ns / NS_PER_S)
            self._outlook = self._outlook_of(shares, loads)
            killed = [
                name for name, conditions in self._outlook.services.items() if conditions.killed and name not in self._loading
            ]
            if not killed:
                break
            for name in killed:
                self._end(name, start_ns)
        self._foreseen = shares if self._steady and not self._down and not self._loading else None

    def _loads_between(self, start_s: float, end_s: float) -> dict[str, float]:
        return {
            name: load.mean(start_s, end_s) * max_rps for name, (load, max_rps) in self._loads.items() if name not in self._down
        }

    def _outlook_of(self, shares: tuple[Share, ...], loads: Mapping[str, float]) -> Outlook:
        if self._down:
            shares = tuple(share._replace(tenants=tuple(name for name in share.tenants if name in loads)) for share in shares)
        key = (shares, *loads.items())
        found = self._outlooks.get(key)
        if found is None:
            if len(self._outlooks) >= KEPT_OUTLOOKS:
                self._outlooks.clear()
            found = self._outlooks[key] = self._machine.outlook(shares, loads)
        return found

    # Moves

    def _carry_out(self, plan: Plan) -> None:
        self._partition = self._partition.after(plan)
        self._unplaced.append(plan)
        concerned = {holder for move in plan for holder in (move.giver, move.taker) if holder is not None}
        self._division.change(self._partition, concerned)
        for name in self._services.keys() & concerned:
            self._signal.note_change(name, self._now_ns)
        self._ledger.end(plan, MoveStatus.DONE)

    def _collect(self) -> None:
        """Slow plans that are through."""
        for ticket in list(self._ready):
            self._ready[ticket] -= 1
            if not self._ready[ticket]:
                del self._ready[ticket]
                self._carry_out(self._ledger.pending.pop(ticket))

    # Use

    def _usage(self) -> dict[str, Usage]:
        """What each service used, by what it completed."""
        completed = dict.fromkeys(self._services, 0)
        for window in self.windows:
            completed[window.service] += window.completed
        found = {}
        for name, count in completed.items():
            conditions = self._outlook.services.get(name)
            if conditions is None or name in self._down:
                found[name] = _NOTHING_USED
                continue
            rate = count * NS_PER_S / self._span_ns
            found[name] = Usage(
                int(rate * conditions.cpu_s * MILLICORES_PER_CORE),
                conditions.resident_bytes,
                int(rate * conditions.disk_bytes),
                int(rate * conditions.network_bits),
                int(rate * conditions.memory_traffic_bytes),
                conditions.frequency_hz,
            )
        return found


class Division:
    """Who has what together: a partition as the model's shares."""

    def __init__(self, node: Node, services: Mapping[str, Service], *, job_present: bool) -> None:
        self.sharing: Mapping[str, Holder] = {}
        self.shares: tuple[Share, ...] = ()
        self._services = services
        self._job_present = job_present
        self._pools = {pool.key.resource: pool for pool in node.managed_pools()}
        self._places: dict[Holder, int] = {}  # of a holder's share among the shares

    def divide(self, partition: Partition | None) -> None:
        """Note the shares of a partition; None is one share with everybody in it."""
        if partition is None:
            self.shares = (self._share(tuple(self._services), IDLE, Partition({}), job=self._job_present),)
            return
        tenants: dict[Holder, tuple[str, ...]] = {}
        for name in self._services:
            holder = self.sharing.get(name, name)
            tenants[holder] = (*tenants.get(holder, ()), name)
        if self._job_present:
            tenants.setdefault(BEST_EFFORT, ())
        self._places = {holder: place for place, holder in enumerate(tenants)}
        self.shares = tuple(
            self._share(names, holder, partition, job=self._job_present and holder == BEST_EFFORT)
            for holder, names in tenants.items()
        )

    def change(self, partition: Partition, holders: Iterable[Holder]) -> None:
        """Note what these holders have now."""
        shares = list(self.shares)
        for holder in holders:
            if (at := self._places.get(holder)) is not None:
                shares[at] = self._share(shares[at].tenants, holder, partition, job=shares[at].best_effort)
        self.shares = tuple(shares)

    def _share(self, names: tuple[str, ...], holder: Holder, partition: Partition, *, job: bool) -> Share:
        return Share(
            names,
            job,
            self._amount(Resource.CORES, holder, partition) // MILLICORES_PER_CORE,
            self._amount(Resource.CACHE, holder, partition),
            partition.amounts.get(self._pools[Resource.FREQUENCY].key, {}).get(holder),  # what is not set is the governor's
            self._amount(Resource.MEMORY, holder, partition),
            self._amount(Resource.DISK, holder, partition),
            self._amount(Resource.NETWORK, holder, partition),
        )

    def _amount(self, resource: Resource, holder: Holder, partition: Partition) -> int:
        """What a holder has of a resource; of what is not partitioned everybody has all."""
        pool = self._pools[resource]
        held = partition.amounts.get(pool.key)
        return pool.total if held is None else held.get(holder, 0)


def _absent(view: LatencyView) -> LatencyView:
    return dataclasses.replace(view, state=ServiceState.ABSENT, latency_ns=None, cautious_latency_ns=None)
