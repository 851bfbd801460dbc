"""Assembly: the host platform made of its parts, from settings.

The one place that knows every monitor and actuator by name. A new resource is one file in ``actuators`` and one entry in
``parties.makers``; a new source of latency feeds the histogram socket from a process of its own and needs nothing here.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from actuators.cache.resctrl_actuator import ResctrlActuator
from actuators.cgroup.group import GroupLayer
from actuators.cgroup.hierarchy import Hierarchies, SetupError
from actuators.cgroup.layer import find_layer
from actuators.cgroup.naming import resolve
from actuators.disk import DiskActuator
from actuators.frequency.actuator import FrequencyActuator
from actuators.holders import ManagedGroups
from actuators.network.actuator import NetworkActuator
from actuators.registry import KINDS
from actuators.rest import RestKeeper
from actuators.systemd.layer import SystemdLayer
from monitors import writers
from monitors.frequency import FrequencyMonitor
from monitors.histogram_socket import HistogramSocket
from monitors.pressure import PressureMonitor
from monitors.signal import Signal
from monitors.topology import Topology
from monitors.usage import GroupUsageMonitor, InMemoryClassifier
from parties.enforcer import Enforcer
from parties.foreign import NamesWriters
from parties.homes import told_homes
from parties.host import Events, HostPlatform, Monitors, StoppedError, refs_at_start
from parties.in_force import IN_FORCE_NAME, InForce
from parties.interfaces import Actuator, HasProblems, NeedsUpkeep, Policy, Tidies
from parties.journal import JOURNAL_NAME, Journal, boot_id, read_journal
from parties.knob import KnobRef, changed_besides
from parties.makers import Parts, make_actuators
from parties.model import BEST_EFFORT, NS_PER_S, Domain, Node, Partition, QosTarget, Resource, Service
from parties.placement import Placement
from parties.restore import Fate, RestoreReport, restore
from parties.resume import (
    FIXED_POLICIES,
    Earlier,
    InForceFile,
    Leavers,
    Left,
    ResumeError,
    leave,
    members_of,
    network_place,
    resumed_partition,
    take_up,
)
from parties.settings import Amounts, ControlSettings, CoreSettings, ServiceSettings
from parties.shadow import ShadowEnforcer
from parties.signals import EndAsked
from parties.slow_writer import SlowResult, SlowWriter
from parties.upkeep import Upkeep


class _Part(Protocol):
    def close(self) -> None:
        """Give up what it holds."""


_PartT = TypeVar("_PartT", bound=_Part)


class _NoTender:
    """Stands for the upkeep's process where there are no tasks."""

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:  # noqa: ARG002 (the interface's)
        """Never called: there are no tasks."""
        raise RuntimeError(f"no process for the upkeep of {ref}")

    def poll(self, now_ns: int) -> list[SlowResult]:  # noqa: ARG002 (the interface's)
        """Nothing ended."""
        return []


SETTLE_LIMIT_NS = 5 * NS_PER_S
"""How long a daemon that leaves its values in force waits for slow writes under way."""


