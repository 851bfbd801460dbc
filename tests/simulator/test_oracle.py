"""Oracle's search: against plain enumeration of every division of small nodes, and what it does with what is left."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parties.model import BEST_EFFORT, IDLE, Partition, Resource
from simulator.conditions import Share
from simulator.library import job_model, node_profile, service_model
from simulator.machine import Machine
from simulator.oracle import MARGIN, OracleSearch
from simulator.oracle_fit import Fit, Job, compositions
from simulator.profile import JobModel, NodeProfile, ServiceModel
from simulator.queueing import percentile_s, respond
from simulator.scenario import DEFAULT_JOB, DEFAULT_NODE

MB, GB = 1_000_000, 1_000_000_000
GHZ = 1_000_000_000
MS = 1_000_000
NODE = NodeProfile(
    "small",
    cores=4,
    cache_ways=4,
    cache_size_bytes=8 * MB,
    levels_hz=(GHZ, 2 * GHZ),
    turbo_hz=(3 * GHZ, 2_800_000_000, 2_400_000_000),
    memory_bytes=4 * GB,
    memory_bandwidth_bytes_per_s=10 * GB,
    disk_bytes_per_s=3 * MB,
    network_bits_per_s=3 * GB,
    power_milliwatts=100_000,
    disk_step_bytes_per_s=MB,
    network_step_bits_per_s=GB,
    cache_bandwidth_bytes_per_s=60 * GB,
    base_milliwatts=20_000,
    core_milliwatts=4_000,
)
COMPUTES = ServiceModel(
    "computes",
    target_ns=6 * MS,
    max_load_rps=2000.0,
    compute_ns=MS,
    memory_ns=MS,
    fixed_ns=MS // 2,
    fixed_growth=1.0,
    software_limit=0.2,
    working_set_bytes=3 * MB,
    memory_traffic_bytes=3 * MB,
    cache_contention=0.5,
    resident_bytes=GB,
    resident_idle=0.5,
)
SENDS = ServiceModel(
    "sends",
    target_ns=4 * MS,
    max_load_rps=2000.0,
    compute_ns=MS // 2,
    arrival_scv=2.0,
    working_set_bytes=MB,
    memory_traffic_bytes=MB,
    resident_bytes=GB // 2,
    network_bits=MB,
)
READS = ServiceModel(
    "reads",
    target_ns=80 * MS,
    max_load_rps=200.0,
    in_memory=False,
    compute_ns=MS,
    memory_ns=MS // 2,
    working_set_bytes=2 * MB,
    resident_bytes=GB,
    disk_bytes=12_000,
    disk_scv=2.0,
    page_set_bytes=2 * GB,
    page_slope=0.5,
    page_thrash=4.0,
    network_bits=10_000,
)
JOB = JobModel("job", compute_threads=2, memory_threads=4, stream_bytes_per_s=GB)
KEEPS = dataclasses.replace(READS, name="keeps", in_memory=True, resident_bytes=2 * GB)  # reads, and is killed under 2 GB
MODELS = {"computes": COMPUTES, "sends": SENDS, "reads": READS, "keeps": KEEPS}


@dataclass(frozen=True)
class Mix:
    """A node with tenants, and what is asked of them."""

    node: NodeProfile
    tenants: Mapping[str, ServiceModel]
    loads_rps: Mapping[str, float]


def slack(mix: Mix, shares: Sequence[Share], machine: Machine | None = None) -> float:
    """The smallest slack of a division, as the model has it; minus infinity where somebody is not served at all."""
    machine = Machine(mix.node, mix.tenants) if machine is None else machine
    outlook = machine.outlook(shares, mix.loads_rps)
    least = float("inf")
    for name, model in mix.tenants.items():
        response = respond(outlook.services[name], mix.loads_rps[name])
        if response.capacity_rps <= mix.loads_rps[name]:
            return float("-inf")
        least = min(least, 1.0 - percentile_s(response, model.percentile) / (model.target_ns * 1e-9))
    return least


def splits(total: int, parts: int, *, all_of_it: bool = False) -> list[tuple[int, ...]]:
    """All ways to give each part at least one; ``all_of_it`` leaves nothing over."""
    sums = (total,) if all_of_it else range(parts, total + 1)
    return [tuple(map(int, row)) for part in sums for row in compositions(part, parts)]


def divisions(mix: Mix) -> Iterator[list[Share]]:
    """Every division among the tenants, with a part of cores and ways left over too; of the rest everything is given out."""
    node, count = mix.node, len(mix.tenants)
    amounts = itertools.product(
        splits(node.cores, count),
        splits(node.cache_ways, count),
        itertools.product((*node.levels_hz, node.top_hz), repeat=count),
        splits(node.memory_bytes // node.memory_step_bytes, count, all_of_it=True),
        splits(node.disk_bytes_per_s // node.disk_step_bytes_per_s, count, all_of_it=True),
        splits(node.network_bits_per_s // node.network_step_bits_per_s, count, all_of_it=True),
    )
    steps = (1, 1, 1, node.memory_step_bytes, node.disk_step_bytes_per_s, node.network_step_bits_per_s)
    for division in amounts:
        rows = zip(*division, strict=True)
        yield [
            Share((name,), False, *(amount * step for amount, step in zip(row, steps, strict=True)))
            for name, row in zip(mix.tenants, rows, strict=True)
        ]


def enumerated(mix: Mix) -> bool:
    """Whether any division meets every target, by trying each."""
    machine = Machine(mix.node, mix.tenants)
    return any(slack(mix, shares, machine) >= 0.0 for shares in divisions(mix))


def shares_of(mix: Mix, partition: Partition, job: JobModel | None = None) -> list[Share]:
    """A partition as the platform would hand it to the model."""
    held = {key.resource: amounts for key, amounts in partition.amounts.items()}
    holders: list[tuple[tuple[str, ...], str, bool]] = [((name,), name, False) for name in mix.tenants]
    if job is not None:
        holders.append(((), BEST_EFFORT, True))
    return [
        Share(
            tenants,
            best_effort,
            held[Resource.CORES][holder] // 1000,
            *(held[resource][holder] for resource in (Resource.CACHE, Resource.FREQUENCY, *RATES)),
        )
        for tenants, holder, best_effort in holders
    ]


RATES = (Resource.MEMORY, Resource.DISK, Resource.NETWORK)


@st.composite
def mixes(draw: st.DrawFn, node: NodeProfile, names: Sequence[str], highest: float) -> Mix:
    """These services, faster or slower than they are in the file, at some loads; about half of them are feasible."""
    tenants = {
        f"{name}-{number}": dataclasses.replace(
            MODELS[name],
            target_ns=round(MODELS[name].target_ns * draw(st.sampled_from([0.7, 1.0, 1.5]))),
            compute_ns=round(MODELS[name].compute_ns * draw(st.sampled_from([0.5, 1.0, 1.6]))),
        )
        for number, name in enumerate(names)
    }
    loads = {name: model.max_load_rps * draw(st.floats(0.02, highest)) for name, model in tenants.items()}
    return Mix(node, tenants, loads)


def small(**changes: int | tuple[int, ...]) -> NodeProfile:
    return dataclasses.replace(NODE, **changes)  # type: ignore[arg-type]


# Which part of the search a node and its services put to the test.
BARE = small(memory_bytes=2 * GB, disk_bytes_per_s=2 * MB, network_bits_per_s=2 * GB)
HOT = dataclasses.replace(BARE, power_milliwatts=34_000, cores=3, cache_ways=3)
WIRED = small(cores=3, cache_ways=2, memory_bytes=2 * GB, disk_bytes_per_s=2 * MB, network_bits_per_s=5 * GB, levels_hz=(2 * GHZ,))
STORES = small(cores=3, cache_ways=2, network_bits_per_s=2 * GB, memory_bytes=6 * GB, disk_bytes_per_s=5 * MB, levels_hz=(2 * GHZ,))
THREE = small(cores=5, memory_bytes=3 * GB, network_bits_per_s=4 * GB, levels_hz=(2 * GHZ,))


@pytest.mark.parametrize(
    ("node", "names", "highest", "examples"),
    [
        pytest.param(BARE, ("computes", "computes"), 0.5, 20, id="cores-and-ways"),
        pytest.param(HOT, ("computes", "computes"), 0.4, 20, id="power-limits-turbo"),
        pytest.param(WIRED, ("sends", "sends"), 0.6, 20, id="network"),
        pytest.param(WIRED, ("sends", "computes"), 0.5, 15, id="network-of-one"),
        pytest.param(STORES, ("reads", "reads"), 1.5, 25, id="memory-and-disk"),
        pytest.param(STORES, ("reads", "computes"), 0.8, 10, id="memory-and-disk-of-one"),
        pytest.param(THREE, ("computes", "sends", "computes"), 0.4, 4, id="three"),
    ],
)
def test_the_search_finds_an_allocation_exactly_where_there_is_one(
    node: NodeProfile, names: Sequence[str], highest: float, examples: int
) -> None:
    """The same answer as plain enumeration; what is found meets every target by the model's own word, and is sound."""

    @settings(max_examples=examples)
    @given(mixes(node, names, highest))
    def check(mix: Mix) -> None:
        search = OracleSearch(Machine(mix.node, mix.tenants))
        there_is_one = enumerated(mix)
        assert search.feasible(mix.loads_rps) is there_is_one
        partition = search.solve(mix.loads_rps)
        assert (partition is not None) is there_is_one
        if partition is not None:
            services = [model.service(name) for name, model in mix.tenants.items()]
            partition.check(mix.node.node(), services)
            assert slack(mix, shares_of(mix, partition)) >= 0.0

    check()


