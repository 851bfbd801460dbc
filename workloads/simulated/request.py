"""From what is asked for on the command line to a simulation that is ready to begin."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from parties.config import ConfigError
from parties.model import InvariantError
from simulator.library import UnknownProfileError, job_model, node_profile
from simulator.run import Simulation
from simulator.scenario import DEFAULT_JOB, DEFAULT_NODE, Scenario, ScenarioError, scenario_named, tenants_from

MISTAKES = (ConfigError, InvariantError, UnknownProfileError, ValueError)
"""What ``prepared`` raises where the request is no good; the text is the message."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; None and nothing where the scenario or the default holds."""

    services: tuple[tuple[str, str], ...] = ()
    scenario: str | None = None
    best_effort: bool = False
    policy: str | None = None
    node: str | None = None
    duration_s: float | None = None
    seed: int | None = None


def prepared(wanted: Wanted) -> Simulation:
    """Everything is looked up and made, and nothing has run yet. Raises ``MISTAKES``."""
    return Simulation(_scenario(wanted))


def _scenario(wanted: Wanted) -> Scenario:
    changes: dict[str, Any] = {"policy": wanted.policy, "duration_s": wanted.duration_s, "seed": wanted.seed}
    changes["node"] = None if wanted.node is None else node_profile(wanted.node)
    changes["job"] = job_model(DEFAULT_JOB) if wanted.best_effort else None
    given = {name: value for name, value in changes.items() if value is not None}
    if wanted.scenario is not None:
        if wanted.services:
            raise ScenarioError("--scenario names its own services; say either --scenario or --service")
        scenario = scenario_named(wanted.scenario)
        if scenario.job is not None:
            given.pop("job", None)
        return dataclasses.replace(scenario, **given)
    if not wanted.services:
        raise ScenarioError(
            "nothing to simulate; say --service NAME=LOAD, for example --service memcached=0.4, or --scenario NAME "
            "(--list says which there are)"
        )
    given.setdefault("node", node_profile(DEFAULT_NODE))
    return Scenario(tenants=tenants_from(wanted.services), **given)
