"""LLC ways by the command pqos, for machines whose processor has cache allocation and whose kernel has no resctrl (section 4.1).

Each holder gets a class of service, the same number in every L3 domain, and its CPUs are associated with it: without the kernel
there are no threads to associate. So its threads fill its ways as long as they run on its CPUs, which takes whole cores. Class 0
is of whoever is no holder, and is narrowed to the reserved ways. Classes that others use are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from actuators.cache.masks import LayoutError, MaskChange, WayLayout, mask_steps, way_layout
from actuators.cache.pqos_command import Pqos
from actuators.cache.pqos_knobs import DEFAULT_CLASS, PqosCpuKnob, PqosLookTask, PqosMaskKnob
from actuators.cache.pqos_output import PqosAbilities, PqosState
from actuators.cache.resctrl import Mask
from actuators.holders import ManagedGroups
from parties.interfaces import UpkeepTask
from parties.knob import Effect, KnobError, KnobWrite
from parties.model import BEST_EFFORT, RESERVED, Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import CacheSettings

_HASWELL_LEAST = 2


class PqosActuator:
    """Sets way masks of classes, and the classes of CPUs.

    ``snapshot`` is a file of ours in the runtime directory. ``divides_cores``: cores are handed out in fractions, so that every
    holder is on every CPU and there is nothing to tell them apart by. ``interface`` is pqos's own. pqos runs here twice; where
    it fails, the pools are unmanaged and say why. ``problems`` are words for the operator: classes that others use.
    """

    resource = Resource.CACHE
    follows_cores = True

    def __init__(  # noqa: PLR0913 (the parts of a machine, each given by name)
        self,
        domains: Sequence[Domain],
        managed: ManagedGroups,
        *,
        settings: CacheSettings,
        snapshot: Path,
        interface: str = "msr",
        command: str = "pqos",
        homes: Mapping[Holder, int] | None = None,
        divides_cores: bool = False,
        root: Path = Path("/"),
    ) -> None:
        self._domains = tuple(domains)
        self._homes = {holder: (homes or {}).get(holder, domains[0].id) for holder in managed if holder != BEST_EFFORT}
        self._pqos = Pqos(snapshot, interface, command)
        self._layouts: dict[int, WayLayout] = {}
        self._reasons: dict[int, str] = {}
        self._units: Mapping[int, int] = {}
        self._classes: dict[Holder, int] = {}
        self.problems: tuple[str, ...] = ()
        reason = why_not(divides_cores=divides_cores)
        try:
            if not reason:
                self._begin([holder for holder, paths in managed.items() if paths], settings, root)
        except KnobError as error:
            reason = error.strerror or str(error)
        except ValueError as error:
            reason = f"{command}: {error}"
        for domain in self._domains if reason else ():
            self._reasons[domain.id] = reason
            self._layouts.pop(domain.id, None)
        self._masks = {
            (number, holder): PqosMaskKnob(self._pqos, self._units[number], service_class)
            for number in self._layouts
            for holder, service_class in {**self._classes, RESERVED: DEFAULT_CLASS}.items()
        }
        self._cpus = {
            cpu: PqosCpuKnob(self._pqos, cpu) for domain in self._domains if domain.id in self._layouts for cpu in domain.cpus
        }

    def pools(self) -> tuple[Pool, ...]:
        """A pool for each domain, in steps of one way."""
        return tuple(self._pool(domain.id) for domain in self._domains)

    def _pool(self, number: int) -> Pool:
        key = PoolKey(Resource.CACHE, number)
        layout = self._layouts.get(number)
        if layout is None:
            return Pool(key, managed=False, reason=self._reasons[number])
        return Pool(key, total=layout.ways, step=1, floor=layout.least)

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """Masks of every holder whose ways change, and the classes of CPUs that change hands; at the start of all.

        A CPU goes from one holder to another by way of the reserved ways, so that it never fills the ways of two. Raises KnobError
        at the start, where what is in force has to be read.
        """
        partitioned = [number for number in self._layouts if PoolKey(Resource.CACHE, number) in placement.partition.amounts]
        plan: list[KnobWrite] = []
        for number in partitioned:
            plan += self._mask_writes(number, placement, before)
        if partitioned:
            plan += self._cpu_writes(placement, before)
        return plan

    def _mask_writes(self, number: int, placement: Placement, before: Placement | None) -> Iterator[KnobWrite]:
        layout = self._layouts[number]
        changes = []
        for holder in (*self._classes, RESERVED) if before is None else self._classes:
            new = layout.physical(placement.way_masks.get((number, holder), 0))
            if before is None:
                old = Mask.parse(self._masks[number, holder].read()).ways
            else:
                old = layout.physical(before.way_masks.get((number, holder), 0))
            changes.append(MaskChange(holder, old, new))
        if before is None:  # what holds already is to be known as wanted, and code and data to be alike
            stay = [change for change in changes if change.old == change.new]
            yield from (KnobWrite(self._masks[number, at.holder], f"{at.new:x}", at.holder, Effect.TAKE, slow=True) for at in stay)
        for step in mask_steps(changes, layout):
            yield KnobWrite(self._masks[number, step.holder], f"{step.mask:x}", step.holder, step.effect, slow=True)

    def _cpu_writes(self, placement: Placement, before: Placement | None) -> Iterator[KnobWrite]:
        new, old = self._owners(placement), None if before is None else self._owners(before)
        for cpu, knob in self._cpus.items():
            wanted = new.get(cpu, RESERVED)
            service_class = self._class(wanted)
            if old is not None:
                earlier = self._class(old.get(cpu, RESERVED))
            elif wanted == RESERVED and int(knob.read()) not in self._classes.values():
                continue  # nobody's, and not associated by us: whoever did may have his reasons
            else:
                earlier = int(knob.read())
            if earlier == service_class and before is not None:
                continue
            if earlier not in {service_class, DEFAULT_CLASS}:
                loser = wanted if old is None else old.get(cpu, RESERVED)
                yield KnobWrite(knob, str(DEFAULT_CLASS), loser, Effect.TAKE, slow=True)
            if service_class != DEFAULT_CLASS:
                yield KnobWrite(knob, str(service_class), wanted, Effect.GIVE, slow=True)

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """The ways of each holder's class in the domains where it may hold any; of the reserved ones it holds none."""
        return {
            PoolKey(Resource.CACHE, number): {
                holder: (Mask.parse(self._masks[number, holder].read()).ways & layout.region).bit_count()
                for holder in self._classes
                if self._homes.get(holder, number) == number
            }
            for number, layout in self._layouts.items()
        }

    def upkeep(self) -> Sequence[UpkeepTask]:
        """The look that foreign changes are noticed by."""
        return [PqosLookTask(self._pqos)] if self._layouts else []

    def one_look(self) -> contextlib.AbstractContextManager[None]:
        """Answer every read until its end from one look at the snapshot."""
        return self._pqos.one_look()

    def close(self) -> None:
        """There is nothing to give up."""

    def _begin(self, holders: Sequence[Holder], settings: CacheSettings, root: Path) -> None:
        """Find out what there is. Raises KnobError, and ValueError where it cannot be used."""
        abilities, state = self._pqos.abilities(), self._pqos.look()
        self._units = state.units()
        earlier = self._pqos.classes()
        used = _used_by_others(state, frozenset(earlier.values()))
        self._classes = _give_classes(holders, earlier, abilities.classes, used)
        self.problems = tuple(
            f"pqos: class of service {number} is used by another tool ({what}), and its threads fill ways that are managed here; "
            f"end that tool, or clear it all with pqos -R while this daemon is stopped"
            for number, what in used.items()
        )
        for domain in self._domains:
            self._lay_out(domain.id, abilities, state, settings, root)
        if self._layouts:
            self._pqos.note_classes(self._classes)

    def _lay_out(self, number: int, can: PqosAbilities, state: PqosState, settings: CacheSettings, root: Path) -> None:
        """The layout of a domain, or the reason why there is none."""
        unit = self._units.get(number)
        needed = {*self._classes.values(), DEFAULT_CLASS}
        if unit is None:
            known = " ".join(map(str, sorted(self._units)))
            self._reasons[number] = f"pqos shows no L3 with id {number}, only {known}"
        elif missing := [service_class for service_class in needed if (unit, service_class) not in state.masks]:
            self._reasons[number] = f"pqos cannot read the mask of class {missing[0]} in unit {unit} (L3 {number})"
        else:
            full = (1 << can.ways) - 1 or _widest(state, unit)
            least = can.least or _least(root)
            try:
                self._layouts[number] = way_layout(full, least=least, shareable=can.shareable, reserved_ways=settings.reserved_ways)
            except LayoutError as error:
                self._reasons[number] = str(error)

    def _class(self, holder: Holder) -> int:
        return self._classes.get(holder, DEFAULT_CLASS)

    def _owners(self, placement: Placement) -> dict[int, Holder]:
        return {cpu: holder for holder in self._classes for cpu in placement.cpus.get(holder, ())}


