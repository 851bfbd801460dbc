"""Unmanaged: no isolation and no moves, the baseline of section 5.1."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from parties.model import Decision, Holder, Node, Observation, Reason, Service
from parties.policies.judgement import slacks, verdicts
from parties.settings import PartiesSettings


class Unmanaged:
    """Leaves the machine to the kernel; best-effort jobs compete as equals."""

    name = "unmanaged"
    best_effort_idle_class = False
    sharing: Mapping[str, Holder] = MappingProxyType({})

    def __init__(
        self,
        node: Node,  # noqa: ARG002 - every policy is made in the same way
        services: Sequence[Service],
        *,
        best_effort: bool,  # noqa: ARG002 - the same
        settings: PartiesSettings,  # noqa: ARG002 - the same
        rng: random.Random,  # noqa: ARG002 - the same
    ) -> None:
        self._services = tuple(services)

    def initial(self) -> None:
        """Nothing is partitioned."""

    def decide(self, observation: Observation) -> Decision:
        """No move."""
        return Decision((), Reason.HOLD_NOT_MANAGED, slack=slacks(verdicts(self._services, observation)))
