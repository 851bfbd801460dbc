"""Going on where an earlier daemon left off: after a reload, a restart or an upgrade nothing is to jolt (design, section 5).

A control process that is stopped for one that follows leaves every value in force and writes two files into the runtime directory:
``in-force.json`` (``parties.in_force``) and ``resume``, which says that the values were left on purpose. The next one takes
``resume`` away before anything else, so that a crash from then on is a crash: everything is put back from the journal.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from parties.codec import CodecError, compact_json, from_json, to_json
from parties.in_force import IN_FORCE_NAME, InForce, InForceError, InForceText, read_in_force, write_in_force
from parties.knob import KnobKinds, KnobRef, changed_besides
from parties.model import BEST_EFFORT, IDLE, Decision, Holder, Node, Observation, Partition, Pool, Resource, Service
from parties.record import Timing
from parties.settings import ControlSettings

RESUME_NAME = "resume"
RESUME_VERSION = 2  # 1 had no homes

FIXED_POLICIES = frozenset({"equal"})
"""Policies whose start is all they do: for them what a fresh start would give is what is wanted."""


class Events(Protocol):
    """Where an operator is told something."""

    def __call__(self, level: str, text: str) -> None:
        """``level`` is info, warning or error."""


class ResumeError(Exception):
    """What an earlier daemon left cannot be taken over; the message says why."""


@dataclass(frozen=True, slots=True)
class Left:
    """The file ``resume``: who left the values, and what they hung on besides what is in force.

    ``members`` are the groups, units and containers of each holder; ``network`` is where the traffic classes are;
    ``homes`` is the domain that each service lives in.
    """

    pid: int
    members: Mapping[Holder, tuple[str, ...]]
    network: str
    homes: Mapping[str, int]
    version: int = RESUME_VERSION


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier daemon left in force, and on what it hung."""

    in_force: InForce
    left: Left


def members_of(settings: ControlSettings) -> dict[Holder, tuple[str, ...]]:
    """Where the processes of each holder are, as configured."""
    members = {service.name: (*service.cgroups, *service.units, *service.containers) for service in settings.services}
    jobs = (member for job in settings.best_effort for member in (*job.cgroups, *job.units, *job.containers))
    return members | {BEST_EFFORT: tuple(jobs)}


def network_place(settings: ControlSettings) -> str:
    """Where the traffic classes are; "" where there are none. Somewhere else they have to be made anew, all else changes in place.

    Earlier versions wrote a fingerprint of the whole layout here, which no place is the same as.
    """
    network = settings.node.network
    return "" if network is None else " ".join(("in", network.namespace or ".", "on", network.device, network.parent or "root"))


