"""The knobs of cpufreq: one value of several files, in an order that passes, compared as the kernel rounds."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cpufreq_trees as trees
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.cgroup.files import KeptFile
from actuators.frequency import knobs
from actuators.frequency.cpupower import PolicyLimits
from actuators.frequency.knobs import Cap, CapKnob, Setting, UserspaceKnob
from parties.knob import KnobError, KnobRef
from parties.model import Resource

FOUND = "schedutil - 1200000 2201000"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A policy of acpi-cpufreq with a table."""
    return trees.make_tree(tmp_path, trees.SHAPES["acpi"]) / "cpufreq/policy0"


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is written, in order, by the names of files; it takes effect."""
    seen: list[tuple[str, str]] = []
    write = KeptFile.write

    def noted(file: KeptFile, text: str, cause: str = "") -> None:
        seen.append((file.path.name.removeprefix("scaling_"), text))
        write(file, text, cause)

    monkeypatch.setattr(KeptFile, "write", noted)
    return seen


@given(
    st.sampled_from(["userspace", "performance", "schedutil"]), st.none() | st.integers(1, 2**32), st.integers(0), st.integers(0)
)
def test_settings_and_caps_are_read_as_written(governor: str, speed: int | None, low: int, high: int) -> None:
    """The texts in the journal give the same values again."""
    assert Setting.parse(str(Setting(governor, speed, low, high))) == (governor, speed, low, high)
    assert Cap.parse(str(Cap(high, low))) == (high, low)
    assert Cap.parse(str(Cap(high))) == (high, None)


def test_a_step_is_one_write(directory: Path, writes: list[tuple[str, str]]) -> None:
    """Governor and limits are written when they differ, the speed alone in every later step."""
    knob = UserspaceKnob(directory)
    assert knob.read() == FOUND
    knob.write("userspace 1500000 1200000 2201000")
    knob.write("userspace 1600000 1200000 2201000")
    knob.write("performance - 1200000 2201000")
    assert writes == [("governor", "userspace"), ("setspeed", "1500000"), ("setspeed", "1600000"), ("governor", "performance")]
    assert knob.read() == "performance - 1200000 2201000"


@pytest.mark.parametrize(
    ("limits", "order"),
    [
        ("1900000 2100000", ["max_freq", "min_freq"]),
        ("1200000 1300000", ["min_freq", "max_freq"]),
        ("1200000 1500000", ["min_freq"]),
        ("1400000 2000000", ["max_freq"]),
    ],
)
def test_limits_are_set_in_an_order_that_passes(
    directory: Path, writes: list[tuple[str, str]], limits: str, order: list[str]
) -> None:
    """At no moment is the lowest above the highest, which older kernels refuse; limits come before governor and speed."""
    (directory / "scaling_min_freq").write_text("1400000\n")
    (directory / "scaling_max_freq").write_text("1500000\n")
    UserspaceKnob(directory).write(f"userspace 1400000 {limits}")
    assert [name for name, _ in writes] == [*order, "governor", "setspeed"]
    writes.clear()
    (directory / "scaling_min_freq").write_text("1400000\n")
    (directory / "scaling_max_freq").write_text("1500000\n")
    CapKnob(directory).write(" ".join(reversed(limits.split())))
    assert [name for name, _ in writes] == order


def test_a_cap_below_the_lowest_takes_it_along(directory: Path, writes: list[tuple[str, str]]) -> None:
    """Only then; and what was there comes back with the restore."""
    (directory / "scaling_min_freq").write_text("1800000\n")
    knob = CapKnob(directory)
    old = knob.read()
    knob.write("1900000")
    knob.write("1500000")
    assert writes == [("max_freq", "1900000"), ("min_freq", "1500000"), ("max_freq", "1500000")]
    assert knob.same("1500000", knob.read())
    knob.restore(old)
    assert knob.read() == old == "2201000 1800000"


def test_only_what_the_driver_rounds_is_the_same(directory: Path) -> None:
    """With a table every kHz counts: 2201000 is turbo and 2200000 is not. Without, drivers round to their clock's ratio."""
    cap, user = CapKnob(directory), UserspaceKnob(directory)
    assert not cap.same("2201000", "2200000 1200000")
    assert not user.same("userspace 1500000 1200000 2201000", "userspace 1600000 1200000 2201000")
    assert not user.same("userspace 1500000 1200000 2201000", FOUND)
    assert not user.same("userspace 1500000 1200000 2201000", "userspace - 1200000 2201000")
    assert not user.same("performance - 1200000 2201000", None)
    assert not user.same("performance - 1200000 2201000", FOUND)
    assert not cap.same("1500000", None)
    assert not user.same(FOUND, "schedutil - 1300000 2201000")
    assert not cap.same("2201000 1200000", "2201000 1300000")
    (directory / "scaling_available_frequencies").unlink()
    cap, user = CapKnob(directory), UserspaceKnob(directory)
    assert cap.same("1495000", "1500000 1200000")
    assert user.same("userspace 1495000 1200000 2201000", "userspace 1500000 1200000 2201000")
    assert not cap.same("1475000", "1500000 1200000")


