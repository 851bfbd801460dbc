"""What the control process tells its front: one datagram of JSON for the start, each tick, each event and the end.

The front (live table, later API and metrics) gets immutable snapshots and can never hold up a tick: the socket does not block, and
what a slow front does not take is dropped and counted (invariant 5).
"""

from __future__ import annotations

import operator
import socket
from collections.abc import Mapping

from parties.codec import compact_json
from parties.model import (
    BEST_EFFORT,
    IDLE,
    Decision,
    Holder,
    Node,
    Observation,
    Partition,
    Service,
    ServiceObservation,
    Usage,
)
from parties.record import Timing

MESSAGE_VERSION = 1


def amounts_of(partition: Partition, node: Node) -> dict[Holder, dict[str, int]]:
    """What each holder has of each managed resource, summed over domains, by resource name, in base units."""
    amounts: dict[Holder, dict[str, int]] = {}
    for pool in node.managed_pools():
        name = pool.key.resource.value
        for holder, amount in partition.amounts.get(pool.key, {}).items():
            held = amounts.setdefault(holder, {})
            held[name] = held.get(name, 0) + amount
    return amounts


_USAGE = (
    "cpu_millicores",
    "memory_bytes",
    "disk_bytes_per_s",
    "network_bits_per_s",
    "memory_bandwidth_bytes_per_s",
    "cache_bytes",
    "cpu_pressure",
    "memory_pressure",
    "io_pressure",
)


_read_usage = operator.attrgetter(*_USAGE)


def usage_of(usage: Usage) -> dict[str, float]:
    """What is known of a holder's use, by field name with its unit; pressures are fractions of the interval."""
    return {name: value for name, value in zip(_USAGE, _read_usage(usage), strict=True) if value is not None}


def tick_message(
    node: Node, services: Mapping[str, Service], observation: Observation, decision: Decision, timing: Timing
) -> dict[str, object]:
    """The snapshot of one tick. Quantities are integers with their unit in the name."""
    amounts = amounts_of(observation.partition, node)
    return {
        "version": MESSAGE_VERSION,
        "type": "tick",
        "tick": observation.tick,
        "now_ns": observation.now_ns,
        "reason": decision.reason.value,
        "subject": decision.subject,
        "moves": [
            {
                "pool": str(move.pool),
                "giver": move.giver,
                "taker": move.taker,
                "amount": move.amount,
                "unit": move.pool.resource.unit,
                "reason": move.reason.value,
            }
            for move in decision.moves
        ],
        "outcomes": [
            {"pool": str(outcome.move.pool), "tick": outcome.move.tick, "status": outcome.status.value, "detail": outcome.detail}
            for outcome in observation.outcomes
        ],
        "migration": decision.migration.service if decision.migration else None,
        "services": {
            name: _service_message(services[name], seen, amounts.get(name, {}), decision.slack.get(name))
            for name, seen in observation.services.items()
        },
        "best_effort": {
            "present": observation.best_effort_present,
            "amounts": amounts.get(BEST_EFFORT, {}),
            "usage": usage_of(observation.best_effort),
        },
        "idle": {"amounts": amounts.get(IDLE, {})},
        "lateness_ns": timing.lateness_ns,
        "missed": timing.missed_ticks,
        "tick_cpu_ns": timing.cpu_ns,
    }


def _service_message(
    service: Service, seen: ServiceObservation, amounts: Mapping[str, int], slack: float | None
) -> dict[str, object]:
    view = seen.latency
    finite = slack is not None and abs(slack) != float("inf")
    return {
        "state": view.state.value,
        "latency_ns": view.latency_ns,
        "low_ns": view.low_ns,
        "high_ns": view.high_ns,
        "target_ns": service.target.latency_ns,
        "percentile": service.target.percentile,
        "slack": slack if finite else None,  # JSON has no infinity; the state says stalled
        "samples": view.samples,
        "load_rps": view.load_rps,
        "completed": view.completed,
        "failed": view.failed,
        "unsent": view.unsent,
        "outstanding": view.outstanding,
        "oldest_outstanding_ns": view.oldest_outstanding_ns,
        "amounts": amounts,
        "usage": usage_of(seen.usage),
    }


class FrontFeed:
    """Sends messages to the front over a connected SEQPACKET socket; without one it does nothing."""

    def __init__(self, front: socket.socket | None) -> None:
        self._front = front
        self._node = Node("", (), {})
        self._services: Mapping[str, Service] = {}
        self.dropped = 0
        if front is not None:
            front.setblocking(False)

    @property
    def connected(self) -> bool:
        """Whether anybody listens."""
        return self._front is not None

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Tell of one tick."""
        if self._front is not None:
            self._send(tick_message(self._node, self._services, observation, decision, timing))

    def event(self, level: str, text: str) -> None:
        """Tell of something that an operator should see; ``level`` is info, warning or error."""
        self._send({"version": MESSAGE_VERSION, "type": "event", "level": level, "text": text})

    def started(self, node: Node, services: Mapping[str, Service], body: Mapping[str, object]) -> None:
        """Tell that the loop begins on this node; where it has several domains, who lives in which."""
        self._node, self._services = node, services
        homes = {name: service.home for name, service in services.items()} if len(node.domains) > 1 else {}
        self._send({"version": MESSAGE_VERSION, "type": "started", "homes": homes, **body})

    def stopped(self, report: Mapping[str, object]) -> None:
        """Tell that everything was put back, and what the run was."""
        self._send({"version": MESSAGE_VERSION, "type": "stopped", "report": report})

    def _send(self, message: Mapping[str, object]) -> None:
        if self._front is None:
            return
        try:
            self._front.send(compact_json(message))
        except BlockingIOError:
            self.dropped += 1
        except OSError:  # the front went away: the control process notices at its own end of the socket
            self._front = None
