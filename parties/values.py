"""How plain values that are made in every interval are declared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A dataclass that the type checker keeps from being changed.

    ``dataclass(frozen=True)`` checks while the program runs and pays for it: making an object of 13 fields takes six times as long.
    So that is left to values that are made once.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
