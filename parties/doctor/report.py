"""The whole examination, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from parties.doctor import cache, control_groups, cores, disk, frequency, memory, monitoring, network, rest, tools
from parties.doctor.examine import examine_resource
from parties.doctor.model import Lack, Offer, Report, ResourceReport
from parties.doctor.subject import Subject
from parties.model import Resource

_SPECIALISTS = {
    Resource.CORES: cores.SPECIALIST,
    Resource.FREQUENCY: frequency.SPECIALIST,
    Resource.MEMORY: memory.SPECIALIST,
    Resource.DISK: disk.SPECIALIST,
}

_EXAMINERS = {Resource.CACHE: cache.examine, Resource.NETWORK: network.examine}
"""Those that cannot be asked on a copy of a machine."""


def examine(subject: Subject) -> Report:
    """Look at everything once. Writes nothing to the machine, and takes as long as the subject's wait."""
    sections = (control_groups.examine(subject), monitoring.examine(subject), monitoring.examine_clock(subject))
    return Report(
        resources=tuple(map(partial(examine_one, subject), Resource)),
        sections=tuple(replace(section, lacks=_plain(subject, section.lacks)) for section in sections),
        in_the_way=tools.in_the_way(subject),
        rest=rest.examine(subject),
        unseen=tuple(_unseen(subject)),
    )


def examine_one(subject: Subject, resource: Resource) -> ResourceReport:
    """Look at one resource. Writes nothing to the machine, and waits for nothing but a command that has to be asked."""
    own = _EXAMINERS.get(resource)
    found = own(subject) if own is not None else examine_resource(subject, resource, _SPECIALISTS[resource])
    offer = Offer(*map(subject.plain, (found.offer.mechanism, found.offer.unit, found.offer.range)))
    return replace(found, offer=offer, lacks=_plain(subject, found.lacks))


def _plain(subject: Subject, lacks: Iterable[Lack]) -> tuple[Lack, ...]:
    return tuple(replace(lack, text=subject.plain(lack.text), change=subject.plain(lack.change)) for lack in lacks)


def _unseen(subject: Subject) -> Iterator[str]:
    if subject.is_root:
        return
    yield "not root: whether the kernel has HTB and its classifiers was not tried, and is taken for granted"
    yield "not root: pqos cannot be run, so that a cache that only it could manage counts as not managed"
    yield "not root: processes of other users may be hidden (hidepid), and with them who is in the way"
