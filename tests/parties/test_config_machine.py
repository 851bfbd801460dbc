"""What a configuration asks for is compared with the machine, all of it at once, and nothing is changed."""

# ruff: noqa: E501 - a message is compared as it is printed, in one line

from __future__ import annotations

from pathlib import Path

import pytest

from parties.config import Problem, parse
from parties.config_machine import Machine, check_machine
from parties.doctor import asked
from parties.doctor.subject import Subject

TEXT = """\
version = 1
runtime_directory = "/run/parties"
state_directory = "/var/lib/parties"
[node.cores]
reserved = "0,2"
division = "whole"
[node.memory]
total = "4GiB"
[[service]]
name = "web"
target = "10ms"
cgroup = "/web"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two physical cores with two threads each (0 with 2, 1 with 3), 8 GiB, control groups v1 and one group, /web."""
    mounts = []
    for number, controller in enumerate(("cpu", "cpuset", "memory", "freezer", "blkio")):
        (tmp_path / "sys/fs/cgroup" / controller / "web").mkdir(parents=True)
        mounts.append(f"{number} 1 0:{number} / /sys/fs/cgroup/{controller} rw - cgroup cgroup rw,{controller}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("".join(mounts))
    (tmp_path / "proc/meminfo").write_text("MemTotal:        8388608 kB\nMemFree: 1 kB\n")
    for cpu in range(4):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "core_cpus_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-3\n")
    (tmp_path / "sys/class/net/lo").mkdir(parents=True)
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return Machine(tmp_path, user_id=0)


