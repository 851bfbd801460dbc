"""The model of the machine: what it charges for, and what it shares."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from parties.model import Resource
from simulator.conditions import Conditions, Share
from simulator.library import job_model, names, node_profile, service_model
from simulator.machine import Machine, Means, Strain
from simulator.profile import ServiceModel
from simulator.profile_checks import ImpossibleProfileError

NODE = node_profile("e5-2699v4")
SMALL = node_profile("d-1541")
JOB = job_model("compute-and-memory")
ALL = {name: service_model(name) for name in names("service")}


def share(*tenants: str, **changes: Any) -> Share:  # noqa: ANN401 - fields of a Share
    """The whole node for these tenants, but for what is said."""
    whole = Share(tenants, best_effort=False, cores=14, ways=20, frequency_hz=None, memory_bytes=NODE.memory_bytes,
                  disk_bytes_per_s=NODE.disk_bytes_per_s, network_bits_per_s=NODE.network_bits_per_s)  # fmt: skip
    return whole._replace(**changes)


def one(name: str, load: float, **changes: Any) -> Conditions:  # noqa: ANN401 - fields of a Share
    """Conditions of one service alone on the node, with all of it but for what is said."""
    machine = Machine(NODE, {name: ALL[name]})
    return machine.outlook([share(name, **changes)], {name: load * ALL[name].max_load_rps}).services[name]


def test_node_has_six_pools_that_check_themselves() -> None:
    """Both nodes become nodes of the controller with every resource managed, turbo the top step, and both hyper-threads."""
    for profile in (NODE, SMALL):
        node = profile.node()
        pools = {pool.key.resource: pool for pool in node.managed_pools()}
        assert set(pools) == set(Resource)
        assert pools[Resource.FREQUENCY].levels[-1] == profile.turbo_hz[0]
        assert pools[Resource.DISK].key.domain is None
        assert pools[Resource.NETWORK].key.domain is None
        assert pools[Resource.CORES].total == profile.cores * 1000
        cpus = [cpu for core in node.domains[0].cores for cpu in core.cpus]
        assert sorted(cpus) == list(range(profile.cores * profile.threads_per_core))
        assert node.memory_bandwidth_bytes_per_s == profile.memory_bandwidth_bytes_per_s
        assert node.power_milliwatts == profile.power_milliwatts


def test_services_as_the_controller_knows_them() -> None:
    """A tenant's name, the model's target and kind become a service."""
    service = ALL["mongodb"].service("mongodb-2")
    assert (service.name, service.target.latency_ns, service.target.percentile) == ("mongodb-2", 300_000_000, 99.0)
    assert service.in_memory is False
    assert ALL["nginx"].service("nginx").stateless is True


def test_core_time_scales_with_frequency_but_not_all_of_it() -> None:
    """Half the frequency costs more time, and less than twice as much where a part waits for memory."""
    machine = Machine(NODE, ALL)
    fast, slow = (machine.core_time_s("sphinx", 1.0, NODE.cache_size_bytes, hertz, Strain()) for hertz in (2.4e9, 1.2e9))
    assert fast * 1.2 < slow < fast * 1.95


def test_fewer_ways_mean_more_traffic_and_more_time() -> None:
    """What the cache does not hold is fetched from memory, and waited for."""
    much, little = one("sphinx", 0.5), one("sphinx", 0.5, ways=1)
    assert little.memory_traffic_bytes > 1.1 * much.memory_traffic_bytes
    assert little.cpu_s > 1.05 * much.cpu_s


def test_everybodys_traffic_slows_everybody() -> None:
    """Moses at full load makes Sphinx slower on its own cores and ways, and a streaming job makes it slower still."""
    machine = Machine(NODE, {name: ALL[name] for name in ("sphinx", "moses")}, JOB)
    level = {"frequency_hz": 2_000_000_000}
    parts = [share("sphinx", cores=5, ways=6, **level), share("moses", cores=5, ways=6, **level)]
    parts.append(share(best_effort=True, cores=0, ways=8, **level))
    loads = {"sphinx": 3.0, "moses": 0.0}
    alone = machine.outlook(parts, loads)
    beside = machine.outlook(parts, loads | {"moses": 2800.0})
    streamed = machine.outlook([*parts[:2], parts[2]._replace(cores=4)], loads | {"moses": 2800.0})
    times = [outlook.services["sphinx"].cpu_s for outlook in (alone, beside, streamed)]
    assert times[0] * 1.01 < times[1]
    assert times[1] * 1.05 < times[2]
    traffic = [outlook.memory_bandwidth_bytes_per_s for outlook in (alone, beside, streamed)]
    assert traffic[0] < traffic[1] < traffic[2] <= NODE.memory_bandwidth_bytes_per_s


def test_parts_agree_with_the_outlook() -> None:
    """What an exhaustive search puts together of the parts is what a run sees, field by field."""
    machine = Machine(NODE, {name: ALL[name] for name in ("xapian", "moses")})
    loads = {"xapian": 3000.0, "moses": 900.0}
    held = {"xapian": (5, 8), "moses": (9, 12)}
    shares = [share(name, cores=cores, ways=ways, frequency_hz=2_000_000_000) for name, (cores, ways) in held.items()]
    outlook = machine.outlook(shares, loads)
    traffic = sum(machine.traffic_bytes_per_s(name, loads[name], ways * NODE.way_bytes) for name, (_, ways) in held.items())
    for name, (cores, ways) in held.items():
        rates = (NODE.memory_bytes, NODE.disk_bytes_per_s, NODE.network_bits_per_s)
        means = Means(cores, ways * NODE.way_bytes, 2e9, *rates)
        assert machine.conditions(name, loads[name], means, machine.strain(traffic)) == outlook.services[name]


def test_turbo_falls_with_active_cores() -> None:
    """A service alone gets the largest turbo; the same beside busy neighbours gets less; a fixed level is kept."""
    machine = Machine(NODE, ALL)
    parts = [share(name, cores=2, ways=3, memory_bytes=20_000_000_000) for name in ALL]
    quiet = machine.outlook(parts, {"moses": 100.0}).services["moses"]
    loud = machine.outlook(parts, {name: model.max_load_rps * 0.5 for name, model in ALL.items()} | {"moses": 100.0}).services[
        "moses"
    ]
    assert quiet.frequency_hz > 3_500_000_000
    assert loud.frequency_hz == 2_800_000_000
    fixed = machine.outlook([share(*ALL, frequency_hz=1_500_000_000)], {}).services["moses"]
    assert fixed.frequency_hz == 1_500_000_000


def test_power_limit_lowers_turbo_and_never_the_levels() -> None:
    """Hot best-effort cores take turbo from services down to the highest level, and no further; power stays within the limit."""
    hot = dataclasses.replace(JOB, core_power=8.0)
    machine = Machine(NODE, {"xapian": ALL["xapian"]}, hot)
    parts = [share("xapian", cores=4, ways=10), share(best_effort=True, cores=10, ways=10, frequency_hz=1_200_000_000)]
    cool = machine.outlook(parts, {"xapian": 2000.0})
    limited = machine.outlook([parts[0], parts[1]._replace(frequency_hz=None)], {"xapian": 2000.0})
    assert cool.services["xapian"].frequency_hz > limited.services["xapian"].frequency_hz
    assert limited.services["xapian"].frequency_hz >= 2_200_000_000
    assert cool.power_milliwatts <= NODE.power_milliwatts


def test_in_memory_service_is_killed_without_memory_for_its_load() -> None:
    """Under what the process needs it is killed; the need grows with the load; a service with data on disk lives on and reads."""
    assert one("memcached", 0.1, memory_bytes=9_000_000_000).killed is False
    assert one("memcached", 1.0, memory_bytes=9_000_000_000).killed is True
    assert one("mongodb", 0.5, memory_bytes=1_000_000_000).killed is False


def test_less_memory_reads_more_from_disk() -> None:
    """Page cache saves reads; short of the page set reads explode, with more of it they fall slowly."""
    reads = [one("mongodb", 0.9, memory_bytes=size * 10**9).disk_bytes for size in (50, 60, 80, 120)]
    assert reads[0] > 3 * reads[1]
    assert reads[1] > reads[2] > reads[3] > reads[1] / 2


def test_disk_and_network_are_stations_of_their_own() -> None:
    """Each has the rate that is held, and none is a station without a server."""
    conditions = one("mongodb", 0.5, disk_bytes_per_s=900_000, network_bits_per_s=1_000_000_000)
    assert conditions.stations[1].service_s == pytest.approx(conditions.disk_bytes / 900_000)
    assert conditions.stations[2].service_s == pytest.approx(ALL["mongodb"].network_bits / 1e9)
    assert one("mongodb", 0.5, disk_bytes_per_s=0).stations[1].capacity_rps == 0


def test_share_without_cores_serves_nothing() -> None:
    """A service without cores has capacity 0; a job without cores does nothing and is there."""
    machine = Machine(NODE, {"moses": ALL["moses"]}, JOB)
    outlook = machine.outlook([share("moses", cores=0), share(best_effort=True, cores=0)], {"moses": 100.0})
    assert outlook.services["moses"].stations[0].capacity_rps == 0
    assert outlook.best_effort.progress == 0.0
    assert outlook.best_effort.cpu_millicores == 0


def test_job_alone_does_all_of_its_work() -> None:
    """Alone on the whole node progress is 1; on half the cores less than that and more than a third; never more than 1."""
    machine = Machine(NODE, {}, JOB)
    whole, half = (machine.outlook([share(best_effort=True, cores=cores)], {}).best_effort for cores in (14, 7))
    slow = machine.outlook([share(best_effort=True, frequency_hz=1_200_000_000)], {}).best_effort
    assert whole.progress == pytest.approx(1.0)
    assert slow.frequency_hz == 1_200_000_000
    assert slow.progress == pytest.approx((1 + 1.2e9 / (whole.frequency_hz or 0)) / 2, rel=1e-3)
    assert half.progress is not None
    assert 1 / 3 < half.progress < 0.7


def test_unmanaged_job_delays_every_wake_up() -> None:
    """In one share with a job a service gets half the cores, busy siblings and the scheduler's delay."""
    machine = Machine(NODE, {"memcached": ALL["memcached"]}, JOB)
    loads = {"memcached": 100_000.0}
    alone = machine.outlook([share("memcached")], loads).services["memcached"]
    common = machine.outlook([share("memcached", best_effort=True)], loads).services["memcached"]
    assert common.fixed_s > alone.fixed_s + 0.012
    assert common.stations[0].service_s > 2 * alone.stations[0].service_s
    assert common.cpu_s < common.stations[0].service_s


