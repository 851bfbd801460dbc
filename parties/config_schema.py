"""The file format, derived from the settings: one field of ``parties.settings`` is one key, and nothing is declared twice.

The same holds for every other file that fills a data class (the *root* of ``read``), such as those of simulated nodes.

A field's unit suffix says how its value is written: ``interval_ns`` is the key ``interval`` with a duration, ``floor_millicores``
is ``floor`` with an amount of CPU, ``managed_cpus`` is ``managed`` with a CPU list. A tuple of settings is an array of tables
(``services``: ``[[service]]``), a tuple of texts, numbers or quantities an array, or a single one under the singular
(``cgroup = "/web"``).
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from parties import units
from parties.settings import ControlSettings
from parties.toml_places import Path
from parties.units import Quantity, UnitError

_QUANTITIES: Mapping[str, Quantity] = {
    "_bytes_per_s": units.BYTE_RATE,
    "_bits_per_s": units.BIT_RATE,
    "_bytes": units.SIZE,
    "_millicores": units.MILLICORES,
    "_hz": units.FREQUENCY,
    "_ways": units.WAYS,
    "_ns": units.DURATION,
}
_CPUS = "_cpus"
_SHAPES = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a text in quotes",
    "list_type": "must be an array",
    "dict_type": "must be a table",
    "model_type": "must be a table",
}
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong with a configuration: where, what, and what to do.

    ``involves`` are further keys that it hangs on. A ``warning`` does not stand in the way of a run.
    """

    path: Path
    text: str
    involves: tuple[Path, ...] = ()
    warning: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One key of a table: the settings' field that it fills, and how its value is written."""

    field: str
    names: tuple[str, ...]  # what the file may call it
    required: bool
    kind: Any  # the field's type, without None
    quantity: Quantity | None
    table: type | None  # the settings of a table or an array of tables
    array: bool

    @property
    def name(self) -> str:
        """What the documentation calls it."""
        return self.names[0]


@functools.cache
def keys_of(settings: type) -> tuple[Key, ...]:
    """The keys of the table that fills a settings class, in the order of its fields."""
    hints = typing.get_type_hints(settings)
    return tuple(_key(field, hints[field.name]) for field in dataclasses.fields(settings))


def all_keys(settings: type = ControlSettings, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key]]:
    """Every key of the format with the table that it stands in, tables before what is in them."""
    for key in keys_of(settings):
        yield path, key
        if key.table is not None:
            yield from all_keys(key.table, (*path, key.name))


def read(data: Mapping[str, Any], root: type[T]) -> tuple[T, list[Mistake]]:
    """Settings of class ``root`` from what ``tomllib`` read, without ``version``, and what is wrong with single values of it.

    Where there are mistakes, the settings hold a default or a stand-in for each of them, so that the rest can be checked too.
    """
    schema = model_of(typing.cast("type", root))
    try:
        model = schema.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        mistakes = [mistake for detail in details if (mistake := _mistake(detail, root)) is not None]
        repaired = _repaired(data, details, root)
        return _settings(root, schema.model_validate(repaired)), mistakes
    return _settings(root, model), []


def spellings(path: Path, root: type = ControlSettings) -> list[Path]:
    """The ways to write a path: its last key under each of its names, the given one first."""
    _, key = _key_at(path, root)
    last = max((index for index, part in enumerate(path) if isinstance(part, str)), default=-1)
    names = [name for name in key.names if name != path[last]] if key is not None else []
    return [path, *((*path[:last], name, *path[last + 1 :]) for name in names)]


@functools.cache
def model_of(settings: type) -> type[BaseModel]:
    """The pydantic model of the table that fills a settings class."""
    fields: dict[str, Any] = {}
    for key in keys_of(settings):
        alias = AliasChoices(*key.names)
        fields[key.field] = (_annotation(key), Field(validation_alias=alias, default=... if key.required else None))
    config = ConfigDict(extra="forbid", strict=True)
    model: type[BaseModel] = create_model(settings.__name__, __config__=config, **fields)
    return model


def _key(field: dataclasses.Field[Any], hint: Any) -> Key:  # noqa: ANN401 - a type expression
    kind, array = _without_none(hint), False
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    if field.name.endswith(_CPUS):
        return Key(field.name, (field.name.removesuffix(_CPUS),), required, str, None, None, array=False)
    if typing.get_origin(kind) is tuple:
        kind, array = typing.get_args(kind)[0], True
    table = kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None
    suffix = next((suffix for suffix in _QUANTITIES if field.name.endswith(suffix)), "")
    names: tuple[str, ...] = (field.name.removesuffix(suffix),)
    if array and names[0].endswith("s"):
        names = (names[0][:-1],) if table else (names[0], names[0][:-1])
    return Key(field.name, names, required, kind, _QUANTITIES.get(suffix), table, array)


def _without_none(hint: Any) -> Any:  # noqa: ANN401 - a type expression
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (option for option in typing.get_args(hint) if option is not types.NoneType)
    return hint


def _annotation(key: Key) -> Any:  # noqa: ANN401 - a type expression
    if key.table is not None:
        model = model_of(key.table)
        return list[model] if key.array else model  # type: ignore[valid-type]
    if key.quantity is not None:
        quantity = Annotated[int, BeforeValidator(key.quantity.parse)]
        return Annotated[list[quantity], BeforeValidator(_several)] if key.array else quantity
    if key.field.endswith(_CPUS):
        return Annotated[tuple[int, ...], BeforeValidator(units.parse_cpu_list)]
    if key.array:
        return Annotated[list[key.kind], BeforeValidator(_several)]  # type: ignore[name-defined]
    if isinstance(key.kind, type) and issubclass(key.kind, enum.Enum):
        return Annotated[key.kind, BeforeValidator(_choice(key.kind))]
    return key.kind if isinstance(key.kind, type) else dict[str, str]


