"""Recorded machine shapes: what the doctor says of each."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from cpuid_kit import BROADWELL, WITHOUT, Answers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import DIRECTORY, Entry, entries, names, unpack

from actuators.network.probe import KernelSupport
from monitors.topology import Topology
from parties.doctor import cores as cores_of
from parties.doctor import network
from parties.doctor.model import Report, ResourceReport, Verdict, report_to_json
from parties.doctor.report import examine
from parties.doctor.subject import Subject
from parties.interfaces import Actuator
from parties.model import Core, Domain, Pool, PoolKey, Resource
from parties.settings import CacheSettings, ControlSettings, CoreDivision, CoreSettings, NodeSettings, ServiceSettings

SubjectOf = Callable[[str], Subject]
M, D, N = Verdict.MANAGED, Verdict.DEGRADED, Verdict.NOT_MANAGED


@pytest.fixture(scope="module")
def report_of(subject_of: SubjectOf) -> Callable[[str], Report]:
    """The report on a shape, made once."""
    return functools.cache(lambda name: examine(subject_of(name)))


def _of(report: Report, resource: Resource) -> ResourceReport:
    return next(one for one in report.resources if one.resource is resource)


def _texts(report: Report) -> str:
    """All that the doctor says, to search in."""
    return json.dumps(report_to_json(report), ensure_ascii=False)


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [  # cores, cache, frequency, memory, disk, network
        ("xeon-v2", (M, M, M, M, M, M)),
        ("xeon-v1", (M, N, M, M, D, M)),
        ("epyc", (M, D, M, M, M, M)),
        ("laptop", (D, N, M, M, M, M)),
        ("virtual-machine", (M, N, N, M, D, M)),
    ],
)
def test_verdicts(name: str, verdicts: tuple[Verdict, ...], report_of: Callable[[str], Report]) -> None:
    """Each shape has its verdict for each resource, and the whole has the gravest of them."""
    report = report_of(name)
    assert tuple(one.verdict for one in report.resources) == verdicts
    assert report.verdict == max(verdicts, key=list(Verdict).index)


def test_every_shape_is_examined() -> None:
    """A shape that is added has to be added to the table above."""
    assert names() == ["epyc", "laptop", "virtual-machine", "xeon-v1", "xeon-v2"]


@pytest.mark.parametrize(
    ("name", "resource", "mechanism", "unit", "range_"),
    [
        ("xeon-v2", "cores", "CPU sets (control groups v2", "core", "44 cores of 2 hardware threads in 2 L3 domains, id 0 1"),
        (
            "xeon-v2",
            "cache",
            "resctrl (/sys/fs/resctrl)",
            "way",
            "20 ways of 2.75 MiB in 2 L3 domains, id 0 1, 18 of them to hand out; 16 classes; ways 18-19 are shared with devices",
        ),
        (
            "xeon-v2",
            "frequency",
            "governor userspace, performance as turbo (acpi-cpufreq)",
            "Hz",
            "11 levels from 1.2 GHz to 2.2 GHz, and turbo; 88 clocks",
        ),
        ("xeon-v2", "memory", "memory.reclaim, memory.high, memory.max (control groups v2", "byte", "270 GB in steps of 1 GB"),
        ("xeon-v2", "disk", "io.max (control groups v2", "byte/s", "/dev/sda (8:0): "),
        ("xeon-v2", "network", "HTB, traffic told by control group or port", "bit/s", "eno1: 10 Gbit/s in steps of 500 Mbit/s"),
        ("xeon-v1", "cores", "CPU sets (control groups v1)", "core", "44 cores of 2 hardware threads in 2 L3 domains, id 0 22"),
        ("xeon-v1", "network", "HTB, traffic told by net_cls or port", "bit/s", "eno1: 10 Gbit/s"),
        ("xeon-v1", "disk", "blkio.throttle (control groups v1)", "byte/s", "/dev/sda (8:0): "),
        ("epyc", "cache", "resctrl (/sys/fs/resctrl)", "way", "16 ways of 1 MiB in 16 L3 domains, id 0 1 2 3"),
        ("epyc", "frequency", "governor userspace", "Hz", "3 levels from 1.5 GHz to 2 GHz, and turbo to 3.35 GHz; 128 clocks"),
        ("laptop", "frequency", "scaling_max_freq as a cap (intel_pstate)", "Hz", "12 levels from 400 MHz to 1.5 GHz"),
        ("virtual-machine", "memory", "memory.limit_in_bytes (control groups v1)", "byte", "25 GB in steps of 1 GB"),
    ],
)
def test_offers(  # noqa: PLR0913, PLR0917 (a row of the table)
    name: str, resource: str, mechanism: str, unit: str, range_: str, report_of: Callable[[str], Report]
) -> None:
    """What there is: mechanism, unit and range, with paths as they are on the machine itself."""
    offer = _of(report_of(name), Resource(resource)).offer
    assert offer.mechanism.startswith(mechanism)
    assert offer.unit == unit
    assert offer.range.startswith(range_)


@pytest.mark.parametrize(("cores", "lacking"), [((1, 1, 1), True), ((1, 2), False), ((1,), False), ((4, 4), False)])
def test_domains_of_one_core_are_a_lack(cores: tuple[int, ...], *, lacking: bool, shapes: Callable[[str], Path]) -> None:
    """A virtual machine with a socket for each core: no service can be given a second one; one socket, or larger ones, are fine."""
    subject = Subject(root=shapes("virtual-machine"), user_id=0)
    vars(subject)["domains"] = tuple(
        Domain(number, tuple(Core(10 * number + core, (10 * number + core,)) for core in range(count)))
        for number, count in enumerate(cores)
    )
    assert [lack.id for lack in cores_of.has_roomy_homes(subject)] == ["cores.narrow-domains"] * lacking


def test_who_would_live_where_is_told(subject_of: SubjectOf) -> None:
    """With services that name no home the doctor says how they would be spread over the sockets."""
    services = tuple(ServiceSettings(name, 10, ("/",)) for name in ("web", "db"))
    given = ControlSettings(services, node=NodeSettings(cores=CoreSettings()))
    subject = dataclasses.replace(subject_of("xeon-v2"), given=given)
    offer = cores_of.describe(subject, cast("Actuator", None), [Pool(PoolKey(Resource.CORES, 0), 22000, 1000, 1000)])
    assert offer.range.endswith("; services live in domain 0 (CPU 0-21,44-65): web; 1 (CPU 22-43,66-87): db")


@pytest.mark.parametrize(
    ("name", "resource", "lack", "change"),
    [
        ("xeon-v1", "cache", "cache.not-managed", "modprobe cpuid"),
        ("xeon-v1", "disk", "disk.buffered-writes", "boot Linux 5.2 or later, with systemd.unified_cgroup_hierarchy=1"),
        ("epyc", "cache", "cache.problem", "narrow its mask"),
        ("laptop", "cores", "cores.unequal", 'managed = "0-7" in [node.cores]'),
        ("laptop", "cache", "cache.not-managed", "Intel RDT or AMD QoS"),
        ("laptop", "frequency", "frequency.only-capped", "intel_pstate=passive"),
        ("virtual-machine", "cores", "cores.few", ""),
        ("virtual-machine", "cache", "cache.not-managed", "a virtual machine has no cache allocation"),
        ("virtual-machine", "frequency", "frequency.not-managed", "the host decides on the frequency"),
        ("virtual-machine", "disk", "disk.buffered-writes", "unmount the v1 hierarchies"),
    ],
)
def test_advice(name: str, resource: str, lack: str, change: str, report_of: Callable[[str], Report]) -> None:
    """What is missing has its name for scripts, and says what to change on a machine of that kind."""
    lacks = {one.id: one for one in _of(report_of(name), Resource(resource)).lacks}
    assert change in lacks[lack].change


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("xeon-v2", set()),
        ("xeon-v1", {"irqbalance"}),
        ("laptop", {"thermald", "power-profiles-"}),
        (
            "epyc",
            {
                "kubelet",
                "containerd",
                "kubelet, static CPU policy",
                "another user of resctrl",
                "CPU set of a container or virtual machine",
            },
        ),
    ],
)
def test_tools_in_the_way(name: str, tools: set[str], report_of: Callable[[str], Report]) -> None:
    """Who else sets the same values is named, once each, with what to do."""
    found = report_of(name).in_the_way
    assert {tool.name for tool in found} == tools
    assert len(found) == len(tools)
    assert all(tool.change and tool.why and tool.seen for tool in found)


def test_sections(report_of: Callable[[str], Report]) -> None:
    """Control groups, monitoring and the clock are told for a machine that has all of it and for one that has nothing."""
    rich = {section.name: section for section in report_of("xeon-v2").sections}
    assert rich["control_groups"].facts["version"] == "v2"
    assert rich["monitoring"].facts == {
        "pressure": "per control group",
        "cache_occupancy": "resctrl",
        "memory_bandwidth": "resctrl",
    }
    assert rich["clock"].facts["source"] == "tsc"
    assert not [lack for section in rich.values() for lack in section.lacks]
    poor = {section.name: section for section in report_of("xeon-v1").sections}
    assert poor["control_groups"].facts["version"] == "v1"
    assert {lack.id for section in poor.values() for lack in section.lacks} == {
        "control-groups.v1-under-systemd",
        "monitoring.no-pressure",
        "monitoring.no-resctrl",
    }


def test_paths_are_the_machines_own(report_of: Callable[[str], Report], subject_of: SubjectOf) -> None:
    """Whoever examines a copy reads paths as they are on the machine, not where the copy lies."""
    for name in names():
        assert str(subject_of(name).root) not in _texts(report_of(name))


def _changed(name: str, change: Callable[[Entry], Entry | None], directory: Path) -> Subject:
    """A shape with some of its files changed or left out."""
    kept = [new for entry in entries((DIRECTORY / f"{name}.txt").read_text()) if (new := change(entry)) is not None]
    return Subject(root=unpack(kept, directory), user_id=0, wait=lambda: None, support=KernelSupport())


def _with(path: str, text: str) -> Callable[[Entry], Entry]:
    return lambda entry: entry._replace(text=text) if entry.path == path else entry


@pytest.mark.parametrize(
    ("path", "text", "lack", "change"),
    [
        ("proc/cmdline", "psi=1 cgroup_disable=memory\n", "memory.not-managed", "remove cgroup_disable=memory"),
        ("sys/devices/system/cpu/isolated", "1\n", "cores.isolated", "isolcpus="),
    ],
)
def test_kernel_arguments_in_the_way(path: str, text: str, lack: str, change: str, tmp_path: Path) -> None:
    """What the kernel's command line switches off is named with the argument to remove."""

    def changed(entry: Entry) -> Entry | None:
        if "cgroup_disable" in text and entry.path == "proc/self/mountinfo":
            return entry._replace(text="".join(line for line in entry.text.splitlines(True) if "memory" not in line))
        return _with(path, text)(entry)

    report = examine(_changed("virtual-machine", changed, tmp_path))
    lacks = {one.id: one for resource in report.resources for one in resource.lacks}
    assert change in lacks[lack].change