def test_strain_counts_both_memory_and_cache() -> None:
    """Traffic presses on the memory by its bandwidth, and on the cache by the cache's."""
    strain = Machine(NODE, {}).strain(25e9)
    assert strain.memory_pressure == pytest.approx(1 + 2.5 * 0.5**4)
    assert strain.cache_use == pytest.approx(25 / 300)


def test_a_starved_service_moves_less() -> None:
    """What cannot be answered makes no memory traffic: Moses on one core is less than half of Moses on all."""
    machine = Machine(NODE, {"moses": ALL["moses"]})
    one_core, all_cores = (machine.outlook([share("moses", cores=cores)], {"moses": 2800.0}) for cores in (1, 14))
    assert one_core.memory_bandwidth_bytes_per_s < all_cores.memory_bandwidth_bytes_per_s / 2


def test_a_busy_sibling_costs_more_than_shared_time() -> None:
    """Beside a job a request's own core time grows by the sibling's slowdown of its compute part, whatever the job streams."""
    quiet = dataclasses.replace(JOB, memory_threads=0)
    machine = Machine(NODE, {"xapian": ALL["xapian"]}, quiet)
    parts = {"frequency_hz": 2_000_000_000}
    alone, common = (machine.outlook([share("xapian", best_effort=job, **parts)], {"xapian": 1.0}) for job in (False, True))
    slowed = common.services["xapian"].cpu_s / alone.services["xapian"].cpu_s
    assert slowed == pytest.approx(ALL["xapian"].sibling_slowdown, rel=0.1)


