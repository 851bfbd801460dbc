"""A network device, and how its traffic control is reached."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from actuators.network.netlink import RouteSocket, namespace_path
from actuators.network.tc import ClassState, TrafficControl, handle_text
from parties.knob import KnobError

HANDLE: Final = 0x70610000
"""Our qdisc's handle, 7061: in ``tc``; unusual on purpose, as it is how an earlier run's objects are told from others'."""

GONE: Final = frozenset({errno.ENOENT, errno.EINVAL})
"""How the kernel says that there is no such class, filter or qdisc."""

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
                if error.errno in GONE:
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
