"""CPU frequency on the emulated cpufreq: with the kernel's own answers, by cpupower's library where it is, and put back."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import cpufreq_trees as trees
import pytest
from at_once import AtOnce

from actuators.frequency import cpupower
from actuators.frequency.actuator import FrequencyActuator, frequency_actuator
from actuators.frequency.cpupower import PolicyLimits
from actuators.frequency.knobs import CapKnob, UserspaceKnob
from actuators.frequency.policy import CpufreqFiles, find_policies
from actuators.frequency.speed import IN_A_ROW
from actuators.registry import KINDS
from parties.enforcer import Enforcer, Outcome
from parties.foreign import DriftState
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import KnobError
from parties.model import IDLE, NS_PER_S, MoveStatus
from parties.placement import Placement
from parties.restore import Fate, restore
from parties.settings import FrequencyMechanism, FrequencySettings
from tests.emulation.cpufreq import CpufreqOptions, Mounted, mounted_cpufreq
from tests.emulation.namespace import Overlay

pytestmark = [pytest.mark.emulation, pytest.mark.usefixtures("fuse")]

MHZ = 1_000_000
ACPI = CpufreqOptions(cores=4)
INTEL = CpufreqOptions(driver="intel_pstate", cores=4)
PASSIVE = CpufreqOptions(driver="intel_cpufreq", cores=4)
AMD = CpufreqOptions(driver="amd-pstate-epp", cores=4)
DRIVERS = pytest.mark.parametrize("options", [ACPI, INTEL, PASSIVE, AMD], ids=lambda options: options.driver)
FAULTS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO)
CPUS = {"a": [0, 1], "b": [2], IDLE: [3]}


class Stage:
    """An emulated machine with four cores, and the daemon's parts around the actuator."""

    def __init__(self, root: Path, cpu: Mounted, settings: FrequencySettings) -> None:
        self.cpu = cpu
        self.before = self.snapshot()
        self.state = root / "state"
        self.enforcer = Enforcer(Journal(self.state, started_unix_ns=1), AtOnce())
        self.actuator: FrequencyActuator = frequency_actuator(settings, (trees.FOUR_CORES,), whole_cores=True, root=root)
        self.now_ns = NS_PER_S
        self.placed: Placement | None = None

    def snapshot(self) -> dict[str, str]:
        """Every file that can be written."""
        files = [file for file in sorted((self.cpu.path / "cpufreq").rglob("*")) if file.is_file() and file.stat().st_mode & 0o200]
        return {str(file.relative_to(self.cpu.path)): file.read_text() for file in files}

    def file(self, policy: int, name: str) -> str:
        """What stands in a file of a policy."""
        return (self.cpu.path / f"cpufreq/policy{policy}/{name}").read_text().strip()

    @property
    def levels(self) -> tuple[int, ...]:
        """The pool's levels."""
        (pool,) = self.actuator.pools()
        assert pool.managed, pool.reason
        return pool.levels

    def put(self, levels_hz: Mapping[str, int], cpus: Mapping[str, list[int]] | None = None) -> Outcome:
        """One plan to its end."""
        placement = trees.placement(cpus or CPUS, levels_hz)
        outcome = self.enforcer.apply(self.actuator.writes(placement, self.placed), self.now_ns)
        while outcome.status is MoveStatus.PENDING or self.enforcer.uncertain:
            self.now_ns += 61 * NS_PER_S
            for _, outcome in self.enforcer.poll(self.now_ns):  # noqa: B007 - the last one counts
                pass
        if outcome.status is MoveStatus.DONE:
            self.placed = placement
        return outcome

    def undo(self) -> None:
        """Restore; every file is as it was before."""
        report = restore(self.state / JOURNAL_NAME, KINDS)
        assert report.complete, [(str(entry.ref), entry.detail) for entry in report.of(Fate.FAILED)]
        assert self.snapshot() == self.before