def why_not(*, divides_cores: bool) -> str:
    """Why pqos cannot be used whatever the machine has; empty if it can. Runs nothing."""
    if divides_cores:
        return (
            "pqos gives ways to CPUs, and here cores are shared in fractions, so that every service is on every CPU; hand out "
            'whole cores (cores.division = "whole"), or use a kernel with resctrl (CONFIG_X86_CPU_RESCTRL)'
        )
    return ""


def _used_by_others(state: PqosState, ours: frozenset[int]) -> dict[int, str]:
    """The classes that are not as they are after a reset, and in what way."""
    used: dict[int, str] = {}
    for (unit, number), mask in state.masks.items():
        if number not in {DEFAULT_CLASS, *ours} and mask.ways != _widest(state, unit):
            used[number] = f"mask {mask}"
    for cpu, found in state.cpus.items():
        if found.service_class not in {DEFAULT_CLASS, *ours}:
            used[found.service_class] = f"CPU {cpu} is associated with it"
    return dict(sorted(used.items()))


def _give_classes(
    holders: Sequence[Holder], earlier: Mapping[Holder, int], classes: int, used: Mapping[int, str]
) -> dict[Holder, int]:
    """A class for each holder, the one that it had before where it had one. Raises ValueError where there are too few."""
    kept = {holder: earlier[holder] for holder in holders if 0 < earlier.get(holder, 0) < classes}
    free = [number for number in range(1, classes) if number not in used and number not in kept.values()]
    without = [holder for holder in holders if holder not in kept]
    if len(free) < len(without):
        taken = ", ".join(f"{number} ({what})" for number, what in used.items()) or "none"
        raise ValueError(
            f"{len(holders)} classes of service are needed beside class 0, and of {classes} in all others use: {taken}; clear them "
            "with pqos -R if nobody needs them, or make fewer services"
        )
    return {**kept, **dict(zip(without, free, strict=False))}


def _widest(state: PqosState, unit: int) -> int:
    """Every way, as far as masks show it: a class that nobody uses has all of them."""
    return max((mask.ways for (where, _), mask in state.masks.items() if where == unit), default=0)


def _least(root: Path) -> int:
    """The fewest ways of a mask, where pqos does not know: one, but two on Haswell."""
    with contextlib.suppress(OSError):
        text = (root / "proc/cpuinfo").read_text(encoding="ascii", errors="replace").partition("\n\n")[0]
        told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
        if (told.get("vendor_id"), told.get("cpu family"), told.get("model")) == ("GenuineIntel", "6", "63"):
            return _HASWELL_LEAST
    return 1
