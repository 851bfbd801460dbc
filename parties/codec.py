"""Dataclasses to JSON values and back, for records, settings and messages between our processes.

Dataclasses become objects with their field names, enums their values, tuples arrays, infinities the texts "inf" and "-inf", a
``PoolKey`` the text ``"cores@0"``. Field order is declaration order, so that equal values give equal bytes (invariant 8).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from parties.model import PoolKey, Resource

T = TypeVar("T")
NOT_FINITE = ("inf", "-inf", "nan")  # floats that JSON has no number for


class CodecError(ValueError):
    """The data does not have the shape that its type asks for; the message says where and what was expected."""


Encoder = Callable[[Any], Any]
_PLAIN = frozenset({int, str, bool, type(None)})
_COMPACT = json.JSONEncoder(separators=(",", ":"), check_circular=False)  # made once: making it costs as much as a short message


def compact_json(value: object) -> bytes:
    """Plain values, as ``to_json`` gives them, as text without blanks."""
    return _COMPACT.encode(value).encode()


def to_json(value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """The value as plain dicts, lists, strings, numbers, booleans and None."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    encode = _ENCODERS.get(kind)
    if encode is None:  # once for each type: there are hundreds of values in a tick
        encode = _ENCODERS[kind] = _encoder(kind)
    return encode(value)


def to_text(value: object) -> str:
    """The same as ``compact_json(to_json(value))``, as text and in one go, for what is encoded in every tick."""
    return _TEXTS[type(value)](value)


def from_json(kind: type[T], data: object) -> T:
    """The inverse of ``to_json`` for a dataclass type. Raises CodecError."""
    return typing.cast("T", _decoder(typing.cast("Any", kind))(data, kind.__name__))


def pool_key(text: str) -> PoolKey:
    """The inverse of ``str(PoolKey)``. Raises ValueError."""
    name, _, domain = text.partition("@")
    return PoolKey(Resource(name), int(domain) if domain else None)


_ENCODERS: dict[type, Encoder] = {}


def _encoder(kind: type) -> Encoder:
    """How values of this very type are encoded."""
    if issubclass(kind, float):
        return lambda value: value if math.isfinite(value) else str(value)
    if issubclass(kind, enum.Enum):
        return lambda value: value.value
    if issubclass(kind, PoolKey):
        return str
    if issubclass(kind, Mapping):
        return lambda value: {_key(key): to_json(item) for key, item in value.items()}
    if issubclass(kind, (tuple, list)):
        return lambda value: [to_json(item) for item in value]
    return _dataclass_encoder(kind)


def _dataclass_encoder(kind: type) -> Encoder:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"cannot encode {kind.__name__}")
    names = tuple(field.name for field in dataclasses.fields(kind))

    def encoded(value: object) -> dict[str, Any]:
        fields = {name: getattr(value, name) for name in names}
        for name, item in fields.items():
            if type(item) not in _PLAIN:
                fields[name] = to_json(item)
        return fields

    return encoded


def _key(key: object) -> str:
    if type(key) is str:
        return key
    return _pool_text(key) if isinstance(key, PoolKey) else str(key.value if isinstance(key, enum.Enum) else key)


@functools.cache
def _pool_text(key: PoolKey) -> str:
    return str(key)


TextMaker = Callable[[Any], str]
_string_text = json.encoder.encode_basestring_ascii


class _Texts(dict[type, TextMaker]):
    """How values are written, by their very type; found out once for each, as there are hundreds of values in a tick."""

    def __missing__(self, kind: type) -> TextMaker:
        make = self[kind] = _text_maker(kind)
        return make


_TEXTS = _Texts(
    {
        int: int.__repr__,
        str: _string_text,
        bool: {True: "true", False: "false"}.__getitem__,
        type(None): {None: "null"}.__getitem__,
    }
)