@pytest.mark.parametrize(
    ("left_out", "lack", "change"),
    [
        ("40 25 0:35", "cache.not-managed", "mount -t resctrl resctrl /sys/fs/resctrl"),
        ("", "cache.not-managed", "rdt=l3cat"),
    ],
    ids=["not mounted", "switched off"],
)
def test_resctrl_that_could_be(left_out: str, lack: str, change: str, tmp_path: Path) -> None:
    """Where the kernel has resctrl but no L3 in it, or it is not mounted, the advice is the command that mends it."""

    def changed(entry: Entry) -> Entry | None:
        if entry.path == "proc/self/mountinfo" and left_out:
            return entry._replace(text="".join(line for line in entry.text.splitlines(True) if left_out not in line))
        if entry.path.startswith("sys/fs/resctrl/info/L3/") and not left_out:
            return None
        return None if "/cpufreq" in entry.path else entry

    found = _of(examine(_changed("xeon-v2", changed, tmp_path)), Resource.CACHE)
    assert found.verdict is Verdict.NOT_MANAGED
    assert change in next(one for one in found.lacks if one.id == lack).change


@pytest.mark.parametrize(
    ("answers", "user_id", "change"),
    [
        (BROADWELL, 0, "apt-get install intel-cmt-cat && modprobe msr"),
        (WITHOUT, 0, "a Haswell that can does not tell"),
        (WITHOUT, 1000, "as root"),
    ],
)
def test_processor_that_an_old_kernel_does_not_show(
    answers: Answers, user_id: int, change: str, tmp_path: Path, processor: Callable[[Path, Answers], object]
) -> None:
    """Before Linux 4.10 the processor's own word decides on the advice, once the module cpuid lets it be asked."""
    subject = dataclasses.replace(_changed("xeon-v1", lambda entry: entry, tmp_path), user_id=user_id)
    processor(subject.root, answers)
    (lack, *_) = _of(examine(subject), Resource.CACHE).lacks
    assert change in lack.change


