"""The three kinds of knob that a shaped device is made of: our qdisc, a class, and the filters of the qdisc.

Each reads None where it does not exist, and restoring None removes it; what hangs below something that is already gone counts as
removed. A vanished device or namespace is KnobError with ENODEV or ENOENT: there is nothing to restore. Only objects
under our own handle are ever read or removed, so a foreign qdisc that took our place meanwhile is left alone.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from actuators.network.device import GONE, HANDLE, Device
from actuators.network.filters import FilterKnob
from actuators.network.net_cls import ClassIdKnob
from actuators.network.tc import TC_H_ROOT, HtbClass, Qdisc, class_of, handle_text, parse_handle, unpack_filters
from parties.knob import Knob, KnobKind, KnobKinds, KnobRef
from parties.model import Resource


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

    KIND = "tc-class"

    def __init__(self, device: Device, class_id: int) -> None:
        self._device = device
        self._class_id = class_id
        self._settings: HtbClass | None = None  # as last read, and in words
        self._text = ""

    @property
    def ref(self) -> KnobRef:
        """Kind "tc-class": namespace, device, class id."""
        return KnobRef(self.KIND, (self._device.namespace, self._device.name, handle_text(self._class_id)))

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
        """Remove it where it was not, after the rules that send traffic to it; a vanished qdisc took it along."""
        if old is not None:
            self.write(old)
            return
        with self._device.changing(f"remove class {handle_text(self._class_id)}") as control:
            for one in unpack_filters(control.filters(HANDLE)):
                if class_of(one) == self._class_id:
                    with _gone_is_as_good():
                        control.delete_filter(HANDLE, one)
            with _gone_is_as_good():
                control.delete_class(self._class_id)


@contextlib.contextmanager
def _gone_is_as_good() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise


def _device(address: tuple[str, ...]) -> Device:
    namespace, name, _handle = address
    return Device(name, namespace, keep=False)


def _removed(_knob: Knob) -> None:
    return None


KINDS: KnobKinds = {
    "tc-qdisc": KnobKind(lambda address: QdiscKnob(_device(address)), Resource.NETWORK, safe=_removed),
    ClassKnob.KIND: KnobKind(
        lambda address: ClassKnob(_device(address), parse_handle(address[2])), Resource.NETWORK, safe=_removed
    ),
    "tc-filter": KnobKind(lambda address: FilterKnob(_device(address)), Resource.NETWORK, safe=_removed),
    ClassIdKnob.KIND: KnobKind(lambda address: ClassIdKnob(Path(address[0])), Resource.NETWORK, slow=True, safe=_removed),
}
"""How a knob is found again from the journal's reference, in any process."""
