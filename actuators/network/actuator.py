"""Egress bandwidth by HTB: one class per service, one for best-effort jobs, one for the rest (PARTIES, section 4.1).

```
7061:      htb root of the device; what no rule recognises goes to 7061:3
7061:1     the device's rate
7061:2     best-effort jobs   rate = ceil = what they hold
7061:3     the rest           1 Mbit/s of its own, may use all that nobody uses at the moment
7061:10..  one per service    rate = ceil = what it holds
```

A service keeps its class as long as daemons follow each other: one that goes on with what an earlier one left gives nobody's class
another number, and none that was in use to somebody else. So what changes with the services changes in place.

Services and best-effort jobs do not borrow, so the rest alone gets what is idle, reserved or over, without a write of its own. HTB
knows no rate of 0: best-effort jobs that hold nothing keep 1 Mbit/s, so that frozen jobs' connections stay alive and what they
owe when they thaw is paid in half a second. Bursts last 4 ms, as a timer on a busy machine may be that late.

What somebody set up on the device is theirs and stays: ours then hangs below a free leaf class of it (``parent`` in the
configuration, else the default class of an HTB), or network is not managed (``actuators.network.attach``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from actuators.holders import changes
from actuators.network.attach import Place, Wish, default_kind, find_place
from actuators.network.classify import Classification, Recognised, classify, service
from actuators.network.device import HANDLE, Device
from actuators.network.filters import FilterKnob, filter_text
from actuators.network.knobs import ClassKnob, QdiscKnob, is_own, qdisc_text
from actuators.network.net_cls import ClassIdKnob
from actuators.network.probe import KernelSupport, kernel_support
from actuators.network.tc import TC_H_ROOT, TICK_NS, ClassState, HtbClass, Qdisc, handle_text, parse_handle
from parties.knob import Effect, KnobError, KnobRef, KnobWrite
from parties.model import BEST_EFFORT, NS_PER_S, RESERVED, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import BestEffortSettings, NetworkSettings, ServiceSettings

POOL: Final = PoolKey(Resource.NETWORK)
DEVICE_CLASS: Final = HANDLE | 0x1
BEST_EFFORT_CLASS: Final = HANDLE | 0x2
REST_CLASS: Final = HANDLE | 0x3
FIRST_SERVICE_CLASS: Final = HANDLE | 0x10

BITS_PER_BYTE: Final = 8
LEAST_BYTES_PER_S: Final = 125_000
"""1 Mbit/s: the rest's own, and what stands for a holding of 0. Every step is larger, so no amount is taken for it."""

QUANTUM_BYTES: Final = 60_000  # about one segment-offload packet; the kernel warns of what it would choose itself
BURST_NS: Final = 4_000_000
LEAST_BURST_BYTES: Final = 3_200  # two full frames

_SERVICE_PRIORITY: Final = 0
_REST_PRIORITY: Final = 1
_BEST_EFFORT_PRIORITY: Final = 2


