"""LLC occupancy and memory bandwidth of each holder, from the counters of its resctrl group.

Reading a counter costs an interrupt on a CPU of its L3 domain, and there are two for each group and domain: too slow for the tick.
So they are read by the process that does the upkeep, and what it found last is what a sample says. Where the hardware cannot tell a
value (its text is "Unavailable" or "Error") the sum over the domains is not known either.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parties.interfaces import Finding
from parties.knob import KnobKind, KnobKinds, KnobRef, Sensor
from parties.model import NS_PER_S, Holder, Resource

PERIOD_NS = NS_PER_S
OCCUPANCY = "llc_occupancy"
BANDWIDTH = "mbm_total_bytes"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What a holder's lines take of the cache, and its memory traffic; None where this machine cannot tell."""

    cache_bytes: int | None = None
    memory_bandwidth_bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of one group at one moment (CLOCK_MONOTONIC), summed over the L3 domains."""

    at_ns: int
    occupancy_bytes: int | None
    traffic_bytes: int | None


def has_counters(mount: Path) -> bool:
    """Whether resctrl counts anything here."""
    return any((mount / "mon_data").glob(f"mon_L3_*/{OCCUPANCY}")) or any((mount / "mon_data").glob(f"mon_L3_*/{BANDWIDTH}"))


class ResctrlCountersKnob(Sensor):
    """The counters of groups, in the shape of a knob so that the upkeep's process reads them. Nothing is ever written."""

    KIND = "resctrl.counters"

    def __init__(self, mount: Path, names: tuple[str, ...], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._mount, self._names, self._clock = mount, names, clock
        self.ref = KnobRef(self.KIND, (str(mount), *names))

    def read(self) -> str | None:
        """The counters of each group that exists, as JSON: its name, the time, occupancy and traffic in bytes."""
        found = {}
        for name in self._names:
            data = self._mount / name / "mon_data"
            if data.is_dir():
                found[name] = (self._clock(), _sum(data, OCCUPANCY), _sum(data, BANDWIDTH))
        return json.dumps(found)


class ResctrlMonitor:
    """What each holder uses of the cache and the memory bus. It is the upkeep task that reads the counters as well.

    ``groups`` are the names of the holders' resctrl groups.
    """

    value = "read"

    def __init__(self, mount: Path, groups: Mapping[Holder, str], *, period_ns: int = PERIOD_NS) -> None:
        self._holders = {name: holder for holder, name in groups.items()}
        self._last: dict[Holder, Counters] = {}
        self._use: dict[Holder, CacheUse] = {}
        self.ref = ResctrlCountersKnob(mount, tuple(groups.values())).ref
        self.period_ns = period_ns

    def judge(self, found: str | None, error: OSError | None) -> Finding:
        """Take in what was read. While it cannot be read nothing is known."""
        read = {} if found is None or error is not None else json.loads(found)
        now = {self._holders[name]: Counters(*counters) for name, counters in read.items()}
        self._use = {holder: _use(self._last.get(holder), counters) for holder, counters in now.items()}
        self._last = now
        return Finding()

    def sample(self) -> Mapping[Holder, CacheUse]:
        """What was found last; the first reading gives occupancy only."""
        return self._use


def _use(before: Counters | None, now: Counters) -> CacheUse:
    rate = None
    if before is not None and before.traffic_bytes is not None and now.traffic_bytes is not None and now.at_ns > before.at_ns:
        grown = now.traffic_bytes - before.traffic_bytes
        rate = grown * NS_PER_S // (now.at_ns - before.at_ns) if grown >= 0 else None  # less than before: a group made anew
    return CacheUse(now.occupancy_bytes, rate)


def _sum(data: Path, name: str) -> int | None:
    """A counter over all L3 domains; None if there is none or one of them does not tell."""
    total = None
    for place in data.glob("mon_L3_*"):
        try:
            total = (total or 0) + int((place / name).read_text(encoding="ascii", errors="replace"))
        except (OSError, ValueError):
            return None
    return total


KINDS: KnobKinds = {
    ResctrlCountersKnob.KIND: KnobKind(
        lambda address: ResctrlCountersKnob(Path(address[0]), address[1:]), Resource.CACHE, slow=True
    )
}