@pytest.mark.parametrize(
    ("node", "names", "others"),
    [
        pytest.param(BARE, ("computes", "computes"), 0.2, id="cores-and-ways"),
        pytest.param(HOT, ("computes", "computes"), 0.2, id="power-limits-turbo"),
        pytest.param(WIRED, ("sends", "sends"), 0.3, id="network"),
        pytest.param(WIRED, ("sends", "computes"), 0.2, id="network-of-one"),
        pytest.param(STORES, ("reads", "reads"), 0.5, id="memory-and-disk"),
        pytest.param(STORES, ("reads", "computes"), 0.1, id="memory-and-disk-of-one"),
        pytest.param(STORES, ("keeps", "reads"), 0.5, id="memory-that-must-be"),
        pytest.param(STORES, ("keeps", "keeps"), 0.3, id="memory-that-both-must-have"),
        pytest.param(dataclasses.replace(THREE, network_bits_per_s=7 * GB), ("sends", "sends", "computes"), 0.1, id="three"),
    ],
)
def test_the_largest_load_of_a_service_is_exact(node: NodeProfile, names: Sequence[str], others: float) -> None:
    """A thousandth less than the search's largest load can be served by some division, a thousandth more by none."""
    tenants = {f"{name}-{number}": MODELS[name] for number, name in enumerate(names)}
    search, first = OracleSearch(Machine(node, tenants)), next(iter(tenants))

    def loads(fraction: float) -> dict[str, float]:
        return {name: model.max_load_rps * (fraction if name == first else others) for name, model in tenants.items()}

    low, high = 0.0, 3.0
    assert search.feasible(loads(low))
    while high > low * 1.0005:
        middle = (low + high) / 2
        low, high = (middle, high) if search.feasible(loads(middle)) else (low, middle)
    assert enumerated(Mix(node, tenants, loads(0.999 * low)))
    assert not enumerated(Mix(node, tenants, loads(1.001 * high)))


