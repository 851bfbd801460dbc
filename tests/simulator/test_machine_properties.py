"""What holds for every division of a node: more of one's own never hurts, more of others' never helps, nothing comes of nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.conditions import Conditions, Share
from simulator.library import job_model, names, node_profile, service_model
from simulator.machine import Machine
from simulator.queueing import percentile_s, respond

NODE = node_profile("e5-2699v4")
LEVELS = (*NODE.levels_hz, NODE.top_hz)
NAMES = names("service")
MACHINE = Machine(NODE, {name: service_model(name) for name in NAMES}, job_model("compute-and-memory"))
EXAMPLES = 100
ROUNDING = 1.001  # the tables of percentiles interpolate

fractions = st.floats(0.0, 1.0)
loads = st.fixed_dictionaries({name: st.floats(0.01, 1.1) for name in NAMES})


@st.composite
def shares(draw: st.DrawFn, names: tuple[str, ...] | None = None) -> Share:
    """A share of a service, or of the job, that leaves room to grow in everything."""
    tenants = names if names is not None else (draw(st.sampled_from(NAMES)),)
    return Share(
        tenants,
        best_effort=not tenants,
        cores=draw(st.integers(1, NODE.cores - 1)),
        ways=draw(st.integers(1, NODE.cache_ways - 1)),
        frequency_hz=draw(st.sampled_from(LEVELS[:-1])),
        memory_bytes=draw(st.integers(1, 100)) * 10**9,
        disk_bytes_per_s=draw(st.integers(1, 19)) * NODE.disk_bytes_per_s // 20,
        network_bits_per_s=draw(st.integers(1, 19)) * 500_000_000,
    )


def look(parts: list[Share], at: Mapping[str, float]) -> Mapping[str, Conditions]:
    """Conditions of everybody at fractions of the largest loads."""
    rates = {name: part * MACHINE.tenants[name].max_load_rps for name, part in at.items()}
    return MACHINE.outlook(parts, rates).services


def tail_s(name: str, conditions: Conditions, load: float) -> float:
    """The tail percentile; infinite where nothing is answered or not everything can be."""
    model = MACHINE.tenants[name]
    rate_rps = load * model.max_load_rps
    response = respond(conditions, rate_rps)
    return percentile_s(response, model.percentile) if rate_rps < response.capacity_rps else math.inf


def capacity_rps(conditions: Conditions) -> float:
    """What a service can answer; 0 if it was killed."""
    return 0.0 if conditions.killed else min(station.capacity_rps for station in conditions.stations)


@pytest.mark.parametrize(
    "more",
    [
        lambda share: share._replace(cores=share.cores + 1),
        lambda share: share._replace(ways=share.ways + 1),
        lambda share: share._replace(frequency_hz=LEVELS[LEVELS.index(share.frequency_hz) + 1]),
        lambda share: share._replace(memory_bytes=share.memory_bytes + 10**9),
        lambda share: share._replace(disk_bytes_per_s=share.disk_bytes_per_s + NODE.disk_bytes_per_s // 20),
        lambda share: share._replace(network_bits_per_s=share.network_bits_per_s + 500_000_000),
    ],
    ids=["cores", "ways", "frequency", "memory", "disk", "network"],
)
def test_more_of_ones_own_never_hurts(more: object) -> None:
    """A step more of any resource, from nobody, makes neither the percentile nor the capacity worse, whatever the neighbours do."""

    @settings(max_examples=EXAMPLES)
    @given(shares(), shares(names=()), loads)
    def check(share: Share, job: Share, at: Mapping[str, float]) -> None:
        name = share.tenants[0]
        others = [Share((other,), False, 2, 3, None, 20 * 10**9, 450_000, 10**9) for other in NAMES if other != name]
        before = look([share, job, *others], at)[name]
        after = look([more(share), job, *others], at)[name]  # type: ignore[operator]
        assert tail_s(name, after, at[name]) <= tail_s(name, before, at[name]) * ROUNDING
        assert capacity_rps(after) >= capacity_rps(before) * (1 - 1e-9)

    check()


@settings(max_examples=EXAMPLES)
@given(shares(), st.sampled_from(NAMES), loads, st.floats(0.0, 0.5))
def test_more_load_of_a_neighbour_never_helps(share: Share, neighbour: str, at: Mapping[str, float], more: float) -> None:
    """A neighbour on its own cores and ways that gets more requests makes nobody's percentile better."""
    name = share.tenants[0]
    assume(neighbour != name)
    beside = Share((neighbour,), False, 6, 4, None, 100 * 10**9, NODE.disk_bytes_per_s, 5 * 10**9)
    before = tail_s(name, look([share, beside], at)[name], at[name])
    after = tail_s(name, look([share, beside], {**at, neighbour: at[neighbour] + more})[name], at[name])
    assert after >= before / ROUNDING