@pytest.mark.parametrize("what", ["firmware", "cooling", "turbo"])
def test_a_limit_beside_ours_is_no_foreign_writer(directory: Path, what: str) -> None:
    """Firmware, a cooling device or turbo switched off holds the limit down. Without them a lower limit is foreign."""
    root = directory.parents[5]
    found, lowered = "userspace 1700000 1200000 1700000", "performance - 1200000 1700000"
    user, cap = UserspaceKnob(directory), CapKnob(directory)
    assert not user.same("userspace 2000000 1200000 2201000", found)
    assert not cap.same("2000000", "1700000 1200000")
    if what == "firmware":
        (directory / "bios_limit").write_text("1700000\n")
    elif what == "turbo":
        (directory.parent / "boost").write_text("0\n")
    else:
        device = root / "sys/class/thermal/cooling_device3"
        device.mkdir(parents=True)
        (device / "type").write_text("Processor\n")
        (device / "cur_state").write_text("2\n")
    assert user.same("userspace 2000000 1200000 2201000", found)
    assert user.same("performance - 1200000 2201000", lowered)
    assert cap.same("2000000", "1700000 1200000")
    assert not user.same("userspace 2000000 1200000 2201000", "userspace 1500000 1200000 1700000")
    assert not cap.same("1500000", "1700000 1200000"), "a higher limit is never ours"


@pytest.mark.parametrize("make", [UserspaceKnob, CapKnob])
def test_a_policy_whose_cpus_are_offline_has_vanished(
    directory: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], CapKnob]
) -> None:
    """Newer kernels keep the directory and answer EBUSY; older ones remove it."""
    knob = make(directory)

    def busy(file: KeptFile) -> bytes:
        raise KnobError(errno.EBUSY, f"{file.path}: cannot read")

    with monkeypatch.context() as patch:
        patch.setattr(KeptFile, "raw", busy)
        with pytest.raises(KnobError, match="offline") as caught:
            knob.read()
        assert caught.value.errno == errno.ENODEV
    for file in directory.iterdir():
        file.unlink()
    with pytest.raises(KnobError) as caught:
        make(directory).read()
    assert caught.value.errno == errno.ENOENT


def test_nonsense_in_a_file_is_an_error_that_names_it(directory: Path) -> None:
    """Not a crash, and not a value."""
    (directory / "scaling_max_freq").write_text("<unknown>\n")
    with pytest.raises(KnobError, match="scaling_max_freq: '<unknown>' is not a frequency") as caught:
        CapKnob(directory).read()
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("shape", ["acpi", "acpi-cppc", "intel-active"])
def test_full_speed_is_what_is_safe(tmp_path: Path, shape: str) -> None:
    """The widest limits that can be in force; the performance governor where we have set one."""
    directory = trees.make_tree(tmp_path, trees.SHAPES[shape]) / "cpufreq/policy0"
    low, high = (1_200_000, 2_201_000) if shape != "intel-active" else (800_000, 3_500_000)
    expected = {UserspaceKnob.KIND: f"performance - {low} {high}", CapKnob.KIND: str(high)}
    for name, kind in knobs.KINDS.items():
        knob = kind.make((str(directory),))
        assert kind.safe is not None
        assert kind.safe(knob) == expected[name]
        assert kind.resource is Resource.FREQUENCY
        assert knob.ref == KnobRef(name, (str(directory),))


@pytest.mark.parametrize("answer", [True, False])
def test_the_library_sets_governor_and_limits_and_the_file_tells_why_not(
    directory: Path, writes: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, *, answer: bool
) -> None:
    """What the library did is not done again; what it could not is tried by file, whose error has the kernel's words."""
    asked: list[tuple[int, PolicyLimits]] = []

    def set_policy(cpu: int, wanted: PolicyLimits) -> bool:
        asked.append((cpu, wanted))
        return answer

    knob = UserspaceKnob(directory)
    monkeypatch.setattr(knob, "_library", SimpleNamespace(set_policy=set_policy))
    knob.write("userspace 1500000 1200000 2201000")
    assert asked == [(0, PolicyLimits(1_200_000, 2_201_000, "userspace"))]
    assert writes == [*([] if answer else [("governor", "userspace")]), ("setspeed", "1500000")]
    (directory / "scaling_governor").write_text("userspace\n")
    knob.write("userspace 1600000 1200000 2201000")
    assert len(asked) == 1, "a step needs no library once the governor is in force"