def _several(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _choice(kind: type[enum.Enum]) -> Callable[[object], enum.Enum]:
    def chosen(value: object) -> enum.Enum:
        for member in kind:
            if member.value == value:
                return member
        raise UnitError(f"must be {' or '.join(_shown(member.value) for member in kind)}, not {_shown(value)}")

    return chosen


def _settings(settings: type[T], model: BaseModel) -> T:
    """The settings that a valid model stands for; what the file leaves out keeps the default of its field."""
    values: dict[str, Any] = {}
    for key in keys_of(typing.cast("type", settings)):
        if key.field not in model.model_fields_set:
            continue
        value = getattr(model, key.field)
        if key.table is not None:
            value = tuple(_settings(key.table, item) for item in value) if key.array else _settings(key.table, value)
        values[key.field] = tuple(value) if isinstance(value, list) else value
    return settings(**values)


def _key_at(path: Path, root: type) -> tuple[type | None, Key | None]:
    """The settings class of the table that a path's last part stands in, and the key of that part."""
    table: type | None = root
    key: Key | None = None
    owner: type | None = None
    for part in path:
        if isinstance(part, int):
            continue
        owner, key = table, None
        if owner is None:
            break
        key = next((known for known in keys_of(owner) if part in known.names), None)
        table = key.table if key is not None else None
    return owner, key


def _mistake(detail: ErrorDetails, root: type) -> Mistake | None:
    path = detail["loc"]
    owner, key = _key_at(path, root)
    if detail["type"] == "extra_forbidden":
        near = _nearest(str(path[-1]), owner)
        return Mistake(path, _unknown(path, owner, near, root), ((*path[:-1], near),) if near else ())
    if detail["type"] == "missing":
        return Mistake(path, _missing(key))
    if detail["type"] == "value_error":
        return Mistake(path, str(detail["ctx"]["error"]))
    return Mistake(path, _misshapen(path, key, detail))


def _misshapen(path: Path, key: Key | None, detail: ErrorDetails) -> str:
    found = detail["input"]
    if key is not None and key.table is not None:
        if key.array and not (path and isinstance(path[-1], int)):
            return f"is an array of tables; write [[{key.name}]]"
        return f"must be a table, not {_shown(found)}; write {_header(path)}"
    return f"{_SHAPES.get(detail['type'], detail['msg'])}, not {_shown(found)}"


def _header(path: Path) -> str:
    name = ".".join(part for part in path if isinstance(part, str))
    return f"[[{name}]]" if path and isinstance(path[-1], int) else f"[{name}]"


def _missing(key: Key | None) -> str:
    if key is None:
        return "is missing"
    if key.table is not None:
        return f"is missing; add [[{key.name}]] with {', '.join(k.name for k in keys_of(key.table) if k.required)}"
    return f"is missing; add {key.names[-1]} = {_example(key)}"


def _example(key: Key) -> str:
    examples = {"target_ns": '"10ms"', "cgroups": '"/web"', "name": '"web"', "device": '"NAME"'}
    return examples.get(key.field) or (f'"{key.quantity.example}"' if key.quantity is not None else '"..."')


def _nearest(name: str, owner: type | None) -> str:
    known = [name for key in keys_of(owner) for name in key.names] if owner is not None else []
    return next(iter(difflib.get_close_matches(name, known, n=1)), "")


def _unknown(path: Path, owner: type | None, near: str, root: type) -> str:
    name = str(path[-1])
    keys = keys_of(owner) if owner is not None else ()
    if twice := [key for key in keys if name in key.names]:
        return f"is given twice, as {' and '.join(twice[0].names)}; keep one of the two"
    if elsewhere := [_table_name(table, root) for table, key in all_keys(root) if name in key.names]:
        return f"unknown key here; it belongs in {' or '.join(elsewhere)}"
    if near:
        return f"unknown key; did you mean {near!r}?"
    return f"unknown key; known here: {', '.join(sorted(key.name for key in keys))}"


def _table_name(table: tuple[str, ...], root: type) -> str:
    if not table:
        return "the top level, before the first table"
    _, key = _key_at(table, root)
    return f"[[{'.'.join(table)}]]" if key is not None and key.array else f"[{'.'.join(table)}]"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def _repaired(data: Mapping[str, Any], details: list[ErrorDetails], root: type) -> dict[str, Any]:
    """The data without what is wrong in it: left out where there is a default, else replaced by a stand-in."""
    repaired: dict[str, Any] = _copied(data)
    for detail in details:
        path = detail["loc"]
        _, key = _key_at(path, root)
        if key is not None and key.table is None and isinstance(path[-1], int):
            path = path[:-1]  # one wrong element makes the whole array unusable
        place: Any = repaired
        for part in path[:-1]:
            place = place[part]
        if isinstance(path[-1], int):
            place[path[-1]] = {k.name: _stand_in(k, path) for k in keys_of(key.table) if k.required} if key and key.table else {}
            continue
        place.pop(path[-1], None)
        if key is not None and key.required and detail["type"] != "extra_forbidden":
            place[key.name] = _stand_in(key, path)
    return repaired


def _stand_in(key: Key, path: Path) -> object:
    if key.array:
        return []
    if key.quantity is not None:
        return key.quantity.example
    if key.kind in (int, float):
        return 1
    return f"{key.name}-{'-'.join(str(part) for part in path)}"


def _copied(value: Any) -> Any:  # noqa: ANN401 - whatever TOML holds
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
