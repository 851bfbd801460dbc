"""memory.high and memory.max as one knob, and how it is lowered under a running service.

The kernel answers a memory.max under what is in use with reclaim and then with its OOM killer, and a memory.high under what cannot
be reclaimed by stopping the service without killing it: without swap, for ever. So a limit is lowered in steps, of which each can
be taken back:

1. *Probe*: memory.reclaim (since 5.19) is asked for what is too much, piece by piece. If the kernel cannot reclaim it (EAGAIN), or
   not in time, the new limit is refused and nothing was lowered.
2. *Squeeze*: memory.high is set a little under the new limit, so that nobody can fill the gap, until use is under it; else refused.
3. *Limit*: memory.max, then memory.high to the same value. Use cannot exceed memory.max, so from now on memory.high stops nobody.
4. *Guard*, if the new limit is close to what was in use: for two seconds memory.events and memory.pressure are watched; what gets
   worse by the rule of ``ShrinkRule`` puts both limits back at once.

All four are one write of the knob: whoever is to be given the memory gets it only after the guard, so that no limits ever add up to
more than there is (invariant 1). Raising is memory.max, then memory.high, at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from actuators.cgroup.files import FileKnob, Seen, figure
from actuators.cgroup.group import MemoryLimit
from actuators.cgroup.pressure import parse_pressure
from actuators.cgroup.v1_knobs import PAGE_BYTES
from actuators.cgroup.v2_files import ControllerFile
from parties.knob import KnobError, KnobRef

_MS = 1_000_000
_S = 1_000 * _MS
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ShrinkRule:
    """How a limit is lowered, and when that is taken back. All of it ends well within the slow writer's limit of 10 s.

    Taken back at once: any OOM; or ``some`` memory pressure (time in which a process waits for memory) that exceeds what it was
    before by ``pressure_rise`` of the time, counted over at least ``guard_ns``; a service that waits a tenth of its time for memory
    has a ruined tail, while reclaim of page cache alone stays far below it. Only where the kernel has no PSI, more than
    ``events_per_s`` hits of either limit: with PSI they are not counted, as a service that streams files hits its limit all the
    time without harm.
    """

    piece_bytes: int = 64 * _MIB  # reclaimed in one call, between two looks at the clock
    reclaim_ns: int = 4 * _S
    settle_ns: int = 1 * _S  # for use to fall under memory.high
    guard_ns: int = 2 * _S
    poll_ns: int = 50 * _MS
    pressure_rise: float = 0.10
    events_per_s: int = 500
    margin_fraction: int = 64  # memory.high is first set this part under the new limit, so that memory.max meets no use above it
    margin_bytes: int = 16 * _MIB  # at most
    close_fraction: int = 8  # a guard is kept if more than the limit less this part was in use

    def target(self, limit: int) -> int:
        """What use is brought under before memory.max is lowered to ``limit``."""
        return (limit - min(limit // self.margin_fraction, self.margin_bytes)) // PAGE_BYTES * PAGE_BYTES

    def is_close(self, in_use: int, limit: int) -> bool:
        """Whether lowering to ``limit`` can hurt somebody who uses ``in_use``."""
        return in_use > limit - limit // self.close_fraction


_RULE = ShrinkRule()


def _sleep_ns(duration_ns: int) -> None:
    time.sleep(duration_ns / _S)


class MemoryKnob(FileKnob):
    """memory.high and memory.max; None means that neither is set. Lowering takes up to several seconds: for the slow writer.

    ``restore`` brings back both exactly as they were, but not under what is in use: that is refused, not enforced by OOM kills.
    """

    KIND = "cgroup2.memory"

    def __init__(
        self,
        directory: Path,
        *,
        rule: ShrinkRule = _RULE,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[int], None] = _sleep_ns,
    ) -> None:
        self._directory = directory
        self._high = ControllerFile(directory, "memory.high")
        self._max = ControllerFile(directory, "memory.max")
        self._current = ControllerFile(directory, "memory.current", writable=False)
        self._reclaim_file = ControllerFile(directory, "memory.reclaim", readable=False)
        self._rule = rule
        self._clock = clock
        self._sleep = sleep
        self.ref = KnobRef(self.KIND, (str(directory),))

    def look(self) -> Seen:
        """Both files."""
        return (self._high, self._high.raw_if_enabled()), (self._max, self._max.raw_if_enabled())

    def parse(self, seen: Seen) -> str | None:
        """Bytes, or both limits where they differ."""
        limit = _limits(seen)
        return None if limit == MemoryLimit() else str(limit)

    def write(self, value: str) -> None:
        """Set both. Refused with EBUSY, and both as before, where lowering them would hurt."""
        self._change(MemoryLimit.parse(value), guarded=True)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare whole pages."""
        return _pages(MemoryLimit.parse(wanted)) == _pages(MemoryLimit.parse(found))

    def restore(self, old: str | None) -> None:
        """Bring back both, or that there were none."""
        self._change(MemoryLimit.parse(old), guarded=False)

    def _change(self, new: MemoryLimit, *, guarded: bool) -> None:
        old, limit = _limits(self.look()), new.least
        lowers = _below(new.high, old.high) or _below(new.maximum, old.maximum)
        in_use = self._current.read_if_enabled()
        if limit is None or in_use is None or not lowers:
            self._set(old, new)
        else:
            self._lower(old, new, limit, guarded=guarded and self._rule.is_close(int(in_use), limit))

    def _lower(self, old: MemoryLimit, new: MemoryLimit, limit: int, *, guarded: bool) -> None:
        target = self._rule.target(limit)
        watch = _Watch(self._directory, self._rule, self._clock)
        self._probe(target, limit, watch)
        try:
            self._high.write(str(target))
            self._settle(target, limit, watch)
            self._max.write(_text(new.maximum))
            self._high.write(_text(new.high))
            if guarded:
                self._guard(limit, watch)
        except KnobError:
            self._put_back(old)
            raise

    def _probe(self, target: int, limit: int, watch: _Watch) -> None:
        """Reclaim down to ``target`` while nothing is limited yet."""
        deadline_ns = self._clock() + self._rule.reclaim_ns
        while (excess := self._in_use() - target) > 0:
            self._check(limit, watch)
            if self._clock() >= deadline_ns:
                raise self._refusal(limit, f"reclaiming {excess} bytes more takes over {self._rule.reclaim_ns / _S:.0f} s")
            try:
                self._reclaim_file.write(str(min(excess, self._rule.piece_bytes)))
            except KnobError as error:
                if error.errno == errno.EOPNOTSUPP:
                    return  # before 5.19: memory.high has to show it
                if error.errno == errno.EAGAIN and self._in_use() > target:
                    raise self._refusal(limit, "the kernel cannot reclaim that much") from error
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    raise

    def _settle(self, target: int, limit: int, watch: _Watch) -> None:
        """Wait until use is under memory.high."""
        deadline_ns = self._clock() + self._rule.settle_ns
        while self._in_use() > target:
            self._check(limit, watch)
            if self._clock() >= deadline_ns:
                raise self._refusal(limit, "memory.high did not bring use under it")
            self._sleep(self._rule.poll_ns)

    def _guard(self, limit: int, watch: _Watch) -> None:
        """See that the service bears it."""
        deadline_ns = self._clock() + self._rule.guard_ns
        while self._clock() < deadline_ns:
            self._sleep(self._rule.poll_ns)
            self._check(limit, watch)

    def _check(self, limit: int, watch: _Watch) -> None:
        if trouble := watch.trouble():
            raise self._refusal(limit, f"{trouble}; the limits are as before")

    def _in_use(self) -> int:
        return int(self._current.read())

    def _refusal(self, limit: int, cause: str) -> KnobError:
        stat = _text_of(self._directory / "memory.stat").encode()
        return self._max.refused(
            OSError(errno.EBUSY, os.strerror(errno.EBUSY)),
            str(limit),
            f"{cause}: {self._in_use()} bytes are in use, {figure(stat, b'anon')} of them anonymous, {figure(stat, b'file')} file",
        )

    def _put_back(self, old: MemoryLimit) -> None:
        """As it was, as far as that goes: what could not be put back is found by whoever reads the knob after the error."""
        with contextlib.suppress(KnobError):
            self._max.write(_text(old.maximum))
        with contextlib.suppress(KnobError):
            self._high.write(_text(old.high))

    def _set(self, old: MemoryLimit, new: MemoryLimit) -> None:
        """memory.max, then memory.high; a refused second write takes the first one back."""
        self._max.write(_text(new.maximum))
        try:
            self._high.write(_text(new.high))
        except KnobError:
            with contextlib.suppress(KnobError):
                self._max.write(_text(old.maximum))
            raise


