"""Scenarios by hand and by name: tenants, files, and one clear message for each mistake."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from parties.config import ConfigError
from parties.policies.registry import UnknownPolicyError
from simulator.library import UnknownProfileError, node_profile, service_model
from simulator.load_profile import LoadError, LoadProfile
from simulator.machine import Machine
from simulator.oracle import OracleSearch
from simulator.scenario import (
    Scenario,
    ScenarioError,
    Tenant,
    scenario_named,
    scenario_names,
    tenant_model,
    tenants_from,
)

MIX = """
version = 1
duration = "1min"
best_effort = "compute-and-memory"
policy = "equal"
seed = 7

[[service]]
name = "memcached"
load = 0.4

[[service]]
name = "second"
model = "memcached"
profile = ["0 0.1", "10 0.2"]

[signal]
raw = true
"""


def written(tmp_path: Path, text: str) -> Path:
    """A scenario's file."""
    file = tmp_path / "mix.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_of_the_project_is_sound(name: str) -> None:
    """It is found by its name, and by its path it is the same."""
    scenario = scenario_named(name)
    assert scenario.tenants
    assert scenario_named(f"configs/scenarios/{name}.toml") == scenario


@pytest.mark.parametrize(
    ("name", "peak", "job"), [("fluctuating", 0.6, False), ("fluctuating-50", 0.5, False), ("fluctuating-best-effort", 0.5, True)]
)
def test_the_fluctuating_load_is_that_of_figure_9(name: str, peak: float, job: bool) -> None:  # noqa: FBT001 - a parameter of the table
    """Memcached 10 % -> peak -> 10 % from 25 s on, the peak for a minute, the fall from 120 s; Moses 10 %, Xapian 20 %."""
    scenario = scenario_named(name)
    load = scenario.tenants["memcached"].load
    assert [load.at(time_s) for time_s in (0, 25, 60, 90, 120, 200)] == pytest.approx([0.1, 0.1, peak, peak, peak, 0.1])
    assert load.at(42.5) == pytest.approx((0.1 + peak) / 2)
    assert load.at(130) < peak
    steady = {name: tenant.load for name, tenant in scenario.tenants.items() if name != "memcached"}
    assert steady == {"moses": LoadProfile.steady(0.1), "xapian": LoadProfile.steady(0.2)}
    assert (scenario.job is not None) == job


@pytest.mark.parametrize(("name", "served"), [("fluctuating", False), ("fluctuating-50", True)])
def test_of_the_two_peaks_one_can_be_served(name: str, served: bool) -> None:  # noqa: FBT001 - a parameter of the table
    """Oracle finds an allocation for 50 % and none for the paper's 60 %, as the scenarios say of themselves."""
    scenario = scenario_named(name)
    loads = {tenant: its.load.at(90) * its.model.max_load_rps for tenant, its in scenario.tenants.items()}
    assert OracleSearch(Machine(scenario.node, scenario.models)).feasible(loads) is served


def test_a_file_says_all_of_a_run(tmp_path: Path) -> None:
    """Tenants with load or profile, a model by another name, the job, policy, seed, duration and the signal's settings."""
    scenario = scenario_named(written(tmp_path, MIX))
    assert list(scenario.tenants) == ["memcached", "second"]
    assert scenario.tenants["second"].model == service_model("memcached")
    assert scenario.tenants["second"].load == LoadProfile(((0.0, 0.1), (10.0, 0.2)))
    assert (scenario.duration_s, scenario.policy, scenario.seed, scenario.signal.raw) == (60.0, "equal", 7, True)
    assert scenario.job is not None
    assert scenario.job.name == "compute-and-memory"
    assert scenario.node == node_profile("e5-2699v4")


def test_all_mistakes_of_a_file_come_at_once_each_with_its_line(tmp_path: Path) -> None:
    """A load out of range, a bad line of a profile, a name given twice and an unknown key."""
    text = MIX.replace("load = 0.4", "load = 40").replace('"10 0.2"', '"10 much"').replace("seed", "sed")
    text = text.replace('name = "second"', 'name = "memcached"')
    with pytest.raises(ConfigError) as caught:
        scenario_named(written(tmp_path, text))
    message = str(caught.value)
    for part in ("line 6, sed", "line 10", "load 40 is not between", "line 13", "a second time", "line 15", "point 2: '10 much'"):
        assert part in message


def test_unknown_names_come_with_the_nearest(tmp_path: Path) -> None:
    """Scenario, service, node, job and policy."""
    with pytest.raises(UnknownProfileError, match=r'no scenario "fluctating"; did you mean fluctuating'):
        scenario_named("fluctating")
    for good, bad, says in (
        ('model = "memcached"', 'model = "memcache"', 'no service "memcache"; did you mean memcached'),
        ('best_effort = "compute-and-memory"', 'best_effort = "compute"', 'no job "compute"; .*compute-and-memory'),
        ("seed = 7", 'node = "e5-2699"', 'no node "e5-2699"; did you mean e5-2699v4'),
    ):
        with pytest.raises(UnknownProfileError, match=says):
            scenario_named(written(tmp_path, MIX.replace(good, bad)))
    with pytest.raises(UnknownPolicyError, match="no policy is named 'partis'; did you mean parties"):
        scenario_named(written(tmp_path, MIX.replace('"equal"', '"partis"')))


def test_a_number_after_a_name_is_one_more_of_the_same_service() -> None:
    """So "memcached-2" is a memcached, and a name that is given twice is two; what is nothing stays unknown."""
    assert tenant_model("memcached-2") == service_model("memcached")
    tenants = tenants_from([("memcached", "0.1"), ("memcached", "0.2"), ("xapian-3", "0.3")])
    assert {name: tenant.load.at(0) for name, tenant in tenants.items()} == {
        "memcached": 0.1,
        "memcached-2": 0.2,
        "xapian-3": 0.3,
    }
    with pytest.raises(UnknownProfileError, match='no service "memcachd"; did you mean memcached'):
        tenant_model("memcachd-2")
    with pytest.raises(LoadError, match="load 3 is not between"):
        tenants_from([("memcached", "3")])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tenants": {}}, "no service to simulate"),
        ({"duration_s": 0.2}, "a run of 0.2 s is none"),
        ({"duration_s": float("nan")}, "a run of nan s"),
    ],
)
def test_a_scenario_without_sense_is_refused(changes: dict[str, object], says: str) -> None:
    """Nothing to run, or no time to run in."""
    sound = Scenario(node_profile("e5-2699v4"), {"xapian": Tenant(service_model("xapian"), LoadProfile.steady(0.1))})
    with pytest.raises(ScenarioError, match=says):
        dataclasses.replace(sound, **changes)  # type: ignore[arg-type]  # each case has its own field
