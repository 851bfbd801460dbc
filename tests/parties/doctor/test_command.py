"""``parties doctor`` itself: exit codes, JSON, the table, and what it may not do."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from machines import machine

from monitors.rest import Interrupt, Process, Snapshot
from parties import cli
from parties.commands import doctor as command
from parties.doctor import cache, frequency, rest, tools
from parties.doctor.examine import examine_resource
from parties.doctor.model import RestReport, Verdict
from parties.doctor.report import examine
from parties.doctor.subject import Subject
from parties.lock import LOCK_NAME
from parties.model import NS_PER_S, Resource
from parties.settings import CacheSettings, ControlSettings, CoreSettings, NodeSettings

SubjectOf = Callable[[str], Subject]
RESOURCE_FIELDS = {"verdict", "asked", "mechanism", "unit", "range", "missing", "change"}


@pytest.fixture
def call(subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """A call on a shape, within this process."""

    def on(name: str, *words: str) -> Result:
        monkeypatch.setattr(command, "subject_for", lambda _file: subject_of(name))
        return CliRunner().invoke(cli.main, ["doctor", *words])

    return on


@pytest.mark.parametrize(("name", "code"), [("xeon-v2", 0), ("epyc", 1), ("virtual-machine", 1)])
def test_exit_codes(name: str, code: int, call: Callable[..., Result]) -> None:
    """0 where everything is managed, 1 where something is degraded or not managed; the same with JSON."""
    assert call(name).exit_code == code
    assert call(name, "--json").exit_code == code


def test_mistakes_have_one_message(tmp_path: Path) -> None:
    """A configuration that is none, or an option that does not exist, is exit code 2 and no traceback."""
    for words in (["-c", str(tmp_path / "none.toml")], ["--jsn"]):
        result = CliRunner().invoke(cli.main, ["doctor", *words])
        assert result.exit_code == 2
        assert "Traceback" not in result.output


def test_json_is_stable(call: Callable[..., Result]) -> None:
    """Scripts find the same fields on every machine; a field that goes or changes its name is a new version."""
    for name in ("xeon-v2", "virtual-machine"):
        said = json.loads(call(name, "--json").output)
        assert set(said) == {
            *("version", "verdict", "resources", "control_groups", "monitoring", "clock", "in_the_way", "rest", "unseen"),
        }
        assert said["version"] == 1
        assert list(said["resources"]) == ["cores", "cache", "frequency", "memory", "disk", "network"]
        assert all(set(one) == RESOURCE_FIELDS for one in said["resources"].values())
        lacks = [lack for one in said["resources"].values() for lack in one["missing"]]
        assert all(set(lack) == {"id", "text", "weight"} for lack in lacks)
        assert {lack["weight"] for lack in lacks} <= {"note", "degrades", "prevents"}
        assert set(said["control_groups"]) == {"version", "v1", "v2", "service_manager", "missing", "change"}
        assert set(said["monitoring"]) == {"pressure", "cache_occupancy", "memory_bandwidth", "missing", "change"}
        assert set(said["clock"]) == {"source", "available", "perf_event_paranoid", "missing", "change"}
        assert set(said["rest"]) == {"cpus", "processes", "kernel_threads", "interrupts", "change"}


def test_table_is_for_people(call: Callable[..., Result]) -> None:
    """Each resource has a line with its verdict, and each advice a line below; nothing is cut off in a pipe."""
    text = call("epyc").output
    line = next(line for line in text.splitlines() if line.strip().startswith("cache"))
    assert "degraded" in line
    assert "16 ways of 1 MiB" in line
    assert "  - cache: narrow its mask, or make it exclusive so that its ways are left alone" in text.splitlines()
    assert "kubelet, static CPU policy (/var/lib/kubelet/cpu_manager_state)" in text


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("xeon-v2", "managed: cores, cache, frequency, memory, disk, network"),
        ("epyc", "degraded: cache; managed: cores, frequency, memory, disk, network"),
        ("virtual-machine", "not managed: cache, frequency; degraded: disk; managed: cores, memory, network"),
    ],
)
def test_last_line_says_what_the_exit_code_is_for(name: str, summary: str, call: Callable[..., Result]) -> None:
    """Each resource by its verdict, the gravest first."""
    assert call(name).output.splitlines()[-1] == summary


def test_names_in_brackets_are_shown_as_they_are(call: Callable[..., Result]) -> None:
    """Tables of the configuration are named in square brackets, which are no markup."""
    assert 'managed = "0-7" in [node.cores]' in call("laptop").output


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that the test runs on is examined as whoever asks, and the exit code goes with the verdict."""
    monkeypatch.setattr(command, "subject_for", lambda _file: Subject(wait=lambda: None))
    result = CliRunner().invoke(cli.main, ["doctor", "--json"])
    said = json.loads(result.output)
    assert result.exit_code == (0 if said["verdict"] == Verdict.MANAGED else 1)
    assert all(one["verdict"] == "managed" or one["missing"] for one in said["resources"].values())
    assert bool(said["unseen"]) == (os.geteuid() != 0)