class _Watch:
    """Compares how the group fares with how it fared when the watch began. Raises KnobError if the group is gone."""

    def __init__(self, directory: Path, rule: ShrinkRule, clock: Callable[[], int]) -> None:
        self._events_file = ControllerFile(directory, "memory.events", writable=False)
        self._pressure_file = directory / "memory.pressure"
        self._rule = rule
        self._clock = clock
        self._began_ns = clock()
        self._ooms, self._hits = self._events()
        pressure = parse_pressure(_text_of(self._pressure_file))
        self._stalled_ns = pressure.some.total_ns
        self._usual = pressure.some.avg10
        self._has_pressure = bool(_text_of(self._pressure_file))

    def trouble(self) -> str:
        """What is worse than before by the rule; empty if nothing is."""
        ooms, hits = self._events()
        if ooms > self._ooms:
            return f"{ooms - self._ooms} OOM events since it was begun"
        elapsed_ns = max(1, self._clock() - self._began_ns)
        counted_ns = max(elapsed_ns, self._rule.guard_ns)
        if self._has_pressure:
            stalled_ns = parse_pressure(_text_of(self._pressure_file)).some.total_ns - self._stalled_ns
            if stalled_ns - self._usual * elapsed_ns > self._rule.pressure_rise * counted_ns:
                return f"processes waited {stalled_ns / elapsed_ns:.0%} of the time for memory, before {self._usual:.0%}"
        elif (hits - self._hits) * _S > self._rule.events_per_s * counted_ns:
            return f"the limit was hit {hits - self._hits} times in {elapsed_ns / _S:.1f} s"
        return ""

    def _events(self) -> tuple[int, int]:
        """OOMs, and hits of either limit."""
        text = self._events_file.raw()
        return figure(text, b"oom") + figure(text, b"oom_kill"), figure(text, b"high") + figure(text, b"max")


def _limits(seen: Seen) -> MemoryLimit:
    high, maximum = (None if text is None else text.decode() for _file, text in seen)
    return MemoryLimit(_bytes(high), _bytes(maximum))


def _bytes(text: str | None) -> int | None:
    return None if text is None or text.strip() == "max" else int(text)


def _text(limit: int | None) -> str:
    return "max" if limit is None else str(limit)


def _below(new: int | None, old: int | None) -> bool:
    """Whether a limit is lower than another; None is none."""
    return new is not None and (old is None or new < old)


def _pages(limit: MemoryLimit) -> tuple[int | None, int | None]:
    high, maximum = (None if number is None else number // PAGE_BYTES for number in (limit.high, limit.maximum))
    return high, maximum


def _text_of(path: Path) -> str:
    """A file's text; empty where the kernel has none (no PSI: the file is there and cannot be read)."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
