"""The rule for foreign writers: notice, name, re-assert a few times with back-off, then yield; never a fight (invariant 6)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from parties.knob import KnobRef
from parties.model import NS_PER_S, Holder


@dataclass(frozen=True, slots=True)
class ForeignRule:
    """Re-assert after ``first_ns``, then after twice as long each time; the ``most``-th one within ``window_ns`` is the last."""

    first_ns: int = NS_PER_S
    most: int = 3
    window_ns: int = 60 * NS_PER_S


class DriftState(enum.StrEnum):
    """What was found of a knob that is not as it should be, or what was done about it."""

    NOTICED = "noticed"  # somebody else wrote it; to be re-asserted
    REASSERTED = "reasserted"  # the expected value was written again
    YIELDED = "yielded"  # written by somebody else again and again: left to them from now on
    VANISHED = "vanished"  # its group or device is gone
    RETURNED = "returned"  # its group or device was made anew, and the expected value written
    UNREADABLE = "unreadable"  # the kernel gives an error


@dataclass(frozen=True, slots=True)
class Drift:
    """One event of one knob; ``found`` is None where it is unset, vanished or unreadable."""

    ref: KnobRef
    holder: Holder
    expected: str
    found: str | None
    state: DriftState
    detail: str = ""


@dataclass(slots=True)
class Contest:
    """One knob's history under the rule."""

    rule: ForeignRule
    written_ns: list[int] = field(default_factory=list)  # our writes over foreign values, within the window
    noticed_ns: int | None = None

    def notice(self, now_ns: int) -> bool:
        """A foreign value is in force. Whether that is news."""
        self.written_ns = [at_ns for at_ns in self.written_ns if now_ns - at_ns < self.rule.window_ns]
        news = self.noticed_ns is None
        if news:
            self.noticed_ns = now_ns
        return news

    @property
    def lost(self) -> bool:
        """Whether it is time to yield: noticed once more, and every re-assertion spent."""
        return self.noticed_ns is not None and len(self.written_ns) >= self.rule.most

    def due(self, now_ns: int) -> bool:
        """Whether to write now."""
        return self.noticed_ns is not None and now_ns - self.noticed_ns >= self.rule.first_ns << len(self.written_ns)

    def wrote(self, now_ns: int) -> None:
        """The knob is being written, by the rule or by a plan; over a foreign value that counts as re-asserting."""
        if self.noticed_ns is not None:
            self.written_ns.append(now_ns)
            self.noticed_ns = None

    def settled(self) -> None:
        """The expected value is in force."""
        self.noticed_ns = None
