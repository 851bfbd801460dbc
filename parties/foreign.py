"""The rule for foreign writers: notice, name, re-assert a few times with back-off, then yield; never a fight (invariant 6).

The rule is set by ``ForeignSettings``: re-assert after ``first_ns``, then after twice as long each time, the ``most``-th time
within ``window_ns`` being the last; or yield at once. To yield is to stop managing that knob.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from parties.interfaces import Finding
from parties.knob import KnobRef
from parties.model import NS_PER_S, Holder, Resource
from parties.settings import ForeignAction, ForeignSettings

_NAMING_PERIOD_NS = NS_PER_S
_MOST_WRITERS = 512


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
    def begun(self) -> bool:
        """Whether there is one: a foreign value is in force, or was lately."""
        return self.noticed_ns is not None or bool(self.written_ns)

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


class Watched(Protocol):
    """What naming writers needs of the enforcer."""

    @property
    def wanted(self) -> Mapping[KnobRef, object]:
        """The knobs under management."""

    @property
    def contested(self) -> frozenset[KnobRef]:
        """Those that somebody else writes."""


class NamesWriters:
    """Upkeep: finds out who writes our knobs. Its name comes after the event that tells of the drift, at most two periods later.

    ``monitors.writers`` says who wrote which file; where it cannot, the known tools that are running are named as probable.
    """

    def __init__(self, enforcer: Watched, *, kind: str, period_ns: int = _NAMING_PERIOD_NS) -> None:
        self.ref = KnobRef(kind, ())
        self.period_ns = period_ns
        self._enforcer = enforcer
        self._last: dict[str, str] = {}  # who wrote a file last, the latest at the end
        self._named: dict[KnobRef, str] = {}
        self._directories: dict[str, str] = {}  # where each address that is a path is to be watched
        self.value = self._question()

    def judge(self, found: str | None, error: OSError | None) -> Finding:
        """Name whoever wrote a contested knob, each once."""
        if error is not None or found is None:
            return Finding(warnings=[f"who writes our values cannot be found out: {error or 'no answer'}"])
        answer = json.loads(found)
        for file, who in answer["seen"].items():
            self._last.pop(file, None)
            self._last[file] = who
        while len(self._last) > _MOST_WRITERS:
            del self._last[next(iter(self._last))]
        warnings = [text for ref in sorted(self._enforcer.contested, key=str) if (text := self._news(ref, answer["suspects"]))]
        self.value = self._question()
        return Finding(warnings=warnings)

    def _news(self, ref: KnobRef, suspects: Sequence[str]) -> str:
        """What is to be said of a knob's writer that has not been said; empty if nothing."""
        who = next((self._last[file] for file in reversed(self._last) if _is_of(file, ref)), "")
        if not who and suspects and ref not in self._named:
            who = f"probably one of those that are known to do so: {', '.join(suspects)}"
        if not who or self._named.get(ref) == who:
            return ""
        self._named[ref] = who
        return f"{ref}: written by {who}"

    def _question(self) -> str:
        parts = {part for ref in self._enforcer.wanted for part in ref.address if part.startswith("/")}
        for part in parts - self._directories.keys():
            self._directories[part] = part if Path(part).is_dir() else str(Path(part).parent)
        guess = any(ref not in self._named for ref in self._enforcer.contested)
        return json.dumps({"directories": sorted({self._directories[part] for part in parts}), "guess": guess})


def _is_of(file: str, ref: KnobRef) -> bool:
    return any(part.startswith("/") and (file == part or file.rpartition("/")[0] == part) for part in ref.address)
