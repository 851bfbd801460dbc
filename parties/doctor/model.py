"""What the doctor says: plain values, from which the table and the JSON are made."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parties.model import Resource


class Verdict(enum.StrEnum):
    """How far a resource can be managed here."""

    MANAGED = "managed"
    DEGRADED = "degraded"  # managed, but not everywhere or not as well as it could be
    NOT_MANAGED = "not managed"


class Weight(enum.IntEnum):
    """What it means for the verdict that a requirement is not met."""

    NOTE = 0  # nothing; but better it were
    DEGRADES = 1
    PREVENTS = 2


@dataclass(frozen=True, slots=True)
class Lack:
    """A requirement that is not met: a name for scripts ("cache.not-mounted"), what is missing, and what to change."""

    id: str
    text: str
    change: str = ""
    weight: Weight = Weight.DEGRADES


@dataclass(frozen=True, slots=True)
class Offer:
    """What there is: the mechanism, in which unit amounts are, from where to where and in which steps."""

    mechanism: str = ""
    unit: str = ""
    range: str = ""


@dataclass(frozen=True, slots=True)
class ResourceReport:
    """One resource. ``asked``: whether the configuration asks for it; without one each is asked for."""

    resource: Resource
    offer: Offer = field(default_factory=Offer)
    lacks: tuple[Lack, ...] = ()
    asked: bool = True

    @property
    def verdict(self) -> Verdict:
        """By the gravest lack."""
        worst = max((lack.weight for lack in self.lacks), default=Weight.NOTE)
        return {Weight.NOTE: Verdict.MANAGED, Weight.DEGRADES: Verdict.DEGRADED, Weight.PREVENTS: Verdict.NOT_MANAGED}[worst]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the machine that is no resource: facts by name, and what is missing."""

    name: str
    facts: Mapping[str, str]
    lacks: tuple[Lack, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """Another program that sets the same values, where it was seen, and what to do about it."""

    name: str
    seen: str
    why: str
    change: str


@dataclass(frozen=True, slots=True)
class RestReport:
    """What runs on the managed CPUs outside every registered group, already in the shape of its JSON, and what to change."""

    facts: Mapping[str, object]
    lines: tuple[str, ...]
    change: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The whole examination. ``unseen``: what could not be looked at, and why."""

    resources: tuple[ResourceReport, ...]
    sections: tuple[Section, ...]
    in_the_way: tuple[Tool, ...]
    rest: RestReport
    unseen: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The gravest among the resources that are asked for."""
        order = list(Verdict)
        return max((one.verdict for one in self.resources if one.asked), key=order.index, default=Verdict.MANAGED)


def lacks_to_json(lacks: Iterable[Lack]) -> dict[str, object]:
    """The lists "missing" and "change"; the latter without repetition."""
    found = tuple(lacks)
    return {
        "missing": [{"id": lack.id, "text": lack.text, "weight": lack.weight.name.lower()} for lack in found],
        "change": list(dict.fromkeys(lack.change for lack in found if lack.change)),
    }


def report_to_json(report: Report) -> dict[str, object]:
    """Stable fields; new ones may come."""
    return {
        "version": 1,
        "verdict": report.verdict.value,
        "resources": {one.resource.value: _resource_to_json(one) for one in report.resources},
        **{section.name: {**section.facts, **lacks_to_json(section.lacks)} for section in report.sections},
        "in_the_way": [
            {"name": tool.name, "seen": tool.seen, "why": tool.why, "change": tool.change} for tool in report.in_the_way
        ],
        "rest": {**report.rest.facts, "change": list(report.rest.change)},
        "unseen": list(report.unseen),
    }


def _resource_to_json(report: ResourceReport) -> dict[str, object]:
    return {
        "verdict": report.verdict.value,
        "asked": report.asked,
        "mechanism": report.offer.mechanism,
        "unit": report.offer.unit,
        "range": report.offer.range,
        **lacks_to_json(report.lacks),
    }