def many_mixes(node: NodeProfile, model: ServiceModel, highest: float, patience: float) -> Iterator[Mix]:
    """200 of them, of two alike, seeded, for corners that a few examples would miss; ``patience`` is a factor to the targets."""
    rng = random.Random(1)  # noqa: S311 - replayable
    for _ in range(200):
        tenants = {
            name: dataclasses.replace(
                model,
                target_ns=round(patience * rng.uniform(0.7, 1.5) * model.target_ns),
                compute_ns=round(rng.uniform(0.5, 1.6) * model.compute_ns),
            )
            for name in ("a", "b")
        }
        yield Mix(node, tenants, {name: rng.uniform(0.02, highest) * model.max_load_rps for name in tenants})


def test_where_power_is_short_somebody_may_have_to_run_slower() -> None:
    """Exact where turbo hangs on power: some mixes can only be served if one service is set to a lower level."""
    node = small(cores=3, cache_ways=2, memory_bytes=2 * GB, disk_bytes_per_s=2 * MB, network_bits_per_s=2 * GB)
    node = dataclasses.replace(node, power_milliwatts=26_000, turbo_hz=(5 * GHZ,))
    only_slower = 0
    for mix in many_mixes(node, COMPUTES, 0.6, 1.0):
        machine = Machine(mix.node, mix.tenants)
        feasible = OracleSearch(machine).feasible(mix.loads_rps)
        assert feasible is enumerated(mix)
        only_slower += feasible and Fit(machine, mix.loads_rps, 0.0, Job(), all_at_top=True).found() is None
    assert only_slower >= 3


