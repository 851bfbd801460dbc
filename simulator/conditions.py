"""What the parts of the simulated node say to each other: plain values, in seconds and requests per second.

``simulator.machine`` makes an ``Outlook`` of a division of the node; ``simulator.queueing`` makes response times of ``Conditions``.
Fields are floats in SI units because they are arguments of formulas, not amounts that anyone holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from parties.model import Usage


class Share(NamedTuple):
    """What one group of tenants has together: one service, or several and best-effort jobs that share without isolation.

    Without management there is a single share with all tenants and all resources. ``frequency_hz`` is a level of the node (the top
    one is turbo); None is the ``ondemand`` governor, which gives turbo to busy cores.
    """

    tenants: tuple[str, ...]
    best_effort: bool
    cores: int
    ways: int
    frequency_hz: int | None
    memory_bytes: int
    disk_bytes_per_s: int
    network_bits_per_s: int


class Station(NamedTuple):
    """Where requests of a service wait and are served: cores, the disk, the network.

    ``service_scv`` and ``arrival_scv`` are squared coefficients of variation (1 is exponential, 0 is constant).
    """

    servers: float
    service_s: float
    service_scv: float = 1.0
    arrival_scv: float = 1.0

    @property
    def capacity_rps(self) -> float:
        """The request rate at which it is busy all the time."""
        return self.servers / self.service_s if self.service_s > 0 else float("inf")


class Conditions(NamedTuple):
    """What one request of a service meets: the stations that it passes one after another, and time that no queue changes.

    The first station is the cores. ``killed`` is a service that was ended for want of memory; it completes nothing. The rest is
    use per request, for the monitors.
    """

    stations: tuple[Station, ...]
    fixed_s: float
    killed: bool = False
    cpu_s: float = 0.0
    disk_bytes: float = 0.0
    network_bits: float = 0.0
    memory_traffic_bytes: float = 0.0
    resident_bytes: int = 0
    frequency_hz: int = 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a division of the node means for each service and for best-effort jobs, until something changes."""

    services: Mapping[str, Conditions]
    best_effort: Usage = field(default_factory=Usage)
    memory_bandwidth_bytes_per_s: int = 0
    power_milliwatts: int = 0


class Response(NamedTuple):
    """A service's response time as a distribution: fixed + wait + service.

    The wait is 0 with probability 1 - ``wait_probability`` and exponential with mean ``wait_s`` otherwise; the service time is
    gamma with mean ``service_s`` and squared coefficient of variation ``service_scv``. ``capacity_rps`` is the bottleneck's.
    """

    fixed_s: float
    wait_probability: float
    wait_s: float
    service_s: float
    service_scv: float
    capacity_rps: float
