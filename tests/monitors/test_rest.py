from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from monitors.rest import (
    Interrupt,
    Process,
    Snapshot,
    compare,
    parse_interrupts,
    parse_process,
    read_interrupts,
    take_snapshot,
)
from parties.model import NS_PER_S

# As Linux 6.1 prints them.
_ODD_STAT = (
    "4021 (a) S (b) R 1 4021 4021 0 -1 4194560 9120 0 3 0 1500 250 0 0 20 0 5 0 88123 1073741824 5120 18446744073709551615 "
    "1 1 0 0 0 0 0 4096 16384 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
_KERNEL_STAT = (
    "14 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 0 312 0 0 20 0 1 0 7 0 0 18446744073709551615 "
    "0 0 0 0 0 0 0 2147483647 0 1 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
_STATUS = "Name:\ta\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n"
_HYBRID_GROUPS = "4:cpuset:/web\n3:cpu,cpuacct:/system.slice/nginx.service\n0::/system.slice/nginx.service\n"
_INTERRUPTS = """\
            CPU0       CPU2       CPU3
  8:          0          0          1  IR-IO-APIC   8-edge      rtc0
125:        100          7          0  IR-PCI-MSI 524289-edge      nvme0q1
LOC:     698695     679868        100   Local timer interrupts
ERR:          0
"""


def _process(pid: int, ticks: int, **other: object) -> Process:
    made = Process(pid, f"p{pid}", start_ticks=1, ticks=ticks, cpu=0, allowed=frozenset({0, 1}))
    return dataclasses.replace(made, **other)  # type: ignore[arg-type]


def _snapshot(at_ns: int, *processes: Process, interrupts: tuple[Interrupt, ...] = ()) -> Snapshot:
    return Snapshot(at_ns, {one.pid: one for one in processes}, {one.number: one for one in interrupts})


def test_name_with_brackets_and_blanks_is_read() -> None:
    """A process may call itself anything, brackets and blanks included."""
    found = parse_process(_ODD_STAT, _STATUS, _HYBRID_GROUPS)
    assert (found.pid, found.name, found.ticks, found.start_ticks, found.cpu) == (4021, "a) S (b", 1750, 88123, 3)
    assert found.allowed == {0, 1, 2, 3}
    assert found.groups == ("/web", "/system.slice/nginx.service")
    assert not found.kernel_thread


def test_kernel_thread_that_cannot_move_is_told() -> None:
    """The flags of the kernel say what is its own thread and whether its affinity is fixed."""
    found = parse_process(_KERNEL_STAT)
    assert found.kernel_thread
    assert found.fixed
    movable = parse_process(_KERNEL_STAT.replace("69238848", "2129984"))
    assert movable.kernel_thread
    assert not movable.fixed


def test_interrupts_of_cpus_that_are_not_counted_through() -> None:
    """The head names the online CPUs; sums without CPUs are left out, and a name keeps its words."""
    found = parse_interrupts(_INTERRUPTS)
    assert found["125"].counts == {0: 100, 2: 7, 3: 0}
    assert found["125"].name == "IR-PCI-MSI 524289-edge nvme0q1"
    assert found["125"].of_device
    assert not found["LOC"].of_device
    assert "ERR" not in found


def test_affinity_of_an_interrupt_is_read(tmp_path: Path) -> None:
    """Where an interrupt may go and where it goes are two files, the second of which old kernels have not."""
    irq = tmp_path / "proc/irq"
    for number in ("8", "125"):
        (irq / number).mkdir(parents=True)
        (irq / number / "smp_affinity_list").write_text("0,2-3\n")
    (irq / "125/effective_affinity_list").write_text("2\n")
    (tmp_path / "proc/interrupts").write_text(_INTERRUPTS)
    found = read_interrupts(tmp_path)
    assert (found["125"].allowed, found["125"].effective) == (frozenset({0, 2, 3}), frozenset({2}))
    assert (found["8"].allowed, found["8"].effective) == (frozenset({0, 2, 3}), frozenset({0, 2, 3}))
    assert found["LOC"].allowed == frozenset()


def test_cost_is_a_share_of_one_cpu() -> None:
    """50 ticks of 100 per second in two seconds are a quarter of a CPU; the costliest comes first."""
    before = _snapshot(0, _process(5, 100), _process(6, 10))
    after = _snapshot(2 * NS_PER_S, _process(5, 110), _process(6, 60))
    assert [(load.process.pid, load.millicores) for load in compare(before, after, [0], ticks_per_s=100).processes] == [
        (6, 250),
        (5, 50),
    ]


@pytest.mark.parametrize(
    ("other", "millicores"),
    [({"start_ticks": 9}, 300), ({"pid": 77}, 300), ({"ticks": 10}, 0)],
    ids=["number used again", "come meanwhile", "counter fell"],
)
def test_process_that_is_another_one(other: dict[str, object], millicores: int) -> None:
    """A process that was not there before has used all its time since; a counter that falls counts as nothing."""
    before = _snapshot(0, _process(5, 20))
    after = _snapshot(NS_PER_S, dataclasses.replace(_process(5, 30), **other))  # type: ignore[arg-type]
    assert compare(before, after, [0], ticks_per_s=100).processes[0].millicores == millicores


@pytest.mark.parametrize(
    ("groups", "listed"),
    [(("/web",), False), (("/", "/web/nginx"), False), (("/website",), True), (("/",), True)],
    ids=["its own", "below it", "of like name", "root"],
)
def test_registered_groups_are_not_the_rest(groups: tuple[str, ...], listed: bool) -> None:  # noqa: FBT001 (a parameter of the table)
    """What is in a registered group or below it, in any hierarchy, is not listed."""
    after = _snapshot(NS_PER_S, _process(5, 30, groups=groups))
    assert bool(compare(_snapshot(0), after, [0], ["web/"]).processes) is listed


def test_only_what_may_run_there_is_listed() -> None:
    """A process that is kept off the CPUs that were asked about costs them nothing."""
    after = _snapshot(NS_PER_S, _process(5, 30, allowed=frozenset({0})), _process(6, 30, allowed=frozenset({2, 3})))
    assert [load.process.pid for load in compare(_snapshot(0), after, [1, 2]).processes] == [6]


def test_kernel_threads_are_apart() -> None:
    """Kernel threads are listed for themselves, and those that can move among them are told."""
    threads = [_process(5, 30, kernel_thread=True, fixed=True), _process(6, 30, kernel_thread=True)]
    found = compare(_snapshot(0), _snapshot(NS_PER_S, *threads), [0])
    assert not found.processes
    assert [load.process.pid for load in found.kernel_threads] == [5, 6]
    assert [load.process.pid for load in found.movable_kernel_threads] == [6]


def test_interrupts_are_counted_on_the_cpus_asked_about() -> None:
    """Only what came to those CPUs counts; a device's silent interrupt is listed if it would come there."""
    here, there = frozenset({0}), frozenset({1})
    before = (Interrupt("8", "disk", {0: 10, 1: 10}, here, here), Interrupt("9", "net", {0: 0, 1: 0}, there, there))
    after = (
        Interrupt("8", "disk", {0: 30, 1: 5000}, here, here),
        Interrupt("9", "net", {0: 0, 1: 700}, there, there),
        Interrupt("10", "quiet", {0: 0, 1: 0}, here, here),
    )
    found = compare(_snapshot(0, interrupts=before), _snapshot(2 * NS_PER_S, interrupts=after), [0])
    assert [(load.interrupt.number, load.per_s) for load in found.interrupts] == [("8", 10), ("10", 0)]


def test_machine_that_tells_nothing(tmp_path: Path) -> None:
    """Without /proc there is nothing to see, and no error."""
    assert take_snapshot(tmp_path, lambda: 5) == Snapshot(5)


def test_damaged_process_is_left_out(tmp_path: Path) -> None:
    """A process that goes while it is looked at (an empty or a torn file) is left out, and the others are seen."""
    for pid, stat in (("7", ""), ("8", "8 (torn"), ("4021", _ODD_STAT)):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "stat").write_text(stat)
    assert list(take_snapshot(tmp_path).processes) == [4021]


def test_this_machine_is_seen() -> None:
    """On the machine that the test runs on there are processes with an affinity, at least the test's own."""
    assert any(process.allowed for process in take_snapshot().processes.values())
