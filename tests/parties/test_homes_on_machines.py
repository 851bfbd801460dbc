"""Homes on recorded machines, with the whole daemon but for its loop: who is put where, and who stays there."""

from __future__ import annotations

import contextlib
import json
import random
import selectors
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from machines import machine

from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.layer import find_layer
from monitors.topology import Topology
from parties import cli
from parties.assembly import Host
from parties.commands import check as command
from parties.doctor.subject import Subject
from parties.interfaces import Actuator
from parties.makers import MAKERS, Parts, pools_of_homes
from parties.model import BEST_EFFORT, IDLE, Holder, Node, PoolKey, QosTarget, Resource, Service
from parties.placement import place
from parties.policies.fair import fair_start
from parties.policies.registry import policy_named
from parties.settings import (
    BestEffortSettings,
    CacheSettings,
    ControlSettings,
    CoreSettings,
    FrequencySettings,
    MemorySettings,
    NodeSettings,
    PartiesSettings,
    ServiceSettings,
)
from parties.units import parse_cpu_list

FIRST, SECOND = frozenset((*range(22), *range(44, 66))), frozenset((*range(22, 44), *range(66, 88)))
FILES = {
    "cpuset": {"cpuset.cpus": "", "cpuset.mems": ""},
    "cpu,cpuacct": {"cpuacct.usage": "0", "cgroup.procs": ""},
    "freezer": {"freezer.state": "THAWED"},
    "memory": {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "0", "memory.stat": ""},
}


