"""The invariants hold in every interval of any run: random mixes, nodes, loads, faults, signal settings, under every policy."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import InvariantListener

from parties.policies.registry import POLICIES
from parties.settings import SignalSettings
from simulator.faults import Faults, Restart, random_faults
from simulator.library import job_model, names, node_profile, service_model
from simulator.load_profile import LoadProfile
from simulator.profile import NodeProfile
from simulator.run import Result, Simulation
from simulator.scenario import DEFAULT_JOB, DEFAULT_NODE, ORACLE, Scenario, Tenant

GB = 1_000_000_000
NODE = node_profile(DEFAULT_NODE)

_fractions = st.floats(0.0, 1.3).map(lambda fraction: round(fraction, 2))
_profiles = st.lists(st.tuples(st.integers(0, 40), _fractions), min_size=1, max_size=4).map(
    lambda points: LoadProfile(tuple((float(time_s), fraction) for time_s, fraction in sorted(points)))
)
_signals = st.builds(
    SignalSettings, raw=st.booleans(), window=st.booleans(), bounds=st.booleans(), vote=st.booleans(), stalled=st.booleans()
)
_loads = st.one_of(_fractions.map(LoadProfile.steady), _profiles)


@st.composite
def _nodes(draw: st.DrawFn, services: int) -> NodeProfile:
    """The paper's server, or one that is cut down, to where each service has hardly more than a step of everything."""
    cores = draw(st.integers(services + 1, 14))
    return dataclasses.replace(
        NODE,
        cores=cores,
        cache_ways=draw(st.integers(services + 1, 20)),
        memory_bytes=draw(st.integers(services + 1, 120)) * GB,
    )


@st.composite
def _scenarios(draw: st.DrawFn) -> Scenario:
    chosen = draw(st.lists(st.sampled_from(names("service")), min_size=1, max_size=6))
    tenants = {f"{name}-{number}": Tenant(service_model(name), draw(_loads)) for number, name in enumerate(chosen)}
    return Scenario(
        node=draw(_nodes(len(tenants))),
        tenants=tenants,
        job=job_model(DEFAULT_JOB) if draw(st.booleans()) else None,
        duration_s=float(draw(st.integers(5, 40))),
        seed=draw(st.integers(1, 1000)),
        policy=draw(st.sampled_from([*sorted(POLICIES), ORACLE])),
        signal=draw(_signals),
    )


@st.composite
def _faults(draw: st.DrawFn, scenario: Scenario) -> Faults:
    drawn = random_faults(
        random.Random(scenario.seed),  # noqa: S311 - repeatable
        tuple(scenario.tenants),
        duration_s=scenario.duration_s,
        refused=draw(st.sampled_from([0.0, 0.1, 0.5])),
        pending=draw(st.sampled_from([0.0, 0.1, 0.5])),
    )
    return dataclasses.replace(drawn, memory_ticks=draw(st.sampled_from([0, 3])))


def checked(scenario: Scenario, faults: Faults, record: Path | None = None) -> Result:
    """A run with the invariants checked in each interval."""
    simulation = Simulation(scenario, faults=faults)
    literal = scenario.policy == "parties"
    listener = InvariantListener(simulation.platform, simulation.services, simulation.policy.sharing, literal=literal)
    result = simulation.run((listener,), record=record)
    assert listener.ticks == result.intervals == int(scenario.duration_s * 2)
    return result


@settings(max_examples=60)
@given(st.data())
def test_the_invariants_hold_over_every_run(data: st.DataObject) -> None:
    """Conservation, isolation, floors, whole cores, contiguous ways, reasons, and one move of a traded resource in an interval."""
    scenario = data.draw(_scenarios())
    checked(scenario, data.draw(_faults(scenario)))


@pytest.mark.parametrize("policy", [*sorted(POLICIES), ORACLE])
def test_the_same_seed_and_scenario_give_the_same_record(policy: str, tmp_path: Path) -> None:
    """Byte for byte, with faults, restarts and a job; another seed gives another."""
    tenants = {name: Tenant(service_model(name), LoadProfile.steady(0.3)) for name in ("memcached", "moses", "sphinx")}
    scenario = Scenario(NODE, tenants, job_model(DEFAULT_JOB), duration_s=20.0, policy=policy)
    faults = Faults(refused={3: "no"}, pending_ticks={5: 2}, memory_ticks=2, restarts=(Restart("moses", 8.0),))
    for number, seed in enumerate((1, 1, 2)):
        checked(dataclasses.replace(scenario, seed=seed), faults, tmp_path / f"{number}.jsonl")
    first, again, other = ((tmp_path / f"{number}.jsonl").read_bytes() for number in range(3))
    assert first == again
    assert first != other


def test_a_service_that_is_killed_for_want_of_memory_returns_and_breaks_nothing() -> None:
    """Memcached where a fair part of the memory is too little: it is ended, is absent, and the invariants hold throughout."""
    node = dataclasses.replace(NODE, memory_bytes=20 * GB)
    tenants = {name: Tenant(service_model(name), LoadProfile.steady(0.2)) for name in ("memcached", "xapian", "nginx")}
    result = checked(Scenario(node, tenants, job_model(DEFAULT_JOB), duration_s=60.0), Faults())
    assert result.restarts["memcached"] > 0
    assert result.restarts["xapian"] == 0
