"""Equal: the fair start, and never a move. The baseline that shows what adjusting is worth."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from parties.model import Decision, Holder, Node, Observation, Partition, Reason, Service
from parties.policies.fair import fair_start
from parties.policies.judgement import slacks, verdicts
from parties.settings import PartiesSettings


class Equal:
    """A fixed equal split; best-effort jobs in the idle class, as under PARTIES, so that only the moves make the difference."""

    name = "equal"
    best_effort_idle_class = True
    sharing: Mapping[str, Holder] = MappingProxyType({})

    def __init__(
        self,
        node: Node,
        services: Sequence[Service],
        *,
        best_effort: bool,
        settings: PartiesSettings,  # noqa: ARG002 - every policy is made in the same way
        rng: random.Random,  # noqa: ARG002 - the same
    ) -> None:
        self._services = tuple(services)
        self._initial = fair_start(node, self._services, best_effort=best_effort)

    def initial(self) -> Partition:
        """The fair start."""
        return self._initial

    def decide(self, observation: Observation) -> Decision:
        """No move."""
        return Decision((), Reason.HOLD_FIXED, slack=slacks(verdicts(self._services, observation)))