PRINTED = Path(__file__).parents[2] / "actuators/pqos"
FAILS = "echo cannot open /dev/cpu/0/msr; exit 1"
ANSWERS = f'exec cat "{PRINTED}/mba$2.txt"'


def _machine_with_pqos(root: Path, does: str = FAILS) -> Path:
    """A machine whose processor can what its kernel cannot, with a pqos that notes that it was run."""
    machine("virtual-machine", root)
    cpuinfo = root / "proc/cpuinfo"
    cpuinfo.write_text(cpuinfo.read_text().replace(" hypervisor", " cat_l3"))
    (root / "usr/sbin").mkdir(parents=True)
    (root / "usr/sbin/pqos").write_text(f"#!/bin/sh\necho $* >> {root}/ran\n{does}\n")
    (root / "usr/sbin/pqos").chmod(0o755)
    return root


def test_commands_of_another_machine_are_not_run(tmp_path: Path) -> None:
    """On a copy of a machine pqos is not run, and what it could do is said to be unseen."""
    root = _machine_with_pqos(tmp_path)
    found = cache.examine(Subject(root=root, user_id=0))
    assert not (root / "ran").exists()
    assert (found.verdict, found.lacks[0].id) == (Verdict.DEGRADED, "cache.unseen")


def test_pqos_is_asked_and_leaves_nothing(tmp_path: Path) -> None:
    """On the machine itself pqos is asked what there is; no lock and no snapshot appear in the runtime directory."""
    root = _machine_with_pqos(tmp_path, ANSWERS)
    runtime = root / "run/parties"
    settings = ControlSettings((), node=NodeSettings(cores=CoreSettings(), cache=CacheSettings()), runtime_directory=str(runtime))
    found = cache.examine(Subject(root=root, given=settings, user_id=0, live=True))
    assert [line.split()[-1] for line in (root / "ran").read_text().splitlines()] == ["-D", "-s"]
    assert (found.verdict, found.offer.mechanism) == (Verdict.DEGRADED, "pqos (MSRs)")
    assert "pqos -R" in found.lacks[0].change  # class 1 is of somebody else
    assert not runtime.exists()


def test_pqos_that_fails_has_its_reason(tmp_path: Path) -> None:
    """Where pqos cannot reach the processor, the advice is what lets it."""
    found = cache.examine(Subject(root=_machine_with_pqos(tmp_path), user_id=0, live=True))
    assert (found.verdict, found.lacks[0].change) == (Verdict.NOT_MANAGED, "modprobe msr")


def test_ordinary_user_is_sent_to_root_for_pqos(tmp_path: Path) -> None:
    """What fails for want of a permission is not blamed on the machine."""
    found = cache.examine(Subject(root=_machine_with_pqos(tmp_path), user_id=1000, live=True))
    assert "as root" in found.lacks[0].change


def test_daemon_that_runs_is_named(tmp_path: Path) -> None:
    """A daemon at work is in the way of a verdict, as its own values look like somebody else's."""
    root = machine("virtual-machine", tmp_path)
    lock = root / "run/parties" / LOCK_NAME
    lock.parent.mkdir(parents=True)
    lock.touch()
    status = lock.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    (root / "proc/locks").write_text(f"1: FLOCK  ADVISORY  WRITE 4711 {place} 0 EOF\n")
    assert [(tool.name, tool.seen) for tool in tools.in_the_way(Subject(root=root))] == [("parties", "process 4711")]