@pytest.fixture
def v2_machine(machine: Machine) -> Machine:
    """The same with control groups v2 alone, systemd, and one group, /web, that has every controller."""
    (machine.root / "proc/self/mountinfo").write_text("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (machine.root / "run/systemd/system").mkdir(parents=True)
    tree = machine.root / "sys/fs/cgroup"
    (tree / "web").mkdir()
    for name in ("cgroup.controllers", "cgroup.subtree_control"):
        (tree / name).write_text("cpuset cpu io memory pids\n")
    return machine


def found(machine: Machine, text: str) -> str:
    """The problems of a text on that machine, without the machine's own root in them."""
    return "\n".join(str(problem) for problem in check_machine(parse(text), machine)).replace(str(machine.root), "")


def left_alone(machine: Machine, text: str) -> list[Problem]:
    """What that machine does not manage of a text in which there is no mistake."""
    configuration = parse(text)
    assert not check_machine(configuration, machine)
    return asked.problems(configuration, asked.reports(Subject(machine.root, configuration.settings, machine.user_id)), ())


def test_a_fitting_machine_has_no_problem(machine: Machine) -> None:
    """Where everything is there, nothing is said."""
    assert found(machine, TEXT) == ""
    assert not left_alone(machine, TEXT)


def test_a_home_needs_managed_cores(machine: Machine) -> None:
    """On a machine with a socket for each core, whoever names no home lives where cores are managed, and a bad home is told."""
    for cpu in range(4):
        (machine.root / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id").write_text(f"{cpu % 2}\n")
    assert found(machine, TEXT) == ""
    assert found(machine, TEXT + "home = 1\n") == ""
    assert found(machine, TEXT + "home = 0\n") == (
        "line 13, service[0].home (web): domain 0 has no managed core; set home to one that has: 1 (CPU 1,3)"
    )


DB = """\
[[service]]
name = "db"
target = "10ms"
cgroup = "/db"
minimum = { cores = "2 cores" }
"""


def test_a_domain_too_narrow_for_who_lives_there_is_a_mistake(machine: Machine) -> None:
    """Two sockets of four cores: what does not fit into one is told by domain, unless the whole machine is too small or it spreads."""
    (machine.root / "sys/devices/system/cpu/online").write_text("0-7\n")
    for cpu in range(8):
        topology = machine.root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True, exist_ok=True)
        (topology / "core_cpus_list").write_text(f"{cpu}\n")
        (topology / "physical_package_id").write_text(f"{cpu // 4}\n")
    for controller in ("cpu", "cpuset", "memory"):
        (machine.root / "sys/fs/cgroup" / controller / "db").mkdir()
    web = TEXT.replace('reserved = "0,2"\n', "") + "home = 0\nminimum = { cores = '3 cores' }\n"
    assert found(machine, web + DB) == ""
    assert found(machine, web + DB + "home = 0\n") == (
        "line 4, node.cores: domain 0 has 4000 millicores, and the services that live there need 5000 at least (web 3000, db 2000); "
        "lower a minimum, or set home of one of them to another domain"
    )
    too_much = found(machine, web + DB.replace("2 c", "6 c"))
    assert "cannot give each service its floor" in too_much
    assert "domain" not in too_much


BATCH = '[[best_effort]]\nname = "batch"\ncgroup = "/batch"\n'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            '"/web"',
            '"/web/nginx"',
            (
                'line 12, service[0].cgroup (web): control group "/web/nginx" does not exist; start what makes it, or make it: '
                "mkdir -p /sys/fs/cgroup/cpuset/web/nginx /sys/fs/cgroup/memory/web/nginx"
            ),
        ),
        (
            '"/web"\n',
            f'"/web"\n{BATCH}',
            (
                'line 15, best_effort[0].cgroup (batch): control group "/batch" does not exist; start what makes it, or make it: '
                "mkdir -p /sys/fs/cgroup/cpuset/batch /sys/fs/cgroup/freezer/batch /sys/fs/cgroup/memory/batch"
            ),
        ),
        ('"0,2"', '"0,2,8-9"', "line 5, node.cores.reserved: CPU 8-9 is not online on this machine; online are 0-3"),
        ('"0,2"', '"0-3"', "line 5, node.cores.reserved: leaves no CPU to manage; online are 0-3"),
        (
            '"0,2"',
            '"0"',
            "line 4, node.cores.managed: CPU 2 shares a physical core with CPU 0, which is not managed; manage both or neither",
        ),
        (
            '"/web"\n',
            '"/web"\n[[service]]\nname = "db"\ntarget = "1ms"\ncgroup = "/web2"\n',
            (
                "line 4, node.cores.managed: 1 core cannot give each service its floor (web 1 core, db 1 core; together 2 cores); "
                "reserve fewer CPUs, lower the step or the minimums, or move a service elsewhere"
            ),
        ),
        (
            "4GiB",
            "16GiB",
            "line 8, node.memory.total: 16GiB is more than the machine has, 8192MiB; leave some of that for the system",
        ),
        (
            "[[service]]",
            '[node.network]\ndevice = "eth7"\nrate = "1Gbit/s"\n[[service]]',
            'line 10, node.network.device: there is no network device "eth7"; there are: lo',
        ),
        (
            "[[service]]",
            '[node.network]\ndevice = "eth7"\nrate = "1Gbit/s"\nnamespace = "blue"\n[[service]]',
            'line 12, node.network.namespace: there is no network namespace "blue"; see ip netns list',
        ),
        (
            "[[service]]",
            '[node.disk]\ndevice = "/dev/sdz"\n[[service]]',
            "line 10, node.disk.device: /dev/sdz: No such file or directory; name a disk such as /dev/sda, see lsblk",
        ),
        ('"/var/lib/parties"', '"/proc/meminfo/x"', "line 3, state_directory: /proc/meminfo is not a directory"),
        ("version = 1", 'version = 1\nrecord = "/proc/meminfo/x"', None),
    ],
)
def test_names_what_does_not_fit(machine: Machine, old: str, new: str, expected: str | None) -> None:
    """Each thing that the machine lacks has its place in the file and what to do."""
    text = TEXT.replace(old, new, 1)
    if "web2" in new:
        for controller in ("cpuset", "memory"):
            (machine.root / "sys/fs/cgroup" / controller / "web2").mkdir()
    assert found(machine, text) == (expected or "line 2, record: /proc/meminfo is not a directory")


def test_divided_cores_need_cpu_bandwidth(machine: Machine) -> None:
    """Where there are fewer cores than holders, the rules of divided cores hold, though the file alone could not tell."""
    text = TEXT.replace('"whole"', '"auto"\nperiod = "5ms"') + BATCH
    assert found(machine, text) == (
        "line 4, node.cores.floor: 100m of a period of 5ms is a quota of 500us, and the kernel refuses a quota under 1ms; "
        'raise the floor, or say period = "10ms"\n'
        'line 16, best_effort[0].cgroup (batch): control group "/batch" does not exist; start what makes it, or make it: '
        "mkdir -p /sys/fs/cgroup/cpu/batch /sys/fs/cgroup/cpuset/batch /sys/fs/cgroup/freezer/batch /sys/fs/cgroup/memory/batch"
    )