@settings(max_examples=EXAMPLES)
@given(shares(), shares(names=()), loads)
def test_more_best_effort_never_helps(share: Share, job: Share, at: Mapping[str, float]) -> None:
    """A core more for the job makes nobody's percentile better, and the job no slower."""
    name = share.tenants[0]
    rates = {name: at[name] * MACHINE.tenants[name].max_load_rps}
    before = MACHINE.outlook([share, job], rates)
    after = MACHINE.outlook([share, job._replace(cores=job.cores + 1)], rates)
    assert tail_s(name, after.services[name], at[name]) >= tail_s(name, before.services[name], at[name]) / ROUNDING
    assert before.best_effort.progress is not None
    assert after.best_effort.progress is not None
    assert after.best_effort.progress >= before.best_effort.progress * (1 - 1e-9)


@settings(max_examples=EXAMPLES)
@given(st.lists(shares(names=()), min_size=1, max_size=3), loads, st.booleans())
def test_best_effort_work_is_conserved(parts: list[Share], at: Mapping[str, float], common: bool) -> None:  # noqa: FBT001
    """However its cores are grouped, a job does what their sum does, and never more than alone on the whole node."""
    cores = 0
    fitting = []
    for part in parts:
        fitting.append(part._replace(cores=min(part.cores, NODE.cores - cores), frequency_hz=None))
        cores += fitting[-1].cores
    tenants = tuple(NAMES) if common else ()
    services = Share(tenants, common, NODE.cores - cores, 4, None, 100 * 10**9, NODE.disk_bytes_per_s, 5 * 10**9)
    rates = {name: at[name] * MACHINE.tenants[name].max_load_rps for name in tenants}
    apart = MACHINE.outlook([*fitting, services], rates)
    together = MACHINE.outlook([fitting[0]._replace(cores=cores), services], rates)
    assert apart.best_effort.progress == pytest.approx(together.best_effort.progress)
    assert 0.0 <= (apart.best_effort.progress or 0.0) <= 1.0
    assert apart.memory_bandwidth_bytes_per_s <= NODE.memory_bandwidth_bytes_per_s
    assert (apart.best_effort.cpu_millicores or 0) <= NODE.cores * 1000


@settings(max_examples=EXAMPLES)
@given(loads, st.integers(0, 14), st.integers(1, 20), st.booleans())
def test_everything_is_a_number(at: Mapping[str, float], cores: int, ways: int, best_effort: bool) -> None:  # noqa: FBT001
    """No division of one common share makes anything negative, infinite or not a number."""
    common = Share(tuple(NAMES), best_effort, cores, ways, None, 120 * 10**9, NODE.disk_bytes_per_s, 10**10)
    for conditions in look([common], {name: load * 100 for name, load in at.items()}).values():
        values = [conditions.fixed_s, conditions.cpu_s, conditions.disk_bytes, *(s.service_s for s in conditions.stations)]
        assert all(value >= 0 and math.isfinite(value) for value in values)
