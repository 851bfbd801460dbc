"""Assembly: the host platform made of its parts, from settings.

The one place that knows every monitor and actuator by name. A new resource is one file in ``actuators`` and one entry in
``_actuators``; a new source of latency feeds the histogram socket from a process of its own and needs nothing here.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from actuators.cache.actuator import cache_actuator
from actuators.cgroup.group import GroupLayer
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.layer import find_layer
from actuators.cores import cores_actuator, divides
from actuators.disk import DiskActuator
from actuators.frequency.actuator import FrequencyActuator, frequency_actuator
from actuators.holders import ManagedGroups
from actuators.memory import MemoryActuator
from actuators.network.actuator import NetworkActuator
from actuators.registry import KINDS
from monitors.frequency import FrequencyMonitor
from monitors.histogram_socket import HistogramSocket
from monitors.pressure import PressureMonitor
from monitors.signal import Signal
from monitors.topology import Topology
from monitors.usage import GroupUsageMonitor, InMemoryClassifier
from parties.enforcer import Enforcer
from parties.host import Events, HostPlatform, Monitors
from parties.interfaces import Actuator, HasProblems, NeedsUpkeep, Tidies
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import KnobRef
from parties.model import BEST_EFFORT, Domain, Node, QosTarget, Resource, Service
from parties.restore import Fate, RestoreReport, restore
from parties.settings import Amounts, ControlSettings, CoreSettings, ServiceSettings
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


class Host:
    """The platform of this machine with all that has to be closed after it."""

    def __init__(self, settings: ControlSettings, selector: selectors.BaseSelector, events: Events) -> None:
        self._events = events
        self._state = Path(settings.state_directory)
        self._resources = contextlib.ExitStack()
        self._slow_writer: SlowWriter | None = None
        try:
            self._build(settings, selector)
        except BaseException:
            self._resources.close()
            raise

    def _build(self, settings: ControlSettings, selector: selectors.BaseSelector) -> None:
        self.services = tuple(_service(service) for service in settings.services)
        layer = find_layer(Hierarchies.find(overrides=settings.controllers))
        managed: ManagedGroups = {service.name: service.cgroups for service in settings.services} | {
            BEST_EFFORT: tuple(path for job in settings.best_effort for path in job.cgroups)
        }
        topology = Topology.read()
        cores = settings.node.cores or CoreSettings()
        domains = topology.managed_domains(cores.reserved_cpus, cores.managed_cpus)
        self._put_back_what_an_earlier_run_left()
        actuators = _actuators(settings, layer, managed, topology, domains)
        for actuator in actuators.values():
            self._resources.callback(actuator.close)
        node, self.notices = _node(settings.node.name, domains, actuators)
        for problem in [text for actuator in actuators.values() if isinstance(actuator, HasProblems) for text in actuator.problems]:
            self._events("warning", problem)
        signal = Signal({service.name: service.target for service in self.services}, settings.signal, settings.interval_ns)
        sources = self._closed_last(selectors.DefaultSelector())
        self._socket = self._listen(settings, signal)
        self._socket.attach(sources)
        self._slow_writer = slow_writer = self._closed_last(SlowWriter())
        slow_writer.attach(selector)
        journal = self._closed_last(
            Journal(self._state, started_unix_ns=time.time_ns(), topology=topology.fingerprint, exit_policy=settings.exit)
        )
        for line in [line for actuator in actuators.values() if isinstance(actuator, Tidies) for line in actuator.tidy(journal)]:
            self._events("warning", line)
        self.platform = HostPlatform(
            node,
            self.services,
            actuators={resource: actuators[resource] for resource in {pool.key.resource for pool in node.managed_pools()}},
            enforcer=Enforcer(journal, slow_writer, foreign_rule=settings.foreign, kinds=KINDS),
            monitors=_monitors(layer, managed, actuators, signal),
            selector=selector,
            sources=sources,
            events=self._events,
            upkeep=self._upkeep(actuators, selector),
        )
        self._signal = signal

    def _upkeep(self, actuators: Mapping[Resource, Actuator], selector: selectors.BaseSelector) -> Upkeep:
        """The tasks of all actuators; a process of its own does them, if there are any."""
        tasks = [task for actuator in actuators.values() if isinstance(actuator, NeedsUpkeep) for task in actuator.upkeep()]
        if not tasks:
            return Upkeep((), _NoTender())
        tender = self._closed_last(SlowWriter())
        tender.attach(selector)
        return Upkeep(tasks, tender)

    def restore(self) -> RestoreReport:
        """Put back every knob, as far as the exit policy says so; what could not be is told as an error.

        May be called again, but nothing may be applied after it.
        """
        if self._slow_writer is not None:
            self._slow_writer.close()  # or a write under way could land after its knob was put back
        report = restore(self._state / JOURNAL_NAME, KINDS, at_exit=True)
        for entry in report.of(Fate.FAILED):
            self._events("error", f"{entry.ref} could not be put back to {entry.old!r}: {entry.detail}; run 'parties restore'")
        for line in report.corrupt:
            self._events("error", line)
        return report

    def counters(self) -> Mapping[str, int]:
        """What the histogram socket and the signal counted."""
        return {**self._socket.counters(), **self._signal.counters()}

    def close(self) -> None:
        """Put back every knob and give up everything."""
        try:
            self.restore()
        finally:
            self.platform.close()
            self._resources.close()

    def _put_back_what_an_earlier_run_left(self) -> None:
        report = self.restore()
        if report.entries:
            self._events(
                "warning", f"an earlier run ended without undoing its work: {len(report.of(Fate.RESTORED))} values put back"
            )

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


def _actuators(
    settings: ControlSettings, layer: GroupLayer, managed: ManagedGroups, topology: Topology, domains: tuple[Domain, ...]
) -> dict[Resource, Actuator]:
    """The actuator of each resource that is configured, or that at least can say why it is not managed."""
    node = settings.node
    actuators: dict[Resource, Actuator] = {}
    homes = {service.name: service.home for service in settings.services}
    if node.cache is not None:
        actuators[Resource.CACHE] = cache_actuator(node.cache, domains, layer=layer, managed=managed, homes=homes)
    if node.cores is not None:
        actuators[Resource.CORES] = cores_actuator(layer, managed, node.cores, domains, mems=topology.mems(domains), homes=homes)
    if node.frequency is not None:
        whole_cores = node.cores is not None and not divides(node.cores, managed, domains, homes)
        actuators[Resource.FREQUENCY] = frequency_actuator(node.frequency, domains, whole_cores=whole_cores)
    if node.memory is not None:
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        actuators[Resource.MEMORY] = MemoryActuator(layer, managed, node.memory, domains, machine_bytes=machine_bytes)
    if node.disk is not None:
        actuators[Resource.DISK] = DiskActuator(layer, managed, node.disk)
    if node.network is not None:
        actuators[Resource.NETWORK] = NetworkActuator(
            node.network, settings.services, settings.best_effort, v2_root=layer.hierarchies.v2
        )
    return actuators


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
    usage = GroupUsageMonitor(
        layer,
        managed,
        disk=disk.disk.number if isinstance(disk, DiskActuator) else None,
        network=network.usage().sample if isinstance(network, NetworkActuator) else None,
        frequency=FrequencyMonitor(frequency.speeds).of if isinstance(frequency, FrequencyActuator) else None,
        pressure=PressureMonitor(layer.hierarchies.v2, managed),
    )
    return Monitors(signal, usage, InMemoryClassifier(usage.disk_count, usage.incarnation))


def _service(settings: ServiceSettings) -> Service:
    return Service(
        name=settings.name,
        target=QosTarget(settings.target_ns, settings.percentile),
        home=settings.home,
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