def test_common_share_gives_the_idle_neighbours_part_away() -> None:
    """Cores are shared by demand: beside an idle tenant a service is as fast as alone, beside a busy one slower."""
    machine = Machine(NODE, {name: ALL[name] for name in ("xapian", "moses")})
    common = share("xapian", "moses")
    idle, busy = (machine.outlook([common], {"xapian": 3000.0, "moses": moses}).services["xapian"] for moses in (0.0, 2500.0))
    alone = Machine(NODE, {"xapian": ALL["xapian"]}).outlook([share("xapian")], {"xapian": 3000.0}).services["xapian"]
    assert idle.stations[0].service_s == pytest.approx(alone.stations[0].service_s, rel=0.01)
    assert busy.stations[0].service_s > 1.2 * idle.stations[0].service_s


def test_common_disk_and_link_are_shared_by_demand() -> None:
    """Two that want more than half get half each; beside an idle one everything is left."""
    for name, station, rate in (("mongodb", 1, NODE.disk_bytes_per_s), ("nginx", 1, NODE.network_bits_per_s)):
        model = ALL[name]
        machine = Machine(NODE, {"one": model, "two": model})
        for load, part in ((3.0, 2), (0.0, 1)):
            outlook = machine.outlook([share("one", "two")], {"one": model.max_load_rps, "two": load * model.max_load_rps})
            found = outlook.services["one"]
            asked = found.disk_bytes if name == "mongodb" else found.network_bits
            assert found.stations[station].service_s == pytest.approx(asked * part / rate)