def test_turbo_that_is_switched_off(tmp_path: Path) -> None:
    """Without turbo the top step is missing, and the switch is named."""
    found = _of(
        examine(_changed("laptop", _with("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"), tmp_path)), Resource.FREQUENCY
    )
    assert found.verdict is Verdict.DEGRADED
    assert "no_turbo" in next(one for one in found.lacks if one.id == "frequency.no-turbo").change


def test_kernel_without_shaping(subject_of: SubjectOf) -> None:
    """A kernel without HTB cannot manage the network; one that cannot be asked is not said to."""
    subject = subject_of("virtual-machine")
    without = _of(examine(dataclasses.replace(subject, support=KernelSupport("no", "no", "no"))), Resource.NETWORK)
    assert (without.verdict, without.lacks[0].change) == (Verdict.NOT_MANAGED, "modprobe sch_htb (CONFIG_NET_SCH_HTB)")
    ports = _of(examine(dataclasses.replace(subject, support=KernelSupport(groups="no"))), Resource.NETWORK)
    assert (ports.verdict, ports.lacks[0].id) == (Verdict.DEGRADED, "network.no-bpf")
    root = subject.root
    found = network.remedy(
        subject, f"network: device eth0 already has a root qdisc; remove it (`tc qdisc del dev eth0 root`) {root}"
    )
    assert found == "tc qdisc del dev eth0 root"
    unknown = _of(examine(dataclasses.replace(subject, support=None)), Resource.NETWORK)
    assert (unknown.verdict, unknown.lacks[0].id) == (Verdict.DEGRADED, "network.unseen")


