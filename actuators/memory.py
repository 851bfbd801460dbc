"""Memory: a limit for each holder's groups (section 4.1; 1 GB steps).

Raising a limit is one write. Lowering one reclaims, which can take long: it is marked slow and never done on the tick. Under what
is in use it is refused (EBUSY) and the limit stays: by the kernel on v1, by the knob on v2 (``actuators.cgroup.v2_memory``), where
it also watches for two seconds how the service bears it, before anybody else is given the memory.

A limit says nothing of where memory lies: with one domain the pool is that domain's, with several it is the whole node's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actuators.cgroup.group import ControlGroup, Controller, GroupLayer, MemoryLimit
from actuators.cgroup.hierarchy import SetupError
from actuators.cgroup.v1_knobs import PAGE_BYTES
from actuators.holders import HolderGroups, ManagedGroups, changes, effect, split
from parties.knob import Effect, KnobWrite
from parties.model import Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import MemorySettings

_NEEDS = (Controller.MEMORY,)


class MemoryActuator:
    """Sets memory limits. ``machine_bytes`` is what the machine has, 0 where that is not known.

    Raises SetupError for a total that is under one step, over what the machine has or under what best-effort jobs are to keep,
    GroupMissingError.
    """

    resource = Resource.MEMORY

    def __init__(
        self,
        layer: GroupLayer,
        managed: ManagedGroups,
        settings: MemorySettings,
        domains: Sequence[Domain],
        *,
        machine_bytes: int = 0,
    ) -> None:
        self._key = PoolKey(Resource.MEMORY, domains[0].id if len(domains) == 1 else None)
        self._step = settings.step_bytes
        self._total = settings.total_bytes // self._step * self._step if self._step > 0 else 0
        if self._total <= 0:
            raise SetupError(
                f"memory: a total of {settings.total_bytes} bytes is under a step of {self._step}; set a smaller, positive step"
            )
        self._kept = -(-settings.best_effort_minimum_bytes // self._step) * self._step
        if self._kept > self._total:
            raise SetupError(
                f"memory: best-effort jobs are to keep {settings.best_effort_minimum_bytes} bytes of {self._total}; "
                "lower best_effort_minimum"
            )
        if machine_bytes and settings.total_bytes > machine_bytes:
            raise SetupError(
                f"memory: a total of {settings.total_bytes} bytes, and the machine has {machine_bytes}; leave some for the system"
            )
        self._reason = layer.lacks(_NEEDS)
        self._groups = HolderGroups(layer, managed, () if self._reason else _NEEDS)
        self._reason = self._reason or self._groups.lacks()

    def pools(self) -> tuple[Pool, ...]:
        """One pool."""
        if self._reason:
            return (Pool(self._key, managed=False, reason=self._reason),)
        return (Pool(self._key, total=self._total, step=self._step, floor=self._step, best_effort_floor=self._kept),)

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """Limits of every holder whose amount changes; at the start of all. Raises KnobError at the start."""
        if self._reason:
            return ()
        plan = self._groups.enabling() if before is None else []
        for holder, new, old in changes(self._groups, self._key, placement, before):
            for group, limit in zip(self._groups.of(holder), self._limits(holder, new), strict=True):
                change = effect(self._in_force(group), limit) if old is None else effect(old, new)
                plan.append(KnobWrite(group.memory_limit, str(limit), holder, change, slow=change is Effect.TAKE))
        return plan

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """The limits; without one a holder has all there is. What only the kernel's page rounding took off is added again."""
        if self._reason:
            return {}
        held: dict[Holder, int] = {}
        for holder in self._groups:
            found = self._groups.read(holder, self._in_force)
            if found is not None:
                held[holder] = min(self._amount(holder, found), self._total)
        return {self._key: held}

    def close(self) -> None:
        """Give up descriptors."""
        self._groups.close()

    def _limits(self, holder: Holder, amount: int) -> tuple[int, ...]:
        groups = self._groups.of(holder)
        return tuple(pages * PAGE_BYTES for pages in split(amount // PAGE_BYTES, len(groups))) if groups else ()

    def _amount(self, holder: Holder, found: tuple[int, ...]) -> int:
        """The amount that was written as these limits, or their plain sum if none was."""
        nearest = -(-sum(found) // self._step) * self._step
        return nearest if self._limits(holder, nearest) == found else sum(found)

    def _in_force(self, group: ControlGroup) -> int:
        limit = MemoryLimit.parse(group.memory_limit.read()).least
        return self._total if limit is None else limit
