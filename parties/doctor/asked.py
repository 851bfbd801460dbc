"""What a configuration asks for and will not get on this machine: the doctor's verdict, told with its place in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from parties.config import Configuration, Problem
from parties.config_schema import Mistake
from parties.doctor.model import Lack, ResourceReport, Weight
from parties.doctor.report import examine_one
from parties.doctor.subject import Subject
from parties.model import Resource

_UNUSABLE = ".unusable"
_NOT_MANAGED = ".not-managed"


def reports(subject: Subject) -> dict[Resource, ResourceReport]:
    """What the doctor says of each resource that the subject's settings ask for. Writes nothing to the machine."""
    return {resource: examine_one(subject, resource) for resource in Resource if subject.asks(resource)}


def problems(configuration: Configuration, found: Mapping[Resource, ResourceReport], mistakes: Sequence[Problem]) -> list[Problem]:
    """A warning for each reason why a resource is left alone, be it in one L3 domain only.

    An actuator that cannot even be made keeps the daemon from starting, which is a mistake. It is told only where there are no
    ``mistakes`` known already: else it is one of them in other words, such as a control group that does not exist.
    """
    told: dict[str, Mistake] = {}  # by reason: what is wrong with the CPUs hinders every actuator
    for report in found.values():
        for lack in report.lacks:
            for mistake in _of(report, lack, known=bool(mistakes)):
                told.setdefault(mistake.text if mistake.warning else lack.text, mistake)
    return [configuration.problem(mistake) for mistake in told.values()]


def _of(report: ResourceReport, lack: Lack, *, known: bool) -> Iterator[Mistake]:
    path = ("node", report.resource.value)
    if lack.id.endswith(_UNUSABLE):
        if not known:
            yield Mistake(path, _with_change(lack))
    elif lack.weight is Weight.PREVENTS:
        yield Mistake(path, f"{report.resource} will not be managed: {_with_change(lack)}", warning=True)
    elif lack.id.endswith(_NOT_MANAGED):
        yield Mistake(path, f"{report.resource} will not be managed everywhere: {_with_change(lack)}", warning=True)


def _with_change(lack: Lack) -> str:
    """What is missing and what to do, which is often a part of it already."""
    return lack.text if not lack.change or lack.change in lack.text else f"{lack.text}; {lack.change}"
