"""Units' values are read from the kernel, set through systemd, survive its reloads, and are undone without a trace."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_systemd import CPU, CPUSET, IO, MEMORY, UNSET, FakeSystemd
from hypothesis import given
from hypothesis import strategies as st

from actuators.cgroup.files import KeptFile
from actuators.cgroup.group import Direction
from actuators.cgroup.layer import find_layer
from actuators.cgroup.v2_knobs import INHERITED
from actuators.systemd.bus import SystemdBus
from actuators.systemd.drop_ins import DropInKnob, ReloadKnob
from actuators.systemd.knobs import knob_kinds
from actuators.systemd.layer import SystemdLayer, UnitGroup
from actuators.systemd.properties import DiskLimits, cpu_bandwidth, cpu_idle, cpu_list, cpu_weight, memory
from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal, read_journal
from parties.knob import Effect, Knob, KnobError, KnobKinds, KnobRef, KnobWrite
from parties.model import MoveStatus, Resource
from parties.restore import Fate, RestoreReport, restore
from parties.slow_writer import SlowResult, SlowWriter

WEB, JOB = "/system.slice/web.service", "/system.slice/job.service"
UNITS = {WEB: "web.service", JOB: "job.service"}
ERRNOS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO)


class InPlace:
    """A slow writer that writes at once, finding each knob anew by its reference."""

    def __init__(self, kinds: KnobKinds) -> None:
        self._kinds = kinds
        self._results: list[SlowResult] = []

    def submit(self, ref: KnobRef, value: str | None, _now_ns: int) -> int:
        ticket = len(self._results) + 1
        knob = self._kinds[ref.kind].make(ref.address)
        try:
            if value is None:
                knob.restore(None)
            else:
                knob.write(value)
            self._results.append(SlowResult(ticket, found=knob.read()))
        except OSError as error:
            self._results.append(SlowResult(ticket, error=error))
        return ticket

    def poll(self, _now_ns: int) -> list[SlowResult]:
        results, self._results = self._results, []
        return results


class Rig:
    """A fake systemd with the layer, an enforcer, and restore on it."""

    def __init__(self, root: Path, systemd: FakeSystemd) -> None:
        self.root, self.systemd = root, systemd
        self.bus = SystemdBus(root)
        self.kinds = knob_kinds(self.bus, root)
        self.layer = SystemdLayer(find_layer(systemd.hierarchies, root), UNITS, root, self.bus)
        self.enforcer = Enforcer(Journal(root / "state", started_unix_ns=1), InPlace(self.kinds), kinds=self.kinds)
        self._clock = itertools.count(1)

    def apply(self, *writes: tuple[Knob, str], holder: str = "web", effect: Effect = Effect.NEUTRAL) -> tuple[MoveStatus, str]:
        """Carry a plan out to its end."""
        outcome = self.enforcer.apply([KnobWrite(knob, value, holder, effect) for knob, value in writes], next(self._clock))
        while outcome.status is MoveStatus.PENDING:
            ended = dict(self.enforcer.poll(next(self._clock)))
            outcome = ended.get(outcome.ticket or 0, outcome)
        return outcome.status, outcome.detail

    def done(self, *writes: tuple[Knob, str]) -> None:
        assert self.apply(*writes) == (MoveStatus.DONE, "")

    def restore(self) -> RestoreReport:
        return restore(self.root / "state" / JOURNAL_NAME, knob_kinds(SystemdBus(self.root), self.root))

    def text(self, name: str, path: str = WEB) -> str:
        return (self.systemd.tree / path.strip("/") / name).read_text().strip()


@pytest.fixture
def rig(root: Path, systemd: FakeSystemd) -> Rig:
    systemd.start("web.service", WEB)
    systemd.start("job.service", JOB)
    return Rig(root, systemd)


def every_write(rig: Rig) -> list[tuple[Knob, str]]:
    """One of each kind."""
    web, job = rig.layer.group(WEB), rig.layer.group(JOB)
    return [
        (web.mems, "0"),
        (web.cpus, "1-2"),
        (job.cpus, "3"),
        (web.cpu_bandwidth, "3300 10000"),
        (job.cpu_class, "idle=1"),
        (web.memory_limit, "104857600"),
        (job.disk_throttle("254:16", Direction.READ), "1000000"),
        (job.disk_throttle("254:16", Direction.WRITE), "2000000"),
    ]


def test_values_are_set_through_systemd_and_read_from_the_kernel(rig: Rig) -> None:
    """Every kind arrives in the kernel, by way of a property, with the controllers that systemd enables for it."""
    rig.done(*every_write(rig))
    assert [rig.text(name) for name in ("cpuset.cpus", "cpuset.mems", "cpu.max")] == ["1,2", "0", "3300 10000"]
    assert [rig.text(name) for name in ("memory.high", "memory.max")] == ["104857600", "104857600"]
    assert [rig.text(name, JOB) for name in ("cpuset.cpus", "cpu.idle")] == ["3", "1"]
    assert rig.text("io.max", JOB) == "254:16 rbps=1000000 wbps=2000000 riops=max wiops=max"
    assert {method for method, _ in rig.systemd.calls} == {"SetUnitProperties", "LoadUnit", "Get"}


def test_a_reload_of_systemd_undoes_nothing(rig: Rig) -> None:
    """daemon-reload takes every value from the drop-ins again, and drift finds nothing."""
    writes = every_write(rig)
    rig.done(*writes)
    rig.systemd.reload()
    assert rig.enforcer.drift(10**9) == []
    assert all(knob.same(value, knob.read()) for knob, value in writes)


def test_restore_leaves_nothing_behind(rig: Rig) -> None:
    """Values, drop-ins, their directories and the enabled controllers are as before, with one reload for all units."""
    before = rig.systemd.snapshot()
    rig.done(*every_write(rig))
    report = rig.restore()
    assert report.complete, report
    assert rig.systemd.snapshot() == before
    assert not (rig.root / "run/systemd/system.control").exists()
    assert [method for method, _ in rig.systemd.calls].count("Reload") == 1
    rig.systemd.reload()
    assert rig.systemd.snapshot() == before


def test_restore_brings_back_what_the_units_files_say(root: Path, systemd: FakeSystemd) -> None:
    """A unit with limits of its own has them again, and a property that somebody had set keeps its drop-in word for word."""
    systemd.start("web.service", WEB, CPUQuotaPerSecUSec=500_000, MemoryMax=1 << 30, CPUWeight=300)
    systemd.start("job.service", JOB)
    file = root / "run/systemd/system.control/web.service.d/50-AllowedCPUs.conf"
    file.parent.mkdir(parents=True)
    file.write_text("# by hand\n[Service]\nAllowedCPUs=0,3\n")
    systemd.reload()
    before, rig = systemd.snapshot(), Rig(root, systemd)
    rig.done(*every_write(rig), (rig.layer.group(WEB).cpu_class, "weight=20"))
    assert rig.text("cpu.weight") == "20"
    assert rig.restore().complete
    assert systemd.snapshot() == before
    assert rig.text("cpuset.cpus") == "0,3"


def test_the_drop_ins_are_journalled_before_the_property(rig: Rig) -> None:
    """The reload first, then the drop-ins, then the property: restore goes the other way."""
    rig.done((rig.layer.group(WEB).cpus, "1-2"))
    kinds = [ref.kind for ref in read_journal(rig.root / "state" / JOURNAL_NAME).entries]
    assert kinds == ["systemd.reload", "systemd.drop-in.cores", "systemd.beside", "systemd.list"]


def test_what_systemd_forgets_without_writing_is_emptied(rig: Rig) -> None:
    """An emptied CPU list stays in the kernel while another unit needs the controller: it is emptied there as well."""
    web, job = rig.layer.group(WEB), rig.layer.group(JOB)
    rig.done((web.cpus, "1-2"), (job.cpus, "3"))
    web.cpus.restore(None)
    assert (rig.text("cpuset.cpus"), rig.text("cpuset.cpus", JOB)) == ("", "3")
    assert web.cpus.read() == INHERITED


def test_what_the_kernel_does_not_empty_becomes_all_there_is(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under processes a CPU list cannot be emptied (ENOSPC): the unit gets all that its slice has, and no property says so."""
    web, job = rig.layer.group(WEB), rig.layer.group(JOB)
    (rig.systemd.tree / "system.slice/cpuset.cpus.effective").write_text("0-3\n")
    rig.done((web.cpus, "1-2"), (job.cpus, "3"))
    write = KeptFile._write_all

    def refuse(file: KeptFile, fd: int, data: bytes) -> None:
        if data == b"\n" and file.path.name == "cpuset.cpus":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, fd, data)

    monkeypatch.setattr(KeptFile, "_write_all", refuse)
    web.cpus.restore(None)
    assert rig.text("cpuset.cpus") == "0-3"
    assert rig.systemd.context["web.service"]["AllowedCPUs"] == b""