class Stages:
    """Makes emulated machines, each with a tree of its own."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._root, self._stack, self._count = root, stack, 0

    def __call__(self, options: CpufreqOptions, settings: FrequencySettings | None = None) -> Stage:
        self._count += 1
        root = self._root / str(self._count)
        cpu = self._stack.enter_context(mounted_cpufreq(root / "sys/devices/system/cpu", options))
        return Stage(root, cpu, settings or FrequencySettings())


@pytest.fixture
def stages(fuse: None, tmp_path: Path) -> Iterator[Stages]:
    """Machines that end with the test."""
    with ExitStack() as stack:
        yield Stages(tmp_path, stack)


@DRIVERS
def test_every_level_is_in_force_and_undone(stages: Stages, options: CpufreqOptions) -> None:
    """On each driver: what is set is read back, the cores run at it or below, and the restore leaves the tree as it was."""
    stage = stages(options)
    for level in stage.levels:
        assert stage.put({"a": level, "b": stage.levels[0]}).status is MoveStatus.DONE
        assert stage.actuator.read_back() == {trees.KEY: {"a": level, "b": stage.levels[0]}}
        measured = int(stage.file(1, "scaling_cur_freq"))
        assert measured == (options.turbo_khz if level == stage.levels[-1] else level // 1000)
        assert not stage.enforcer.drift(stage.now_ns)
    assert stage.levels[-2] == options.base_khz * 1000 or options is AMD
    stage.undo()


def test_other_governors_and_limits_come_back(stages: Stages) -> None:
    """An operator's own speed under userspace, limits on both sides, another governor."""
    stage = stages(ACPI)
    operators = {
        0: {"scaling_governor": "userspace", "scaling_setspeed": "1400000"},
        1: {"scaling_min_freq": "1500000", "scaling_max_freq": "1800000", "scaling_governor": "ondemand"},
        2: {"scaling_max_freq": "1300000", "scaling_governor": "powersave"},
    }
    for policy, files in operators.items():
        for name, text in files.items():
            (stage.cpu.path / f"cpufreq/policy{policy}/{name}").write_text(f"{text}\n")
    stage.before = stage.snapshot()
    assert stage.put({"a": stage.levels[0], "b": stage.levels[-1]}).status is MoveStatus.DONE
    assert stage.snapshot() != stage.before
    assert stage.put({"a": stage.levels[-1], "b": stage.levels[0]}).status is MoveStatus.DONE
    stage.undo()


@DRIVERS
def test_a_core_that_nobody_holds_is_as_before(stages: Stages, options: CpufreqOptions) -> None:
    """Given up while the daemon runs; taken again it gets its holder's level."""
    stage = stages(options)
    level = stage.levels[2]
    stage.put({"a": level, "b": level})
    assert stage.put({"a": level, "b": level}, {"a": [0], "b": [2], IDLE: [1, 3]}).status is MoveStatus.DONE
    idle = {name: text for name, text in stage.before.items() if "policy1/" in name}
    assert {name: stage.snapshot()[name] for name in idle} == idle
    assert stage.put({"a": level, "b": level}, {"a": [0, 1, 3], "b": [2]}).status is MoveStatus.DONE
    assert int(stage.file(3, "scaling_cur_freq")) == level // 1000
    stage.undo()


@pytest.mark.parametrize("options", [ACPI, INTEL], ids=lambda options: options.driver)
@pytest.mark.parametrize("file", ["scaling_governor", "scaling_setspeed", "scaling_max_freq", "scaling_*"])
def test_a_write_that_does_nothing_is_not_believed(stages: Stages, options: CpufreqOptions, file: str) -> None:
    """It succeeds and nothing happens: refused with what was read back, and nothing of the plan stays."""
    stage = stages(options)
    stage.cpu.ignore(f"*/policy1/{file}")
    outcome = stage.put({"a": stage.levels[1], "b": stage.levels[1]})
    concerned = file == "scaling_*" or (file == "scaling_max_freq") == (options is INTEL)
    assert outcome.status is (MoveStatus.REFUSED if concerned else MoveStatus.DONE)
    if concerned:
        assert "policy1" in outcome.detail
        assert stage.snapshot() == stage.before
    stage.cpu.clear()
    stage.undo()


