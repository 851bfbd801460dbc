"""Runs from end to end: the result's JSON, what its figures mean, the record, and what cannot be run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from parties.model import BEST_EFFORT, NS_PER_S, Decision, Observation, PoolKey, Reason, Resource, ServiceState
from parties.record import RecordError, Timing, read_record
from parties.replay import policy_of, replay
from parties.settings import PartiesSettings, SignalSettings
from simulator.faults import Faults, Restart
from simulator.library import job_model, node_profile
from simulator.load_profile import LoadProfile
from simulator.measure import ServiceMeasure
from simulator.profile_checks import ImpossibleProfileError
from simulator.run import Result, Simulation, simulate
from simulator.scenario import DEFAULT_JOB, DEFAULT_NODE, ORACLE, Scenario, Tenant, tenant_model

FINAL = {"cores", "ways", "frequency_mhz", "memory_bytes", "disk_bytes_per_s", "network_bits_per_s"}
SERVICE = {"load", "target_us", "intervals", "violations", "violations_after_convergence", "median_p99_over_target", "final"}
RESULT = {
    "policy",
    "node",
    "seed",
    "duration_s",
    "converged_s",
    "moves",
    "reverts",
    "migrations",
    "services",
    "best_effort_throughput",
}
LIGHT = {"memcached": 0.1, "xapian": 0.1}


def scenario(
    loads: dict[str, float] | None = None, *, duration_s: float = 20.0, policy: str = "parties", job: bool = True
) -> Scenario:
    """A mix on the paper's server."""
    tenants = {name: Tenant(tenant_model(name), LoadProfile.steady(load)) for name, load in (loads or LIGHT).items()}
    return Scenario(node_profile(DEFAULT_NODE), tenants, job_model(DEFAULT_JOB) if job else None, duration_s, policy=policy)


def result_of(violated: Sequence[bool], *, over: Sequence[int] = ()) -> Result:
    """A result whose only service has these intervals of 500 ms, with 1,000 requests each."""
    made = simulate(scenario({"memcached": 0.1}, duration_s=1.0, policy="unmanaged"))
    measure = ServiceMeasure(made.services["memcached"].target, 500_000_000)
    measure.violated = list(violated)
    measure.samples = [1000] * len(measure.violated)
    measure.over = list(over) or [500 * bad for bad in violated]
    return dataclasses.replace(made, services={"memcached": measure}, scenario=scenario({"memcached": 0.1}))