def test_a_unit_that_does_not_run_gets_no_property(rig: Rig) -> None:
    """Its drop-in would outlive us unnoticed: ENOENT, and systemd is not even asked."""
    knob = rig.layer.group(WEB).cpu_bandwidth
    rig.systemd.stop("web.service")
    with pytest.raises(KnobError, match=r"web\.service does not run") as refused:
        knob.write("5000 10000")
    assert refused.value.errno == errno.ENOENT
    assert rig.systemd.calls == []


def test_a_unit_that_restarts_during_a_move_keeps_its_value(rig: Rig) -> None:
    """The group vanishes and returns; the property is in force from its first moment, and restore still finds all."""
    before = rig.systemd.snapshot()
    cpus = rig.layer.group(WEB).cpus
    rig.done((cpus, "1-2"))
    rig.systemd.stop("web.service")
    assert [drift.state for drift in rig.enforcer.drift(2 * 10**9)] == ["vanished"]
    rig.systemd.start("web.service", WEB)
    assert [(drift.state, drift.found) for drift in rig.enforcer.drift(3 * 10**9)] == [("returned", "1,2")]
    assert rig.apply((cpus, "2-3"))[0] is MoveStatus.DONE
    assert rig.restore().complete
    assert rig.systemd.snapshot() == before


