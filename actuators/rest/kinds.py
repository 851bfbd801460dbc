"""How the rest's knobs are found again from the journal's references, in any process. Their exit policy is that of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from actuators.rest.affinity import InterruptAffinityKnob, MaskKnob, TaskAffinityKnob
from actuators.rest.groups import RestGroupKnob, RestListV1Knob, RestListV2Knob, RestMembersKnob, RestUnitKnob
from actuators.rest.scan import RestScanKnob, Scope
from actuators.systemd.bus import SystemdBus
from actuators.systemd.knobs import Unit
from parties.knob import Knob, KnobKind, KnobKinds

WORK_QUEUES: Final = "workqueue.cpumask"
NEW_INTERRUPTS: Final = "irq.default-affinity"


def _removed(_knob: Knob) -> None:
    return None


def knob_kinds(bus: SystemdBus, root: Path = Path("/")) -> KnobKinds:
    """Every kind, asking this systemd for units."""

    def unit(address: tuple[str, ...]) -> Knob:
        return RestUnitKnob(Unit(address[0], Path(address[1]), bus, root), address[2])

    return {
        TaskAffinityKnob.KIND: KnobKind(
            lambda address: TaskAffinityKnob(int(address[0]), int(address[1]), Path(address[2])), passing=True
        ),
        InterruptAffinityKnob.KIND: KnobKind(lambda address: InterruptAffinityKnob(Path(address[0]), address[1]), passing=True),
        NEW_INTERRUPTS: KnobKind(lambda address: MaskKnob(NEW_INTERRUPTS, Path(address[0]))),
        WORK_QUEUES: KnobKind(lambda address: MaskKnob(WORK_QUEUES, Path(address[0]))),
        RestGroupKnob.KIND: KnobKind(lambda address: RestGroupKnob(Path(address[0])), slow=True, safe=_removed),
        RestMembersKnob.KIND: KnobKind(lambda address: RestMembersKnob(Path(address[0]), Path(address[1])), slow=True),
        RestListV1Knob.KIND: KnobKind(lambda address: RestListV1Knob(Path(address[0])), slow=True, passing=True),
        RestListV2Knob.KIND: KnobKind(lambda address: RestListV2Knob(Path(address[0])), slow=True, passing=True),
        RestUnitKnob.KIND: KnobKind(unit, slow=True, passing=True),
        RestScanKnob.KIND: KnobKind(lambda address: RestScanKnob(Scope.of(address)), slow=True),
    }


KINDS: KnobKinds = knob_kinds(SystemdBus())
