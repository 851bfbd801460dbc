"""The messages of the histogram socket as values: parsed, checked, encoded. No socket here; ``docs/histogram-socket.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Any

from parties.histogram import MAX_VALUE, Histogram, HistogramError
from parties.values import value

VERSION = 1
MAX_MESSAGE_BYTES = 65_536
MAX_CLIENT_CHARACTERS = 64


class MessageError(ValueError):
    """A message that is refused. Its text says what, where, and what to do; it is what the sender gets as an answer."""


@value
class Window:
    """What one client saw of one service between two moments of CLOCK_MONOTONIC, in ns. Counts are of requests."""

    service: str
    client: str
    sequence: int
    window_start_ns: int
    window_end_ns: int
    scheduled: int = 0
    sent: int = 0
    completed: int = 0
    failed: int = 0
    unsent: int = 0
    outstanding: int = 0  # at the window's end
    oldest_outstanding_ns: int = 0  # its age at the window's end
    histogram: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class Hello:
    """A client's question for the services and the intervals."""

    name: str


_STRINGS = ("service", "client")
_REQUIRED = ("sequence", "window_start_ns", "window_end_ns", "completed")
_OPTIONAL = ("scheduled", "sent", "failed", "unsent", "outstanding", "oldest_outstanding_ns")
_FIELDS = frozenset({"version", "histogram", *_STRINGS, *_REQUIRED, *_OPTIONAL})
_IN_ORDER = ("version", *(each.name for each in fields(Window)))
_values_of = itemgetter(*_IN_ORDER)
_USUAL_TYPES = (int, str, str, *(int,) * (len(_IN_ORDER) - 4), list)


def parse_window(data: bytes) -> Window:
    """The window that a message holds. Raises MessageError for everything else, whatever the bytes."""
    message = parse_message(data)
    if isinstance(message, Hello):
        raise MessageError("the message is a hello, not a window; send one window in each message")
    return message


def parse_message(data: bytes) -> Window | Hello:
    """The window or the hello that a message holds. Raises MessageError for everything else, whatever the bytes."""
    message = _decoded(data)
    window = _usual(data, message)
    return _examined(data, message) if window is None else window


def _usual(data: bytes, message: dict[str, object]) -> Window | None:
    """The window of a message that has every field, each of the right type and in range, as nearly all do; None of any other."""
    if len(message) != len(_FIELDS):
        return None
    try:
        values: list[Any] = list(_values_of(message))
    except KeyError:
        return None
    counts = values[3:-1]
    if tuple(map(type, values)) != _USUAL_TYPES or values[0] != VERSION or min(counts) < 0 or max(counts) > MAX_VALUE:
        return None
    if _has_booleans(data):
        return None
    values[-1] = _histogram(values[-1])
    return _checked(Window(*values[1:]))


def _has_booleans(data: bytes) -> bool:
    """Whether true or false is somewhere, if their last letter is behind the first bracket, where every array is."""
    return data.find(b"e", data.find(b"[")) >= 0 and (b"true" in data or b"false" in data)


def _examined(data: bytes, message: dict[str, object]) -> Window | Hello:
    """What any message holds, field by field, so that a refusal names the first that is wrong."""
    version = message.get("version")
    if version != VERSION or type(version) is not int:
        raise MessageError(f"field 'version' is {_shown(version)}; this daemon speaks version {VERSION} of the histogram message")
    if "hello" in message:
        return _hello(message)
    if message.keys() != _FIELDS:
        _check_names(message)
    if _has_booleans(data):
        _check_booleans(message["histogram"])
    _check_types(message)
    return _filled(message)


def encode_window(window: Window) -> bytes:
    """The message of a window, every field written out."""
    values: dict[str, object] = {name: getattr(window, name) for name in (*_STRINGS, *_REQUIRED, *_OPTIONAL)}
    return json.dumps({"version": VERSION, **values, "histogram": window.histogram.encode()}, separators=(",", ":")).encode()


def encode_answer(error: str) -> bytes:
    """The answer to a refused message."""
    return json.dumps({"version": VERSION, "error": error}).encode()


def encode_welcome(services: Iterable[str], interval_ns: int, sub_interval_ns: int) -> bytes:
    """The answer to a hello."""
    welcome = {"version": VERSION, "services": sorted(services), "interval_ns": interval_ns, "sub_interval_ns": sub_interval_ns}
    return json.dumps(welcome).encode()