class Host:
    """The platform of this machine with all that has to be closed after it.

    First everything that only looks is made, so that a policy can be chosen for ``node`` and ``services``; ``open`` makes what
    writes. With ``shadow`` nothing is ever written to the machine: no journal, no restore, no knob, no upkeep. With ``hand_back``
    a start that fails before its first write leaves what an earlier daemon left to the next start, instead of putting it back.
    ``alive``: see ``HostPlatform``. Once ``asked`` says to end, every method of a start that is not over raises StoppedError: what
    an earlier daemon left is left to the next one if that is the wish, else everything is put back.
    """

    platform: HostPlatform

    def __init__(  # noqa: PLR0913 - what a run is about, each given by name
        self,
        settings: ControlSettings,
        selector: selectors.BaseSelector,
        events: Events,
        *,
        shadow: bool = False,
        hand_back: bool = False,
        alive: Callable[[int], None] = lambda _now_ns: None,
        asked: EndAsked | None = None,
    ) -> None:
        self._settings = settings
        self._alive = alive
        self._asked = asked or EndAsked()
        self._selector = selector
        self._events = events
        self._state = Path(settings.state_directory)
        self._runtime = Path(settings.runtime_directory)
        self._resources = contextlib.ExitStack()
        self._slow_writer: SlowWriter | None = None
        self._hand_back = hand_back  # until the first write
        self._left = False
        self.earlier: Earlier | None = None
        self.shadow = ShadowEnforcer(KINDS) if shadow else None
        try:
            self._build()
        except BaseException:
            self._abandon()
            raise

    def _build(self) -> None:
        topology = Topology.read()
        self._topology = topology.fingerprint
        if self.shadow is None:  # first of all: whatever is wrong with the settings, an earlier run's values are dealt with
            self._meet_what_an_earlier_run_left()
        self._heed()
        names = resolve(self._settings)
        settings = self._settings = names.settings
        layer = find_layer(Hierarchies.find(overrides=settings.controllers))
        self._layer: GroupLayer = SystemdLayer(layer, names.units) if names.units else layer
        self._managed: ManagedGroups = {service.name: service.cgroups for service in settings.services} | {
            BEST_EFFORT: tuple(path for job in settings.best_effort for path in job.cgroups)
        }
        cores = settings.node.cores or CoreSettings()
        domains = topology.managed_domains(cores.reserved_cpus, cores.managed_cpus)
        if names.problems:
            raise SetupError("; ".join(str(problem) for problem in names.problems))
        for warning in self._layer.warnings() if isinstance(self._layer, SystemdLayer) else ():
            self._events("warning", warning)
        self._rest = RestKeeper(
            settings.rest, cores.reserved_cpus, layer.hierarchies, [path for paths in self._managed.values() for path in paths]
        )
        for warning in self._rest.warnings():
            self._events("warning", warning)
        earlier = self.earlier
        parts = Parts(
            settings,
            self._layer,
            self._managed,
            topology,
            domains,
            found=self._found_before(),
            earlier_homes=earlier.left.homes if earlier is not None else {},
            earlier_holders={ref: wanted.holder for ref, wanted in earlier.in_force.wanted.items()} if earlier is not None else {},
        )
        self.services = tuple(_service(service, parts.homes[service.name]) for service in settings.services)
        self._all_actuators = make_actuators(parts)
        for actuator in self._all_actuators.values():
            self._resources.callback(actuator.close)
        self.node, notices = _node(settings.node.name, domains, self._all_actuators)
        self.notices = tuple(filter(None, (told_homes(parts.homes, domains), *notices)))
        managed = {pool.key.resource for pool in self.node.managed_pools()}
        self._actuators = {resource: actuator for resource, actuator in self._all_actuators.items() if resource in managed}
        every = self._all_actuators.values()
        for problem in [text for actuator in every if isinstance(actuator, HasProblems) for text in actuator.problems]:
            self._events("warning", problem)
        self._heed()

    def open(self, policy: Policy) -> None:
        """Make the platform for a policy. What an earlier daemon left for those who are not managed any more is put back."""
        settings = self._settings
        self._policy = policy
        self._first = self._first_partition(policy)
        self._put_back_what_is_left_behind()
        self._heed()
        signal = Signal({service.name: service.target for service in self.services}, settings.signal, settings.interval_ns)
        sources = self._closed_last(selectors.DefaultSelector())
        self._socket = self._listen(settings, signal)
        self._socket.attach(sources)
        self._enforcer = self._make_enforcer()
        self.platform = self._closed_last(
            HostPlatform(
                self.node,
                self.services,
                actuators=self._actuators,
                enforcer=self._enforcer,
                monitors=_monitors(self._layer, self._managed, self._all_actuators, signal),
                selector=self._selector,
                sources=sources,
                events=self._events,
                upkeep=self._upkeep(),
                alive=self._alive,
            )
        )
        self._signal = signal

    def start(self) -> None:
        """Put the first partition in force. Raises StartError, StoppedError."""
        policy = self._policy
        self._heed()
        self._hand_back = False
        previous = self.earlier.in_force.placement if self.earlier is not None else None
        try:
            self.platform.start(
                self._first,
                best_effort_idle_class=policy.best_effort_idle_class,
                sharing=policy.sharing,
                previous=previous,
                rest=self._rest.writes(),
            )
        except StoppedError:
            self._end_early()
            raise

    def in_force_file(self) -> InForceFile | None:
        """A listener of the loop that keeps the file of what is in force up to date; a shadow has none."""
        enforcer = self._enforcer
        if isinstance(enforcer, ShadowEnforcer):
            return None
        boot = boot_id()

        def in_force() -> InForce:
            return InForce(
                boot_id=boot,
                topology=self._topology,
                pid=os.getpid(),
                policy=self._policy.name,
                placement=self.platform.placement or Placement(Partition({}), {}, {}),
                wanted=enforcer.wanted,
                yielded=enforcer.yielded,
                vanished=enforcer.vanished,
                exit=self._settings.exit,
            )

        path = self._runtime / IN_FORCE_NAME
        return InForceFile(path, in_force, lambda: (enforcer.changes, self.platform.placement), self._events)

    def leave(self, file: InForceFile) -> bool:
        """Leave everything in force for the daemon that follows; whether that could be said, else it has to be put back."""
        self.platform.settle(SETTLE_LIMIT_NS)
        left = Left(os.getpid(), members_of(self._settings), network_place(self._settings), self.homes)
        self._left = file.keep() and self._marked(left)
        return self._left

    def _heed(self) -> None:
        """Raises StoppedError once asked to end."""
        if self._asked.ending:
            self._end_early()
            raise StoppedError

    def _end_early(self) -> None:
        """The start is not over: what an earlier daemon left, changed in part perhaps, can be left to the next one as it was."""
        self._hand_back = self._asked.leaving
        if self._asked.leaving and self.earlier is None and self.shadow is None:
            self._events("warning", "asked to leave everything in force while it starts: nothing is yet, so everything is put back")

    @property
    def homes(self) -> dict[str, int]:
        """The domain that each service lives in."""
        return {service.name: service.home for service in self.services}

    def _first_partition(self, policy: Policy) -> Partition | None:
        """What the policy begins with: a fresh start, or what an earlier daemon left, as far as it had the same policy."""
        fresh, earlier = policy.initial(), self.earlier
        if earlier is None or fresh is None or policy.name in FIXED_POLICIES or earlier.in_force.policy != policy.name:
            return fresh
        best_effort = bool(self._settings.best_effort)
        return resumed_partition(self.node, self.services, best_effort=best_effort, earlier=earlier.in_force.partition, fresh=fresh)

    def _make_enforcer(self) -> Enforcer | ShadowEnforcer:
        if self.shadow is not None:
            return self.shadow
        settings = self._settings
        self._slow_writer = slow_writer = self._closed_last(SlowWriter())
        slow_writer.attach(self._selector)
        journal = self._closed_last(
            Journal(self._state, started_unix_ns=time.time_ns(), topology=self._topology, exit_policy=settings.exit)
        )
        every = self._all_actuators.values()
        for line in [line for actuator in every if isinstance(actuator, Tidies) for line in actuator.tidy(journal)]:
            self._events("warning", line)
        return Enforcer(journal, slow_writer, foreign_rule=settings.foreign, kinds=KINDS)

    def _upkeep(self) -> Upkeep:
        """The tasks of all actuators, and who else writes our values; a process of its own does them, if there are any."""
        actuators = self._actuators.values() if self.shadow is None else ()
        tasks = [task for actuator in actuators if isinstance(actuator, NeedsUpkeep) for task in actuator.upkeep()]
        tasks += self._rest.upkeep() if self.shadow is None else ()
        if isinstance(self._enforcer, Enforcer):
            tasks.append(NamesWriters(self._enforcer, kind=writers.KIND))
        if not tasks:
            return Upkeep((), _NoTender())
        tender = self._closed_last(SlowWriter())
        tender.attach(self._selector)
        return Upkeep(tasks, tender)

    def restore(self) -> RestoreReport:
        """Put back every knob, as far as the exit policy says so; what could not be is told as an error.

        May be called again, but nothing may be applied after it. Does nothing in a shadow run, and once the values were left.
        """
        if self.shadow is not None or self._left:
            return RestoreReport(self._state / JOURNAL_NAME)
        if self._slow_writer is not None:
            self._slow_writer.close()  # or a write under way could land after its knob was put back
        return self._told(restore(self._state / JOURNAL_NAME, KINDS, at_exit=True))

    def _told(self, report: RestoreReport) -> RestoreReport:
        for entry in report.of(Fate.FAILED):
            self._events("error", f"{entry.ref} could not be put back to {entry.old!r}: {entry.detail}; run 'parties restore'")
        for line in report.corrupt:
            self._events("error", line)
        return report

    def counters(self) -> Mapping[str, int]:
        """What the histogram socket and the signal counted."""
        return {**self._socket.counters(), **self._signal.counters()}

    def close(self) -> None:
        """Put back every knob, unless they were left, and give up everything."""
        try:
            if self.earlier is not None and self._hand_back:
                if self._slow_writer is not None:
                    self._slow_writer.close()  # or a write under way could land after the next daemon has read its knob
                self._left = self._marked(self.earlier.left)
            self.restore()
        finally:
            self._resources.close()

    def _abandon(self) -> None:
        """Not even the node could be made. What an earlier run left on purpose is still there; else there is nothing to undo."""
        if self.earlier is not None:
            self.close()
        else:
            self._resources.close()

    def _marked(self, left: Left) -> bool:
        """Say that what is in force was left on purpose; whether that could be said."""
        try:
            leave(self._runtime, left)
        except OSError as error:
            self._events("error", f"{self._runtime}: {error.strerror}; nothing can be left in force, everything is put back")
            return False
        return True

    def _meet_what_an_earlier_run_left(self) -> None:
        """Go on with what was left on purpose; what else is there comes from a crash, and is put back."""
        try:
            self.earlier = take_up(self._runtime, boot_id=boot_id(), topology=self._topology)
        except ResumeError as error:
            self._events("warning", f"what an earlier run left in force is put back, as it cannot be gone on with: {error}")
        if self.earlier is None:
            report = self.restore()
            left = len(report.of(Fate.HELD)) + len(report.of(Fate.SAFE))
            if left:
                self._events("info", f"{left} values are as the exit policy of an earlier run left them, until this one needs them")
            if len(report.entries) > left:
                restored = len(report.of(Fate.RESTORED))
                self._events("warning", f"an earlier run ended without undoing its work: {restored} values put back")
        elif self.earlier.left.network != network_place(self._settings):
            restored = self._put_back(lambda ref: ref.kind in KINDS and KINDS[ref.kind].resource is Resource.NETWORK)
            if restored and self._settings.node.network is not None:
                self._events("warning", "the traffic classes are made anew in another place; for a moment traffic is not shaped")

    def _found_before(self) -> Mapping[KnobRef, str]:
        """The values of before an earlier daemon whose own are still in force."""
        path = self._state / JOURNAL_NAME
        if self.shadow is not None or not path.exists():
            return {}
        return {ref: entry.old for ref, entry in read_journal(path).entries.items() if entry.old is not None}

    def _put_back_what_is_left_behind(self) -> None:
        """Values of services, groups and resources that are not managed any more, also of those that an earlier run held."""
        if self.shadow is not None or not (self._state / JOURNAL_NAME).exists():
            return
        kept = refs_at_start(
            self.node,
            self._actuators,
            self._first,
            None if self.earlier is None else self.earlier.in_force.placement,
            best_effort_idle_class=self._policy.best_effort_idle_class,
        )
        kept |= changed_besides(kept, KINDS)
        if self.earlier is None:
            self._put_back(lambda ref: ref not in kept and not self._rest.asks(ref))
            return
        partitioned = frozenset(pool.resource for pool in self._first.amounts) if self._first is not None else frozenset()
        leaves = Leavers(self.earlier, members_of(self._settings), kept, partitioned, KINDS)
        self._put_back(lambda ref: not self._rest.asks(ref) if self._rest.knows(ref) else leaves(ref))

    def _put_back(self, only: Callable[[KnobRef], bool]) -> int:
        """Put back the values that ``only`` chooses; how many were not as before."""
        restored = len(self._told(restore(self._state / JOURNAL_NAME, KINDS, only=only)).of(Fate.RESTORED))
        if restored:
            self._events("info", f"{restored} values put back that are not managed any more, or have to be made anew")
        return restored

    def _listen(self, settings: ControlSettings, signal: Signal) -> HistogramSocket:
        return self._closed_last(
            HistogramSocket(
                settings.histogram_socket,
                [service.name for service in settings.services],
                signal.feed,
                interval_ns=settings.interval_ns,
                sub_interval_ns=settings.interval_ns // settings.signal.sub_intervals,
                report=lambda line: self._events("warning", line),
            )
        )

    def _closed_last(self, part: _PartT) -> _PartT:
        self._resources.callback(part.close)
        return part


