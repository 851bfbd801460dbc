"""systemd's D-Bus interface, as far as it is needed: set a unit's properties, read one, reload.

As root over systemd's own socket, which needs no bus daemon and no policy; else over the system bus. Only processes that write
(the slow writer, restore) come here, and only then is the D-Bus library imported.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parties.knob import KnobError

if TYPE_CHECKING:
    from jeepney import Message

PRIVATE_SOCKET = "run/systemd/private"
SYSTEM_BUS = "run/dbus/system_bus_socket"
_NAME = "org.freedesktop.systemd1"
_MANAGER = "/org/freedesktop/systemd1"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_CALL_LIMIT_S = 8.0
"""Under the slow writer's own limit, so that its cause can still be told."""

_RELOAD_LIMIT_S = 45.0
"""A reload runs every generator; still well under the unit's own limit for a start, as a start may have to put values back."""

_CHUNK_BYTES = 65536
_ERRNOS = {
    "org.freedesktop.systemd1.NoSuchUnit": errno.ENOENT,
    "org.freedesktop.DBus.Error.AccessDenied": errno.EPERM,
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired": errno.EPERM,
    "org.freedesktop.DBus.Error.InvalidArgs": errno.EINVAL,
    "org.freedesktop.DBus.Error.PropertyReadOnly": errno.EINVAL,
    "org.freedesktop.DBus.Error.UnknownProperty": errno.EINVAL,
    "org.freedesktop.DBus.Error.FileNotFound": errno.EINVAL,
}


class Property(NamedTuple):
    """One property of a unit, with its D-Bus type."""

    name: str
    signature: str
    value: Any


class SystemdBus:
    """A connection to systemd, opened at the first call and anew after it was lost.

    ``limit_s`` is for one call, a reload excepted. Every method raises KnobError. An unreachable systemd is ENOTCONN, never ENOENT,
    which would say that the unit has vanished.
    """

    def __init__(self, root: Path = Path("/"), *, limit_s: float = _CALL_LIMIT_S) -> None:
        self._root = root
        self._limit_s = limit_s
        self._socket: socket.socket | None = None
        self._parser: Any = None
        self._serial = 0

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Set properties until the next boot; they are in force, and in a drop-in, when this returns."""
        values = [(prop.name, (prop.signature, prop.value)) for prop in properties]
        self._call(_MANAGER, f"{_NAME}.Manager", "SetUnitProperties", "sba(sv)", (unit, True, values))

    def property(self, unit: str, name: str) -> Any:  # noqa: ANN401 - its type is the property's
        """A property of a unit's control group."""
        kind = unit.rpartition(".")[2].capitalize()
        (path,) = self._call(_MANAGER, f"{_NAME}.Manager", "LoadUnit", "s", (unit,))
        ((_, value),) = self._call(path, _PROPERTIES, "Get", "ss", (f"{_NAME}.{kind}", name))
        return value

    def reload(self) -> None:
        """Have unit files read anew, as ``systemctl daemon-reload`` does; what they say is in force when this returns.

        systemd answers before it has written the control groups, and takes no other call until it has.
        """
        self._call(_MANAGER, f"{_NAME}.Manager", "Reload", None, (), _RELOAD_LIMIT_S)
        self._call(_MANAGER, _PROPERTIES, "Get", "ss", (f"{_NAME}.Manager", "Version"), _RELOAD_LIMIT_S)

    def close(self) -> None:
        """Give up the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _call(  # noqa: PLR0913, PLR0917 (what a D-Bus call consists of)
        self, path: str, interface: str, method: str, signature: str | None, body: tuple[Any, ...], limit_s: float = 0
    ) -> tuple[Any, ...]:
        from jeepney import DBusAddress, MessageType, new_method_call  # noqa: PLC0415 - the control process never comes here

        message = new_method_call(DBusAddress(path, _NAME, interface), method, signature, body)
        what = " ".join(str(part) for part in (method, *body[:1]))
        limit_s = limit_s or self._limit_s
        try:
            reply = self._exchange_surely(message, limit_s)
        except KnobError:
            raise
        except TimeoutError as error:
            self.close()
            raise KnobError(errno.ETIMEDOUT, f"systemd: {what}: no answer within {limit_s:g} s") from error
        except OSError as error:
            self.close()
            raise KnobError(errno.ENOTCONN, f"systemd: {what}: the connection was lost: {error.strerror}") from error
        if reply.header.message_type is MessageType.error:
            raise _refused(what, reply)
        return tuple(reply.body)

    def _exchange_surely(self, message: Message, limit_s: float) -> Message:
        """A connection that was kept may be one that systemd has closed since, when it was re-executed: then over a new one."""
        kept = self._socket is not None
        try:
            return self._exchange(message, limit_s)
        except ConnectionError:
            if not kept:
                raise
            self.close()
            return self._exchange(message, limit_s)

    def _exchange(self, message: Message, limit_s: float) -> Message:
        """Send a call and wait for its own answer; what else arrives is passed over."""
        from jeepney import HeaderFields  # noqa: PLC0415 - as above

        connection = self._connected()
        self._serial += 1
        deadline = time.monotonic() + limit_s
        connection.settimeout(limit_s)
        connection.sendall(message.serialise(serial=self._serial))
        while True:
            while (answer := self._parser.get_next_message()) is None:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                data = connection.recv(_CHUNK_BYTES)
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
                self._parser.add_data(data)
            if answer.header.fields.get(HeaderFields.reply_serial) == self._serial:
                return answer

    def _connected(self) -> socket.socket:
        from jeepney import Parser  # noqa: PLC0415 - as above
        from jeepney.bus_messages import message_bus  # noqa: PLC0415
        from jeepney.io.blocking import prep_socket  # noqa: PLC0415

        if self._socket is not None:
            return self._socket
        refusals = []
        for place in (self._root / PRIVATE_SOCKET, self._root / SYSTEM_BUS):
            try:
                self._socket = prep_socket(str(place), timeout=self._limit_s)
            except OSError as error:
                refusals.append(f"{place}: {error.strerror or error}")
                continue
            self._parser, self._serial = Parser(), 0
            if place.name != Path(PRIVATE_SOCKET).name:
                self._exchange(message_bus.Hello(), self._limit_s)
            return self._socket
        raise KnobError(errno.ENOTCONN, f"systemd cannot be asked ({'; '.join(refusals)}); is it the service manager here?")


def _refused(what: str, reply: Message) -> KnobError:
    from jeepney import HeaderFields  # noqa: PLC0415 - as above

    name = str(reply.header.fields.get(HeaderFields.error_name, ""))
    words = str(reply.body[0]) if reply.body else name
    number = _ERRNOS.get(name) or getattr(errno, name.rpartition(".")[2], errno.EIO)
    return KnobError(number, f"systemd: {what}: {words}")