def _decoded(data: bytes) -> dict[str, object]:
    """The JSON object in these bytes, no key twice."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"the message is longer than {MAX_MESSAGE_BYTES} bytes; send shorter windows")
    try:
        message = _object(data.decode())
    except MessageError:
        raise
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits and nesting of thousands of levels end here as well.
        raise MessageError(f"the message is not JSON in UTF-8 ({error}); send one JSON object in each message") from None
    if type(message) is not dict:
        raise MessageError("the message is not a JSON object; send one JSON object in each message")
    return message


def _object(text: str) -> object:
    """What ``_DECODER.decode`` gives, but without looking for blanks at both ends where there are none."""
    try:
        found, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError:
        end = -1
    return found if end == len(text) else _DECODER.decode(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    message = dict(pairs)
    if len(message) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MessageError(f"field {_shown(twice)} stands twice; send it once")
    return message


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def _shown(value: object) -> str:
    """A sender's value in a message: escaped and short."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - one line


def _hello(message: dict[str, object]) -> Hello:
    name = message["hello"]
    if len(message) != 2:  # noqa: PLR2004 - version and hello
        unknown = next(key for key in message if key not in {"version", "hello"})
        raise MessageError(f"a hello has no field {_shown(unknown)}; remove it")
    if type(name) is not str:
        raise MessageError(f"field 'hello' is {_shown(name)}; it must be a string, your name")
    return Hello(name)


def _check_names(message: dict[str, object]) -> None:
    """Fill in the defaults of what was left out; refuse what is unknown or missing."""
    for name in message:
        if name not in _FIELDS:
            raise MessageError(f"unknown field {_shown(name)}; remove it, or correct its spelling")
    for name in ("service", "client", *_REQUIRED, "histogram"):
        if name not in message:
            raise MessageError(f"field '{name}' is missing; add it")


def _check_booleans(flat: object) -> None:
    """Refuse them among the histogram's integers, of which they are a kind to Python."""
    if isinstance(flat, list) and any(isinstance(entry, bool) for entry in flat):
        raise MessageError("field 'histogram': an entry is true or false; each must be an integer")


def _check_types(message: dict[str, object]) -> None:
    for name in _STRINGS:
        if type(message[name]) is not str:
            raise MessageError(f"field '{name}' is {_shown(message[name])}; it must be a string")
    for name in (*_REQUIRED, *_OPTIONAL):
        value = message.get(name, 0)
        if type(value) is not int or not 0 <= value <= MAX_VALUE:
            raise MessageError(f"field '{name}' is {_shown(value)}; it must be an integer from 0 to {MAX_VALUE}")


def _histogram(flat: object) -> Histogram:
    try:
        return Histogram.decode(flat)
    except HistogramError as error:
        raise MessageError(f"field 'histogram': {error}") from None


def _filled(message: dict[str, object]) -> Window:
    """The window of a message whose fields are known and of the right type, with the defaults of those that were left out."""
    histogram = _histogram(message.pop("histogram"))
    del message["version"]
    window = Window(histogram=histogram, **message)  # type: ignore[arg-type]  # names and types were checked one by one
    defaults: dict[str, int] = {}
    if "sent" not in message:
        defaults["sent"] = window.completed + window.failed
    if "scheduled" not in message:
        defaults["scheduled"] = defaults.get("sent", window.sent) + window.unsent
    if defaults:
        window = Window(histogram=histogram, **{**message, **defaults})  # type: ignore[arg-type]  # as above
    return _checked(window)


def _checked(window: Window) -> Window:
    """A window that keeps the rules between fields. Raises MessageError of any other."""
    if not 1 <= len(window.client) <= MAX_CLIENT_CHARACTERS:
        raise MessageError(f"field 'client' has {len(window.client)} characters; it must have 1 to {MAX_CLIENT_CHARACTERS}")
    if window.window_end_ns <= window.window_start_ns:
        raise MessageError(
            f"field 'window_end_ns' is {window.window_end_ns}, not after 'window_start_ns', {window.window_start_ns}; "
            "both are CLOCK_MONOTONIC"
        )
    if window.completed != window.histogram.count:
        raise MessageError(
            f"field 'completed' is {window.completed}, and the histogram's counts add up to {window.histogram.count}; "
            "count each completed request in both"
        )
    if window.oldest_outstanding_ns and not window.outstanding:
        raise MessageError(
            f"field 'oldest_outstanding_ns' is {window.oldest_outstanding_ns} while 'outstanding' is 0; "
            "send 0 where none is outstanding"
        )
    return window
