"""How the largest load is searched, and which combinations are on the way."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.run import Result, Simulation, simulate
from workloads.experiments import frontier
from workloads.experiments.frontier import cell, cell_way, largest, measure, ray, ray_way
from workloads.experiments.trials import SERVICES, Judge, mixes, scenario, tenants_of


@given(st.integers(1, 40), st.data())
def test_the_largest_load_is_found_wherever_it_is(count: int, data: st.DataObject) -> None:
    """What is served up to a step is found exactly, from any hint, with a few different tries."""
    edge = data.draw(st.integers(0, count))
    hint = data.draw(st.integers(0, count))
    asked: list[int] = []

    def serves(index: int) -> bool:
        asked.append(index)
        return index < edge

    assert largest(serves, count, hint=hint) == edge
    assert len(set(asked)) <= count.bit_length() + 3
    assert all(0 <= index < count for index in asked)


def test_one_unlucky_run_does_not_hide_what_lies_beyond() -> None:
    """If the step after the first failure is served, the failure does not count."""
    served = {0, 1, 2, 4, 5, 6}
    assert largest(lambda index: index in served, 10, hint=3) == 7
    assert largest(lambda index: index in {0, 1, 2}, 10, hint=3) == 3


def test_a_cell_goes_up_in_steps_of_ten_per_cent() -> None:
    """The others stay as they are."""
    way = cell_way({"xapian": 30}, "nginx")
    assert [loads["nginx"] for loads in way] == list(range(10, 101, 10))
    assert {loads["xapian"] for loads in way} == {30}


@given(st.lists(st.floats(0.1, 1.0), min_size=2, max_size=6))
def test_a_ray_goes_from_the_smallest_loads_to_the_largest(weights: list[float]) -> None:
    """No load ever falls, every combination differs from the one before, and proportions hold within a step."""
    named = dict(zip(SERVICES, weights, strict=False))
    way = ray_way(named)
    assert set(way[0].values()) == {10}
    assert set(way[-1].values()) == {100}
    for before, after in itertools.pairwise(way):
        assert before != after
        assert all(before[name] <= after[name] <= before[name] + 10 for name in named)
    for loads in way:
        inner = [name for name in named if 10 < loads[name] < 100]
        scales = [((loads[name] - 5) / named[name], (loads[name] + 5) / named[name]) for name in inner]
        assert not scales or max(low for low, _ in scales) <= min(high for _, high in scales) * 1.02


def test_all_managers_get_the_same_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds of a combination's runs do not depend on the manager, and differ between repeats."""
    seeds: dict[str, set[tuple[int, ...]]] = {}

    def works(_loads: object, manager: str, given: tuple[int, ...], _spared: float) -> bool:
        seeds.setdefault(manager, set()).add(tuple(given))
        return False

    monkeypatch.setattr(frontier, "works", works)
    for manager in ("parties", "heracles"):
        measure(cell(1, manager, {"xapian": 30}, "nginx", 3))
    assert seeds["parties"] == seeds["heracles"]
    (found,) = seeds["parties"]
    assert len(set(found)) == 3