def test_a_container_that_ended_takes_its_drop_ins_with_it(root: Path, systemd: FakeSystemd) -> None:
    """A transient unit's drop-ins are where systemd puts them, and restore removes them while it runs."""
    systemd.start("web.service", WEB, transient=True)
    before, rig = systemd.snapshot(), Rig(root, systemd)
    rig.done((rig.layer.group(WEB).cpus, "1"))
    assert (root / "run/systemd/transient/web.service.d/50-AllowedCPUs.conf").exists()
    assert rig.restore().complete
    assert systemd.snapshot() == before


def test_what_an_engine_told_systemd_does_not_come_back_for_a_container_that_ended(root: Path, systemd: FakeSystemd) -> None:
    """The drop-ins of a scope go with it: restore counts them as gone, and does not write them for nobody."""
    place = root / "run/systemd/transient/web.service.d"
    systemd.start("web.service", WEB, transient=True)
    place.mkdir(parents=True)
    (place / "50-AllowedCPUs.conf").write_text("[Scope]\nAllowedCPUs=0,1,2\n")
    systemd.reload()
    rig = Rig(root, systemd)
    rig.done((rig.layer.group(WEB).cpus, "1"))
    systemd.stop("web.service")
    (place / "50-AllowedCPUs.conf").unlink()
    place.rmdir()
    report = rig.restore()
    assert report.complete, report
    assert not place.exists()


def test_every_refusal_is_rolled_back_and_undone(root: Path) -> None:
    """Each call to systemd fails once, by turns with each error: the plan is rolled back, and restore leaves nothing behind."""
    for call in itertools.count():
        number = ERRNOS[call % len(ERRNOS)]
        place = root / str(call)
        place.mkdir()
        with contextlib.closing(FakeSystemd(place)) as fake:
            for path, unit in UNITS.items():
                fake.start(unit, path)
            before, rig = fake.snapshot(), Rig(place, fake)
            fake.refuse[call] = f"System.Error.{errno.errorcode[number]}"
            status, detail = rig.apply(*every_write(rig))
            if call >= len(fake.calls):
                assert status is MoveStatus.DONE
                break
            assert status is MoveStatus.REFUSED
            assert os.strerror(number) in detail
            assert not rig.enforcer.uncertain
            assert rig.layer.group(WEB).cpus.read() == INHERITED
            assert rig.layer.group(WEB).memory_limit.read() is None
            assert rig.restore().complete
            assert fake.snapshot() == before
    assert call >= 12


@pytest.mark.parametrize("number", ERRNOS)
@pytest.mark.parametrize("index", range(8))
def test_each_kind_bears_each_error(rig: Rig, index: int, number: int) -> None:
    """Whatever systemd refuses a kind with is told in its words, and restore leaves nothing behind."""
    before = rig.systemd.snapshot()
    write = every_write(rig)[index]
    rig.systemd.refuse = dict.fromkeys(range(2), f"System.Error.{errno.errorcode[number]}")
    status, detail = rig.apply(write)
    assert status is MoveStatus.REFUSED
    assert os.strerror(number) in detail
    assert "refused by the test" in detail
    assert rig.restore().complete
    assert rig.systemd.snapshot() == before