@DRIVERS
def test_every_refusal_is_taken_back_and_undone(stages: Stages, options: CpufreqOptions) -> None:
    """Each errno at each file that is written: all of the plan or nothing; the kernel's words are told; the restore is complete."""
    stage, refused = stages(options), 0
    userspace = "userspace" in stage.file(0, "scaling_available_governors")
    files = ("scaling_governor", "scaling_setspeed") if userspace else ("scaling_max_freq",)
    for file, code in itertools.product(files, FAULTS):
        stage.placed = None
        stage.enforcer = Enforcer(Journal(stage.state, started_unix_ns=1), AtOnce())
        stage.cpu.fail(code, f"*/policy1/{file}")
        outcome = stage.put({"a": stage.levels[1], "b": stage.levels[3]})
        refused += outcome.status is MoveStatus.REFUSED
        assert os.strerror(code) in outcome.detail
        assert stage.snapshot() == stage.before
        stage.cpu.clear()
        stage.undo()
    assert refused == len(files) * len(FAULTS)


def test_a_policy_that_goes_offline_is_vanished(stages: Stages) -> None:
    """Told once, no obstacle to taking; when it is back, it is set again and journalled anew."""
    stage = stages(ACPI)
    stage.put({"a": stage.levels[5], "b": stage.levels[5]})
    stage.cpu.vanish("/cpufreq/policy1*")
    (gone,) = stage.enforcer.drift(stage.now_ns)
    assert gone.state is DriftState.VANISHED
    assert stage.put({"a": stage.levels[4], "b": stage.levels[5]}).status is MoveStatus.DONE
    raised = stage.put({"a": stage.levels[6], "b": stage.levels[5]})
    assert raised.status is MoveStatus.REFUSED
    assert "vanished" in raised.detail
    report = restore(stage.state / JOURNAL_NAME, KINDS)
    assert [entry.ref.address[0].rpartition("/")[2] for entry in report.of(Fate.GONE)] == ["policy1"]
    stage.cpu.clear()


def test_turbo_switched_off_while_running_is_no_contest(stages: Stages) -> None:
    """The kernel lowers the limits itself: no drift, and no yielding; the restore brings back all of it."""
    stage = stages(PASSIVE)
    stage.put({"a": stage.levels[-1], "b": stage.levels[0]})
    switch = stage.cpu.path / "intel_pstate/no_turbo"
    switch.write_text("1\n")
    for _ in range(8):
        assert not stage.enforcer.drift(stage.now_ns)
        stage.now_ns += 5 * NS_PER_S
    assert stage.file(0, "scaling_max_freq") == str(PASSIVE.base_khz)
    switch.write_text("0\n")
    assert not stage.enforcer.drift(stage.now_ns)
    stage.undo()


def test_turbo_switched_off_before_is_no_level(stages: Stages) -> None:
    """The top level is base, and it is in force."""
    stage = stages(PASSIVE)
    (stage.cpu.path / "intel_pstate/no_turbo").write_text("1\n")
    made = frequency_actuator(FrequencySettings(), (trees.FOUR_CORES,), whole_cores=True, root=stage.cpu.path.parents[3])
    stage.actuator, stage.before = made, stage.snapshot()
    assert stage.levels[-1] == PASSIVE.base_khz * 1000
    assert stage.put({"a": stage.levels[-1], "b": stage.levels[0]}).status is MoveStatus.DONE
    stage.undo()