class Observations:
    """Keeps what the loop told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Observation, Decision]] = []

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        del timing
        self.seen.append((observation, decision))


# The JSON of ``parties simulate --json``


def test_the_result_has_exactly_the_fields_that_are_promised() -> None:
    """Every key, and no other, in the units that its name says; it survives JSON."""
    result = simulate(scenario())
    body = result.as_json()
    assert json.loads(json.dumps(body)) == body
    assert body.keys() == RESULT
    services = body["services"]
    assert isinstance(services, dict)
    assert services.keys() == LIGHT.keys()
    memcached = services["memcached"]
    assert memcached.keys() == SERVICE
    assert memcached["final"].keys() == FINAL
    assert (body["policy"], body["node"], body["seed"], body["duration_s"]) == ("parties", "e5-2699v4", 1, 20)
    assert (memcached["load"], memcached["target_us"], memcached["intervals"]) == (0.1, 600, 40)


def test_what_a_service_held_in_the_end_is_in_people_units() -> None:
    """Equal splits 14 cores among two services and the job: the first have five; the nominal frequency is 2.2 GHz."""
    result = simulate(scenario(policy="equal"))
    assert result.final("memcached") == {
        "cores": 5,
        "ways": 7,
        "frequency_mhz": 2200,
        "memory_bytes": 40_000_000_000,
        "disk_bytes_per_s": result.partition.amount(PoolKey(Resource.DISK), "memcached"),
        "network_bits_per_s": 3_500_000_000,
    }
    assert result.moves == 0


def test_where_nothing_is_partitioned_nothing_is_held() -> None:
    """Unmanaged: null for everything. Heracles: memory and disk are not partitioned, the group shares its cores."""
    assert set(simulate(scenario(policy="unmanaged")).final("memcached").values()) == {None}
    heracles = simulate(scenario({"memcached": 0.2, "xapian": 0.1, "nginx": 0.1}, policy="heracles"))
    assert heracles.final("memcached")["memory_bytes"] is None
    assert heracles.final("xapian") == heracles.final("nginx")
    assert heracles.final("xapian")["cores"] == heracles.partition.amount(PoolKey(Resource.CORES, 0), BEST_EFFORT) // 1000


def test_moves_reverts_and_migrations_are_those_that_were_decided() -> None:
    """Counted again from what the loop told: what cannot be served asks for a migration, what is relaxed reverts a downsize."""
    listener = Observations()
    result = simulate(scenario({"memcached": 0.9, "moses": 0.9}, duration_s=70.0), listeners=(listener,))
    decisions = [decision for _, decision in listener.seen]
    assert result.moves == sum(len(decision.moves) for decision in decisions) > 0
    assert result.migrations == sum(decision.migration is not None for decision in decisions) == 1
    light = Observations()
    relaxed = dict.fromkeys(("memcached", "xapian", "nginx", "moses"), 0.1)
    result = simulate(scenario(relaxed, duration_s=120.0, job=False), listeners=(light,))
    reverted = [move for _, decision in light.seen for move in decision.moves if move.reason is Reason.DOWNSIZE_REVERTED]
    assert result.reverts == len(reverted) > 0


# What the figures mean


def test_convergence_is_the_beginning_of_two_seconds_without_violation() -> None:
    """Three met intervals are not enough, four are; from a change of load on, it is counted from there."""
    bad, good = True, False
    assert result_of([good] * 4).converged_s() == 0.0
    assert result_of([bad, good, good, good, bad] + [good] * 4).converged_s() == 2.5
    assert result_of([bad, good, good, good, bad]).converged_s() is None
    changed = result_of([good] * 10 + [bad] * 6 + [good] * 4)
    assert changed.converged_s() == 0.0
    assert changed.converged_s(since_s=5.0) == 3.0


def test_violations_after_convergence_begin_with_it() -> None:
    """Those before are not counted; of a run that never converged there is nothing to say."""
    body = result_of([True] * 2 + [False] * 4 + [True]).as_json()
    service = body["services"]["memcached"]  # type: ignore[index]  # an object by the test above
    assert (body["converged_s"], service["violations"], service["violations_after_convergence"]) == (1.0, 3, 1)
    never = result_of([True] * 8).as_json()["services"]["memcached"]  # type: ignore[index]  # the same
    assert never["violations_after_convergence"] is None


def test_a_mix_is_served_if_the_percentile_of_all_after_the_warm_up_is_within_its_target() -> None:
    """As the paper measures: one bad interval does no harm where few of all requests were late; the warm-up does not count."""
    warm = [True] * 60
    assert result_of([*warm, *[False] * 120]).meets_all(30.0)
    assert not result_of([*warm, *[False] * 120]).meets_all(20.0)
    one_bad = result_of([*warm, True, *[False] * 119], over=[1000] * 60 + [900] + [0] * 119)
    assert one_bad.meets_all(30.0)
    assert one_bad.violating_share(30.0) == pytest.approx(1 / 120)
    assert not result_of([False] * 180, over=[0] * 60 + [11] * 120).meets_all(30.0)


# The same code as on a host


def test_the_record_of_a_run_replays_to_the_same_decisions(tmp_path: Path) -> None:
    """The header has all that the policy was made of, and each interval all that it saw: byte for byte the same decisions."""
    mix = dataclasses.replace(
        scenario({"memcached": 0.3, "xapian": 0.3, "moses": 0.1}, duration_s=40.0),
        parties=PartiesSettings(downsize_slack=0.3),
        seed=5,
    )
    simulate(mix, record=tmp_path / "run.jsonl", faults=Faults(restarts=(Restart("moses", 10.0),), memory_ticks=3))
    header, ticks = read_record(tmp_path / "run.jsonl")
    assert (header.platform, header.settings.seed, header.settings.parties.downsize_slack) == ("simulated", 5, 0.3)
    judged = list(replay(header, ticks, policy_of(header)))
    assert len(judged) == 80
    assert any(interval.recorded.moves for interval in judged)
    assert all(interval.identical for interval in judged)


def test_the_record_ends_with_the_result(tmp_path: Path) -> None:
    """Its last line is what ``--json`` prints."""
    result = simulate(scenario(), record=tmp_path / "run.jsonl")
    last = (tmp_path / "run.jsonl").read_text().splitlines()[-1]
    assert json.loads(last) == {"report": result.as_json()}


def test_two_managers_see_the_same_arrivals() -> None:
    """What was due in each interval is the same under every manager, and another with another seed."""

    def due(policy: str, seed: int = 1) -> list[int]:
        listener = Observations()
        simulate(dataclasses.replace(scenario(policy=policy), seed=seed), listeners=(listener,))
        return [seen.services["xapian"].latency.scheduled for seen, _ in listener.seen]

    assert due("parties") == due("equal") == due("unmanaged")
    assert due("equal", 2) != due("equal")


def test_the_signal_s_settings_are_those_asked_for() -> None:
    """Raw has no bounds; by default there are."""

    def cautious(signal: SignalSettings | None) -> list[bool]:
        listener = Observations()
        simulate(scenario(policy="equal"), listeners=(listener,), signal=signal)
        views = [seen.services["memcached"].latency for seen, _ in listener.seen]
        return [view.cautious_latency_ns == view.latency_ns for view in views]

    assert all(cautious(SignalSettings(raw=True)))
    assert not all(cautious(None))


def test_oracle_is_given_the_model_and_the_loads() -> None:
    """It starts with an allocation that serves the mix."""
    result = simulate(scenario({"memcached": 0.3, "xapian": 0.3, "moses": 0.2}, duration_s=60.0, policy=ORACLE))
    assert result.policy == ORACLE
    assert result.meets_all(0.0)


def test_a_run_without_latencies_is_the_same_run() -> None:
    """The series is left out, and nothing else."""
    full, lean = simulate(scenario()), simulate(scenario(), latencies=False)
    assert lean.services["xapian"].latency_ns == []
    assert lean.violated() == full.violated()
    assert (lean.moves, lean.partition) == (full.moves, full.partition)


def test_a_listener_can_end_a_run_early() -> None:
    """The platform's stop, asked for by a listener, ends the run with what came of it so far."""
    simulation = Simulation(scenario(duration_s=60.0))

    class Impatient:
        def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
            del decision, timing
            if observation.now_ns > 5 * NS_PER_S:
                simulation.platform.stop()

    result = simulation.run((Impatient(),))
    assert result.intervals == 10