def test_every_refusal_during_restore_is_named_and_made_good(rig: Rig) -> None:
    """Each call of a restore fails once, by turns with each error: what failed is named and kept, and the next restore ends it."""
    before = rig.systemd.snapshot()
    for offset in itertools.count():
        rig.done(*every_write(rig))
        begun = len(rig.systemd.calls)
        rig.systemd.refuse = {begun + offset: f"System.Error.{errno.errorcode[ERRNOS[offset % len(ERRNOS)]]}"}
        report = rig.restore()
        if len(rig.systemd.calls) - begun <= offset:
            break
        if not report.complete:
            assert all(entry.detail for entry in report.of(Fate.FAILED))
            assert rig.restore().complete
        assert rig.systemd.snapshot() == before
        rig = Rig(rig.root, rig.systemd)
    assert offset >= 8


def test_a_reload_that_fails_is_still_due(rig: Rig) -> None:
    """The drop-ins are gone, systemd does not know: that stays journalled, and the next restore has it done."""
    rig.done((rig.layer.group(WEB).cpus, "1"))
    rig.systemd.refuse = dict.fromkeys(range(2, 9), "org.freedesktop.DBus.Error.AccessDenied")
    report = rig.restore()
    (failed,) = report.of(Fate.FAILED)
    assert failed.ref.kind == ReloadKnob.KIND
    assert "refused by the test" in failed.detail
    rig.systemd.refuse = {}
    assert rig.restore().complete
    assert [method for method, _ in rig.systemd.calls[-2:]] == ["Reload", "Get"]


def test_memory_drop_ins_stay_while_the_limits_are_not_back(rig: Rig) -> None:
    """A limit that could not be lowered under what is in use is not lowered by the reload instead."""
    knob = DropInKnob(Resource.MEMORY, "web.service", rig.systemd.tree / WEB.strip("/"), rig.root)
    before = knob.read()
    rig.done((rig.layer.group(WEB).memory_limit, "104857600"))
    with pytest.raises(KnobError, match="mend those first") as refused:
        knob.restore(before)
    assert refused.value.errno == errno.EBUSY
    assert (rig.root / "run/systemd/system.control/web.service.d/50-MemoryMax.conf").exists()
    assert rig.restore().complete


def test_what_an_engine_has_set_behind_systemds_back_stays(rig: Rig) -> None:
    """No swap, as Docker writes it without a word to systemd: in force beside our limit, and after the reload of a restore."""
    file = rig.systemd.tree / WEB.strip("/") / "memory.swap.max"
    file.write_text("0\n")
    before = rig.systemd.snapshot()
    rig.done(*every_write(rig))
    assert rig.text("memory.swap.max") == "0"
    rig.systemd.reload()
    assert rig.text("memory.swap.max") == "max"  # whoever reloads does that, with us or without
    assert rig.restore().complete
    assert rig.systemd.snapshot() == before