def test_a_foreign_governor_is_noticed(stages: Stages) -> None:
    """Somebody runs cpupower beside us: told, then written again."""
    stage = stages(ACPI)
    stage.put({"a": stage.levels[5], "b": stage.levels[5]})
    (stage.cpu.path / "cpufreq/policy2/scaling_governor").write_text("ondemand\n")
    assert [drift.state for drift in stage.enforcer.drift(stage.now_ns)] == [DriftState.NOTICED]
    stage.now_ns += 2 * NS_PER_S
    assert [drift.state for drift in stage.enforcer.drift(stage.now_ns)] == [DriftState.REASSERTED]
    stage.enforcer.poll(stage.now_ns)
    assert stage.file(2, "scaling_governor") == "userspace"
    stage.undo()


def test_hardware_that_does_not_follow_is_told(stages: Stages) -> None:
    """Every value reads back as written and the cores run at half of it: only the reading of the frequency shows it."""
    stage = stages(dataclasses.replace(ACPI, measured_per_mille=500))
    assert stage.put({"a": stage.levels[5], "b": stage.levels[5]}).status is MoveStatus.DONE
    (task,) = stage.actuator.upkeep()
    sensor = KINDS[task.ref.kind].make(task.ref.address)
    said = [task.judge(sensor.read(), None).warnings for _ in range(IN_A_ROW)]
    assert [len(warnings) for warnings in said] == [0] * (IN_A_ROW - 1) + [3]
    assert "policy0" in said[-1][0]
    assert stage.actuator.speeds()[0] == stage.levels[5] // 2


def test_a_driver_that_chooses_has_no_userspace_governor(stages: Stages) -> None:
    """The reason says what to do; the kernel refuses the governor with EINVAL, and the message names those there are."""
    stage = stages(INTEL, FrequencySettings(FrequencyMechanism.USERSPACE))
    (pool,) = stage.actuator.pools()
    assert "intel_pstate=passive" in pool.reason
    knob = UserspaceKnob(stage.cpu.path / "cpufreq/policy0")
    with pytest.raises(KnobError, match="governors loaded: performance powersave") as caught:
        knob.write("userspace 1500000 1200000 3000000")
    assert caught.value.errno == errno.EINVAL


def test_threads_of_a_core_share_a_policy(stages: Stages) -> None:
    """Two cores with two threads and a policy each: one knob for each core."""
    stage = stages(CpufreqOptions(cores=2, threads=2, policies=[[0, 2], [1, 3]]))
    made = frequency_actuator(
        FrequencySettings(), (trees.domain_of((0, 2), (1, 3)),), whole_cores=True, root=stage.cpu.path.parents[3]
    )
    plan = made.writes(trees.placement({"a": [0, 2], "b": [1, 3]}, {"a": stage.levels[0], "b": stage.levels[-1]}), None)
    assert [write.holder for write in plan] == ["a", "b"]


# In the places where cpupower's library looks


@pytest.fixture
def overlay(stages: Stages) -> tuple[Overlay, Stage]:
    """A machine of its own at /sys/devices/system/cpu of a private mount namespace."""
    if cpupower.load() is None:
        pytest.skip("no libcpupower: apt-get install libcpupower1")
    stage = stages(ACPI)
    return Overlay(cpu=stage.cpu.path), stage


def by_library_and_by_file() -> tuple[object, object]:
    """The descriptions of the CPUs from both sources."""
    library, files = cpupower.load(), CpufreqFiles()
    assert library is not None
    return tuple(
        (
            source.driver(1),
            source.governors(1),
            source.frequencies(1),
            source.affected(1),
            source.hardware_limits(1),
            source.driver(17),
            source.affected(17),
            source.hardware_limits(17),
        )
        for source in (library, files)
    )  # type: ignore[return-value]


def test_the_library_says_what_the_files_say(overlay: tuple[Overlay, Stage]) -> None:
    """Discovery gives the same by both ways, also of a CPU that is not there."""
    place, _ = overlay
    library, files = place.call(by_library_and_by_file)
    assert library == files
    assert place.call(find_policies, [0, 1])[1].base_khz == ACPI.base_khz


