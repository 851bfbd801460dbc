"""LLC ways through the kernel's resctrl: a group for each holder, with a way mask for each L3 domain (section 4.1).

Whatever belongs to no holder is in the root group, whose mask is narrowed to the reserved ways. A holder of nothing in a domain,
and one of fewer ways than a mask may have, lives in the reserved ways there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actuators.cache.knobs import PRESENT, GroupKnob, MaskKnob, SchemataFile, remove_group
from actuators.cache.masks import LayoutError, MaskChange, WayLayout, mask_steps, way_layout
from actuators.cache.resctrl import Mask, ResctrlTree, group_name, who_holds
from actuators.cache.tasks import MembershipTask, ResctrlTasksKnob
from actuators.cgroup.group import GroupLayer
from actuators.cgroup.hierarchy import Hierarchies
from actuators.holders import ManagedGroups
from monitors.resctrl import ResctrlMonitor, has_counters
from parties.interfaces import Journalled, UpkeepTask
from parties.knob import Effect, KnobError, KnobWrite
from parties.model import BEST_EFFORT, RESERVED, Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import CacheSettings

_V1_ORDER = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "freezer")


@dataclass(frozen=True, slots=True)
class _Member:
    """One group: a holder's, or the root for whoever is no holder."""

    holder: Holder
    schemata: SchemataFile
    masks: Mapping[int, MaskKnob]