def test_fewer_cores_than_a_service_could_keep_busy_draw_less_power() -> None:
    """Exact where power hangs on the cores held: some mixes are served because a service has fewer cores than it could use."""
    node = small(cores=3, cache_ways=2, memory_bytes=2 * GB, disk_bytes_per_s=2 * MB, network_bits_per_s=2 * GB)
    node = dataclasses.replace(node, power_milliwatts=48_000, turbo_hz=(4 * GHZ, 4 * GHZ, 3 * GHZ, 2_200_000_000))
    by_few = 0
    for mix in many_mixes(node, COMPUTES, 1.3, 10.0):
        machine = Machine(mix.node, mix.tenants)
        feasible = OracleSearch(machine).feasible(mix.loads_rps)
        assert feasible is enumerated(mix)
        by_few += feasible and sum(math.ceil(machine.busy_cores(name, load)) for name, load in mix.loads_rps.items()) > node.cores
    assert by_few >= 3


def test_an_uneven_split_of_the_disk_may_be_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact where the most even split of memory and disk fails, because nobody has the cores to make up for it."""
    node = small(
        cores=3, cache_ways=2, network_bits_per_s=2 * GB, memory_bytes=5 * GB, disk_bytes_per_s=6 * MB, levels_hz=(2 * GHZ,)
    )
    model = dataclasses.replace(READS, compute_ns=9 * MS, page_slope=0.3, disk_scv=4.0, target_ns=120 * MS)
    tried: list[bool] = []
    with_storage = Fit._with_storage

    def counted(fit: Fit, *args: Any) -> Any:  # noqa: ANN401 - as it is
        found = with_storage(fit, *args)
        tried.append(found is not None)
        return found

    monkeypatch.setattr(Fit, "_with_storage", counted)
    later = 0
    for mix in many_mixes(node, model, 1.0, 1.0):
        tried.clear()
        feasible = OracleSearch(Machine(mix.node, mix.tenants)).feasible(mix.loads_rps)
        later += feasible and len(tried) > 1
        assert feasible or not enumerated(mix)
    assert later >= 3


@settings(max_examples=12)
@given(mixes(BARE, ("computes", "computes"), 0.4))
def test_without_best_effort_the_smallest_slack_is_the_largest(mix: Mix) -> None:
    """Within the search's step of 1/32 no division has a larger smallest slack, and nothing is left over."""
    partition = OracleSearch(Machine(mix.node, mix.tenants)).solve(mix.loads_rps)
    machine = Machine(mix.node, mix.tenants)
    best = max(slack(mix, shares, machine) for shares in divisions(mix))
    if partition is None:
        assert best < 0.0
        return
    assert slack(mix, shares_of(mix, partition)) >= int(best * 32) / 32
    assert {held[IDLE] for key, held in partition.amounts.items() if key.resource.shared_pool} == {0}


@settings(max_examples=6)
@given(mixes(small(memory_bytes=3 * GB, disk_bytes_per_s=3 * MB), ("computes", "computes"), 0.3))
def test_best_effort_gets_the_most_cores_that_leave_everybody_some_slack(mix: Mix) -> None:
    """With one core more, no way of dividing the others leaves 5 %, at any frequency of the job; the job has the rest of all."""
    machine = Machine(mix.node, mix.tenants, JOB)
    partition = OracleSearch(machine).solve(mix.loads_rps)
    if partition is None:
        assert not enumerated(mix)
        return
    shares = shares_of(mix, partition, JOB)
    wanted = min(MARGIN, slack(mix, shares, machine))
    assert wanted >= 0.0
    assert wanted == MARGIN or not any(slack(mix, beside, machine) >= MARGIN for beside in besides(mix, 0))
    assert not any(slack(mix, beside, machine) >= wanted for beside in besides(mix, shares[-1].cores + 1))
    partition.check(mix.node.node(), [model.service(name) for name, model in mix.tenants.items()])
    assert not any(held.get(IDLE, 0) for held in partition.amounts.values())
    assert (shares[-1].cores > 0) is (shares[-1].ways > 0)


