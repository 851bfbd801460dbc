"""Which nodes, services and jobs cannot be: every mistake of a file or of a value at once, in the operator's words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from parties.config_schema import Mistake, keys_of
from simulator.profile import DISK_STEPS, GHZ, JobModel, NodeProfile, ServiceModel

LARGEST_CORES = 4096
_PERCENTILES = (50.0, 99.99)


class ImpossibleProfileError(ValueError):
    """A node, a service or a set of tenants that cannot be simulated: an operator's mistake. The text is the whole message."""

    def __init__(self, subject: str, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        one = len(self.mistakes) == 1
        super().__init__(f"{subject}: {self.mistakes[0]}" if one else f"{subject}:\n  " + "\n  ".join(self.mistakes))


def check_profile(profile: NodeProfile | ServiceModel | JobModel) -> None:
    """Raise ImpossibleProfileError with every mistake of a value that did not come from a checked file."""
    found = (
        list(node_mistakes(profile))
        if isinstance(profile, NodeProfile)
        else list(service_mistakes(profile))
        if isinstance(profile, ServiceModel)
        else list(job_mistakes(profile))
    )
    if found:
        kind = {NodeProfile: "node", ServiceModel: "service", JobModel: "job"}[type(profile)]
        raise ImpossibleProfileError(f"{kind} {profile.name}", (f"{m.path[0]} {m.text}" for m in found))


def node_mistakes(node: NodeProfile) -> Iterator[Mistake]:
    """What is impossible about a node."""
    names = _key_names(NodeProfile)
    if not 1 <= node.cores <= LARGEST_CORES:
        yield _mistake(names, "cores", f"must be from 1 to {LARGEST_CORES}, not {node.cores}")
    for field in ("cache_ways", "threads_per_core", "cache_classes"):
        if (number := getattr(node, field)) < 1:
            yield _mistake(names, field, f"must be at least 1, not {number}")
    positive: tuple[str, ...] = (
        "cache_size_bytes",
        "memory_bytes",
        "memory_bandwidth_bytes_per_s",
        "disk_bytes_per_s",
        "network_bits_per_s",
    )
    positive += (
        "power_milliwatts",
        "memory_step_bytes",
        "network_step_bits_per_s",
        "cache_bandwidth_bytes_per_s",
        "core_milliwatts",
    )
    yield from _not_positive(node, names, positive)
    not_negative = (
        "disk_step_bytes_per_s",
        "base_milliwatts",
        "memory_latency_rise",
        "memory_latency_power",
        "scheduling_delay_ns",
    )
    yield from _negative(node, names, not_negative)
    if 0 < node.power_milliwatts <= node.base_milliwatts:
        yield _mistake(
            names,
            "base_milliwatts",
            f"leaves nothing of power_milliwatts = {node.power_milliwatts}; make it less",
            "power_milliwatts",
        )
    yield from _frequency_mistakes(node, names)
    yield from _step_mistakes(node, names)


def service_mistakes(model: ServiceModel) -> Iterator[Mistake]:
    """What is impossible about a service."""
    names = _key_names(ServiceModel)
    if not model.max_load_rps > 0:
        yield _mistake(names, "max_load_rps", f"must be more than zero, not {model.max_load_rps:g}")
    low, high = _PERCENTILES
    if not low <= model.percentile <= high:
        yield _mistake(names, "percentile", f"must be from {low:g} to {high:g}, not {model.percentile:g}")
    yield from _not_positive(model, names, ("target_ns", "longest_wait_ns", "compute_ns", "reference_hz", "working_set_bytes"))
    negative: tuple[str, ...] = (
        "memory_ns",
        "fixed_ns",
        "fixed_growth",
        "fixed_growth_power",
        "service_scv",
        "arrival_scv",
        "software_limit",
    )
    negative += ("software_limit_power", "memory_traffic_bytes", "cache_contention", "resident_bytes", "disk_bytes", "disk_scv")
    negative += ("page_set_bytes", "page_set_power", "page_slope", "page_thrash", "network_bits")
    yield from _negative(model, names, negative)
    if model.sibling_slowdown < 1:
        yield _mistake(names, "sibling_slowdown", f"must be at least 1 (no slowdown), not {model.sibling_slowdown:g}")
    for field in ("working_set_idle", "miss_floor", "resident_idle"):
        if not 0 <= (part := getattr(model, field)) <= 1:
            yield _mistake(names, field, f"is a fraction from 0 to 1, not {part:g}")


def job_mistakes(job: JobModel) -> Iterator[Mistake]:
    """What is impossible about a best-effort job."""
    names = _key_names(JobModel)
    yield from _negative(job, names, ("compute_threads", "memory_threads"))
    if job.compute_threads == job.memory_threads == 0:
        yield _mistake(names, "compute_threads", "and memory_threads are both 0; a job has at least one thread")
    yield from _not_positive(job, names, ("stream_bytes_per_s", "core_power"))


def _frequency_mistakes(node: NodeProfile, names: Mapping[str, str]) -> Iterator[Mistake]:
    levels, turbo = node.levels_hz, node.turbo_hz
    for field, values in (("levels_hz", levels), ("turbo_hz", turbo)):
        if not values:
            yield _mistake(names, field, 'is empty; say what there is, such as ["1.2GHz", "2.2GHz"]')
        elif min(values) <= 0:
            yield _mistake(names, field, f"must be more than zero, not {_ghz(min(values))}")
    if any(later <= earlier for earlier, later in itertools.pairwise(levels)):
        yield _mistake(names, "levels_hz", "must ascend, each once; turbo is not among them")
    if any(later > earlier for earlier, later in itertools.pairwise(turbo)):
        yield _mistake(names, "turbo_hz", "must not rise with the number of active cores")
    if levels and turbo and turbo[-1] < levels[-1]:
        yield _mistake(names, "turbo_hz", f"falls to {_ghz(turbo[-1])}, under the highest level {_ghz(levels[-1])}")
    if levels and turbo and turbo[0] <= levels[-1]:
        yield _mistake(
            names, "turbo_hz", f"begins at {_ghz(turbo[0])}, which must be more than the highest level {_ghz(levels[-1])}"
        )


def _step_mistakes(node: NodeProfile, names: Mapping[str, str]) -> Iterator[Mistake]:
    steps: tuple[tuple[str, str, int, int], ...] = (
        ("memory_step_bytes", "memory_bytes", node.memory_step_bytes, node.memory_bytes),
        ("network_step_bits_per_s", "network_bits_per_s", node.network_step_bits_per_s, node.network_bits_per_s),
    )
    disk_step = node.disk_step_bytes_per_s
    if disk_step > 0:
        steps += (("disk_step_bytes_per_s", "disk_bytes_per_s", disk_step, node.disk_bytes_per_s),)
    elif disk_step == 0 < node.disk_bytes_per_s and node.disk_bytes_per_s % DISK_STEPS:
        text = f"is not a multiple of {DISK_STEPS} bytes/s; say disk_step, or round it"
        yield _mistake(names, "disk_bytes_per_s", text)
    for field, total_field, step, total in steps:
        if step > 0 and total > 0 and total % step:
            text = f"does not divide {names[total_field]}: {total} is no multiple of {step}"
            yield _mistake(names, field, text, total_field)


def _not_positive(profile: object, names: Mapping[str, str], fields: Iterable[str]) -> Iterator[Mistake]:
    for field in fields:
        if not (value := getattr(profile, field)) > 0:
            yield _mistake(names, field, f"must be more than zero, not {value:g}")


def _negative(profile: object, names: Mapping[str, str], fields: Iterable[str]) -> Iterator[Mistake]:
    for field in fields:
        if not (value := getattr(profile, field)) >= 0:
            yield _mistake(names, field, f"must not be negative, not {value:g}")


def _mistake(names: Mapping[str, str], field: str, text: str, *involves: str) -> Mistake:
    return Mistake((names[field],), text, tuple((names[other],) for other in involves))


def _key_names(profile: type) -> dict[str, str]:
    return {key.field: key.name for key in keys_of(profile)}


def _ghz(hz: int) -> str:
    return f"{hz / GHZ:g} GHz"