def test_a_missing_controller_is_a_warning(machine: Machine) -> None:
    """A machine without a mechanism runs with the others, and says which one it lacks."""
    mountinfo = machine.root / "proc/self/mountinfo"
    mountinfo.write_text("".join(line for line in mountinfo.read_text().splitlines(keepends=True) if "memory" not in line))
    (problem,) = left_alone(machine, TEXT)
    assert problem.warning
    assert str(problem).startswith(
        "warning, line 7, node.memory: memory will not be managed: no control-group v1 hierarchy for memory (found v1: blkio, cpu, cpuset, freezer;"
    )


def test_permission_is_asked_for_once(machine: Machine) -> None:
    """Who is not root is told so in one line."""
    assert found(Machine(machine.root, user_id=1000), TEXT) == (
        "only root may change control groups; run parties as root, for example with sudo"
    )


def test_controllers_may_be_named(machine: Machine) -> None:
    """A mount point of the file wins over what is found, and has to be a directory."""
    text = TEXT.replace("[node.cores]", '[controllers]\nmemory = "/nowhere"\n[node.cores]', 1)
    assert found(machine, text) == (
        "line 4, controllers: controllers.memory: /nowhere is not a directory; give the controller's mount point"
    )


def test_a_unit_and_a_container_that_are_not_there_are_told_with_what_to_do(machine: Machine) -> None:
    """Each under its own key, and the rest of the file is checked all the same."""
    (machine.root / "run/systemd/system").mkdir(parents=True)
    (machine.root / "sys/fs/cgroup/cpu/system.slice/db.service").mkdir(parents=True)
    text = TEXT.replace('cgroup = "/web"', 'unit = "bd.service"\ncontainer = "docker:web"')
    assert found(machine, text).splitlines() == [
        'line 12, service[0].unit (web): there is no unit "bd.service"; did you mean "db.service"?',
        'line 13, service[0].container (web): there is no container "docker:web"; see docker ps -a',
    ]


def test_a_fitting_v2_machine_has_no_problem(v2_machine: Machine) -> None:
    """The same file fits both versions."""
    assert found(v2_machine, TEXT) == ""
    assert not left_alone(v2_machine, TEXT)


def test_a_missing_v2_group_is_one_directory(v2_machine: Machine) -> None:
    """There is one tree, so there is one to make."""
    assert found(v2_machine, TEXT.replace('"/web"', '"/web/nginx"')) == (
        'line 12, service[0].cgroup (web): control group "/web/nginx" does not exist; start what makes it, or make it: '
        "mkdir -p /sys/fs/cgroup/web/nginx"
    )


def test_a_controller_that_systemd_does_not_pass_on_is_a_warning(v2_machine: Machine) -> None:
    """With the file, whose it is, and what to do; on a machine without systemd the daemon enables it by itself."""
    (v2_machine.root / "sys/fs/cgroup/cgroup.subtree_control").write_text("cpu memory pids\n")
    (problem,) = left_alone(v2_machine, TEXT)
    assert problem.warning
    assert "/web has no cpuset controller: " in str(problem)
    assert "cgroup.subtree_control does not name it, and that part of the tree is systemd's; set Delegate=cpuset" in str(problem)
    (v2_machine.root / "run/systemd/system").rmdir()
    assert not left_alone(v2_machine, TEXT)


def test_a_controller_that_the_v2_kernel_lacks_is_a_warning(v2_machine: Machine) -> None:
    """Memory is often switched off on the kernel's command line."""
    (v2_machine.root / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset cpu\n")
    (problem,) = left_alone(v2_machine, TEXT)
    assert problem.warning
    assert str(problem).startswith(
        "warning, line 7, node.memory: memory will not be managed: no control-group controller memory in "
    )
    assert "switched off by cgroup_disable=" in str(problem)


def test_a_hybrid_machine_needs_the_group_in_both(machine: Machine) -> None:
    """The CPU set in v1, memory in v2: each where it is, each named where the group is missing."""
    (machine.root / "proc/self/mountinfo").write_text(
        "1 1 0:1 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n2 1 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    tree = machine.root / "sys/fs/cgroup/unified"
    (tree / "web").mkdir(parents=True)
    for name in ("cgroup.controllers", "cgroup.subtree_control"):
        (tree / name).write_text("memory\n")
    assert found(machine, TEXT) == ""
    (tree / "web").rmdir()
    (machine.root / "sys/fs/cgroup/cpuset/web").rmdir()
    assert "mkdir -p /sys/fs/cgroup/cpuset/web /sys/fs/cgroup/unified/web" in found(machine, TEXT)