def test_containers_on_all_cpus_are_not_in_the_way(tmp_path: Path) -> None:
    """On v1 every group lists CPUs: only one that has fewer than the machine takes some away."""
    root = machine("virtual-machine", tmp_path)
    for name, cpus in (("free", "0-1"), ("confined", "1"), ("fresh", "")):
        (root / "sys/fs/cgroup/cpuset/docker" / name).mkdir(parents=True)
        (root / "sys/fs/cgroup/cpuset/docker" / name / "cpuset.cpus").write_text(f"{cpus}\n")
    assert [tool.seen for tool in tools.in_the_way(Subject(root=root))] == ["/sys/fs/cgroup/cpuset/docker/confined"]


def test_files_that_an_ordinary_user_may_not_write(subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequency that root could set counts as managed for whoever asks; a file that root cannot write does not."""
    monkeypatch.setattr("actuators.frequency.actuator.os.access", lambda *_: False)
    root = subject_of("laptop").root
    verdicts = [
        examine_resource(Subject(root=root, user_id=user), Resource.FREQUENCY, frequency.SPECIALIST).verdict for user in (1000, 0)
    ]
    assert verdicts == [Verdict.MANAGED, Verdict.NOT_MANAGED]


def _rest_of(subject: Subject, *, millicores: int, per_s: int) -> RestReport:
    cpus = frozenset({0, 1})
    busy = Process(7, "backup", 1, 0, 1, cpus, groups=("/", "/system.slice/backup.service"))
    thread = Process(8, "kworker/u8:0", 1, 0, 0, cpus, kernel_thread=True)
    disk = Interrupt("36", "virtio1-req.0", {0: 0, 1: 0}, cpus, frozenset({1}))
    before = Snapshot(0, {7: busy, 8: thread}, {"36": disk})
    ticks = millicores * os.sysconf("SC_CLK_TCK") // 1000
    after = Snapshot(
        NS_PER_S,
        {
            7: Process(7, "backup", 1, ticks, 1, cpus, groups=busy.groups),
            8: Process(8, thread.name, 1, ticks, 0, cpus, kernel_thread=True),
        },
        {"36": Interrupt("36", disk.name, {0: 0, 1: per_s}, cpus, frozenset({1}))},
    )
    return rest.tell(subject, before, after)


def test_rest_of_the_machine_is_named_with_its_cost(subject_of: SubjectOf) -> None:
    """Who takes how much of the managed CPUs is said by name and unit, and the switch that keeps it off."""
    report = _rest_of(subject_of("virtual-machine"), millicores=250, per_s=900)
    assert report.lines == (
        "1 process outside every registered group may run on CPUs 0-1, and took 0.25 cores: backup (7) 0.25",
        "1 kernel thread, 1 of which can be moved, took 0.25 cores: kworker/u8:0 (8) 0.25",
        "900 interrupts of devices per second there: 36 virtio1-req.0 900/s",
    )
    processes = report.facts["processes"]
    assert isinstance(processes, dict)
    assert processes["top"] == [
        {
            "pid": 7,
            "name": "backup",
            "group": "/system.slice/backup.service",
            "millicores": 250,
            "cpu": 1,
            "allowed_cpus": "0-1",
        }
    ]
    assert [change.split(" = ")[0] for change in report.change] == ["processes", "kernel_threads", "interrupts"]
    assert all(change.endswith("; it needs reserved CPUs in [node.cores]") for change in report.change)
    given = ControlSettings((), node=NodeSettings(cores=CoreSettings(reserved_cpus=(0,))))
    reserving = _rest_of(dataclasses.replace(subject_of("virtual-machine"), given=given), millicores=250, per_s=900)
    assert [change for change in reserving.change if "reserved" in change] == []


def test_quiet_machine_needs_no_change(subject_of: SubjectOf) -> None:
    """What costs next to nothing is no reason to move anything."""
    assert not _rest_of(subject_of("virtual-machine"), millicores=0, per_s=3).change


def test_two_looks_are_taken_with_a_wait_between(subject_of: SubjectOf) -> None:
    """What runs is measured over the subject's time, once."""
    waits: list[int] = []
    shape = subject_of("virtual-machine")
    examine(Subject(root=shape.root, user_id=0, wait=lambda: waits.append(1), support=shape.support))
    assert waits == [1]
