"""How the largest load is searched, and which combinations are on the way."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.experiments import frontier
from workloads.experiments.frontier import cell, cell_way, largest, measure, ray, ray_way
from workloads.experiments.trials import SERVICES, Hopeless, mixes, scenario, tenants_of


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
    assert largest(lambda index: index in served, 10, hint=5) == 7
    assert largest(lambda index: index in {0, 1, 2}, 10, hint=5) == 3


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

    def works(_loads: object, manager: str, given: tuple[int, ...]) -> bool:
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


def test_a_hopeless_run_is_ended_early_and_no_other() -> None:
    """A run far over a target ends before its time; one under its targets runs to its end; both as a whole run would judge them."""
    from workloads.experiments import trials  # noqa: PLC0415 - names inside are watched

    for load, fate in ((110, False), (20, True)):
        run = scenario({"xapian": load, "moses": load}, seed=3, policy="equal")
        simulation = trials.Simulation(run, latencies=False)
        hopeless = Hopeless(simulation)
        result = simulation.run([hopeless])
        assert hopeless.found is not fate
        assert trials.simulate(run, latencies=False).meets_all() is fate
        assert (result.intervals < 180) is not fate
        assert trials.meets(run) is fate
