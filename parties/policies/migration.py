"""Migration, the last resort: no allocation has met every target for 60 s (section 4.3).

The timer runs while any service misses its target and is reset when all meet theirs. A service that cannot be judged keeps the last
verdict on it: it neither starts the timer nor resets it, and one that met its target before does not keep others from resetting it.
A request is made only in an interval that shows a violation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parties.model import MigrationRequest, Observation, Service, ServiceState
from parties.policies.judgement import Verdict, target_met


class MigrationTimer:
    """Asks for a migration after ``after_ns`` of violation, and again after as long as it lasts."""

    def __init__(self, services: Sequence[Service], after_ns: int) -> None:
        self._services = services
        self._after_ns = after_ns
        self._met = {service.name: True for service in services}
        self._since_ns: int | None = None
        self._asked_ns = 0

    def update(self, observation: Observation, judged: Mapping[str, Verdict]) -> MigrationRequest | None:
        """Take in an interval and the verdicts on it; the request that is due, if any."""
        violating = self._judge(observation, judged)
        if all(self._met.values()):
            self._since_ns = None
            return None
        if self._since_ns is None:
            self._since_ns = self._asked_ns = observation.now_ns
        candidate = self._candidate(observation)
        if not violating or candidate is None or observation.now_ns - self._asked_ns < self._after_ns:
            return None
        self._asked_ns = observation.now_ns
        return MigrationRequest(candidate.name, observation.now_ns - self._since_ns, violating)

    def _judge(self, observation: Observation, judged: Mapping[str, Verdict]) -> tuple[str, ...]:
        violating = []
        for name in self._met:
            seen = observation.services.get(name)
            met = target_met(seen.latency, judged.get(name)) if seen is not None else True
            if met is not None:
                self._met[name] = met
            if met is False:
                violating.append(name)
        return tuple(violating)

    def _candidate(self, observation: Observation) -> Service | None:
        """A stateless service first, since it moves without its data; then the most relaxed target, which bears the move best."""
        present = [
            service
            for service in self._services
            if (seen := observation.services.get(service.name)) is not None and seen.latency.state is not ServiceState.ABSENT
        ]
        return max(present, key=lambda service: (service.stateless, service.target.latency_ns), default=None)
