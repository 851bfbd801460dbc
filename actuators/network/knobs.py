"""The three kinds of knob that a shaped device is made of: our qdisc, a class, and the filters of the qdisc.

Each reads None where it does not exist, and restoring None removes it; what hangs below something that is already gone counts as
removed. A vanished device or namespace is KnobError with ENODEV or ENOENT: there is nothing to restore. Only objects
under our own handle are ever read or removed, so a foreign qdisc that took our place meanwhile is left alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from actuators.network.classify import load_class_id_program, load_group_program
from actuators.network.net_cls import ClassIdKnob
from actuators.network.netlink import RouteSocket, namespace_path
from actuators.network.tc import (
    ETH_P_IP,
    ETH_P_IPV6,
    TC_H_ROOT,
    ClassIdRule,
    ClassState,
    Filter,
    GroupRule,
    HtbClass,
    PortRule,
    Qdisc,
    TrafficControl,
    class_id_rules,
    group_rules,
    handle_text,
    parse_handle,
    port_rules,
    unpack_filters,
)
from parties.knob import Knob, KnobError, KnobKind, KnobKinds, KnobRef
from parties.model import Resource

HANDLE: Final = 0x70610000
"""Our qdisc's handle, 7061: in ``tc``; unusual on purpose, as it is how an earlier run's objects are told from others'."""

_GROUP_PREFERENCE: Final = 1
_PORT_PREFERENCES: Final = ((2, ETH_P_IP), (3, ETH_P_IPV6))
_GONE: Final = frozenset({errno.ENOENT, errno.EINVAL})

_ADVICE: Final = {
    errno.EPERM: "run as root, or with CAP_NET_ADMIN and, for another namespace, CAP_SYS_ADMIN",
    errno.EEXIST: "somebody's own qdisc is in the way: remove it, or leave network out of the configuration",
    errno.ENODEV: "the device does not exist there: see `ip link`",
    errno.ENOENT: "what it belongs to is gone, or the kernel lacks the classifier: see `tc qdisc show`, try `modprobe cls_u32`",
    errno.EOPNOTSUPP: "try `modprobe sch_htb`, or leave network out of the configuration",
    errno.EINVAL: "the kernel does not take these values: see `tc -d class show`",
}


class Device:
    """A network device in a namespace ("" is the daemon's own), and how its traffic control is reached.

    With ``keep`` one socket stays open until ``close`` (the tick), otherwise each use opens its own (restore).
    """

    def __init__(self, name: str, namespace: str = "", *, keep: bool = True) -> None:
        self.name = name
        self.namespace = namespace
        self._keep = keep
        self._route: RouteSocket | None = None
        self._control: TrafficControl | None = None
        self._looking = False
        self._seen: Mapping[int, ClassState] | None = None

    def __str__(self) -> str:
        return f"{self.name} in network namespace {self.namespace}" if self.namespace else self.name

    @contextmanager
    def control(self, doing: str) -> Iterator[TrafficControl]:
        """The device's traffic control. What fails inside becomes one KnobError that says what, where and what to do."""
        try:
            yield self._control or self._open()
        except KnobError:
            raise
        except TimeoutError as error:
            self.close()
            raise KnobError(errno.ETIMEDOUT, f"{doing} on {self}: the kernel did not answer; it is tried again") from error
        except OSError as error:
            code = error.errno or errno.EIO
            if code == errno.ENODEV:
                self.close()  # a device of the same name may come back with another index
            advice = _ADVICE.get(code, "see `tc qdisc show` and the kernel log")
            raise KnobError(code, f"{doing} on {self}: {error.strerror or os.strerror(code)}; {advice}") from error
        finally:
            if not self._keep:
                self.close()

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Until the block ends or a knob is written, what is asked of classes is answered from one list of them all.

        In a tick ten classes are looked at; one by one that costs three times as much.
        """
        self._looking = True
        try:
            yield
        finally:
            self._looking, self._seen = False, None

    def classes(self) -> Mapping[int, ClassState]:
        """Every HTB class of the device, by id. Raises KnobError."""
        if self._seen is not None:
            return self._seen
        with self.control("read the classes") as control:
            found = control.classes()
        if self._looking:
            self._seen = found
        return found

    def one_class(self, class_id: int) -> ClassState | None:
        """One HTB class; None where it (or its qdisc) does not exist. Raises KnobError."""
        if self._looking:
            return self.classes().get(class_id)
        with self.control(f"read class {handle_text(class_id)}") as control:
            try:
                return control.one_class(class_id)
            except OSError as error:
                if error.errno in _GONE:
                    return None
                raise

    def changing(self, doing: str) -> AbstractContextManager[TrafficControl]:
        """As ``control``, for what changes something: what was seen before is forgotten."""
        self._seen = None
        return self.control(doing)

    def close(self) -> None:
        """Give up the socket; the next use opens another."""
        if self._route is not None:
            self._route.close()
        self._route = self._control = None

    def _open(self) -> TrafficControl:
        try:
            self._route = RouteSocket(self.namespace)
        except FileNotFoundError as error:
            path = namespace_path(self.namespace)
            raise KnobError(errno.ENOENT, f"network namespace {path} does not exist; see `ip netns list`") from error
        self._control = TrafficControl(self._route, self._route.interface_index(self.name))
        return self._control


def is_own(found: Qdisc) -> bool:
    """Whether it is the qdisc that we make."""
    return found.handle == HANDLE and found.kind == "htb"


def qdisc_text(default_class: int, parent: int) -> str:
    """What our qdisc is set to: ``default CLASS``, and ``parent CLASS`` where it hangs below somebody's class."""
    default = f"default {handle_text(default_class)}"
    return default if parent == TC_H_ROOT else f"{default} parent {handle_text(parent)}"