def test_a_restore_does_not_look_before_the_reload_is_in_force(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload is answered first, the control groups are written then: one more call makes sure that they are."""
    (rig.systemd.tree / WEB.strip("/") / "memory.swap.max").write_text("0\n")
    rig.done((rig.layer.group(WEB).memory_limit, "104857600"))
    answer, realize, late = rig.systemd._answer, rig.systemd.realize, []

    def realize_later(message: object, method: str, refusal: str) -> object:
        if method == "Reload":
            monkeypatch.setattr(rig.systemd, "realize", lambda: late.append(realize))
        elif late:
            late.pop()()
        return answer(message, method, refusal)

    monkeypatch.setattr(rig.systemd, "_answer", realize_later)
    assert rig.restore().complete
    assert not late
    assert rig.text("memory.swap.max") == "0"


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        ("org.freedesktop.systemd1.NoSuchUnit", errno.ENOENT),
        ("org.freedesktop.DBus.Error.AccessDenied", errno.EPERM),
        ("org.freedesktop.DBus.Error.InvalidArgs", errno.EINVAL),
        ("System.Error.ENOSPC", errno.ENOSPC),
        ("org.example.Strange", errno.EIO),
    ],
)
def test_systemds_errors_become_the_kernels(rig: Rig, fault: str, number: int) -> None:
    """By the error's name; the message has systemd's own words."""
    rig.systemd.refuse[0] = fault
    with pytest.raises(KnobError, match="refused by the test") as refused:
        rig.layer.group(WEB).cpu_bandwidth.write("3000 10000")
    assert refused.value.errno == number


def test_a_systemd_that_does_not_answer_is_given_up(rig: Rig) -> None:
    """After the time limit, with ETIMEDOUT; the next call opens a connection of its own."""
    bus = SystemdBus(rig.root, limit_s=0.2)
    rig.systemd.silent = {0}
    with pytest.raises(KnobError, match=r"no answer within 0\.2 s") as refused:
        bus.set_properties("web.service", [])
    assert refused.value.errno == errno.ETIMEDOUT
    bus.set_properties("web.service", [])


def test_a_lost_connection_is_opened_anew(rig: Rig) -> None:
    """The real one closes its connections when it is re-executed: nobody notices, unless the new one is lost as well (ENOTCONN)."""
    rig.bus.set_properties("web.service", [])
    rig.systemd.cut = {1, 3, 4}
    rig.bus.set_properties("web.service", [])
    assert len(rig.systemd.calls) == 3
    with pytest.raises(KnobError) as refused:
        rig.bus.set_properties("web.service", [])
    assert refused.value.errno == errno.ENOTCONN
    rig.bus.set_properties("web.service", [])


def test_without_systemd_the_message_says_where_it_was_looked_for(root: Path) -> None:
    """And it is not taken for a unit that has vanished."""
    with pytest.raises(
        KnobError, match=r"^\[Errno 107\] systemd cannot be asked .*private.*system_bus_socket.*is it the"
    ) as refused:
        SystemdBus(root).reload()
    assert refused.value.errno == errno.ENOTCONN


def test_an_old_systemd_has_the_least_weight_for_the_idle_class(rig: Rig) -> None:
    """Before 252 CPUWeight=idle is refused; the least weight is taken for it."""
    rig.systemd.idle_weight = False
    rig.done((rig.layer.group(JOB).cpu_class, "idle=1"))
    assert (rig.text("cpu.weight", JOB), rig.text("cpu.idle", JOB)) == ("1", "0")
    assert rig.restore().complete
    assert rig.text("cpu.weight", JOB) == "100"


def test_a_property_that_systemd_does_not_have_is_named(rig: Rig) -> None:
    """An old systemd without AllowedCPUs refuses with its own words."""
    rig.systemd.unknown_properties = {"AllowedCPUs"}
    status, detail = rig.apply((rig.layer.group(WEB).cpus, "1"))
    assert status is MoveStatus.REFUSED
    assert "Cannot set property AllowedCPUs, or unknown property" in detail


@pytest.mark.parametrize(
    ("text", "value"), [("0", b"\x01"), ("1-2", b"\x06"), ("3,8", b"\x08\x01"), ("64", b"\0" * 8 + b"\x01"), ("", b"")]
)
def test_a_cpu_list_is_a_mask_of_bytes(text: str, value: bytes) -> None:
    """A bit for each number, the lowest first."""
    assert [tuple(prop) for prop in cpu_list("AllowedCPUs")(text)] == [("AllowedCPUs", "ay", value)]


@given(st.integers(1000, 10**9), st.integers(1000, 999_999))
def test_the_quota_in_force_is_the_one_asked_for(quota_us: int, period_us: int) -> None:
    """The real systemd multiplies back and rounds down; what comes out is what went in."""
    per_second, period = cpu_bandwidth(f"{quota_us} {period_us}")
    back = per_second.value * (100_000 if period.value == UNSET else period.value) // 1_000_000
    assert back == quota_us


def test_defaults_are_the_absence_of_a_property() -> None:
    """What the kernel has without anybody's doing is not pinned."""
    values = [
        *cpu_bandwidth("max 100000"),
        *cpu_weight("100"),
        *cpu_idle("0"),
        *memory("MemoryMax")("max"),
    ]
    assert {prop.value for prop in values} == {UNSET}


def test_a_disk_keeps_the_path_by_which_the_unit_knows_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real systemd keeps limits by path: one for the same disk by another path would stay in force beside ours."""
    rig.systemd.context["web.service"]["IOReadBandwidthMax"] = [("/dev/disk/by-id/b", 5)]
    monkeypatch.setattr(DiskLimits, "_number", lambda _self, path: {"/dev/disk/by-id/b": "254:16"}.get(path, ""))
    limits = DiskLimits("web.service", rig.bus, rig.root)
    assert limits.translate("254:16 rbps=9")[0].value == [("/dev/disk/by-id/b", 9)]
    assert limits.translate("254:32 rbps=max")[0].value == [("/dev/vdc", UNSET)]
    assert limits.translate("9:9 wbps=4")[0].value == [("/dev/block/9:9", 4)]


def test_only_units_are_written_through_systemd(rig: Rig) -> None:
    """A group below a unit or beside the slices is written directly, and so is every group's freezer."""
    (rig.systemd.tree / "bare").mkdir()
    unit, bare = rig.layer.group(WEB), rig.layer.group("/bare")
    assert isinstance(unit, UnitGroup)
    assert not isinstance(bare, UnitGroup)
    assert (unit.cpus.ref.kind, bare.cpus.ref.kind, unit.freezer.ref.kind) == ("systemd.list", "cgroup2.list", "cgroup2.freezer")
    assert unit.lacks([]) == ""
    assert unit.enabling([]) == ()


@pytest.mark.parametrize(
    ("file", "contested"),
    [
        ("etc/systemd/system/web.service.d/override.conf", True),
        ("etc/systemd/system.control/web.service.d/50-CPUQuota.conf", True),
        ("etc/systemd/system/web.service.d/10-limits.conf", False),
        ("run/systemd/system.control/web.service.d/50-CPUQuota.conf", False),
    ],
)
def test_a_unit_file_that_wins_at_a_reload_is_named(rig: Rig, file: str, contested: bool) -> None:  # noqa: FBT001
    """Drop-ins count in the order of their names: a later one than ours comes back at every daemon-reload."""
    place = rig.root / file
    place.parent.mkdir(parents=True)
    place.write_text("[Service]\nCPUQuota = 50%\n")
    assert any("sets CPUQuota" in warning and str(place) in warning for warning in rig.layer.warnings()) is contested


def test_the_fake_agrees_that_a_later_drop_in_wins(rig: Rig) -> None:
    """The value comes back at a reload, is noticed, and is written again by the rule for foreign writers."""
    rig.done((rig.layer.group(WEB).cpu_bandwidth, "30000 100000"))
    file = rig.root / "etc/systemd/system/web.service.d/override.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[Service]\nCPUQuota=60%\n")
    rig.systemd.reload()
    assert [drift.state for drift in rig.enforcer.drift(10**9)] == ["noticed"]
    assert [drift.state for drift in rig.enforcer.drift(3 * 10**9)] == ["reasserted"]
    assert rig.text("cpu.max") == "30000 100000"