def test_the_row_of_a_cell_and_of_a_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Largest load and aggregate are those of the last combination that was served; nothing served is 0 and no aggregate."""
    monkeypatch.setattr(frontier, "works", lambda loads, *_: sum(loads.values()) <= 75)
    (row,) = measure(cell(1, "parties", {"xapian": 30}, "nginx", 1))
    assert (row["largest"], row["aggregate"], row["xapian"], row["nginx"]) == (40, 70, 30, 40)
    (row,) = measure(cell(1, "parties", {"xapian": 70}, "nginx", 1))
    assert (row["largest"], row["aggregate"], row["xapian"], row["nginx"]) == (0, None, 70, None)
    (row,) = measure(ray(1, "parties", {"xapian": 0.5, "nginx": 1.0}, 1))
    assert (row["aggregate"], row["xapian"], row["nginx"], row["largest"]) == (70, 20, 50, None)


def test_a_service_may_be_in_a_mix_twice() -> None:
    """The second one gets a name of its own."""
    assert tenants_of(("mongodb", "mongodb")) == ("mongodb", "mongodb-2")
    assert len(mixes(2)) == 15
    assert len(mixes(6)) == 1


def _judged(loads: dict[str, float], policy: str, seed: int = 3) -> tuple[Judge, Result, Result]:
    """The verdict of a run, the run as the judge ended it, and the whole run."""
    run = scenario(loads, seed=seed, duration_s=122.0, policy=policy)
    simulation = Simulation(run, latencies=False)
    judge = Judge(simulation)
    return judge, simulation.run([judge]), simulate(run, latencies=False)


def test_the_measured_minute_begins_when_every_target_is_met() -> None:
    """Not before 30 s; the run ends with the minute, whose percentiles decide; it is the whole run's first part."""
    judge, ended, whole = _judged({"moses": 20}, "equal")
    assert judge.served
    assert judge.measured_from == 60
    assert ended.intervals == 180
    assert whole.violated()[:180] == ended.violated()
    assert all(measure.met_over(60, 180) for measure in whole.services.values())


def test_who_meets_no_target_within_a_minute_has_failed() -> None:
    """The run ends soon after, and was never measured."""
    judge, ended, whole = _judged({"xapian": 110, "moses": 110}, "equal")
    assert not judge.served
    assert judge.measured_from is None
    assert ended.intervals == 121
    assert all(whole.violated()[: ended.intervals])


@pytest.mark.parametrize(
    ("late", "begins", "ends", "served"),
    [
        ([False] * 300, 60, 180, True),
        ([True] * 80 + [False] * 220, 80, 200, True),  # found after 40 s
        ([False] * 4 + [True] * 26 + [False] * 270, 60, 180, True),  # found at once, and left again before it counts
        ([False] * 3 + [True] * 300, None, 121, False),  # three intervals are not two seconds
        ([True] * 120 + [False] * 180, 120, 240, True),  # found in the last moment
        ([True] * 121 + [False] * 179, None, 121, False),
        ([False] * 62 + [True] * 2 + [False] * 236, 60, 64, False),  # two intervals hold more late requests than a minute may
    ],
)
def test_the_rule_of_the_paper(late: list[bool], begins: int | None, ends: int, served: bool) -> None:  # noqa: FBT001 - a table
    """A minute to find an allocation, 30 s to warm up, a minute measured: when it begins, when it is over, what comes of it."""
    run = scenario({"xapian": 50}, seed=1, policy="equal")
    simulation = Simulation(run, latencies=False)
    judge = Judge(simulation, 0.0)
    stopped: list[int] = []
    _play(judge, simulation, late, stopped)
    assert stopped == [ends]
    assert (judge.measured_from, judge.served) == (begins, served)


@pytest.mark.parametrize(("wrong", "served"), [(0, True), (12, True), (13, True), (14, False)])
def test_a_tenth_of_the_minute_is_spared(wrong: int, served: bool) -> None:  # noqa: FBT001 - a table
    """Twelve intervals of trials are left out, and one more is within a percent of the rest; two more are not."""
    simulation = Simulation(scenario({"xapian": 50}, seed=1, policy="equal"), latencies=False)
    judge = Judge(simulation)
    _play(judge, simulation, [False] * 70 + [True] * wrong + [False] * 110, [])
    assert judge.served is served


def _play(judge: Judge, simulation: Simulation, late: list[bool], stopped: list[int]) -> None:
    """Give a judge intervals in which all or none of 2000 requests are late, until it stops the run."""
    (measure_of,) = simulation.measures.services.values()
    simulation.platform.stop = lambda: stopped.append(len(measure_of.violated))  # type: ignore[method-assign]
    for interval in late:
        measure_of.violated.append(interval)
        measure_of.samples.append(2000)
        measure_of.over.append(2000 if interval else 0)
        judge.tick(None, None, None)  # type: ignore[arg-type]
        if stopped:
            break