def parse_qdisc(text: str) -> tuple[int, int]:
    """The default class and the parent; the inverse of ``qdisc_text``. Raises ValueError."""
    default, _, parent = text.removeprefix("default ").partition(" parent ")
    return parse_handle(default), parse_handle(parent) if parent else TC_H_ROOT


class QdiscKnob:
    """Our HTB on a device; its value is ``qdisc_text``. Removing it brings back what the kernel has there by default."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._parent = TC_H_ROOT  # where it was last; the kernel tells of one place at once, or of all qdiscs of all devices

    @property
    def ref(self) -> KnobRef:
        """Kind "tc-qdisc": namespace, device, handle."""
        return KnobRef("tc-qdisc", (self._device.namespace, self._device.name, handle_text(HANDLE)))

    def read(self) -> str | None:
        """Its default class, or None where it is not there, whatever else is."""
        found = self._found()
        return None if found is None else qdisc_text(found.default_class, found.parent)

    def write(self, value: str) -> None:
        """Make it; EEXIST if a qdisc with a handle is there already."""
        default, parent = parse_qdisc(value)
        with self._device.changing(f"set qdisc {handle_text(HANDLE)} htb") as control:
            try:
                control.add_htb(HANDLE, default, parent)
                self._parent = parent
            except OSError as error:
                if error.errno == errno.ENOENT and parent == TC_H_ROOT:  # not a vanished knob
                    raise OSError(errno.EOPNOTSUPP, f"{error.strerror}; the kernel has no HTB scheduler") from error
                raise

    def same(self, wanted: str, found: str | None) -> bool:
        """Exact equality: the kernel keeps it as it was given."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """Remove it where it was not, with everything that still hangs below it."""
        if old is None:
            found = self._found()
            if found is not None:
                with self._device.changing(f"remove qdisc {handle_text(HANDLE)}") as control:
                    control.delete_qdisc(HANDLE, found.parent)
        elif not self.same(old, self.read()):
            self.write(old)

    def _found(self) -> Qdisc | None:
        with self._device.control("read our qdisc") as control:
            found = control.qdisc(HANDLE, self._parent) or next(filter(is_own, control.qdiscs()), None)
        if found is None or not is_own(found):
            return None
        self._parent = found.parent
        return found


class ClassKnob:
    """One HTB class; its value is ``HtbClass.text()``, rates in bytes/s. A change is live: queued packets stay queued."""

    def __init__(self, device: Device, class_id: int) -> None:
        self._device = device
        self._class_id = class_id
        self._settings: HtbClass | None = None  # as last read, and in words
        self._text = ""

    @property
    def ref(self) -> KnobRef:
        """Kind "tc-class": namespace, device, class id."""
        return KnobRef("tc-class", (self._device.namespace, self._device.name, handle_text(self._class_id)))

    def read(self) -> str | None:
        """What it is set to, or None where it (or our qdisc) does not exist."""
        found = self._device.one_class(self._class_id)
        if found is None:
            return None
        if found.settings is not self._settings:
            self._settings, self._text = found.settings, found.settings.text()
        return self._text

    def write(self, value: str) -> None:
        """Make or change it."""
        settings = HtbClass.parse(value)
        doing = f"set class {handle_text(self._class_id)} to {settings.rate_bytes_per_s * 8} bit/s"
        with self._device.changing(doing) as control:
            control.set_class(self._class_id, settings)

    def same(self, wanted: str, found: str | None) -> bool:
        """Exact equality: HTB keeps whole bytes/s and ticks, and amounts are chosen to divide (``NetworkActuator.pools``)."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """Remove it where it was not; a vanished qdisc took it along."""
        if old is not None:
            self.write(old)
            return
        with self._device.changing(f"remove class {handle_text(self._class_id)}") as control:
            try:
                control.delete_class(self._class_id)
            except OSError as error:
                if error.errno not in _GONE:
                    raise


class FilterKnob:
    """All filters of our qdisc together: ``port=PORT>CLASS``, ``cgroup=DEPTH/ID>CLASS``, ``net-cls=NUMBER>CLASS``, sorted.

    One knob, because u32's tables belong to the qdisc and not to one filter: they come and go together. A change removes all and
    adds all; for less than a millisecond packets go to the class of the rest.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bodies: list[bytes] = []  # as last read, and what they say
        self._text = ""

    @property
    def ref(self) -> KnobRef:
        """Kind "tc-filter": namespace, device, parent handle."""
        return KnobRef("tc-filter", (self._device.namespace, self._device.name, handle_text(HANDLE)))

    def read(self) -> str | None:
        """The rules in force; None where there are none."""
        with self._device.control("read the filters") as control:
            bodies = control.filters(HANDLE)
        if bodies != self._bodies:  # taking them apart costs four times what asking costs, and they seldom change
            self._bodies, self._text = bodies, _filters_text(unpack_filters(bodies))
        return self._text or None

    def write(self, value: str) -> None:
        """Put these rules in the place of whatever there is."""
        groups, ports, class_ids = parse_filters(value)
        with self._device.changing("set the filters") as control:
            control.flush_filters(HANDLE)
            for rule in groups:
                program = load_group_program(rule.depth, rule.group_id)
                try:
                    control.add_group_rule(HANDLE, _GROUP_PREFERENCE, rule, program)
                finally:
                    os.close(program)
            for mark in class_ids:
                program = load_class_id_program(mark.number)
                try:
                    control.add_class_id_rule(HANDLE, _GROUP_PREFERENCE, mark, program)
                finally:
                    os.close(program)
            for preference, protocol in _PORT_PREFERENCES if ports else ():
                control.add_port_rules(HANDLE, preference, protocol, ports)

    def same(self, wanted: str, found: str | None) -> bool:
        """Exact equality; no rules at all are written as ""."""
        return wanted == (found or "")

    def restore(self, old: str | None) -> None:
        """Remove every filter of our qdisc, or bring back the listed ones."""
        if old is not None:
            self.write(old)
        elif self.read() is not None:
            with self._device.changing("remove the filters") as control:
                control.flush_filters(HANDLE)