def test_only_what_is_asked_for_counts(subject_of: SubjectOf) -> None:
    """With a configuration, resources that it leaves out are shown and do not count."""
    node = NodeSettings(cores=CoreSettings(reserved_cpus=(0,)))
    report = examine(dataclasses.replace(subject_of("virtual-machine"), given=ControlSettings((), node=node)))
    assert report.verdict is Verdict.MANAGED
    assert [one.resource for one in report.resources if one.asked] == [Resource.CORES]
    assert _of(report, Resource.CORES).offer.range == "1 core of 1 hardware thread in 1 L3 domain, id 0"
    assert report_to_json(report)["rest"]["cpus"] == "1"  # type: ignore[index]


def test_settings_of_the_configuration_decide(subject_of: SubjectOf) -> None:
    """The daemon's own decision is what is told: cores as they are to be divided, and resctrl where it is said to be."""
    cores = CoreSettings(division=CoreDivision.FRACTIONS)
    given = ControlSettings((), node=NodeSettings(cores=cores, cache=CacheSettings(mount="/nowhere")))
    report = examine(dataclasses.replace(subject_of("virtual-machine"), given=given))
    assert _of(report, Resource.CORES).offer.mechanism == "CPU bandwidth (control groups v1)"
    cache = _of(report, Resource.CACHE)
    assert cache.verdict is Verdict.NOT_MANAGED
    assert "/nowhere/info" in cache.lacks[0].text