class Xeon:
    """The machine: its files, what a daemon told, and the daemon's settings."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.root = root
        self.told: list[str] = []
        self.settings = ControlSettings(
            services=(),
            best_effort=(BestEffortSettings("batch", ("/batch",)),),
            node=NodeSettings(cores=CoreSettings(), memory=MemorySettings(10**9, step_bytes=10**7)),
            runtime_directory=str(directory / "run"),
            state_directory=str(directory / "state"),
        )
        for name in ("run", "state"):
            (directory / name).mkdir()
        self.group("batch")

    def group(self, name: str) -> None:
        """Make a control group."""
        for controller, files in FILES.items():
            (self.root / "sys/fs/cgroup" / controller / name).mkdir()
            for file, text in files.items():
                (self.root / "sys/fs/cgroup" / controller / name / file).write_text(f"{text}\n")

    def cpus(self, name: str) -> frozenset[int]:
        """Where a group may run."""
        return frozenset(parse_cpu_list((self.root / "sys/fs/cgroup/cpuset" / name / "cpuset.cpus").read_text()))

    def mems(self, name: str) -> str:
        """The memory nodes of a group."""
        return (self.root / "sys/fs/cgroup/cpuset" / name / "cpuset.mems").read_text().strip()

    @contextlib.contextmanager
    def daemon(self, *services: ServiceSettings, leaving: bool = False) -> Iterator[Host]:
        """A daemon from its start to its stop, at which it puts everything back unless it is to leave it."""
        settings = replace(self.settings, services=services)
        with selectors.DefaultSelector() as selector:
            host = Host(settings, selector, lambda level, text: self.told.append(f"{level}: {text}"))
            try:
                policy = policy_named("parties")
                rng = random.Random(1)  # noqa: S311 - replayable
                host.open(policy(host.node, host.services, best_effort=True, settings=PartiesSettings(), rng=rng))
                host.start()
                file = host.in_force_file()
                assert file is not None
                assert file.keep()
                yield host
                if leaving:
                    assert host.leave(file)
            finally:
                host.close()


@pytest.fixture
def xeon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Xeon:
    """Two sockets of 22 cores with two threads each, Linux 4.4, control groups v1; three services' groups and a job's."""
    root = machine("xeon-v1", tmp_path / "machine")
    shape, hierarchies = Topology.read(root), Hierarchies.find(root)
    monkeypatch.setattr(Topology, "read", lambda *_: shape)
    monkeypatch.setattr(Hierarchies, "find", lambda *_, **__: hierarchies)
    made = Xeon(root, tmp_path)
    for name in ("web", "db", "cache"):
        made.group(name)
    return made


def held(host: Host, pool: PoolKey) -> Mapping[Holder, int]:
    """Who has how much of a pool."""
    assert host.platform.placement is not None
    return host.platform.placement.partition.amounts[pool]


def service(name: str, home: int | None = None) -> ServiceSettings:
    """A service in the group of its name."""
    return ServiceSettings(name, 10_000_000, (f"/{name}",), home=home)


WEB, DB, CACHE = service("web"), service("db"), service("cache")


def test_both_sockets_are_in_use(xeon: Xeon) -> None:
    """Services that name no home are on one socket each with the memory beside it, best-effort jobs on both; it is said once."""
    with xeon.daemon(WEB, DB) as host:
        assert host.homes == {"web": 0, "db": 22}
        assert host.notices[0] == "services live in domain 0 (CPU 0-21,44-65): web; 22 (CPU 22-43,66-87): db"
        assert xeon.cpus("web") < FIRST
        assert xeon.cpus("db") < SECOND
        assert (xeon.mems("web"), xeon.mems("db"), xeon.mems("batch")) == ("0", "1", "0-1")
        assert xeon.cpus("batch") == (FIRST | SECOND) - xeon.cpus("web") - xeon.cpus("db")
        assert len(xeon.cpus("web")) == len(xeon.cpus("db")) == 22
        assert held(host, PoolKey(Resource.CORES, 0)).keys() == {"web", BEST_EFFORT, IDLE}
        assert held(host, PoolKey(Resource.MEMORY)).keys() == {"web", "db", BEST_EFFORT, IDLE}
    assert xeon.cpus("web") == xeon.cpus("db") == frozenset()


def test_a_socket_without_services_is_the_job_s(xeon: Xeon) -> None:
    """Where all services name the same home, nothing of the other socket is idle."""
    with xeon.daemon(service("web", 22), service("db", 22)) as host:
        assert xeon.cpus("batch") > FIRST
        assert held(host, PoolKey(Resource.CORES, 0)) == {BEST_EFFORT: 22_000, IDLE: 0}
        assert "1 more domain has no service" in host.notices[0]


def test_a_reload_leaves_everybody_at_home(xeon: Xeon) -> None:
    """Others come first in the file and go: whoever stays has the very same CPUs and nodes; a newcomer goes where there is room."""
    with xeon.daemon(WEB, DB, leaving=True):
        before = {name: (xeon.cpus(name), xeon.mems(name)) for name in ("web", "db")}
    with xeon.daemon(CACHE, DB, leaving=True) as host:
        assert host.homes == {"cache": 0, "db": 22}
        assert (xeon.cpus("db"), xeon.mems("db")) == before["db"]
        assert xeon.cpus("cache") < FIRST
    with xeon.daemon(DB, leaving=True) as host:
        assert host.homes == {"db": 22}  # a fresh start would have put it on the first socket
        assert (xeon.cpus("db"), xeon.mems("db")) == before["db"]
    with xeon.daemon(DB) as host:
        assert host.homes == {"db": 22}
    assert xeon.cpus("db") == frozenset()


def test_a_fresh_start_knows_no_homes(xeon: Xeon) -> None:
    """After a stop that put everything back, and after a crash, the file alone decides."""
    with xeon.daemon(WEB, DB):
        pass
    with xeon.daemon(DB, WEB, leaving=True) as host:
        assert host.homes == {"db": 0, "web": 22}
    (Path(xeon.settings.runtime_directory) / "resume").unlink()
    with xeon.daemon(WEB, DB) as host:
        assert host.homes == {"web": 0, "db": 22}
        assert xeon.cpus("web") < FIRST


def test_who_is_sent_to_another_socket_goes(xeon: Xeon) -> None:
    """A home that is named now wins over the one in force: CPUs and nodes follow, and nobody shares a core."""
    with xeon.daemon(WEB, DB, leaving=True):
        stays = xeon.cpus("web")
    with xeon.daemon(WEB, service("db", 0)) as host:
        assert host.homes == {"web": 0, "db": 0}
        assert xeon.cpus("web") == stays
        assert xeon.cpus("db") < FIRST - stays
        assert (xeon.mems("web"), xeon.mems("db")) == ("0", "0")
        assert xeon.cpus("batch") >= SECOND


@pytest.mark.parametrize(("name", "domains"), [("xeon-v2", 2), ("epyc", 16)])
def test_ways_and_frequencies_are_those_of_the_home(name: str, domains: int, tmp_path: Path) -> None:
    """Where resctrl and cpufreq have a pool for each domain: a service draws from its own alone, and best-effort jobs from all."""
    root = machine(name, tmp_path / "machine")
    shape = Topology.read(root)
    node_settings = NodeSettings(cores=CoreSettings(), cache=CacheSettings(), frequency=FrequencySettings())
    settings = ControlSettings((WEB, DB), node=node_settings, runtime_directory=str(tmp_path))
    managed = {"web": ("/web",), "db": ("/db",), BEST_EFFORT: ("/batch",)}
    parts = Parts(settings, find_layer(Hierarchies.find(root), root), managed, shape, shape.managed_domains(), root=root)
    with closing(MAKERS[Resource.CACHE](parts)) as cache, closing(MAKERS[Resource.FREQUENCY](parts)) as frequency:
        pools = (*pools_of_homes(settings, parts.domains, root)[:domains], *cache.pools(), *frequency.pools())
        node = Node(name, parts.domains, {pool.key: pool for pool in pools})
        services = [Service(one.name, QosTarget(one.target_ns), home=parts.homes[one.name]) for one in settings.services]
        partition = fair_start(node, services, best_effort=True)
        partition.check(node, services)
        for pool in node.managed_pools():
            at_home = {one for one, home in parts.homes.items() if home == pool.key.domain}
            assert partition.amounts[pool.key].keys() - {IDLE} == at_home | {BEST_EFFORT}, pool.key
        assert {pool.key.domain for pool in node.managed_pools() if pool.key.resource is Resource.FREQUENCY} == set(range(domains))
        placement = place(node, partition, None)
        masks = {(one, domain) for domain, one in placement.way_masks if placement.way_masks[domain, one]}
        assert masks == {("web", 0), ("db", 1), *((BEST_EFFORT, domain) for domain in range(domains))}
        assert set(placement.cpus["web"]) < set(parts.domains[0].cpus)
        assert set(placement.cpus["db"]) < set(parts.domains[1].cpus)
        written = {(write.holder, write.knob.ref.address[-1]) for write in cache.writes(placement, None) if write.holder in managed}
        assert {(one, str(domain)) for one in managed for domain in range(domains)} <= written


def closing(actuator: Actuator | None) -> AbstractContextManager[Actuator]:
    """An actuator that is there, given up at the end."""
    assert actuator is not None
    return contextlib.closing(actuator)


def test_check_says_who_would_live_where(xeon: Xeon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the summary and in JSON; without the machine nobody knows."""
    file = tmp_path / "parties.toml"
    tables = "".join(f'[[service]]\nname = "{name}"\ntarget = "10ms"\ncgroup = "/{name}"\n' for name in ("web", "db"))
    directories = f'runtime_directory = "{tmp_path}/run"\nstate_directory = "{tmp_path}/state"\n'
    file.write_text(f"version = 1\n{directories}[node.cores]\n{tables}")
    monkeypatch.setattr(command, "subject_of", lambda settings: Subject(xeon.root, settings, user_id=0))

    def call(*words: str) -> str:
        result = CliRunner().invoke(cli.main, ["check", *words, str(file)])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "services web (domain 0), db (domain 22); " in call()
    assert "services web, db; " in call("--no-machine")
    assert json.loads(call("--json"))["homes"] == {"web": 0, "db": 22}
    assert json.loads(call("--json", "--no-machine"))["homes"] == {}
