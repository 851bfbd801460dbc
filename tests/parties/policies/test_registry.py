"""The policies by name, and the baselines."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from parties.interfaces import Policy
from parties.model import Node, Observation, Partition, Reason, Service, ServiceObservation
from parties.policies import POLICIES, UnknownPolicyError, policy_named
from parties.policies.fair import fair_start
from parties.settings import PartiesSettings

NodeMaker = Callable[..., Node]
ServiceMaker = Callable[..., Service]


def made(name: str, node: Node, services: list[Service], settings: PartiesSettings | None = None) -> Policy:
    rng = random.Random(1)  # noqa: S311 - replayable
    return policy_named(name)(node, services, best_effort=True, settings=settings or PartiesSettings(), rng=rng)


def test_each_policy_goes_by_its_own_name(node: NodeMaker, service: ServiceMaker) -> None:
    """The name in the configuration is the name in the record."""
    assert set(POLICIES) == {"parties", "equal", "unmanaged", "idle-only", "heracles"}
    assert all(made(name, node(), [service("a")]).name == name for name in POLICIES)


@pytest.mark.parametrize(("wrong", "near"), [("partes", "parties"), ("Equal", "equal"), ("idle_only", "idle-only")])
def test_a_wrong_name_gets_the_nearest(wrong: str, near: str) -> None:
    """A slip of the pen is answered with what was probably meant."""
    with pytest.raises(UnknownPolicyError, match=rf"no policy is named '{wrong}'; did you mean {near}"):
        policy_named(wrong)


def test_a_name_near_to_none_gets_all() -> None:
    """Without a near name the message lists what there is."""
    with pytest.raises(UnknownPolicyError, match="parties, equal, unmanaged, idle-only, heracles, oracle"):
        policy_named("xyzzy")


@pytest.mark.parametrize(
    ("name", "partitions", "idle_class", "reason"),
    [
        ("equal", True, True, Reason.HOLD_FIXED),
        ("unmanaged", False, False, Reason.HOLD_NOT_MANAGED),
        ("idle-only", False, True, Reason.HOLD_NOT_MANAGED),
    ],
)
def test_the_baselines_never_move(  # noqa: PLR0913 - three fixtures and a row of the table
    node: NodeMaker,
    service: ServiceMaker,
    view: Callable[..., Any],
    *,
    name: str,
    partitions: bool,
    idle_class: bool,
    reason: Reason,
) -> None:
    """Fair start or none, the idle class or not, and in a violation still no move; slack is told for the record."""
    services = [service("a"), service("b")]
    policy = made(name, node(), services)
    fair = fair_start(node(), services, best_effort=True)
    assert policy.initial() == (fair if partitions else None)
    assert policy.best_effort_idle_class is idle_class
    seen = {"a": ServiceObservation(view(-0.5)), "b": ServiceObservation(view(0.9))}
    decision = policy.decide(Observation(1, 1, seen, policy.initial() or Partition({})))
    assert (decision.moves, decision.reason) == ((), reason)
    assert decision.slack == pytest.approx({"a": -0.5, "b": 0.9})


def test_parties_starts_fair_with_best_effort_in_the_idle_class(node: NodeMaker, service: ServiceMaker) -> None:
    """The fair start is the paper's beginning."""
    services = [service("a"), service("b")]
    policy = made("parties", node(), services)
    assert policy.initial() == fair_start(node(), services, best_effort=True)
    assert policy.best_effort_idle_class is True


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (PartiesSettings(upsize_slack=0.3), "upsize_slack 0.3 must be less than downsize_slack 0.2"),
        (PartiesSettings(downsize_slack=1.0), "downsize_slack"),
        (PartiesSettings(downsize_block_ns=-1), "downsize_block_ns"),
        (PartiesSettings(migrate_after_ns=-1), "migrate_after_ns"),
        (PartiesSettings(memory_slack_bytes=-1), "memory_slack_bytes"),
    ],
)
def test_settings_that_contradict_each_other_are_named(
    node: NodeMaker, service: ServiceMaker, settings: PartiesSettings, named: str
) -> None:
    """A mistake ends in a message with the setting's name."""
    with pytest.raises(ValueError, match=named):
        made("parties", node(), [service("a")], settings)


def test_the_defaults_are_the_papers() -> None:
    """5 % and 20 % slack, 30 s of block, 60 s to migration, 1 GB of memory slack, 0.5 and 1 Gbps of headroom."""
    settings = PartiesSettings()
    assert (settings.upsize_slack, settings.downsize_slack) == (0.05, 0.20)
    assert (settings.downsize_block_ns, settings.migrate_after_ns) == (30_000_000_000, 60_000_000_000)
    assert settings.memory_slack_bytes == 1_000_000_000
    assert settings.network_headroom_low_bits_per_s == 500_000_000
    assert settings.network_headroom_high_bits_per_s == 1_000_000_000