def _text_maker(kind: type) -> TextMaker:
    """How values of this very type are written."""
    if issubclass(kind, float):
        return lambda value: float.__repr__(value) if math.isfinite(value) else f'"{value}"'
    if issubclass(kind, enum.Enum):
        return {member: compact_json(member.value).decode() for member in kind}.__getitem__
    if issubclass(kind, PoolKey):
        return lambda value: _string_text(_pool_text(value))
    if issubclass(kind, Mapping):
        return lambda value: f"{{{','.join([f'{_key_text(key)}:{_TEXTS[type(item)](item)}' for key, item in value.items()])}}}"
    if issubclass(kind, (tuple, list)):
        return lambda value: f"[{','.join([_TEXTS[type(item)](item) for item in value])}]"
    return _dataclass_text_maker(kind)


def _dataclass_text_maker(kind: type) -> TextMaker:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"cannot encode {kind.__name__}")
    names = tuple(field.name for field in dataclasses.fields(kind))
    template = f"{{{','.join(f'{_string_text(name)}:%s' for name in names)}}}"
    read = operator.attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    return lambda value: template % tuple([_TEXTS[type(item)](item) for item in read(value)])


@functools.cache
def _key_text(key: Hashable) -> str:
    """A key of an object: names of services and pools, so there are few of them."""
    return _string_text(_key(key))


Decoder = Callable[[object, str], object]


@functools.cache
def _decoder(kind: Any) -> Decoder:  # noqa: ANN401 - a type expression, not only a class
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(kind)
    if origin is tuple:
        return _sequence(_decoder(typing.get_args(kind)[0]))
    if origin is not None and issubclass(origin, Mapping):
        key_kind, item_kind = typing.get_args(kind)
        return _mapping(_decoder(key_kind), _decoder(item_kind))
    return _scalar(typing.cast("type", kind))


def _scalar(kind: type) -> Decoder:
    if kind is PoolKey:
        return _converted(pool_key)
    if issubclass(kind, enum.Enum):
        return _converted(kind)
    return _dataclass(kind) if dataclasses.is_dataclass(kind) else _plain(kind)


def _optional(kind: Any) -> Decoder:  # noqa: ANN401 - a type expression
    (inner,) = (option for option in typing.get_args(kind) if option is not type(None))
    decode = _decoder(inner)
    return lambda data, where: None if data is None else decode(data, where)


def _sequence(decode: Decoder) -> Decoder:
    def decoded(data: object, where: str) -> object:
        if not isinstance(data, list):
            raise CodecError(f"{where}: expected an array, found {type(data).__name__}")
        return tuple(decode(item, f"{where}[{index}]") for index, item in enumerate(data))

    return decoded


def _mapping(decode_key: Decoder, decode: Decoder) -> Decoder:
    def decoded(data: object, where: str) -> object:
        if not isinstance(data, dict):
            raise CodecError(f"{where}: expected an object, found {type(data).__name__}")
        return {decode_key(key, where): decode(item, f"{where}.{key}") for key, item in data.items()}

    return decoded


def _converted(convert: Callable[[str], object]) -> Decoder:
    def decoded(data: object, where: str) -> object:
        if not isinstance(data, str):
            raise CodecError(f"{where}: expected a string, found {type(data).__name__}")
        try:
            return convert(data)
        except ValueError as error:
            raise CodecError(f"{where}: {error}") from error

    return decoded


def _dataclass(kind: type) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(kind)}
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def decoded(data: object, where: str) -> object:
        if not isinstance(data, dict):
            raise CodecError(f"{where}: expected an object, found {type(data).__name__}")
        if unknown := sorted(data.keys() - fields.keys()):
            raise CodecError(f"{where}: unknown field {unknown[0]!r}")
        if missing := sorted(required - data.keys()):
            raise CodecError(f"{where}: field {missing[0]!r} is missing")
        return kind(**{name: fields[name](item, f"{where}.{name}") for name, item in data.items()})

    return decoded


def _plain(kind: type) -> Decoder:
    def decoded(data: object, where: str) -> object:
        if kind is object:
            return data
        if kind is float and (type(data) is int or data in NOT_FINITE):
            try:
                return float(typing.cast("str", data))
            except OverflowError as error:
                raise CodecError(f"{where}: {error}") from error
        if type(data) is not kind:
            raise CodecError(f"{where}: expected {kind.__name__}, found {type(data).__name__}")
        return data

    return decoded
