"""The machine's shape, read from trees of real shapes."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from monitors.topology import Topology, TopologyError
from parties.model import Core, Domain
from parties.units import format_cpu_list


def machine(  # noqa: PLR0913 (a machine has that many sides)
    root: Path,
    cpus: Iterable[int],
    *,
    core: Callable[[int], tuple[int, ...]],
    socket: Callable[[int], int],
    l3: Callable[[int], int | None],
    numa: Callable[[int], int],
    online: Iterable[int] | None = None,
) -> Path:
    """Writes the files of /sys that tell a machine's shape."""
    cpus = list(cpus)
    system = root / "sys/devices/system"
    for cpu in cpus:
        topology = system / f"cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "core_cpus_list").write_text(format_cpu_list(core(cpu)) + "\n")
        (topology / "physical_package_id").write_text(f"{socket(cpu)}\n")
        for index, (level, number) in enumerate([(1, cpu), (1, cpu), (2, cpu), (3, l3(cpu))]):
            if number is not None:
                cache = system / f"cpu/cpu{cpu}/cache/index{index}"
                cache.mkdir(parents=True)
                (cache / "level").write_text(f"{level}\n")
                (cache / "id").write_text(f"{number}\n")
    for node in {numa(cpu) for cpu in cpus}:
        (system / f"node/node{node}").mkdir(parents=True)
        (system / f"node/node{node}/cpulist").write_text(format_cpu_list(cpu for cpu in cpus if numa(cpu) == node) + "\n")
    (system / "cpu/online").write_text(format_cpu_list(cpus if online is None else online) + "\n")
    return root