class ResctrlActuator:
    """Sets way masks. ``tree`` is the file system as found; domains are matched with it by the id of the L3.

    ``problems`` are words for the operator: ways that groups of others fill as well.
    """

    resource = Resource.CACHE

    def __init__(  # noqa: PLR0913 (the parts of a machine, each given by name)
        self,
        tree: ResctrlTree,
        settings: CacheSettings,
        domains: Sequence[Domain],
        *,
        layer: GroupLayer,
        managed: ManagedGroups,
        homes: Mapping[Holder, int],
    ) -> None:
        self._tree = tree
        self._domains = tuple(domains)
        self._homes = {holder: homes.get(holder, self._domains[0].id) for holder in managed if holder != BEST_EFFORT}
        self._control_groups = {
            holder: tuple(thread_directory(layer.hierarchies, path) for path in paths) for holder, paths in managed.items() if paths
        }
        self._layouts: dict[int, WayLayout] = {}
        self._reasons: dict[int, str] = {}
        for domain in self._domains:
            self._lay_out(domain.id, settings.reserved_ways)
        self._members = {holder: self._member(holder, group_name(holder)) for holder in self._control_groups}
        self._root = self._member(RESERVED, "")
        self._groups = {
            holder: GroupKnob(tree.mount, group_name(holder), member.schemata) for holder, member in self._members.items()
        }
        names = {holder: group_name(holder) for holder in self._control_groups}
        self._monitor = ResctrlMonitor(tree.mount, names) if self._layouts and has_counters(tree.mount) else None
        self.problems = tuple(self._shared_with_others())

    def pools(self) -> tuple[Pool, ...]:
        """A pool for each domain, in steps of one way."""
        return tuple(self._pool(PoolKey(Resource.CACHE, domain.id)) for domain in self._domains)

    def _pool(self, key: PoolKey) -> Pool:
        layout = self._layouts.get(key.domain) if key.domain is not None else None
        if layout is None or key.domain is None:
            return Pool(key, managed=False, reason=self._reasons[key.domain or 0])
        return Pool(key, total=layout.ways, step=1, floor=layout.least)

    def tidy(self, journalled: Journalled) -> Sequence[str]:
        """Remove groups of ours that no journal knows, which an earlier run must have left; what was done, in words."""
        told = []
        for name in self._tree.own:
            if GroupKnob(self._tree.mount, name).ref not in journalled:
                try:
                    remove_group(self._tree.mount / name)
                    told.append(f"{self._tree.mount / name}: left by an earlier run, removed")
                except KnobError as error:
                    told.append(f"{error.strerror}; an earlier run has left it, remove it with rmdir")
        return told

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """Masks of every holder whose ways change; at the start of all, their groups and the root group's mask as well.

        Raises KnobError at the start, where what is in force has to be read.
        """
        partitioned = [number for number in self._layouts if PoolKey(Resource.CACHE, number) in placement.partition.amounts]
        plan: list[KnobWrite] = []
        if before is None and partitioned:
            plan += [KnobWrite(group, PRESENT, holder, Effect.TAKE) for holder, group in self._groups.items()]
        for number in partitioned:
            plan += self._domain_writes(number, placement, before)
        return plan

    def _domain_writes(self, number: int, placement: Placement, before: Placement | None) -> Iterator[KnobWrite]:
        layout = self._layouts[number]
        members = {**self._members, RESERVED: self._root} if before is None else self._members
        changes = []
        for holder, member in members.items():
            new = layout.physical(placement.way_masks.get((number, holder), 0))
            old = self._in_force(member, number) if before is None else before.way_masks.get((number, holder), 0)
            changes.append(MaskChange(holder, old if before is None else layout.physical(old), new))
        if before is None:  # what holds already is to be known as wanted, and code and data to be alike
            stay = [change for change in changes if change.old == change.new]
            yield from (KnobWrite(members[at.holder].masks[number], f"{at.new:x}", at.holder, Effect.TAKE) for at in stay)
        for step in mask_steps(changes, layout):
            yield KnobWrite(members[step.holder].masks[number], f"{step.mask:x}", step.holder, step.effect)

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """The ways of each holder's masks in the domains where it may hold any; of the reserved ones it holds none."""
        amounts: dict[PoolKey, Mapping[Holder, int]] = {}
        for number, layout in self._layouts.items():
            found = {
                holder: member.masks[number].read() for holder, member in self._members.items() if self._may_hold(holder, number)
            }
            amounts[PoolKey(Resource.CACHE, number)] = {
                holder: (Mask.parse(text).ways & layout.region).bit_count() for holder, text in found.items() if text is not None
            }
        return amounts

    def upkeep(self) -> Sequence[UpkeepTask]:
        """The membership of each holder's threads, and the counters of their groups where there are some."""
        if not self._layouts:
            return []
        members: list[UpkeepTask] = [
            MembershipTask(holder, ResctrlTasksKnob(self._tree.mount, group_name(holder), directories))
            for holder, directories in self._control_groups.items()
        ]
        return [*members, self._monitor] if self._monitor is not None else members

    def usage(self) -> ResctrlMonitor | None:
        """What each holder uses of the cache and the memory bus; None where this machine does not count it."""
        return self._monitor

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """Answer every read of a mask until its end from one read of each group's file."""
        files = [member.schemata for member in (*self._members.values(), self._root)]
        for file in files:
            file.begin_look()
        try:
            yield
        finally:
            for file in files:
                file.end_look()

    def close(self) -> None:
        """Give up descriptors."""
        for member in (*self._members.values(), self._root):
            member.schemata.file.close()

    def _lay_out(self, number: int, reserved_ways: int) -> None:
        """The layout of a domain, or the reason why there is none."""
        cache = self._tree.cache
        spare = cache.closids - 1 - len(self._tree.foreign)
        if number not in self._tree.masks:
            known = " ".join(map(str, sorted(self._tree.masks)))
            self._reasons[number] = f"{self._tree.mount / 'schemata'} has no L3 with id {number}, only {known}"
        elif spare < len(self._control_groups):
            self._reasons[number] = (
                f"{len(self._control_groups)} groups are needed, and of the {cache.closids} classes of service (CLOSIDs) {spare} "
                f"are left: others hold {who_holds(self._tree.mount)}; remove what nobody needs with rmdir"
            )
        else:
            try:
                self._layouts[number] = domain_layout(self._tree, number, reserved_ways)
            except LayoutError as error:
                self._reasons[number] = str(error)

    def _member(self, holder: Holder, name: str) -> _Member:
        schemata = SchemataFile(self._tree.mount, name)
        return _Member(holder, schemata, {number: MaskKnob(schemata, number) for number in self._layouts})

    def _in_force(self, member: _Member, number: int) -> int:
        """The ways that a group has; one that does not exist yet comes with as many as all."""
        found = member.masks[number].read()
        return self._layouts[number].full if found is None else Mask.parse(found).ways

    def _may_hold(self, holder: Holder, number: int) -> bool:
        return self._homes.get(holder, number) == number

    def _shared_with_others(self) -> Iterator[str]:
        for group in self._tree.foreign:
            where = [number for number, layout in self._layouts.items() if group.masks.get(number, 0) & layout.region]
            if where and not group.exclusive:
                yield (
                    f"{self._tree.mount / group.name}: a resctrl group of another tool, whose threads fill ways that are managed "
                    f"here (L3 {', '.join(map(str, where))}); narrow its mask, or make it exclusive so that its ways are left alone"
                )


def domain_layout(tree: ResctrlTree, number: int, reserved_ways: int) -> WayLayout:
    """How the ways of a domain are divided. Raises LayoutError."""
    taken = 0
    for group in tree.foreign:
        taken |= group.masks.get(number, 0) if group.exclusive else 0
    cache = tree.cache
    return way_layout(cache.full, least=cache.least, shareable=cache.shareable, taken=taken, reserved_ways=reserved_ways)


def thread_directory(hierarchies: Hierarchies, path: str) -> str:
    """Where the threads of a control group are listed: the first hierarchy that has the group, v1 before v2."""
    mounts = [hierarchies.v1[controller] for controller in _V1_ORDER if controller in hierarchies.v1]
    places = [mount / path.lstrip("/") for mount in (*mounts, *((hierarchies.v2,) if hierarchies.v2 else ()))]
    return str(next((place for place in places if place.is_dir()), places[0] if places else Path(path)))
