"""Every kind of knob there is, so that the journal's references can be turned back into knobs by another process."""

from __future__ import annotations

from collections.abc import Callable

from actuators.cgroup import v1_knobs
from actuators.network import knobs as network_knobs
from parties.knob import Knob, KnobRef

KINDS: dict[str, Callable[[tuple[str, ...]], Knob]] = {**v1_knobs.KINDS, **network_knobs.KINDS}
"""How a knob of each kind is made from its address. A module that has kinds of its own adds them here."""


class UnknownKindError(Exception):
    """A reference of a kind that this version does not know: it was written by another version."""


def knob_from_ref(ref: KnobRef) -> Knob:
    """The knob that a reference stands for. Raises UnknownKindError."""
    try:
        make = KINDS[ref.kind]
    except KeyError:
        raise UnknownKindError(f"{ref}: no knob of kind {ref.kind!r} in this version; known are {', '.join(sorted(KINDS))}") from None
    return make(ref.address)
