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
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from parties.model import Holder, Partition, PoolKey, Resource

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


class PartitionText:
    """Partitions as JSON text: ``{"cores@0":{"web":2000,...},...}``. Each differs from the one before in few pools."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, tuple[Mapping[Holder, int], str]] = {}

    def __call__(self, partition: Partition) -> str:
        """The text of ``partition.amounts``."""
        return f"{{{','.join([self._pool(key, held) for key, held in partition.amounts.items()])}}}"

    def _pool(self, key: PoolKey, held: Mapping[Holder, int]) -> str:
        kept = self._pools.get(key)
        if kept is None or kept[0] is not held:  # who holds how much never changes in place
            kept = self._pools[key] = held, f'"{key}":{_COMPACT.encode(dict(held))}'
        return kept[1]


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
    plain = _surely_plain(kind)
    others = tuple(name for name in names if name not in plain)
    read = operator.attrgetter(*names, *names[:1])  # of one name alone it would not give a tuple

    def encoded(value: object) -> dict[str, Any]:
        fields = dict(zip(names, read(value), strict=False))
        for name in others:
            item = fields[name]
            if type(item) not in _PLAIN:
                fields[name] = to_json(item)
        return fields

    return encoded


def _surely_plain(kind: type) -> frozenset[str]:
    """The fields of a dataclass that are declared as what JSON has itself, so that there is nothing to look at in each tick."""
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # a class that is imported for type checks alone, or local to a function
        return frozenset()
    return frozenset(name for name, hint in hints.items() if (set(typing.get_args(hint)) or {hint}) <= _PLAIN)


def _key(key: object) -> str:
    if type(key) is str:
        return key
    return _pool_text(key) if isinstance(key, PoolKey) else str(key.value if isinstance(key, enum.Enum) else key)


@functools.cache
def _pool_text(key: PoolKey) -> str:
    return str(key)


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
