"""What the best-effort pool needs on top of amounts: to be stopped at zero, and to run in the idle class on shared cores."""

from __future__ import annotations

from actuators.cgroup.group import FROZEN, IDLE_CLASS, THAWED
from actuators.holders import HolderGroups
from parties.knob import Effect, KnobWrite
from parties.model import BEST_EFFORT


def freeze(groups: HolderGroups) -> list[KnobWrite]:
    """Stop the pool: no CPU set and no quota can say zero, the freezer can."""
    return [KnobWrite(group.freezer, FROZEN, BEST_EFFORT, Effect.TAKE) for group in groups.best_effort]


def thaw(groups: HolderGroups) -> list[KnobWrite]:
    """Let the pool run."""
    return [KnobWrite(group.freezer, THAWED, BEST_EFFORT, Effect.GIVE) for group in groups.best_effort]


def enter_idle_class(groups: HolderGroups) -> list[KnobWrite]:
    """Let the pool run only when nobody else on a CPU wants to: a quota alone does not protect a tail."""
    return [KnobWrite(group.cpu_class, IDLE_CLASS, BEST_EFFORT, Effect.TAKE) for group in groups.best_effort]


def frozen(groups: HolderGroups) -> bool:
    """Whether every group of the pool that still exists is stopped. Raises KnobError."""
    states = groups.read(BEST_EFFORT, lambda group: int(group.freezer.read() == FROZEN))
    return states is not None and all(states)


def unprotected(groups: HolderGroups) -> tuple[str, ...]:
    """Where the idle class does not protect a service from a best-effort group, and what to do.

    The idle class ranks a group among its siblings. A best-effort group is below a service only if what holds both directly holds
    the best-effort group: /rack/batch protects /rack/web/nginx, /batch/job does not protect /web/nginx.
    """
    return tuple(
        f"{job.path} is not a sibling of {group.path} or of a group above it: the idle class does not protect {service} from it; "
        f"put {job.path} directly below {_common(job.path, group.path)}"
        for job in groups.best_effort
        for service in groups.services()
        for group in groups.of(service)
        if job.path.rpartition("/")[0] != _common(job.path, group.path).rstrip("/")
    )


def _common(one: str, other: str) -> str:
    shared = []
    for left, right in zip(one.split("/")[1:-1], other.split("/")[1:-1], strict=False):
        if left != right:
            break
        shared.append(left)
    return "/" + "/".join(shared)
