"""From the daemon's own actuators to verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from parties.doctor.model import Lack, Offer, ResourceReport, Weight
from parties.doctor.subject import MISTAKES, Subject, said
from parties.interfaces import Actuator, HasProblems
from parties.model import Pool, Resource

Requirement = Callable[[Subject], Iterable[Lack]]
"""Looks at one thing that a resource or a section needs, and yields a lack where it is not there."""


class Specialist(NamedTuple):
    """What is known about one resource beside what its actuator says.

    ``describe`` says what a machine offers whose pools are these; ``remedy`` what to change where the pools are unmanaged for a
    reason; ``requirements`` look at what the actuator does not say.
    """

    describe: Callable[[Subject, Actuator, Sequence[Pool]], Offer]
    remedy: Callable[[Subject, str], str]
    requirements: Sequence[Requirement] = ()


def examine_resource(subject: Subject, resource: Resource, specialist: Specialist) -> ResourceReport:
    """The report of one resource. Raises nothing that a machine could be the reason of."""
    if not subject.asks(resource):
        change = f"add [node.{resource}] to have it managed"
        lack = Lack(f"{resource}.not-asked-for", "the configuration does not ask for it", change, Weight.PREVENTS)
        return ResourceReport(resource, lacks=(lack,), asked=False)
    offer = Offer()
    lacks: list[Lack] = []
    try:
        with subject.actuator(resource) as actuator:
            if actuator is not None:
                pools = actuator.pools()
                lacks += _of_pools(subject, resource, pools, specialist)
                lacks += _of_problems(resource, actuator)
                if any(pool.managed for pool in pools):
                    offer = specialist.describe(subject, actuator, pools)
    except MISTAKES as error:
        lacks.append(Lack(f"{resource}.unusable", said(error), specialist.remedy(subject, said(error)), Weight.PREVENTS))
    lacks += met(subject, specialist.requirements)
    return ResourceReport(resource, offer, tuple(lacks))


def met(subject: Subject, requirements: Iterable[Requirement]) -> list[Lack]:
    """What the requirements find; one that cannot be looked at finds nothing."""
    lacks: list[Lack] = []
    for requirement in requirements:
        try:
            lacks += requirement(subject)
        except MISTAKES:
            continue  # what cannot be read here has prevented the actuator as well, which says so
    return lacks


def _of_pools(subject: Subject, resource: Resource, pools: Sequence[Pool], specialist: Specialist) -> Iterator[Lack]:
    """Unmanaged pools with one reason are one lack, which prevents where no pool is managed."""
    reasons: dict[str, list[str]] = {}
    for pool in pools:
        if not pool.managed:
            reasons.setdefault(pool.reason, []).append(str(pool.key.domain))
    weight = Weight.DEGRADES if any(pool.managed for pool in pools) else Weight.PREVENTS
    for reason, domains in reasons.items():
        where = f"L3 domain {' '.join(domains)}: " if weight is Weight.DEGRADES else ""
        yield Lack(f"{resource}.not-managed", f"{where}{reason}", specialist.remedy(subject, reason), weight)


def _of_problems(resource: Resource, actuator: Actuator) -> Iterator[Lack]:
    if isinstance(actuator, HasProblems):
        for problem in actuator.problems:
            text, _, change = problem.partition("; ")
            yield Lack(f"{resource}.problem", text, change)


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: "1 core", "2 cores"."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def amount(value: int, base: int, units: Sequence[str]) -> str:
    """A value in the largest unit that keeps it at one or more, with at most two decimals."""
    number, unit = float(value), units[0]
    for larger in units[1:]:
        if number < base:
            break
        number, unit = number / base, larger
    return f"{number:.2f}".rstrip("0").rstrip(".") + f" {unit}"
