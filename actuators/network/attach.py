"""Where on a device our qdisc can go: to the root in the place of the kernel's default, or below a class of what somebody set up.

What the kernel made by itself has the handle 0 and comes back when ours is removed: noqueue, mq with its leaves, a single default.
All else is somebody's and stays. Below it there may be a place for us: a leaf class of HTB or prio that has the kernel's own queue,
which comes back as well. Below others there is none that could be undone (removing what is below tbf leaves a device that sends
nothing), or none that sees all of the traffic (each queue of a multi-queue discipline has a leaf of its own, and a rate cannot be
shared by them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from actuators.network.tc import TC_H_INGRESS, TC_H_ROOT, ClassState, Qdisc, handle_text, parse_handle

DEFAULT_QDISC: Final = Path("/proc/sys/net/core/default_qdisc")
_NO_QUEUE: Final = frozenset({"noqueue", "noop"})
_MULTI_QUEUE: Final = frozenset({"mq", "mqprio", "multiq", "taprio"})
_WITH_FREE_LEAVES: Final = frozenset({"htb", "prio"})
_BITS_PER_BYTE: Final = 8


class Place(NamedTuple):
    """The parent of our qdisc; or in ``reason``, why there is none. ``above`` is the somebody's qdisc that it hangs below."""

    parent: int = TC_H_ROOT
    reason: str = ""
    above: Qdisc | None = None


class Wish(NamedTuple):
    """What the place is for: the class that the configuration names ("1:30"), and the rate.

    ``default_kind`` is the qdisc that the kernel makes by default now, "" if unknown.
    """

    asked: str = ""
    rate_bytes_per_s: int = 0
    default_kind: str = ""


def find_place(device: str, others: Sequence[Qdisc], classes: Mapping[int, ClassState], wish: Wish) -> Place:
    """Where our qdisc can go. ``others`` and ``classes`` are those of the device, but for ours and what is below it."""
    foreign = [one for one in others if one.handle and one.parent != TC_H_INGRESS]
    if not foreign:
        return Place(reason=_not_asked_for(device, wish.asked) or _unlike_default(device, others, wish.default_kind))
    root = next((one for one in foreign if one.parent == TC_H_ROOT), None)
    if root is None or root.kind not in _WITH_FREE_LEAVES:
        return Place(reason=_in_the_way(device, root or foreign[0]))
    what = f"network: device {device} already has a root qdisc {root.kind} handle {handle_text(root.handle)} that somebody set up"
    return _below(what, root, foreign, classes, wish)


def _not_asked_for(device: str, asked: str) -> str:
    if not asked:
        return ""
    return f"network: device {device} has no qdisc with a class {asked}; leave `parent` out, or see `tc class show dev {device}`"


def _unlike_default(device: str, others: Sequence[Qdisc], default_kind: str) -> str:
    """Whether the kernel would bring back another qdisc than there is, as its default was changed since the device was set up."""
    made = [one.kind for one in others if not one.handle and one.parent != TC_H_INGRESS]
    queues = [kind for kind in made if kind not in _NO_QUEUE and kind != "mq"]
    if not default_kind or not queues or default_kind in queues:
        return ""
    return (
        f"network: device {device} has the qdisc {queues[0]}, and the kernel would bring back {default_kind}, its default now "
        f"(net.core.default_qdisc); take that over first: "
        f"`tc qdisc replace dev {device} root pfifo && tc qdisc del dev {device} root`"
    )


def _in_the_way(device: str, foreign: Qdisc) -> str:
    why = ""
    if foreign.kind in _MULTI_QUEUE or (foreign.parent != TC_H_ROOT and foreign.parent & 0xFFFF0000 == 0):
        why = "; below it each queue has a leaf of its own, and a service's rate cannot be shared by them"
    elif foreign.parent == TC_H_ROOT:
        why = "; below it there is no place that would be as before once we leave"
    return (
        f"network: device {device} already has a root qdisc {foreign.kind} handle {handle_text(foreign.handle)} "
        f"that somebody set up{why}; remove it (`tc qdisc del dev {device} root`) to have the device managed"
    )


def _below(what: str, root: Qdisc, foreign: Sequence[Qdisc], classes: Mapping[int, ClassState], wish: Wish) -> Place:
    """A free leaf class: the one that was asked for, else HTB's default. ``what`` begins each reason."""
    wanted = _parsed(wish.asked) if wish.asked else root.default_class
    if wanted is None or wanted & 0xFFFF == 0:  # prio has no default class
        return Place(reason=f'{what}; name a leaf class of it that our classes may hang below, `parent = "1:30"`, or remove it')
    name = handle_text(wanted)
    state = classes.get(wanted)
    if wanted & 0xFFFF0000 != root.handle or (root.kind == "htb" and state is None):
        return Place(reason=f"{what}, without a class {name}; see `tc class show`")
    if any(one.settings.parent == wanted for one in classes.values()):
        return Place(reason=f"{what}; its class {name} has classes below it, so it is no leaf that ours may hang below")
    taken = next((one for one in foreign if one.parent == wanted), None)
    if taken is not None:
        return Place(reason=f"{what}; its class {name} has a qdisc of its own already, {taken.kind} {handle_text(taken.handle)}")
    if state is not None and state.settings.ceil_bytes_per_s < wish.rate_bytes_per_s:
        return Place(
            reason=f"{what}; its class {name} never gets more than {state.settings.ceil_bytes_per_s * _BITS_PER_BYTE} bit/s; "
            "configure no higher rate"
        )
    return Place(wanted, above=root)


def _parsed(text: str) -> int | None:
    try:
        return parse_handle(text)
    except ValueError:
        return None


def default_kind(path: Path = DEFAULT_QDISC) -> str:
    """The kernel's default qdisc; "" where it cannot be told."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
