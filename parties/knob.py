"""A knob: one value of the kernel that can be read, written, compared and put back.

Reading and writing are declared together, so that saving, verifying and rolling back come free (invariants 3 and 6). What can be
created, such as a traffic class, is a knob too: its value is None where it does not exist, and restoring None removes it.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from parties.model import Holder, Resource

VANISHED = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH})
"""What a knob's error carries when its group, device or process is gone: normal, and nothing to put back."""


class KnobError(OSError):
    """A knob could not be read or written. ``errno`` is the kernel's; the message names the knob, the value and the cause."""


class KnobRef(NamedTuple):
    """What the journal keeps to find a knob again in another process: its kind and its address.

    A tuple, because it is looked up a hundred times in a tick: the hash of a dataclass takes four times as long.
    """

    kind: str
    address: tuple[str, ...]

    def __str__(self) -> str:
        return ":".join((self.kind, *self.address))


class Knob(Protocol):
    """One value of the kernel. Every method raises KnobError; a vanished one has errno ENOENT, ENODEV or ESRCH."""

    @property
    def ref(self) -> KnobRef:
        """What the journal keeps of it."""

    def read(self) -> str | None:
        """The value in force, in the form that ``write`` takes; None where it is unset or does not exist."""

    def write(self, value: str) -> None:
        """Set it, creating what has to exist for it."""

    def same(self, wanted: str, found: str | None) -> bool:
        """Whether what was found is what was wanted, as the kernel rounds and normalises."""

    def restore(self, old: str | None) -> None:
        """Bring back what ``read`` gave before the first write, None meaning unset."""


class Sensor:
    """What is only read, in the shape of a knob, so that the process for upkeep reads it: never journalled or restored."""

    def write(self, value: str) -> None:
        """Nothing, unless being asked is what makes it look."""

    def same(self, wanted: str, found: str | None) -> bool:  # noqa: ARG002 (the knobs')
        """Always: it has no value that could be wrong."""
        return True

    def restore(self, old: str | None) -> None:
        """Nothing: it was never set."""


@runtime_checkable
class ChangesMore(Protocol):
    """A knob whose writing changes more than its own value, such as a drop-in file that a service manager leaves behind."""

    def journalled_first(self) -> Sequence[Knob]:
        """The other knobs, to be journalled before it: restore goes newest first, and so puts them back after it."""


class Keeps(Protocol):
    """A kernel file that is kept open."""

    def says(self, text: bytes) -> bool:
        """Read it again: whether it says just this. Raises OSError."""


Said = tuple[tuple[Keeps, bytes], ...]
"""Files, each with what it said."""


@runtime_checkable
class SaidByFiles(Protocol):
    """A knob whose value is nothing but what files say, so that who looks at it again and again need not take them apart."""

    def said(self) -> Said:
        """What ``read`` made its last value of; as long as all say so it is the value. Nothing if more than they can change it."""


def still_said(said: Said) -> bool:
    """Read every file again: whether all say the same. What cannot be read does not; ``read`` tells why."""
    try:
        for file, text in said:
            if not file.says(text):
                return False
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class KnobKind:
    """What holds for every knob of a kind, whichever process meets it.

    ``make`` finds a knob again from the address in its ``KnobRef``. ``resource`` is whose exit policy applies; None for the
    rest of the machine. ``slow``: a write may take long (another process does it, a service manager is asked), so it is never done
    on the tick. ``persistent``: the value outlives a boot. ``passing``: what it belongs to comes and goes (a thread, a unit), so
    that once it has vanished nobody waits for its return. ``safe`` gives the value that suits a machine without us, None meaning
    unset; a kind without it is restored instead.
    """

    make: Callable[[tuple[str, ...]], Knob]
    resource: Resource | None = None
    slow: bool = False
    persistent: bool = False
    passing: bool = False
    safe: Callable[[Knob], str | None] | None = None
    slow_to_shrink: bool = False  # raising is quick; what may lower (a roll-back, writing over a foreign value) is off the tick


KnobKinds = Mapping[str, KnobKind]
"""Every kind of knob by its name."""


def changed_besides(refs: Iterable[KnobRef], kinds: KnobKinds) -> frozenset[KnobRef]:
    """What writing these knobs changes besides: never wanted by itself, and put back only after all of them."""
    knobs = (kinds[ref.kind].make(ref.address) for ref in refs if ref.kind in kinds)
    return frozenset(other.ref for knob in knobs if isinstance(knob, ChangesMore) for other in knob.journalled_first())


def slow_kinds(kinds: KnobKinds) -> frozenset[str]:
    """The kinds whose writes are never done on the tick."""
    return frozenset(name for name, kind in kinds.items() if kind.slow)


class Effect(enum.IntEnum):
    """What a write does to its holder; a plan is carried out in this order (take before give)."""

    TAKE = 0
    NEUTRAL = 1
    GIVE = 2


@dataclass(frozen=True, slots=True)
class KnobWrite:
    """One write of a plan. A slow one (memory under reclaim) is done by a helper process, off the tick."""

    knob: Knob
    value: str
    holder: Holder
    effect: Effect
    slow: bool = False
