"""Way masks: where holders' ways lie in the hardware's numbering, and in which order masks are written (section 4.1).

Pure planning that every mechanism shares. A placement counts ways from 0 within the *exclusive region*; the hardware counts bits
of a mask, some of which devices share, some of which are kept for whatever belongs to no holder (the *reserved* ways). One
``WayLayout`` describes one L3 domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from parties.knob import Effect
from parties.model import Holder


class LayoutError(ValueError):
    """The ways of a domain cannot be divided. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class WayLayout:
    """The ways of one L3 domain, as bit masks of the hardware.

    ``region`` is contiguous and belongs to holders, each way to one; ``reserved`` to everybody else, and to holders that have too
    little for a mask of their own. ``least`` is how many ways a mask has at the least.
    """

    full: int
    reserved: int
    region: int
    least: int

    @property
    def ways(self) -> int:
        """How many ways there are to hand out: the pool's total."""
        return self.region.bit_count()

    @property
    def exclusive(self) -> int:
        """The ways that two holders must not share: all but the reserved ones."""
        return self.full & ~self.reserved

    def physical(self, logical: int) -> int:
        """The hardware's mask for a placement's; the reserved ways where that is empty or too narrow for the hardware."""
        return logical << _lowest(self.region) if logical.bit_count() >= self.least else self.reserved

    def logical(self, physical: int) -> int:
        """The part of a hardware mask that lies in the region, as a placement counts."""
        return (physical & self.region) >> _lowest(self.region)


def way_layout(full: int, *, least: int, shareable: int = 0, taken: int = 0, reserved_ways: int = 0) -> WayLayout:
    """Divide the ways ``full`` of a domain into a reserved and an exclusive part.

    ``shareable`` are the ways that devices use as well, ``taken`` those that somebody else has for himself alone. The reserved part
    is ``reserved_ways`` wide, over the shareable ways as far as it reaches, else at the top; 0 means the shareable ways themselves
    where they are wide enough, else ``least`` ways. The exclusive region is the longest contiguous run of what is neither reserved
    nor shareable nor taken. Raises LayoutError.
    """
    if full <= 0 or least < 1:
        raise LayoutError(f"a mask of all ways {full:x} with at least {least} in use makes no sense")
    if reserved_ways and reserved_ways < least:
        raise LayoutError(
            f"{reserved_ways} reserved ways are too few, the hardware takes no mask under {least}; set reserved to that"
        )
    shareable &= full
    widest = longest_run(shareable & ~taken)
    if not reserved_ways and widest.bit_count() >= least:
        reserved = widest
    else:
        reserved = _reserve(reserved_ways or least, full & ~taken, shareable)
    region = longest_run(full & ~(reserved | shareable | taken))
    if not reserved or region.bit_count() < least:
        raise LayoutError(
            f"{full.bit_count()} ways ({shareable.bit_count()} shared with devices, {(taken & full).bit_count()} held exclusively "
            f"by others) leave too few beside {reserved_ways or least} reserved ones, as a mask has at least {least}; reserve fewer"
        )
    return WayLayout(full, reserved, region, least)


def _reserve(count: int, usable: int, shareable: int) -> int:
    """The best run of ``count`` ways: most over the shareable ones, then what leaves the longest run, then the highest."""
    run = (1 << count) - 1
    places = [run << way for way in range(usable.bit_length()) if usable & run << way == run << way]
    return max(
        places,
        key=lambda mask: ((mask & shareable).bit_count(), longest_run(usable & ~(mask | shareable)).bit_count(), mask),
        default=0,
    )


def longest_run(mask: int) -> int:
    """The longest contiguous run of bits, the lowest of equally long ones."""
    best = 0
    while mask:
        run = mask & ~(mask + (mask & -mask))
        mask &= ~run
        if run.bit_count() > best.bit_count():
            best = run
    return best


@dataclass(frozen=True, slots=True)
class MaskChange:
    """What a holder's mask is and is to be, in the hardware's numbering. The reserved holder stands for whoever is no holder."""

    holder: Holder
    old: int
    new: int


class MaskStep(NamedTuple):
    """One write: a holder's mask, and what it does to the holder."""

    holder: Holder
    mask: int
    effect: Effect


def mask_steps(changes: Iterable[MaskChange], layout: WayLayout) -> list[MaskStep]:
    """The writes that bring changed masks of one domain about, in order.

    If the old masks share no exclusive way and the new ones neither, no two holders do between any two of these writes: a mask that
    loses and gains is first narrowed to what it keeps, and gains when everybody has lost. One that keeps too little for a mask is
    moved in one write, onto ways that nobody is on any more; where such moves go round in a circle, one of them waits in the
    reserved ways. Of old masks that do share (somebody else's) no two share more after any write.
    """
    plan: list[MaskStep] = []
    jumps: list[MaskChange] = []
    for change in changes:
        old, new = change.old & layout.exclusive, change.new & layout.exclusive
        kept, stay = old & new, longest_run(old & new)
        if change.old == change.new:
            continue
        if new == kept:  # nothing is gained
            plan.append(MaskStep(change.holder, change.new, Effect.TAKE))
        elif old == kept:  # nothing is lost
            plan.append(MaskStep(change.holder, change.new, Effect.GIVE))
        elif stay.bit_count() >= layout.least:
            plan += [MaskStep(change.holder, stay, Effect.TAKE), MaskStep(change.holder, change.new, Effect.GIVE)]
        else:
            jumps.append(change)
    return sorted((*plan, *_jump(jumps, layout)), key=lambda step: step.effect)


def _jump(jumps: list[MaskChange], layout: WayLayout) -> Iterator[MaskStep]:
    waiting = list(jumps)
    while waiting:
        free = (jump for jump in waiting if not any(jump.new & other.old & layout.exclusive for other in waiting if other != jump))
        jump = next(free, None)
        if jump is not None:
            yield MaskStep(jump.holder, jump.new, Effect.NEUTRAL)
        else:
            jump = waiting[0]
            yield MaskStep(jump.holder, layout.reserved, Effect.TAKE)
            yield MaskStep(jump.holder, jump.new, Effect.GIVE)
        waiting.remove(jump)


def _lowest(mask: int) -> int:
    """The number of the lowest bit."""
    return (mask & -mask).bit_length() - 1