def test_the_control_process_does_not_import_the_bus_library() -> None:
    """Looking up every kind and reading a unit's knob costs no D-Bus import."""
    code = "import sys, actuators.registry, actuators.systemd.layer; sys.exit('jeepney' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 0


def test_the_slow_writer_process_sets_properties(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """By reference, in a process of its own, as in the daemon."""
    place = rig.root / "path"
    place.mkdir()
    (place / "kinds_of_test.py").write_text(
        "from pathlib import Path\nfrom actuators.systemd.bus import SystemdBus\nfrom actuators.systemd.knobs import knob_kinds\n"
        f"ROOT = Path({str(rig.root)!r})\nKINDS = knob_kinds(SystemdBus(ROOT), ROOT)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(place), str(Path(__file__).parents[2]))))
    writer = SlowWriter("kinds_of_test:KINDS")
    try:
        ticket = writer.submit(rig.layer.group(WEB).cpus.ref, "1-2", 0)
        results: list[SlowResult] = []
        for _ in range(6000):
            results = writer.poll(0)
            if results:
                break
            time.sleep(0.02)
    finally:
        writer.close()
    assert [(result.ticket, result.found, result.error) for result in results] == [(ticket, "1,2", None)]


def test_the_journalled_drop_ins_are_plain(rig: Rig) -> None:
    """A person can read in the journal what was in the files."""
    file = rig.root / "run/systemd/system.control/web.service.d/50-AllowedCPUs.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[Service]\nAllowedCPUs=3\n")
    knob = DropInKnob(Resource.CORES, "web.service", rig.systemd.tree / WEB.strip("/"), rig.root)
    assert json.loads(knob.read() or "") == {"files": {str(file.relative_to(rig.root)): "[Service]\nAllowedCPUs=3\n"}}
    assert {CPUSET, CPU, MEMORY, IO} == {"cpuset", "cpu", "memory", "io"}
