"""The rest of the machine: what runs on managed CPUs outside every registered group, and what it costs."""

from __future__ import annotations

import contextlib

from actuators.rest import RestKeeper
from monitors.rest import InterruptLoad, ProcessLoad, Rest, Snapshot, compare, take_snapshot
from parties.doctor.examine import counted
from parties.doctor.model import RestReport
from parties.doctor.subject import MISTAKES, Subject
from parties.model import MILLICORES_PER_CORE
from parties.settings import CoreSettings
from parties.units import format_cpu_list

_MOST_NAMED = 5
_NOTABLE_MILLICORES = 10
_NOTABLE_PER_S = 100


def examine(subject: Subject) -> RestReport:
    """Two looks, and between them the subject's time to wait."""
    before = take_snapshot(subject.root)
    subject.wait()
    return tell(subject, before, take_snapshot(subject.root))


def tell(subject: Subject, before: Snapshot, after: Snapshot) -> RestReport:
    """What two snapshots show."""
    cpus = subject.cpus
    rest = compare(before, after, cpus, subject.registered)
    facts = {
        "cpus": format_cpu_list(cpus),
        "processes": _group(rest.processes),
        "kernel_threads": {**_group(rest.kernel_threads), "movable": len(rest.movable_kernel_threads)},
        "interrupts": {
            "per_s": sum(load.per_s for load in rest.interrupts if load.interrupt.of_device),
            "of_kernel_per_s": sum(load.per_s for load in rest.interrupts if not load.interrupt.of_device),
            "top": [_interrupt(load) for load in rest.interrupts[:_MOST_NAMED]],
        },
    }
    return RestReport(facts, _lines(rest, format_cpu_list(cpus)), (*_changes(subject, rest), *_warnings(subject)))


def _group(loads: tuple[ProcessLoad, ...]) -> dict[str, object]:
    return {
        "count": len(loads),
        "millicores": sum(load.millicores for load in loads),
        "top": [_process(load) for load in loads[:_MOST_NAMED] if load.millicores],
    }


def _process(load: ProcessLoad) -> dict[str, object]:
    process = load.process
    return {
        "pid": process.pid,
        "name": process.name,
        "group": next((group for group in process.groups if group != "/"), "/"),
        "millicores": load.millicores,
        "cpu": process.cpu,
        "allowed_cpus": format_cpu_list(process.allowed),
    }


def _interrupt(load: InterruptLoad) -> dict[str, object]:
    interrupt = load.interrupt
    return {
        "number": interrupt.number,
        "name": interrupt.name,
        "per_s": load.per_s,
        "allowed_cpus": format_cpu_list(interrupt.allowed),
        "effective_cpus": format_cpu_list(interrupt.effective),
    }


def _lines(rest: Rest, cpus: str) -> tuple[str, ...]:
    def share(loads: tuple[ProcessLoad, ...]) -> str:
        named = [
            f"{load.process.name} ({load.process.pid}) {load.millicores / MILLICORES_PER_CORE:.2f}"
            for load in loads[:_MOST_NAMED]
            if load.millicores >= _NOTABLE_MILLICORES
        ]
        total = sum(load.millicores for load in loads) / MILLICORES_PER_CORE
        return f"{total:.2f} cores" + (f": {', '.join(named)}" if named else "")

    devices = [load for load in rest.interrupts if load.interrupt.of_device]
    named = [f"{load.interrupt.number} {load.interrupt.name} {load.per_s}/s" for load in devices[:_MOST_NAMED] if load.per_s]
    processes = counted(len(rest.processes), "process", "processes")
    threads = f"{counted(len(rest.kernel_threads), 'kernel thread')}, {len(rest.movable_kernel_threads)} of which can be moved"
    return (
        f"{processes} outside every registered group may run on CPUs {cpus}, and took {share(rest.processes)}",
        f"{threads}, took {share(rest.kernel_threads)}",
        f"{sum(load.per_s for load in devices)} interrupts of devices per second there"
        + (f": {', '.join(named)}" if named else ""),
    )


def _warnings(subject: Subject) -> tuple[str, ...]:
    """What stands against what is asked for, in the words of the daemon's own part."""
    with contextlib.suppress(*MISTAKES):
        settings, cores = subject.settings, subject.settings.node.cores or CoreSettings()
        hierarchies = subject.layer.hierarchies
        return RestKeeper(settings.rest, cores.reserved_cpus, hierarchies, subject.registered, root=subject.root).warnings()
    return ()


def _changes(subject: Subject, rest: Rest) -> list[str]:
    """Only where there is something to keep off, and nobody has asked for it yet."""
    cores = subject.settings.node.cores
    wanted, changes = subject.settings.rest, []
    needs = "" if cores is not None and cores.reserved_cpus else "; it needs reserved CPUs in [node.cores]"
    if not wanted.processes and sum(load.millicores for load in rest.processes) >= _NOTABLE_MILLICORES:
        changes.append(f"processes = true in [rest] keeps other processes off the managed CPUs{needs}")
    if not wanted.kernel_threads and sum(load.millicores for load in rest.movable_kernel_threads) >= _NOTABLE_MILLICORES:
        changes.append(f"kernel_threads = true in [rest] keeps kernel threads that can move off the managed CPUs{needs}")
    if not wanted.interrupts and sum(load.per_s for load in rest.interrupts if load.interrupt.of_device) >= _NOTABLE_PER_S:
        changes.append(f"interrupts = true in [rest] keeps interrupts of devices off the managed CPUs{needs}")
    return changes
