"""What must hold between the values of a configuration, as far as the file alone can tell.

Each check yields a ``Mistake`` with the key at fault and every further key that it hangs on, so that a mistake that only follows
from another one is not reported beside it.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping

from parties import policies, units
from parties.config_schema import Mistake
from parties.model import MILLICORES_PER_CORE, SPECIAL_HOLDERS, Resource
from parties.settings import (
    HISTOGRAM_SOCKET,
    BestEffortSettings,
    ControlSettings,
    CoreDivision,
    CoreSettings,
    NodeSettings,
    ServiceSettings,
)
from parties.toml_places import Path
from parties.units import Quantity

SHORTEST_INTERVAL_NS = 50_000_000
"""The control interval's lower end; the paper's is 500 ms."""

SHORTEST_SUB_INTERVAL_NS = 10_000_000

NS_PER_US = 1_000
NS_PER_MS = 1_000_000

SHORTEST_QUOTA_NS = 1_000_000
"""The kernel refuses a CPU bandwidth quota under 1 ms."""

QUOTA_PERIODS_NS = (1_000_000, 1_000_000_000)
"""The kernel takes CPU bandwidth periods from 1 ms to 1 s."""

LONGEST_SOCKET_PATH = 107
"""Bytes of a Unix socket's path (``sun_path`` less its final zero)."""

UNMANAGED = "unmanaged"
HERACLES = "heracles"
ORACLE = "oracle"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_LAST_PORT = 65535
_DISK_STEPS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Shared:
    """A resource of the node as the file describes it: total (0: not known from the file), step and a service's floor."""

    resource: Resource
    quantity: Quantity
    amount_field: str
    path: Path
    total_path: Path
    total: int
    step: int
    floor: int
    best_effort: int = 0  # what the best-effort jobs keep


def mistakes(settings: ControlSettings) -> Iterator[Mistake]:
    """Everything that is wrong between the values of a configuration."""
    checks: tuple[Callable[[ControlSettings], Iterator[Mistake]], ...] = (
        _general,
        _policy,
        _signal,
        _policy_constants,
        _names,
        _control_groups,
        _services,
        _ports,
        _cores,
        _rest,
        _resources,
        _limits,
        _best_effort_minimum,
        _floors,
    )
    for check in checks:
        yield from check(settings)


def divides_cores(settings: ControlSettings, physical_cores: int) -> bool:
    """Whether that many managed cores are shared in fractions: as said, or where there is not one for each holder."""
    cores = settings.node.cores
    if cores is None or cores.division is CoreDivision.WHOLE:
        return False
    return cores.division is CoreDivision.FRACTIONS or physical_cores < _holders(settings)


def surely_divides_cores(settings: ControlSettings) -> bool:
    """Whether the file alone says that cores are shared in fractions: in so many words, or by naming too few CPUs."""
    cores = settings.node.cores
    named = len(cores.managed_cpus) if cores is not None else 0
    return cores is not None and divides_cores(settings, named or _holders(settings))