def _filters_text(found: list[Filter]) -> str:
    groups = group_rules(found)
    version4, version6 = (port_rules(found, preference, protocol) for preference, protocol in _PORT_PREFERENCES)
    text = filter_text(groups, version4, class_id_rules(found))
    return text if version4 == version6 else f"{text} but for IPv6 {filter_text((), version6)}"


def filter_text(groups: Iterable[GroupRule], ports: Iterable[PortRule], class_ids: Iterable[ClassIdRule] = ()) -> str:
    """The rules in one line, sorted."""
    words = [f"cgroup={rule.depth}/{rule.group_id}>{handle_text(rule.class_id)}" for rule in groups]
    words += [f"net-cls={rule.number}>{handle_text(rule.class_id)}" for rule in class_ids]
    words += [f"port={rule.port}>{handle_text(rule.class_id)}" for rule in ports]
    return " ".join(sorted(words))


def parse_filters(text: str) -> tuple[list[GroupRule], list[PortRule], list[ClassIdRule]]:
    """The inverse of ``filter_text``. Raises ValueError."""
    groups, ports, class_ids = [], [], []
    for word in text.split():
        matched, _arrow, class_text = word.partition(">")
        kind, _equals, what = matched.partition("=")
        if kind == "port":
            ports.append(PortRule(int(what), parse_handle(class_text)))
        elif kind == "net-cls":
            class_ids.append(ClassIdRule(int(what), parse_handle(class_text)))
        elif kind == "cgroup":
            depth, _slash, group_id = what.partition("/")
            groups.append(GroupRule(int(depth), int(group_id), parse_handle(class_text)))
        else:
            raise ValueError(f"not a filter rule: {word!r}")
    return groups, ports, class_ids


def _device(address: tuple[str, ...]) -> Device:
    namespace, name, _handle = address
    return Device(name, namespace, keep=False)


def _removed(_knob: Knob) -> None:
    return None


KINDS: KnobKinds = {
    "tc-qdisc": KnobKind(lambda address: QdiscKnob(_device(address)), Resource.NETWORK, safe=_removed),
    "tc-class": KnobKind(lambda address: ClassKnob(_device(address), parse_handle(address[2])), Resource.NETWORK, safe=_removed),
    "tc-filter": KnobKind(lambda address: FilterKnob(_device(address)), Resource.NETWORK, safe=_removed),
    ClassIdKnob.KIND: KnobKind(lambda address: ClassIdKnob(Path(address[0])), Resource.NETWORK, slow=True, safe=_removed),
}
"""How a knob is found again from the journal's reference, in any process."""