@pytest.fixture(scope="module")
def xeon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sockets of 22 cores with two threads each, threads numbered as Linux does: n and n + 44 (the paper's, Table 1)."""
    return machine(
        tmp_path_factory.mktemp("xeon"),
        range(88),
        core=lambda cpu: (cpu % 44, cpu % 44 + 44),
        socket=lambda cpu: cpu % 44 // 22,
        l3=lambda cpu: cpu % 44 // 22,
        numa=lambda cpu: cpu % 44 // 22,
    )


@pytest.fixture
def epyc(tmp_path: Path) -> Path:
    """One socket, four L3 caches of four cores without threads, whose ids are not consecutive; two NUMA nodes."""
    return machine(
        tmp_path,
        range(16),
        core=lambda cpu: (cpu,),
        socket=lambda _: 0,
        l3=lambda cpu: (0, 4, 8, 12)[cpu // 4],
        numa=lambda cpu: cpu // 8,
    )


def test_a_two_socket_xeon_with_threads(xeon: Path) -> None:
    """Both threads of a core go together, each socket is a domain with its own memory."""
    topology = Topology.read(xeon)
    assert len(topology.cores) == 44
    assert topology.cores[3] == Core(3, (3, 47))
    assert topology.sockets == (0, 1)
    domains = topology.managed_domains()
    assert [(domain.id, len(domain.cores)) for domain in domains] == [(0, 22), (1, 22)]
    assert topology.mems(domains) == {0: (0,), 1: (1,)}


def test_the_paper_s_split_manages_one_socket(xeon: Path) -> None:
    """Eight cores of a socket reserved, fourteen managed, the other socket reserved as a whole."""
    reserved = (*range(8), *range(44, 52), *range(22, 44), *range(66, 88))
    (domain,) = Topology.read(xeon).managed_domains(reserved=reserved)
    assert domain.id == 0
    assert [core.id for core in domain.cores] == list(range(8, 22))
    assert domain.cores[0].cpus == (8, 52)


def test_an_epyc_with_several_l3_caches(epyc: Path) -> None:
    """A domain for each L3 under the id that the kernel gives it; two of them share a NUMA node."""
    topology = Topology.read(epyc)
    domains = topology.managed_domains(reserved=(0, 1))
    assert domains[0] == Domain(0, (Core(2, (2,)), Core(3, (3,))))
    assert [domain.id for domain in domains] == [0, 4, 8, 12]
    assert topology.mems(domains) == {0: (0,), 4: (0,), 8: (1,), 12: (1,)}
    assert [domain.id for domain in topology.managed_domains(managed=(9, 12))] == [8, 12]


def test_offline_threads_are_not_there(tmp_path: Path) -> None:
    """A core with a thread offline has the other one left, and is whole with it."""
    root = machine(
        tmp_path,
        range(4),
        core=lambda cpu: (cpu % 2, cpu % 2 + 2),
        socket=lambda _: 0,
        l3=lambda _: 0,
        numa=lambda _: 0,
        online=(0, 1, 2),
    )
    topology = Topology.read(root)
    assert topology.cores == (Core(0, (0, 2)), Core(1, (1,)))
    (domain,) = topology.managed_domains(reserved=(0, 2))
    assert domain.cpus == (1,)


def test_without_l3_the_socket_is_the_domain(tmp_path: Path) -> None:
    """Small virtual machines show no L3; kernels without NUMA have one node."""
    root = machine(tmp_path, range(4), core=lambda cpu: (cpu,), socket=lambda cpu: cpu // 2, l3=lambda _: None, numa=lambda _: 0)
    shutil.rmtree(root / "sys/devices/system/node")
    topology = Topology.read(root)
    domains = topology.managed_domains()
    assert [(domain.id, domain.cpus) for domain in domains] == [(0, (0, 1)), (1, (2, 3))]
    assert topology.mems(domains) == {0: (0,), 1: (0,)}


def test_caches_without_ids_are_told_apart_by_who_shares_them(tmp_path: Path) -> None:
    """Kernels before 4.11 give caches no id, those before 5.3 name siblings otherwise."""
    root = machine(tmp_path, range(4), core=lambda cpu: (cpu,), socket=lambda _: 0, l3=lambda cpu: cpu // 2, numa=lambda _: 0)
    for cpu in range(4):
        directory = root / f"sys/devices/system/cpu/cpu{cpu}"
        (directory / "topology/core_cpus_list").rename(directory / "topology/thread_siblings_list")
        (directory / "cache/index3/id").unlink()
        (directory / "cache/index3/shared_cpu_list").write_text(("0-1", "2-3")[cpu // 2] + "\n")
    domains = Topology.read(root).managed_domains()
    assert [(domain.id, domain.cpus) for domain in domains] == [(0, (0, 1)), (2, (2, 3))]


@pytest.mark.parametrize(
    ("reserved", "managed", "message"),
    [
        ((0, 44), (0, 44, 1, 45), r"CPUs 0,44 are reserved and managed; take them out of one"),
        ((88,), (), r"reserved CPUs 88 are not online; online are 0-87"),
        ((), (100, 101), r"managed CPUs 100-101 are not online"),
        ((0,), (), r"CPUs 44 and 0 are hardware threads of one core, and only 44 would be managed; reserve or manage both"),
        ((), (5,), r"CPUs 5 and 49 are hardware threads of one core, and only 5 would be managed"),
        (tuple(range(88)), (), r"every online CPU is reserved; leave at least one"),
    ],
)
def test_splits_that_cannot_be_are_refused(xeon: Path, reserved: tuple[int, ...], managed: tuple[int, ...], message: str) -> None:
    """Each mistake of an operator has a sentence with the CPUs and the way out."""
    with pytest.raises(TopologyError, match=message):
        Topology.read(xeon).managed_domains(reserved, managed)


@pytest.mark.parametrize(
    ("file", "text"), [("cpu/online", "zero"), ("cpu/cpu0/topology/physical_package_id", "x"), ("cpu/online", "")]
)
def test_a_description_that_cannot_be_read_names_its_file(epyc: Path, file: str, text: str) -> None:
    """Path and cause instead of a ValueError."""
    (epyc / "sys/devices/system" / file).write_text(text)
    with pytest.raises(TopologyError, match=file):
        Topology.read(epyc)


def test_a_root_without_sys_is_one_message(tmp_path: Path) -> None:
    """No /sys ends in a sentence."""
    with pytest.raises(TopologyError, match=r"cpu/online: cannot read the machine's shape: No such file"):
        Topology.read(tmp_path)


def test_fingerprint_tells_shapes_apart(tmp_path: Path) -> None:
    """The same shape has the same fingerprint; a CPU taken offline, another L3 or another node has not."""

    def fingerprint(name: str, *, l3: int = 0, numa: int = 0, online: Iterable[int] | None = None) -> str:
        root = machine(
            tmp_path / name,
            range(4),
            core=lambda cpu: (cpu,),
            socket=lambda _: 0,
            l3=lambda _: l3,
            numa=lambda _: numa,
            online=online,
        )
        return Topology.read(root).fingerprint

    assert fingerprint("a") == fingerprint("b")
    assert len({fingerprint("c"), fingerprint("d", l3=1), fingerprint("e", numa=1), fingerprint("f", online=(0, 1, 2))}) == 4