def divided_core_mistakes(settings: ControlSettings, cores: CoreSettings) -> Iterator[Mistake]:
    """What the kernel would refuse of cores shared in fractions: each group of each service has a quota of at least 1 ms.

    (A best-effort group may fall to one step; its period is lengthened then.)
    """
    step, floor, period = (("node", "cores", key) for key in ("step", "floor", "period"))
    show, show_time = units.MILLICORES.format, units.DURATION.format
    if not QUOTA_PERIODS_NS[0] <= cores.period_ns <= QUOTA_PERIODS_NS[1]:
        yield Mistake(period, f"{show_time(cores.period_ns)} is no period of CPU bandwidth that the kernel takes; say 1ms to 1s")
        return
    if cores.floor_millicores % cores.step_millicores:
        yield Mistake(
            floor, f"{show(cores.floor_millicores)} is not a whole number of steps of {show(cores.step_millicores)}", (step,)
        )
    if cores.step_millicores * cores.period_ns % (MILLICORES_PER_CORE * NS_PER_US):
        yield Mistake(
            step,
            f"{show(cores.step_millicores)} of a period of {show_time(cores.period_ns)} is not a whole number of microseconds, "
            "which is how the kernel counts; lengthen the period",
            (period,),
        )
    widest = max((len(service.cgroups) for service in settings.services), default=1) or 1
    quota_ns = cores.floor_millicores * cores.period_ns // MILLICORES_PER_CORE // widest
    if quota_ns < SHORTEST_QUOTA_NS:
        shared = f", shared by {widest} control groups," if widest > 1 else ""
        least_ms = -(-SHORTEST_QUOTA_NS * widest * MILLICORES_PER_CORE // (cores.floor_millicores * NS_PER_MS))
        yield Mistake(
            floor,
            f"{show(cores.floor_millicores)} of a period of {show_time(cores.period_ns)}{shared} is a quota of "
            f'{show_time(quota_ns)}, and the kernel refuses a quota under 1ms; raise the floor, or say period = "{least_ms}ms"',
            (period, *_each(settings, "cgroups")),
        )


def shared_resources(settings: ControlSettings, *, managed_cores: int = 0, divided: bool | None = None) -> Iterator[Shared]:
    """The resources under management.

    Of cores the file alone knows only the named CPUs; ``managed_cores`` (physical cores, or CPUs where they are ``divided``) is
    what the machine has.
    """
    node = settings.node
    if node.cores is not None:
        count = managed_cores or len(node.cores.managed_cpus)
        divided = divides_cores(settings, count) if divided is None else divided
        step = node.cores.step_millicores if divided else MILLICORES_PER_CORE
        floor = max(node.cores.floor_millicores, step) if divided else MILLICORES_PER_CORE
        total, path = count * MILLICORES_PER_CORE, ("node", "cores")
        yield Shared(Resource.CORES, units.MILLICORES, "cores_millicores", path, (*path, "managed"), total, step, floor)
    if node.memory is not None:
        step, path = node.memory.step_bytes, ("node", "memory")
        kept = node.memory.best_effort_minimum_bytes if settings.best_effort else 0
        total = node.memory.total_bytes
        yield Shared(Resource.MEMORY, units.SIZE, "memory_bytes", path, (*path, "total"), total, step, step, kept)
    if node.disk is not None:
        rate, path = node.disk.rate_bytes_per_s, ("node", "disk")
        step = node.disk.step_bytes_per_s or rate // _DISK_STEPS
        yield Shared(Resource.DISK, units.BYTE_RATE, "disk_bytes_per_s", path, (*path, "rate"), rate, step, step)
    if node.network is not None:
        rate, step, path = node.network.rate_bits_per_s, node.network.step_bits_per_s, ("node", "network")
        yield Shared(Resource.NETWORK, units.BIT_RATE, "network_bits_per_s", path, (*path, "rate"), rate, step, step)


def floor_mistakes(settings: ControlSettings, shared: Shared) -> Iterator[Mistake]:
    """Whether a resource is enough for every service's floor, and what best-effort jobs keep, together (invariant 2)."""
    if shared.total < shared.step or not shared.step:
        return
    needs = {
        service.name: max(shared.floor, -(-getattr(service.minimum, shared.amount_field) // shared.step) * shared.step)
        for service in settings.services
    }
    if shared.best_effort:
        needs["best effort"] = -(-shared.best_effort // shared.step) * shared.step
    if sum(needs.values()) <= shared.total // shared.step * shared.step:
        return
    show = shared.quantity.format
    listed = ", ".join(f"{name} {show(need)}" for name, need in needs.items())
    remedy = "reserve fewer CPUs" if shared.resource is Resource.CORES else f"raise {shared.total_path[-1]}"
    yield Mistake(
        shared.total_path,
        f"{show(shared.total)} cannot give each service its floor ({listed}; together {show(sum(needs.values()))}); "
        f"{remedy}, lower the step or the minimums, or move a service elsewhere",
        (shared.path, *_each(settings, "minimum")),
    )


def _best_effort_minimum(settings: ControlSettings) -> Iterator[Mistake]:
    memory = settings.node.memory
    if memory is not None and memory.best_effort_minimum_bytes and not settings.best_effort:
        yield Mistake(
            ("node", "memory", "best_effort_minimum"),
            "has no effect, as there are no best-effort jobs; add [[best_effort]] or take it out",
            (("best_effort",),),
        )


def _each(settings: ControlSettings, key: str) -> tuple[Path, ...]:
    return tuple(("service", index, key) for index in range(len(settings.services)))


def _holders(settings: ControlSettings) -> int:
    return len(settings.services) + bool(settings.best_effort)


def _general(settings: ControlSettings) -> Iterator[Mistake]:
    if settings.interval_ns < SHORTEST_INTERVAL_NS:
        yield Mistake(("interval",), f'{units.DURATION.format(settings.interval_ns)} is under the shortest, 50ms; say "500ms"')
    if settings.seed < 0:
        yield Mistake(("seed",), f"must not be negative: {settings.seed}")
    for key in ("runtime_directory", "state_directory"):
        directory = getattr(settings, key)
        if not directory.startswith("/"):
            yield Mistake((key,), f'"{directory}" is not an absolute path; say "/run/parties" or the like')
    socket = settings.histogram_socket
    if len(socket.encode()) > LONGEST_SOCKET_PATH:
        yield Mistake(
            ("runtime_directory",),
            f"the path of the socket {HISTOGRAM_SOCKET} in it takes {len(socket.encode())} bytes, and a Unix socket's path at most "
            f"{LONGEST_SOCKET_PATH}; choose a shorter directory",
        )
    if not settings.services:
        yield Mistake(("service",), "there is no service to manage; add [[service]] with name, cgroups, target")


def _signal(settings: ControlSettings) -> Iterator[Mistake]:
    signal = settings.signal
    shortest_ns = settings.interval_ns // max(1, signal.sub_intervals)
    if signal.sub_intervals < 1 or (settings.interval_ns >= SHORTEST_INTERVAL_NS and shortest_ns < SHORTEST_SUB_INTERVAL_NS):
        yield Mistake(
            ("signal", "sub_intervals"),
            f"{signal.sub_intervals} of them do not fit an interval of {units.DURATION.format(settings.interval_ns)}: "
            "say 1 or more, of at least 10ms each",
            (("interval",),),
        )
    if signal.longest_window_ns < settings.interval_ns:
        yield Mistake(
            ("signal", "longest_window"),
            f"{units.DURATION.format(signal.longest_window_ns)} is shorter than the interval, "
            f"{units.DURATION.format(settings.interval_ns)}; the window grows from the interval on",
            (("interval",),),
        )
    if not 0 < signal.confidence < 1:
        yield Mistake(("signal", "confidence"), f"must lie between 0 and 1, say 0.95; not {signal.confidence}")
    if not 0 < signal.failing_error_rate <= 1:
        yield Mistake(("signal", "failing_error_rate"), f"must lie between 0 and 1, say 0.1; not {signal.failing_error_rate}")


def _policy(settings: ControlSettings) -> Iterator[Mistake]:
    """The policy, and what it cannot do on a host."""
    known = sorted(policies.POLICIES)
    if settings.policy == ORACLE:
        yield Mistake(("policy",), str(policies.NeedsModelError()))
    elif settings.policy not in known:
        near = difflib.get_close_matches(settings.policy, known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        yield Mistake(("policy",), f'there is no policy "{settings.policy}"; {meant}known: {", ".join(known)}')
    elif settings.policy == HERACLES:
        yield from _heracles(settings)
    for index, service in enumerate(settings.services):
        if not 0 <= service.peak_load_rps < math.inf:
            text = f"must be a number of requests per second, not {service.peak_load_rps}"
            yield Mistake(("service", index, "peak_load_rps"), text)


def _heracles(settings: ControlSettings) -> Iterator[Mistake]:
    if len(settings.services) > 1:
        yield Mistake(
            ("policy",),
            f"{HERACLES} manages one service and puts the others into one holder with best effort, which is not done on a real "
            "machine yet; keep one [[service]], choose another policy, or try this one with 'parties simulate'",
            (("service",),),
        )
    for table in ("memory", "disk"):
        if getattr(settings.node, table) is not None:
            yield Mistake(
                ("node", table),
                f"has no effect, as {HERACLES} partitions neither memory nor disk; take it out, or choose another policy",
                (("policy",),),
            )


def _policy_constants(settings: ControlSettings) -> Iterator[Mistake]:
    constants = settings.parties
    for key in ("upsize_slack", "downsize_slack"):
        if not 0 <= getattr(constants, key) < 1:
            yield Mistake(("parties", key), f"a slack is a part of the target, from 0 to under 1; not {getattr(constants, key)}")
    if constants.upsize_slack >= constants.downsize_slack:
        yield Mistake(
            ("parties", "upsize_slack"),
            f"{constants.upsize_slack} must be less than downsize_slack, {constants.downsize_slack}: between the two nothing moves",
            (("parties", "downsize_slack"),),
        )
    if constants.network_headroom_low_bits_per_s >= constants.network_headroom_high_bits_per_s:
        yield Mistake(
            ("parties", "network_headroom_low"),
            f"{units.BIT_RATE.format(constants.network_headroom_low_bits_per_s)} must be less than network_headroom_high, "
            f"{units.BIT_RATE.format(constants.network_headroom_high_bits_per_s)}",
            (("parties", "network_headroom_high"),),
        )


def members(settings: ControlSettings) -> Iterator[tuple[Path, ServiceSettings | BestEffortSettings]]:
    """Services and best-effort jobs, each with its path in the file."""
    for index, service in enumerate(settings.services):
        yield ("service", index), service
    for index, job in enumerate(settings.best_effort):
        yield ("best_effort", index), job


def _names(settings: ControlSettings) -> Iterator[Mistake]:
    first: dict[str, Path] = {}
    for path, member in members(settings):
        where = (*path, "name")
        if _NAME.fullmatch(member.name) is None:
            yield Mistake(where, f'"{member.name}" is no name; use 1 to 63 letters, digits, ".", "_", "-", a letter or digit first')
        elif member.name in SPECIAL_HOLDERS:
            yield Mistake(where, f'"{member.name}" is a word of the program ({", ".join(sorted(SPECIAL_HOLDERS))}); choose another')
        elif member.name in first:
            yield Mistake(
                where,
                f'"{member.name}" is taken by {show_path(first[member.name])}; every name is used once',
                (first[member.name],),
            )
        first.setdefault(member.name, where)


def _control_groups(settings: ControlSettings) -> Iterator[Mistake]:
    groups = [((*path, "cgroups"), member.name, group) for path, member in members(settings) for group in member.cgroups]
    for path, member in members(settings):
        if not (member.cgroups or member.units or member.containers):
            ways = 'cgroup = "/web", unit = "web.service" or container = "docker:web"'
            yield Mistake((*path, "cgroups"), f"names no control group; say {ways}")
    for path, _, group in groups:
        if not group.startswith("/") or group != "/" + "/".join(part for part in group.split("/") if part not in ("", ".", "..")):
            yield Mistake(path, f'"{group}" is no path below the hierarchy\'s mount point; say "/web" or "/web/nginx"')
        elif group == "/":
            yield Mistake(path, "the root control group holds the whole machine; give the service a group of its own")
    for (path, name, group), (other_path, other_name, other) in itertools.combinations(groups, 2):
        if relation := _relation(other, group):
            yield Mistake(
                other_path,
                f'"{other}" ({other_name}) {relation} "{group}" ({name}); every holder needs control groups of its own',
                (path,),
            )


def _relation(group: str, other: str) -> str:
    if group == other:
        return "is the same as"
    if group.startswith(f"{other}/"):
        return "lies inside"
    return "contains" if other.startswith(f"{group}/") else ""


def _services(settings: ControlSettings) -> Iterator[Mistake]:
    for index, service in enumerate(settings.services):
        if not 0 < service.percentile < 100:  # noqa: PLR2004 - per cent
            yield Mistake(("service", index, "percentile"), f"must lie between 0 and 100, say 99; not {service.percentile}")
        if service.home is not None and service.home < 0:
            yield Mistake(("service", index, "home"), f"is the number of a domain, 0 or more; not {service.home}")


def _ports(settings: ControlSettings) -> Iterator[Mistake]:
    taken: dict[int, Path] = {}
    for index, service in enumerate(settings.services):
        path = ("service", index, "ports")
        for port in service.ports:
            if not 1 <= port <= _LAST_PORT:
                yield Mistake(path, f"{port} is no port; say 1 to {_LAST_PORT}")
            elif port in taken:
                yield Mistake(
                    path, f"{port} is also a port of {show_path(taken[port][:2])}; traffic could not be told apart", (taken[port],)
                )
            taken.setdefault(port, path)


def _cores(settings: ControlSettings) -> Iterator[Mistake]:
    cores = settings.node.cores
    if cores is None:
        return
    reserved, managed = ("node", "cores", "reserved"), ("node", "cores", "managed")
    if both := set(cores.reserved_cpus) & set(cores.managed_cpus):
        yield Mistake(managed, f"CPU {units.format_cpu_list(both)} is reserved as well; a CPU is one or the other", (reserved,))
    if surely_divides_cores(settings):
        yield from divided_core_mistakes(settings, cores)


def _rest(settings: ControlSettings) -> Iterator[Mistake]:
    cores = settings.node.cores
    asked = [field.name for field in dataclasses.fields(settings.rest) if getattr(settings.rest, field.name)]
    if asked and (cores is None or not cores.reserved_cpus):
        yield Mistake(
            ("rest", asked[0]),
            'there are no reserved CPUs to keep the rest of the machine on; name some in [node.cores], say reserved = "0"',
            (("node", "cores"),) if cores is None else (("node", "cores", "reserved"),),
        )


def _resources(settings: ControlSettings) -> Iterator[Mistake]:
    if settings.node == NodeSettings(name=settings.node.name) and settings.policy != UNMANAGED:
        yield Mistake(
            ("node",),
            f"nothing is managed; add {', '.join(_TABLES[:-1])} or {_TABLES[-1]}",
            (("policy",),),
        )
    for shared in shared_resources(settings):
        if shared.total and shared.total < shared.step and shared.resource is not Resource.CORES:
            yield Mistake(
                shared.total_path,
                f"{shared.quantity.format(shared.total)} is less than one step, {shared.quantity.format(shared.step)}; "
                "lower the step",
                ((*shared.path, "step"),),
            )


def _limits(settings: ControlSettings) -> Iterator[Mistake]:
    shared_by_field = {shared.amount_field: shared for shared in shared_resources(settings)}
    for index, service in enumerate(settings.services):
        for field, (key, quantity) in _AMOUNTS.items():
            least, most = getattr(service.minimum, field), getattr(service.maximum, field)
            low, high = ("service", index, "minimum", key), ("service", index, "maximum", key)
            if most and least > most:
                yield Mistake(low, f"{quantity.format(least)} is more than the maximum, {quantity.format(most)}", (high,))
            if (least or most) and getattr(settings.node, key) is None:
                yield Mistake(
                    low if least else high, f"has no effect, as {key} is not managed; add [node.{key}] or take it out", (("node",),)
                )
            elif field in shared_by_field:
                yield from _limit_range(shared_by_field[field], least, most, low, high)


def _limit_range(shared: Shared, least: int, most: int, low: Path, high: Path) -> Iterator[Mistake]:
    show = shared.quantity.format
    if shared.total and least > shared.total:
        yield Mistake(low, f"{show(least)} is more than there is, {show(shared.total)}", (shared.total_path,))
    if most and shared.total and most < shared.floor:
        yield Mistake(high, f"{show(most)} is less than what every service keeps, {show(shared.floor)}", (shared.path,))


def _floors(settings: ControlSettings) -> Iterator[Mistake]:
    for shared in shared_resources(settings):
        yield from floor_mistakes(settings, shared)


def show_path(path: Path) -> str:
    """A path as the messages write it: service[1].target, counted from 0."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


_AMOUNTS: Mapping[str, tuple[str, Quantity]] = {
    "cores_millicores": ("cores", units.MILLICORES),
    "cache_ways": ("cache", units.WAYS),
    "frequency_hz": ("frequency", units.FREQUENCY),
    "memory_bytes": ("memory", units.SIZE),
    "disk_bytes_per_s": ("disk", units.BYTE_RATE),
    "network_bits_per_s": ("network", units.BIT_RATE),
}
_TABLES = tuple(f"[node.{field.name}]" for field in dataclasses.fields(NodeSettings) if field.name != "name")
