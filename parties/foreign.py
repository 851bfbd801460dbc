"""The rule for foreign writers: notice, name, re-assert a few times with back-off, then yield; never a fight (invariant 6).

The rule is set by ``ForeignSettings``: re-assert after ``first_ns``, then after twice as long each time, the ``most``-th time
within ``window_ns`` being the last; or yield at once. To yield is to stop managing that knob.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from parties.knob import KnobRef
from parties.model import Holder, Resource
from parties.settings import ForeignAction, ForeignSettings


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
    """One event of one knob; ``found`` is None where it is unset, vanished or unreadable. ``resource`` is whose knob it is."""

    ref: KnobRef
    holder: Holder
    expected: str
    found: str | None
    state: DriftState
    detail: str = ""
    resource: Resource | None = None


@dataclass(slots=True)
class Contest:
    """One knob's history under the rule."""

    rule: ForeignSettings
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
        """Whether it is time to yield: at once, or noticed once more with every re-assertion spent."""
        at_once = self.rule.action is ForeignAction.YIELD
        return self.noticed_ns is not None and (at_once or len(self.written_ns) >= self.rule.most)

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


_LEVELS = {DriftState.REASSERTED: "info", DriftState.RETURNED: "info"}


def told(drift: Drift) -> tuple[str, str]:
    """An event of a knob in an operator's words: level and text."""
    detail = f" ({drift.detail})" if drift.detail else ""
    return _LEVELS.get(drift.state, "warning"), f"{drift.ref} of {drift.holder}: {_what(drift)}{detail}"


def _what(drift: Drift) -> str:
    match drift.state:
        case DriftState.NOTICED:
            return f"somebody else wrote {drift.found!r}, expected {drift.expected!r}; it will be written again"
        case DriftState.REASSERTED:
            return f"written again as {drift.expected!r} over {drift.found!r}"
        case DriftState.YIELDED:
            refused = "" if drift.resource is None else f"; moves of {drift.resource.value} that need it are refused"
            return f"somebody else keeps writing {drift.found!r}; left to them from now on, also at restore{refused}"
        case DriftState.VANISHED:
            return "vanished, its control group or device is gone"
        case DriftState.RETURNED:
            return f"is there again; written as {drift.expected!r}"
        case DriftState.UNREADABLE:
            return "cannot be read"
