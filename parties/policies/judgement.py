"""What a policy makes of the signal: slack, and whether a service can be judged at all (sections 4.2 and 4.3).

How each state is read (invariant 4 of the design):

    ok           slack from its latency; the cautious slack from the upper confidence bound
    idle         nothing was asked for: no latency, slack 1; it may give
    stalled      nothing completes: slack minus infinity, before every other service, and never a victim
    failing      judged by its latency, so it is upsized where that violates; never downsized, never a victim; its target is not met
    few samples, stale, absent, or a value that is not fresh: not judged. The service is held: it is neither the one with the
                 smallest nor the one with the largest slack, and its last action waits for the next fresh value

A value that is not fresh is not judged in any state, so that nobody acts on one value twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from parties.model import LatencyView, Observation, QosTarget, Service, ServiceState
from parties.values import value

# Reading a member of an enumeration costs as much as a call, and this is done for every service in every interval.
_OK, _IDLE, _STALLED, _FAILING = ServiceState.OK, ServiceState.IDLE, ServiceState.STALLED, ServiceState.FAILING
_ABSENT = ServiceState.ABSENT
_HELD = (ServiceState.FEW_SAMPLES, ServiceState.STALE, _ABSENT)


@value
class Verdict:
    """A service's interval. ``waiting`` is the age of its oldest outstanding request, in targets."""

    latency_ns: float
    slack: float
    cautious_slack: float
    failing: bool = False
    waiting: float = 0.0

    @property
    def stalled(self) -> bool:
        """Whether nothing completes."""
        return math.isinf(self.latency_ns)

    @property
    def urgency(self) -> tuple[float, float]:
        """Sorts the most urgent service first: the smallest slack, and of stalled ones the one that waits longest."""
        return (self.slack, -self.waiting)


def judge(view: LatencyView, target: QosTarget) -> Verdict | None:
    """The verdict on a service, or None where it is held."""
    state = view.state
    if not view.fresh or (state is not _OK and state in _HELD):
        return None
    waiting = view.oldest_outstanding_ns / target.latency_ns
    if state is _STALLED:
        return Verdict(math.inf, -math.inf, -math.inf, waiting=waiting)
    if state is _IDLE:
        return Verdict(0.0, 1.0, 1.0)
    latency_ns, cautious_ns = view.latency_ns, view.cautious_latency_ns
    if latency_ns is None:
        return None
    slack = target.slack(latency_ns)
    return Verdict(latency_ns, slack, slack if cautious_ns is None else target.slack(cautious_ns), state is _FAILING, waiting)


def target_met(view: LatencyView, verdict: Verdict | None) -> bool | None:
    """Whether a service meets its target, for the migration timer; None where that cannot be said.

    One that fails does not, whatever its latency; one without a process has no target to miss.
    """
    if view.state is _ABSENT:
        return True
    if view.fresh and view.state is _FAILING:
        return False
    return None if verdict is None else verdict.slack >= 0.0


def verdicts(services: Iterable[Service], observation: Observation) -> dict[str, Verdict]:
    """The verdict on each service that can be judged, in the order of the services."""
    found = {}
    for service in services:
        seen = observation.services.get(service.name)
        verdict = judge(seen.latency, service.target) if seen is not None else None
        if verdict is not None:
            found[service.name] = verdict
    return found


def slacks(judged: dict[str, Verdict]) -> dict[str, float]:
    """The slack of each judged service, for the record."""
    return {name: verdict.slack for name, verdict in judged.items()}