def test_common_cache_is_shared_by_accesses() -> None:
    """A tenant that streams drives another's lines out of their common ways: more of its requests' data comes from memory."""
    machine = Machine(NODE, {name: ALL[name] for name in ("sphinx", "moses")})
    idle, busy = (machine.outlook([share("sphinx", "moses")], {"sphinx": 3.0, "moses": load}) for load in (0.0, 2500.0))
    assert busy.services["sphinx"].memory_traffic_bytes > 1.1 * idle.services["sphinx"].memory_traffic_bytes


def test_common_memory_kills_the_largest_process_first() -> None:
    """Where in-memory services do not fit together, the largest ends, the rest goes on."""
    machine = Machine(NODE, {name: ALL[name] for name in ("memcached", "moses")})
    outlook = machine.outlook([share("memcached", "moses", memory_bytes=9_500_000_000)], {"memcached": 1000.0, "moses": 100.0})
    assert outlook.services["memcached"].killed is True
    assert outlook.services["moses"].killed is False


@pytest.mark.parametrize(
    ("count", "best_effort", "changes", "words"),
    [
        (15, False, {}, "15 services do not fit on 14 cores"),
        (14, True, {}, "14 services and best-effort jobs do not fit on 14 cores"),
        (6, False, {"cache_ways": 5}, "6 services do not fit on 5 cache ways"),
        (6, True, {"cache_classes": 6}, "6 services and best-effort jobs do not fit on 6 cache classes"),
    ],
)
def test_too_many_services_for_the_node(*, count: int, best_effort: bool, changes: dict[str, Any], words: str) -> None:
    """More holders than cores, ways or cache classes is refused with the numbers; one fewer is not."""
    profile = dataclasses.replace(NODE, **changes)
    tenants: dict[str, ServiceModel] = {f"xapian-{number}": ALL["xapian"] for number in range(count)}
    with pytest.raises(ImpossibleProfileError, match=words):
        Machine(profile, tenants, JOB if best_effort else None)
    del tenants["xapian-0"]
    Machine(profile, tenants, JOB if best_effort else None)


def test_impossible_parts_are_refused_with_all_mistakes() -> None:
    """A profile made in a program is checked as one from a file, every mistake at once."""
    wrong = dataclasses.replace(NODE, cache_ways=0, memory_bytes=-1, levels_hz=())
    with pytest.raises(ImpossibleProfileError) as caught:
        Machine(wrong, {})
    assert len(caught.value.mistakes) == 3
    with pytest.raises(ImpossibleProfileError, match="max_load_rps must be more than zero"):
        Machine(NODE, {"moses": dataclasses.replace(ALL["moses"], max_load_rps=0.0)})
    with pytest.raises(ImpossibleProfileError, match="at least one thread"):
        Machine(NODE, {}, dataclasses.replace(JOB, compute_threads=0, memory_threads=0))