def besides(mix: Mix, cores: int) -> Iterator[list[Share]]:
    """Every division beside a job of so many cores at the lowest frequency, which takes least power of the others."""
    node, count = mix.node, len(mix.tenants)
    if node.cores - cores < count:
        return
    job = Share((), True, cores, 1 if cores else 0, node.levels_hz[0], 0, 0, 0)
    for counts in splits(node.cores - cores, count):
        for ways in splits(node.cache_ways - job.ways, count, all_of_it=True):
            services = zip(mix.tenants, counts, ways, strict=True)
            yield [*(Share((name,), False, c, w, node.top_hz, GB, MB, GB) for name, c, w in services), job]


PAPERS = node_profile(DEFAULT_NODE)


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from(["memcached", "xapian", "nginx", "moses", "mongodb", "sphinx"]), min_size=1, max_size=4),
    st.lists(st.floats(0.0, 0.7), min_size=4, max_size=4),
    st.booleans(),
)
def test_on_the_papers_node_what_is_found_meets_every_target(
    names: list[str],
    fractions: list[float],
    beside_a_job: bool,  # noqa: FBT001 - drawn
) -> None:
    """By the model's own word, with every invariant; and what is feasible stays so when every load falls."""
    tenants = {f"{name}-{number}": service_model(name) for number, name in enumerate(names)}
    loads = {name: model.max_load_rps * part for (name, model), part in zip(tenants.items(), fractions, strict=False)}
    mix = Mix(PAPERS, tenants, loads)
    job = job_model(DEFAULT_JOB) if beside_a_job else None
    machine = Machine(PAPERS, tenants, job)
    search = OracleSearch(machine)
    partition = search.solve(loads)
    assert search.feasible(loads) is (partition is not None)
    if partition is not None:
        partition.check(PAPERS.node(), [model.service(name) for name, model in tenants.items()])
        assert slack(mix, shares_of(mix, partition, job), machine) >= 0.0
        assert search.feasible({name: 0.8 * load_rps for name, load_rps in loads.items()})


def test_memory_that_is_too_small_for_the_data_sets_is_infeasible() -> None:
    """Two in-memory services of 3 GB on 4 GB: one of them would be killed, whatever the load."""
    tenants = {name: dataclasses.replace(COMPUTES, resident_bytes=3 * GB, resident_idle=1.0) for name in ("a", "b")}
    assert not OracleSearch(Machine(NODE, tenants)).feasible({"a": 1.0, "b": 1.0})
    assert OracleSearch(Machine(small(memory_bytes=6 * GB), tenants)).feasible({"a": 1.0, "b": 1.0})


def test_many_services_on_one_disk_are_split_in_coarser_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many splits to look at each, what is found still meets every target."""
    monkeypatch.setattr("simulator.oracle_fit.MOST_SPLITS", 50)
    tenants = dict.fromkeys(("a", "b", "c"), READS)
    mix = Mix(small(memory_bytes=12 * GB, disk_bytes_per_s=6 * MB), tenants, dict.fromkeys(tenants, 20.0))
    partition = OracleSearch(Machine(mix.node, tenants)).solve(mix.loads_rps)
    assert partition is not None
    assert slack(mix, shares_of(mix, partition)) >= 0.0


def test_compositions_are_all_and_only_the_ways_to_split_a_total() -> None:
    """As many as the binomial says, each positive, each with the right sum, none twice."""
    rows = compositions(9, 4)
    assert len({tuple(row) for row in rows}) == len(rows) == 56
    assert rows.min() == 1
    assert set(rows.sum(axis=1)) == {9}
    assert compositions(3, 1).tolist() == [[3]]
    assert len(compositions(2, 3)) == 0