def set_by_library(wanted: tuple[int, int, str]) -> tuple[bool, object]:
    """Set a policy, and what it is then."""
    library = cpupower.load()
    assert library is not None
    return library.set_policy(1, PolicyLimits(*wanted)), library.policy(1)


def test_the_library_sets_a_policy_or_says_that_it_could_not(overlay: tuple[Overlay, Stage]) -> None:
    """Limits and governor in one call; a governor that there is not is a failure, without a reason."""
    place, stage = overlay
    good, found = place.call(set_by_library, (1_300_000, 1_500_000, "userspace"))
    assert good
    assert found == PolicyLimits(1_300_000, 1_500_000, "userspace")
    assert stage.file(1, "scaling_governor") == "userspace"
    assert place.call(set_by_library, (1_300_000, 1_500_000, "warp"))[0] is False


def manage_the_real_place(state: Path) -> tuple[str, dict[str, str], bool]:
    """The actuator where the kernel's files are: two plans, then a restore. What was in force between, and whether it is undone."""
    root = Path("/")
    made = frequency_actuator(FrequencySettings(), (trees.FOUR_CORES,), whole_cores=True, root=root)
    enforcer = Enforcer(Journal(state, started_unix_ns=1), AtOnce())
    levels = made.pools()[0].levels
    placement = trees.placement(CPUS, {"a": levels[0], "b": levels[-1]})
    outcome = enforcer.apply(made.writes(placement, None), NS_PER_S)
    while outcome.status is MoveStatus.PENDING:
        for _, outcome in enforcer.poll(2 * NS_PER_S):  # noqa: B007 - the last one counts
            pass
    names = {f"policy{number}": f"/sys/devices/system/cpu/cpufreq/policy{number}/scaling_governor" for number in range(4)}
    found = {name: Path(file).read_text().strip() for name, file in names.items()}
    return outcome.detail, found, restore(state / JOURNAL_NAME, KINDS).complete


def test_the_actuator_works_through_the_library(overlay: tuple[Overlay, Stage], tmp_path: Path) -> None:
    """At the real path governor and limits go through the library; everything is put back."""
    place, stage = overlay
    detail, found, undone = place.call(manage_the_real_place, tmp_path / "state")
    assert detail == ""
    assert found == {"policy0": "userspace", "policy1": "userspace", "policy2": "performance", "policy3": "schedutil"}
    assert undone
    assert stage.snapshot() == stage.before
    governors = {entry["text"] for entry in stage.cpu.log() if entry["path"].endswith("scaling_governor")}
    assert governors == {"userspace", "performance", "schedutil"}, "the library writes no new line"


def test_cpupower_sees_what_is_set(overlay: tuple[Overlay, Stage], cpupower_command: None) -> None:
    """The real command shows governor and frequency."""
    place, stage = overlay
    stage.put({"a": stage.levels[3], "b": stage.levels[3]})
    shown = place.run("cpupower", "-c", "1", "frequency-info").stdout
    assert 'The governor "userspace" may decide' in shown
    assert "current CPU frequency: 1.50 GHz" in shown


def refused_by_the_library() -> tuple[int | None, str]:
    """A refusal behind the library, as the knob tells it."""
    for make in (UserspaceKnob, CapKnob):
        assert make(Path("/sys/devices/system/cpu/cpufreq/policy0")).read()
    try:
        UserspaceKnob(Path("/sys/devices/system/cpu/cpufreq/policy0")).write("userspace 1500000 1200000 2201000")
    except KnobError as error:
        return error.errno, str(error)
    return None, ""


def test_behind_the_library_the_kernel_s_words_are_found(overlay: tuple[Overlay, Stage]) -> None:
    """The library says only that it failed; the same write by file says why."""
    place, stage = overlay
    stage.cpu.fail(errno.EPERM, "*/scaling_governor", count=2)
    code, words = place.call(refused_by_the_library)
    assert code == errno.EPERM
    assert "scaling_governor: cannot set 'userspace': Operation not permitted" in words