def leave(runtime_directory: Path, left: Left) -> None:
    """Say that what is in force was left on purpose. Raises OSError."""
    path = runtime_directory / RESUME_NAME
    temporary = path.with_suffix(".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(compact_json(to_json(left)))
    temporary.rename(path)


def take_up(runtime_directory: Path, *, boot_id: str, topology: str) -> Earlier | None:
    """What was left on purpose, and the file that says so is removed; None if nothing was.

    Raises ResumeError where it was left by another boot, on another topology or by another version, or is damaged: then everything
    is to be put back first.
    """
    path = runtime_directory / RESUME_NAME
    try:
        data = path.read_bytes()
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResumeError(f"{path}: {error.strerror}") from error
    try:
        left = _decoded(path, data)
        in_force = read_in_force(runtime_directory / IN_FORCE_NAME, boot_id=boot_id, topology=topology)
    except InForceError as error:
        raise ResumeError(str(error)) from error
    if in_force.pid != left.pid:
        raise ResumeError(f"{path}: left by process {left.pid}, and what is in force was written by {in_force.pid}")
    return Earlier(in_force, left)


def forget(runtime_directory: Path) -> None:
    """What was left on purpose is nobody's to take up any more: it is about to be put back."""
    with contextlib.suppress(OSError):
        (runtime_directory / RESUME_NAME).unlink()


def _decoded(path: Path, data: bytes) -> Left:
    try:
        body = json.loads(data)
        if isinstance(body, dict) and body.get("version") != RESUME_VERSION:
            raise ResumeError(f"{path}: of version {body.get('version')}, this is version {RESUME_VERSION}")
        return from_json(Left, body)
    except (ValueError, CodecError) as error:
        raise ResumeError(f"{path}: damaged: {error}") from error


class InForceFile:
    """Keeps ``in-force.json`` up to date; a listener of the loop.

    ``in_force`` tells what is in force, ``changes`` something that differs whenever that may: what it costs to make and to write
    is not to be spent on ticks that change nothing. A write that fails is said once.
    """

    def __init__(self, path: Path, in_force: Callable[[], InForce], changes: Callable[[], object], events: Events) -> None:
        self._path = path
        self._in_force = in_force
        self._changes = changes
        self._events = events
        self._text = InForceText()
        self._kept: object = None
        self._failed = ""

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Write what this tick changed, and what slow writes came to since the last one."""
        del observation, decision, timing
        self.keep()

    def keep(self) -> bool:
        """Write what changed; whether the file now tells what is in force."""
        changes = self._changes()
        if changes == self._kept:
            return True
        try:
            write_in_force(self._path, self._in_force(), self._text)
        except OSError as error:
            if self._failed != str(error):
                self._failed = str(error)
                self._events("warning", f"{self._path}: {error.strerror}; as long as it cannot be written, a restart begins afresh")
            return False
        self._kept, self._failed = changes, ""
        return True


# Knobs of those who left


@dataclass(frozen=True, slots=True)
class Leavers:
    """Tells which journalled knobs are to be put back when a daemon goes on with other settings.

    ``kept`` are the knobs that the start writes; of the others those go back whose holder left or moved to other groups, whose
    resource is not ``partitioned`` any more, or of which nobody knows whose they were.
    """

    earlier: Earlier
    members: Mapping[Holder, tuple[str, ...]]
    kept: frozenset[KnobRef]
    partitioned: frozenset[Resource]
    kinds: KnobKinds

    def __call__(self, ref: KnobRef) -> bool:
        """Whether the knob goes back to what it was."""
        if ref in self.kept:
            return False
        wanted = self.earlier.in_force.wanted.get(ref)
        if wanted is None:
            return ref not in self.earlier.in_force.yielded and ref not in self._changed_by_those_who_stay()
        kind = self.kinds.get(ref.kind)
        if kind is not None and kind.resource is not None and kind.resource not in self.partitioned:
            return True
        return self.earlier.left.members.get(wanted.holder) != self.members.get(wanted.holder)

    def _changed_by_those_who_stay(self) -> frozenset[KnobRef]:
        """What belongs to values that stay in force, such as the files that say so."""
        return changed_besides([*self.kept, *(ref for ref in self.earlier.in_force.wanted if not self(ref))], self.kinds)


# Amounts


def resumed_partition(
    node: Node, services: Sequence[Service], *, best_effort: bool, earlier: Partition, fresh: Partition
) -> Partition:
    """The partition to go on with: what everybody had, changed as little as the services and pools of now ask for.

    Removed services leave their amounts to the best-effort pool, else to idle; added ones get their floor from idle, then from the
    best-effort pool, then step by step from whoever has most above its own floor, and the best-effort pool gets what it is
    to keep in the same way. A pool that is new, or whose total or steps are not what they were, is split as in ``fresh``, the
    partition of a fresh start, which also says which pools are partitioned.
    """
    amounts = {}
    for key, start in fresh.amounts.items():
        pool, held = node.pools[key], earlier.amounts.get(key)
        members = [service for service in services if service.name in start]
        if held is None or not _fits(pool, held):
            amounts[key] = start
        elif pool.levels:
            amounts[key] = _levels(pool, members, held, start)
        else:
            amounts[key] = _shares(pool, members, held, best_effort=best_effort)
    return Partition(amounts)


def _fits(pool: Pool, held: Mapping[Holder, int]) -> bool:
    if pool.levels:
        return set(held.values()) <= set(pool.levels)
    return sum(held.values()) == pool.total and all(amount >= 0 and amount % pool.step == 0 for amount in held.values())


def _levels(
    pool: Pool, members: Sequence[Service], held: Mapping[Holder, int], start: Mapping[Holder, int]
) -> Mapping[Holder, int]:
    limits = {service.name: (service.floor(pool), service.ceiling(pool)) for service in members}
    levels = {}
    for holder, fresh in start.items():
        low, high = limits.get(holder, (pool.levels[0], pool.levels[-1]))
        allowed = [level for level in pool.levels if low <= level <= high]
        levels[holder] = _nearest(allowed, held.get(holder, fresh))
    return levels


def _nearest(levels: Sequence[int], wanted: int) -> int:
    return min(levels, key=lambda level: abs(level - wanted))


def _shares(pool: Pool, members: Sequence[Service], held: Mapping[Holder, int], *, best_effort: bool) -> Mapping[Holder, int]:
    recipient = BEST_EFFORT if best_effort else IDLE
    floors = {service.name: -(-service.floor(pool) // pool.step) * pool.step for service in members}
    now = {service.name: held.get(service.name, 0) for service in members} | {recipient: 0, IDLE: held.get(IDLE, 0)}
    if best_effort:
        now[BEST_EFFORT] = held.get(BEST_EFFORT, 0)
        if BEST_EFFORT not in held:  # jobs that were not there before hold what nobody needs
            now[BEST_EFFORT], now[IDLE] = now[IDLE], 0
    now[recipient] += sum(amount for holder, amount in held.items() if holder not in now)
    for service in members:
        ceiling = max(floors[service.name], service.ceiling(pool) // pool.step * pool.step)
        excess = max(0, now[service.name] - ceiling)
        now[service.name] -= excess
        now[recipient] += excess
    for name, floor in floors.items():
        _raise_to(floor, name, now, floors, pool.step)
    if best_effort:
        _raise_to(pool.best_effort_floor, BEST_EFFORT, now, floors, pool.step)
    return now


def _raise_to(floor: int, name: Holder, now: dict[Holder, int], floors: Mapping[Holder, int], step: int) -> None:
    for giver in (IDLE, BEST_EFFORT):
        amount = min(max(0, floor - now[name]), now.get(giver, 0)) // step * step
        if amount:
            now[giver] -= amount
            now[name] += amount
    while now[name] < floor:
        giver = max((other for other in floors if other != name), key=lambda other: now[other] - floors[other])
        now[giver] -= step
        now[name] += step