class NetworkActuator:
    """The only writer of network bandwidth on one device. Amounts are bits/s, multiples of 8.

    ``v2_root`` is the mount point of the cgroup v2 tree and ``net_cls`` of that v1 controller, None where there is none. Once
    ``pools`` has been asked, ``problems`` says in full sentences whose traffic cannot be recognised. ``earlier`` says whose each
    knob was that an earlier daemon has left to be gone on with; whoever gives it puts back those of holders that are no more.
    """

    resource = Resource.NETWORK

    def __init__(  # noqa: PLR0913 - what a device is divided by, each by name
        self,
        settings: NetworkSettings,
        services: Sequence[ServiceSettings],
        best_effort: Sequence[BestEffortSettings] = (),
        *,
        v2_root: Path | None = None,
        net_cls: Path | None = None,
        earlier: Mapping[KnobRef, Holder] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._v2_root = v2_root
        self._net_cls = net_cls
        self._parent = TC_H_ROOT
        self._device = Device(settings.device, settings.namespace)
        self._numbered = _numbered(settings, earlier)
        taken = self._numbered.values()
        free = (number for number in itertools.count(FIRST_SERVICE_CLASS) if number not in taken)
        self.classes: Mapping[Holder, int] = {
            **{one.name: self._numbered.get(one.name) or next(free) for one in services},
            BEST_EFFORT: BEST_EFFORT_CLASS,
        }
        self._recognised = (
            *map(service, services),
            *(Recognised(f"best-effort job {job.name}", BEST_EFFORT, job.cgroups) for job in best_effort),
        )
        self._support = KernelSupport()
        self._filters = ""
        self._pool: Pool | None = None
        self.problems: tuple[str, ...] = ()

    def pools(self) -> tuple[Pool, ...]:
        """One pool: the configured rate in whole steps. Not managed where anything stands against it, with the reason.

        Looked at once: later changes are the business of ``read_back``.
        """
        if self._pool is None:
            reason = self._misconfigured() or self._unavailable()
            step = self._settings.step_bits_per_s
            if reason:
                self._pool = Pool(POOL, managed=False, reason=reason)
            else:
                self._pool = Pool(POOL, self._settings.rate_bits_per_s // step * step, step, step)
        return (self._pool,)

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """The class changes of this placement; at the start the whole layout, in the order in which it has to be made.

        Writes of one effect must keep their order: a class cannot be made before its qdisc. When a control group was made anew
        since, its filter is too.
        """
        if not self.pools()[0].managed:
            return ()
        if before is None:
            return self._layout(placement)
        writes = [
            self._class_write(holder, new, new if old is None else old)
            for holder, new, old in changes(self.classes, POOL, placement, before)
        ]
        return [*writes, *self._filter_writes()]

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """Bits/s of each service and of the best-effort jobs. What is idle or reserved has no class of its own and is left out."""
        if not self.pools()[0].managed:
            return {}
        found = self._found_classes()
        return {
            POOL: {
                holder: amount_bits_per_s(found[class_id].settings.rate_bytes_per_s)
                for holder, class_id in self.classes.items()
                if class_id in found
            }
        }

    def usage(self) -> NetworkUsage:
        """What reads the holders' traffic, through this actuator's socket; it knows of none where network is not managed."""
        return NetworkUsage(self._device, self.classes if self.pools()[0].managed else {})

    def one_look(self) -> AbstractContextManager[None]:
        """Answer every read until its end from one look at the device's classes, as long as nothing is written."""
        return self._device.one_look()

    def close(self) -> None:
        """Give up the socket. Writes nothing."""
        self._device.close()

    def _misconfigured(self) -> str:
        settings = self._settings
        if settings.step_bits_per_s % BITS_PER_BYTE or settings.step_bits_per_s <= LEAST_BYTES_PER_S * BITS_PER_BYTE:
            return (
                f"network: a step of {settings.step_bits_per_s} bit/s is not a multiple of {BITS_PER_BYTE} above "
                f"{LEAST_BYTES_PER_S * BITS_PER_BYTE}; choose for example 10 Mbit/s"
            )
        needed = settings.step_bits_per_s * max(1, len(self.classes) - 1)
        if settings.rate_bits_per_s < needed:
            return (
                f"network: {settings.rate_bits_per_s} bit/s of {settings.device} is less than one step of "
                f"{settings.step_bits_per_s} bit/s for each service; choose a smaller step"
            )
        return ""

    def _unavailable(self) -> str:
        self._support = kernel_support()
        if self._support.htb:
            return f"network: this kernel has no HTB scheduler ({self._support.htb}); try `modprobe sch_htb`"
        filters = self._classification()
        self.problems = filters.problems
        self._filters = _text_of(filters)
        try:
            with self._device.control("read the qdiscs") as control:
                found = control.qdiscs()
            place = self._place([one for one in found if not is_own(one) and one.parent & 0xFFFF0000 != HANDLE])
            if place.reason:
                return place.reason
            self._parent = place.parent
            if place.above is not None:
                below = f"{handle_text(place.parent)} of the {place.above.kind} that somebody set up on device {self._device}"
                self.problems += (f"network: our classes hang below class {below}; what goes through others has no part in them",)
            if any(map(is_own, found)) and not self._resumable():
                return (
                    f"network: device {self._device} still has the classes of an earlier run with another configuration; "
                    "run `parties restore`"
                )
        except KnobError as error:
            return f"network: {error.strerror}"
        return ""

    def _place(self, others: list[Qdisc]) -> Place:
        settings = self._settings
        return find_place(
            str(self._device),
            others,
            {class_id: state for class_id, state in self._device.classes().items() if class_id & 0xFFFF0000 != HANDLE},
            Wish(settings.parent, settings.rate_bits_per_s // BITS_PER_BYTE, default_kind()),
        )

    def _resumable(self) -> bool:
        """Whether what an earlier run left can be changed in place, or has this configuration's layout already."""
        expected = {DEVICE_CLASS, REST_CLASS, *self.classes.values()}
        return QdiscKnob(self._device).read() == self._root_text() and (
            bool(self._numbered)
            or (set(self._found_classes()) == expected and (FilterKnob(self._device).read() or "") == self._filters)
        )

    def _classification(self) -> Classification:
        """The rules for what this kernel can recognise."""
        able = [Recognised(one.what, one.holder, one.cgroups, () if self._support.ports else one.ports) for one in self._recognised]
        if self._support.groups:
            return classify(able, self.classes, None)
        return classify(able, self.classes, self._v2_root, self._net_cls)

    def _found_classes(self) -> Mapping[int, ClassState]:
        return {class_id: state for class_id, state in self._device.classes().items() if class_id & 0xFFFF0000 == HANDLE}

    def _root_text(self) -> str:
        return qdisc_text(REST_CLASS, self._parent)

    def _layout(self, placement: Placement) -> list[KnobWrite]:
        device_rate = self._settings.rate_bits_per_s // BITS_PER_BYTE
        whole = htb_class(HANDLE, device_rate, device_rate, _SERVICE_PRIORITY)
        rest = htb_class(DEVICE_CLASS, LEAST_BYTES_PER_S, device_rate, _REST_PRIORITY)
        writes = [
            KnobWrite(QdiscKnob(self._device), self._root_text(), RESERVED, Effect.NEUTRAL),
            KnobWrite(ClassKnob(self._device, DEVICE_CLASS), whole.text(), RESERVED, Effect.NEUTRAL),
            KnobWrite(ClassKnob(self._device, REST_CLASS), rest.text(), RESERVED, Effect.NEUTRAL),
        ]
        in_force: Mapping[Holder, int] = {}
        with contextlib.suppress(KnobError):  # the writes meet it again, and report it
            in_force = self.read_back().get(POOL, {})
        for holder in self.classes:
            amount = placement.partition.amount(POOL, holder)
            writes.append(self._class_write(holder, amount, in_force.get(holder, amount)))
        if self._filters:
            writes += _marks_of(self._classification())
            writes.append(KnobWrite(FilterKnob(self._device), self._filters, RESERVED, Effect.NEUTRAL))
        return writes

    def _filter_writes(self) -> list[KnobWrite]:
        filters = self._classification()
        wanted, marks = _text_of(filters), _marks_of(filters, anew=True)
        if wanted == self._filters:
            return marks
        knob = FilterKnob(self._device)
        with contextlib.suppress(KnobError):  # the write below meets it again, and reports it
            if knob.same(wanted, knob.read()):  # an earlier plan's write went through
                self._filters = wanted
                return marks
        return [*marks, KnobWrite(knob, wanted, RESERVED, Effect.NEUTRAL)]

    def _class_write(self, holder: Holder, amount: int, before: int) -> KnobWrite:
        rate = rate_bytes_per_s(amount)
        priority = _BEST_EFFORT_PRIORITY if holder == BEST_EFFORT else _SERVICE_PRIORITY
        effect = Effect.NEUTRAL if amount == before else Effect.TAKE if amount < before else Effect.GIVE
        knob = ClassKnob(self._device, self.classes[holder])
        return KnobWrite(knob, htb_class(DEVICE_CLASS, rate, rate, priority).text(), holder, effect)


def _numbered(settings: NetworkSettings, earlier: Mapping[KnobRef, Holder]) -> dict[Holder, int]:
    """The class of each holder that has had one on this device; of those with fixed classes only whether there were any."""
    place = (settings.namespace, settings.device)
    classes = ((ref, holder) for ref, holder in earlier.items() if ref.kind == ClassKnob.KIND and ref.address[:2] == place)
    return {holder: parse_handle(ref.address[2]) for ref, holder in classes if holder != RESERVED}


def _text_of(rules: Classification) -> str:
    return filter_text(rules.groups, rules.ports, rules.class_ids)


def _marks_of(rules: Classification, *, anew: bool = False) -> list[KnobWrite]:
    """The writes of all marks, or of those that groups made anew lack."""
    return [
        KnobWrite(ClassIdKnob(mark.path), str(mark.number), mark.holder, Effect.NEUTRAL)
        for mark in rules.marks
        if not (anew and mark.there)
    ]


class NetworkUsage:
    """Traffic per holder, from the class counters: bytes that left the class, Ethernet header included."""

    def __init__(self, device: Device, classes: Mapping[Holder, int]) -> None:
        self._device = device
        self._classes = classes
        self._before: dict[Holder, int] = {}
        self._before_ns = 0

    def sample(self, now_ns: int) -> Mapping[Holder, int]:
        """Bits/s of each holder since the last call; the first call gives none.

        A holder is left out whose class is new, gone or made anew since (its counter fell), or cannot be read: nobody can tell.
        """
        if not self._classes:
            return {}
        found: Mapping[int, ClassState] = {}
        with contextlib.suppress(KnobError):
            found = self._device.classes()
        sent = {holder: found[class_id].sent_bytes for holder, class_id in self._classes.items() if class_id in found}
        before, elapsed_ns = self._before, now_ns - self._before_ns
        self._before, self._before_ns = sent, now_ns
        if elapsed_ns <= 0:
            return {}
        return {
            holder: (now - before[holder]) * BITS_PER_BYTE * NS_PER_S // elapsed_ns
            for holder, now in sent.items()
            if now >= before.get(holder, now + 1)
        }


def rate_bytes_per_s(amount_bits_per_s: int) -> int:
    """The class rate of an amount. Raises ValueError for one that is not in whole bytes/s, or not to be told from 0."""
    if amount_bits_per_s == 0:
        return LEAST_BYTES_PER_S
    rate, odd_bits = divmod(amount_bits_per_s, BITS_PER_BYTE)
    if odd_bits or rate <= LEAST_BYTES_PER_S:
        raise ValueError(f"{amount_bits_per_s} bit/s is no amount of network bandwidth")
    return rate


def amount_bits_per_s(rate: int) -> int:
    """The exact inverse of ``rate_bytes_per_s``."""
    return 0 if rate == LEAST_BYTES_PER_S else rate * BITS_PER_BYTE


def htb_class(parent: int, rate: int, ceil: int, priority: int) -> HtbClass:
    """A class with our quantum and with bursts of ``BURST_NS``, both in bytes/s."""
    return HtbClass(parent, rate, ceil, _burst_ticks(rate), _burst_ticks(ceil), QUANTUM_BYTES, priority)


def _burst_ticks(rate: int) -> int:
    return max(BURST_NS, LEAST_BURST_BYTES * NS_PER_S // rate) // TICK_NS