def _node(name: str, domains: tuple[Domain, ...], actuators: Mapping[Resource, Actuator]) -> tuple[Node, tuple[str, ...]]:
    """The node as its actuators describe it, and in words what is not managed and why."""
    pools = [pool for resource in Resource if resource in actuators for pool in actuators[resource].pools()]
    absent = [
        f"{resource}: not managed here, because the configuration does not ask for it"
        for resource in Resource
        if resource not in actuators
    ]
    refused = [f"{pool.key}: not managed here, because {pool.reason}" for pool in pools if not pool.managed]
    return Node(name, domains, {pool.key: pool for pool in pools}), (*refused, *absent)


def _monitors(layer: GroupLayer, managed: ManagedGroups, actuators: Mapping[Resource, Actuator], signal: Signal) -> Monitors:
    disk, network, frequency = (actuators.get(resource) for resource in (Resource.DISK, Resource.NETWORK, Resource.FREQUENCY))
    cache = actuators.get(Resource.CACHE)
    counters = cache.usage() if isinstance(cache, ResctrlActuator) else None
    usage = GroupUsageMonitor(
        layer,
        managed,
        disk=disk.disk.number if isinstance(disk, DiskActuator) else None,
        network=network.usage().sample if isinstance(network, NetworkActuator) else None,
        frequency=FrequencyMonitor(frequency.speeds).of if isinstance(frequency, FrequencyActuator) else None,
        pressure=PressureMonitor(layer.hierarchies.v2, managed),
        cache=counters.sample if counters is not None else None,
    )
    return Monitors(signal, usage, InMemoryClassifier(usage.disk_count, usage.incarnation))


def _service(settings: ServiceSettings, home: int) -> Service:
    return Service(
        name=settings.name,
        target=QosTarget(settings.target_ns, settings.percentile),
        home=home,
        stateless=settings.stateless,
        in_memory=settings.in_memory,
        minimum=_limits(settings.minimum),
        maximum=_limits(settings.maximum),
        peak_load_rps=settings.peak_load_rps,
    )


def _limits(amounts: Amounts) -> dict[Resource, int]:
    limits = {
        Resource.CORES: amounts.cores_millicores,
        Resource.CACHE: amounts.cache_ways,
        Resource.FREQUENCY: amounts.frequency_hz,
        Resource.MEMORY: amounts.memory_bytes,
        Resource.DISK: amounts.disk_bytes_per_s,
        Resource.NETWORK: amounts.network_bits_per_s,
    }
    return {resource: amount for resource, amount in limits.items() if amount}