# What cannot be run


def test_more_services_than_cores_or_cache_classes_are_refused() -> None:
    """One message that says what there is and what is needed."""
    node = dataclasses.replace(node_profile(DEFAULT_NODE), cores=2)
    with pytest.raises((ImpossibleProfileError, ValueError), match="2"):
        simulate(dataclasses.replace(scenario({"memcached": 0.1, "xapian": 0.1, "nginx": 0.1}), node=node))


def test_a_record_is_never_written_over(tmp_path: Path) -> None:
    """A file that exists, and a directory that cannot be written, end the run before it begins."""
    file = tmp_path / "run.jsonl"
    file.write_text("precious")
    with pytest.raises(RecordError, match="exists already"):
        simulate(scenario(), record=file)
    assert file.read_text() == "precious"
    with pytest.raises(RecordError, match="cannot be made"):
        simulate(scenario(), record=Path("/proc/nowhere/run.jsonl"))


def test_a_service_that_restarts_is_absent_and_its_absence_is_counted_as_violation() -> None:
    """A restart under way shows in the observations, in the count of restarts and in the violations."""
    listener = Observations()
    mix = scenario({"memcached": 0.1, "nginx": 0.02}, policy="equal")
    result = simulate(mix, listeners=(listener,), faults=Faults(restarts=(Restart("nginx", 10.0),)))
    absent = [seen.tick for seen, _ in listener.seen if seen.services["nginx"].latency.state is ServiceState.ABSENT]
    assert absent == list(range(21, 31))
    assert result.restarts == {"memcached": 0, "nginx": 1}
    undisturbed = simulate(mix).services["nginx"].violated
    disturbed = result.services["nginx"].violated
    assert disturbed[:20] == undisturbed[:20]
    assert sum(disturbed[20:30]) >= 8
    assert sum(undisturbed[20:30]) <= 2