def test_cpus_that_do_not_exist_are_told(subject_of: SubjectOf) -> None:
    """CPUs of a configuration for another machine are named, and nothing is said to be managed."""
    node = NodeSettings(cores=CoreSettings(managed_cpus=(5,)))
    report = examine(dataclasses.replace(subject_of("virtual-machine"), given=ControlSettings((), node=node)))
    cores = _of(report, Resource.CORES)
    assert cores.verdict is Verdict.NOT_MANAGED
    assert "5 are not online" in cores.lacks[0].text


def test_what_an_ordinary_user_cannot_see_is_said(subject_of: SubjectOf) -> None:
    """Without root the verdicts stay, and what could not be seen is named."""
    report = examine(dataclasses.replace(subject_of("xeon-v2"), user_id=1000))
    assert report.verdict is Verdict.MANAGED
    assert len(report.unseen) == 3
    assert not examine(subject_of("virtual-machine")).unseen


def test_nothing_is_written(shapes: Callable[[str], Path], subject_of: SubjectOf) -> None:
    """Not a file of the machine is changed, made or removed."""

    def contents() -> dict[str, tuple[int, bytes]]:
        files = [file for file in shapes("virtual-machine").rglob("*") if file.is_file()]
        return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}

    before = contents()
    examine(subject_of("virtual-machine"))
    assert contents() == before


_SMALL = {
    name: [
        entry
        for entry in entries((DIRECTORY / f"{name}.txt").read_text())
        if not any(f"cpu{number}/" in entry.path or f"policy{number}/" in entry.path for number in range(2, 128))
    ]
    for name in names()
}
"""The shapes with the files of their first two CPUs only: quick to unpack, and contradictory in themselves."""


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_missing_and_damaged_files_never_crash_it(data: st.DataObject) -> None:
    """Whatever files are missing or hold nonsense, there is a report with a verdict for each resource, and no exception."""
    whole = _SMALL[data.draw(st.sampled_from(sorted(_SMALL)))]
    fates = data.draw(st.lists(st.sampled_from(["there", "there", "there", "gone", "empty", "odd"]), min_size=7, max_size=7))
    offset = data.draw(st.integers(0, 6))
    texts = {"empty": "", "odd": data.draw(st.sampled_from(["-1\n", "0-3,x\n", "\x00\xff", "NaN", "{}", "1\n2\n3\n", "a:b:c\n"]))}
    kept = [
        entry if fate == "there" or entry.target else entry._replace(text=texts[fate])
        for number, entry in enumerate(whole)
        if (fate := fates[(number * number + offset) % 7]) != "gone"
    ]
    with tempfile.TemporaryDirectory() as directory:
        report = examine(Subject(root=unpack(kept, Path(directory)), user_id=0, wait=lambda: None, support=KernelSupport()))
    assert [one.resource for one in report.resources] == list(Resource)
    json.dumps(report_to_json(report))


def test_machine_without_any_file(tmp_path: Path) -> None:
    """Nothing at all is not managed, and says why."""
    report = examine(Subject(root=tmp_path, user_id=0, wait=lambda: None))
    assert report.verdict is Verdict.NOT_MANAGED
    assert all(one.lacks for one in report.resources)


def test_shapes_are_read_as_they_are_described(shapes: Callable[[str], Path]) -> None:
    """The compact notation gives the machines their true size."""
    found = {name: Topology.read(shapes(name)) for name in ("xeon-v2", "epyc", "laptop")}
    assert {name: (len(one.online), len(one.cores), len(one.sockets)) for name, one in found.items()} == {
        "xeon-v2": (88, 44, 2),
        "epyc": (128, 64, 1),
        "laptop": (16, 12, 1),
    }
