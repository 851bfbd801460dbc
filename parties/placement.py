"""Place: counts become concrete things (core numbers, way masks), with the least churn for holders that are not concerned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parties.model import Holder, Partition


@dataclass(frozen=True, slots=True)
class Placement:
    """A partition made concrete.

    ``cpus`` are Linux CPU numbers: whole physical cores, both hardware threads, disjoint between holders; where cores are divided
    (``Node.divides_cores``) every holder has all managed CPUs of its domain. ``way_masks`` are contiguous LLC masks by domain and
    holder, disjoint. Every other resource needs no place: its amounts are in ``partition``.
    """

    partition: Partition
    cpus: Mapping[Holder, tuple[int, ...]]
    way_masks: Mapping[tuple[int, Holder], int]
