"""What sections 4 and 5 of the paper state beside their tables, as questions to the model.

Where a fact has no number, ours is one that makes it true or not, and the paper's is what it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.calibration import paper
from simulator.calibration.bench import Bench
from simulator.calibration.paper import Allocation
from simulator.calibration.row import Row

STREAM_BYTES_PER_S = 30e9
"""The neighbour of Figure 2c. The paper does not say how much it streams; at 50 GB/s Table 4 leaves most services nothing."""

MANY_CORES = 10
FEW_CORES = 4
"""Cores for 90 % and 30 % of the load: those of Moses' first allocation, and in proportion (rounded up)."""

RELAXED = Allocation(MANY_CORES, 5, 2_200_000_000)
"""Enough cores, a quarter of the ways and no turbo: at 30 % load frequency and ways can fall together, with enough cores."""

GB = 1_000_000_000
_LOWEST_HZ = 1_200_000_000


def facts(bench: Bench) -> Iterator[Row]:
    """Every stated allocation and fact about a service."""
    if bench.name == "moses":
        yield from _moses(bench)
    if bench.name == "mongodb":
        yield from _mongodb(bench)
    else:
        yield from _compute(bench)
    if bench.name == "xapian":
        yield from _cache_demand(bench)


def least_memory_bytes(bench: Bench, load: float) -> int | None:
    """The least memory, in the node's steps, with which the whole disk is enough."""
    node = bench.machine.profile
    sizes = range(node.memory_step_bytes, node.memory_bytes + 1, node.memory_step_bytes)
    return next((size for size in sizes if _disk_enough(bench, load, size, node.disk_bytes_per_s)), None)


def least_disk_bytes_per_s(bench: Bench, load: float, memory_bytes: int) -> int | None:
    """The least disk bandwidth, in hundredths of the disk, that is enough with so much memory."""
    whole = bench.machine.profile.disk_bytes_per_s
    rates = (whole * part // 100 for part in range(1, 101))
    return next((rate for rate in rates if _disk_enough(bench, load, memory_bytes, rate)), None)


def _disk_enough(bench: Bench, load: float, memory_bytes: int, disk_bytes_per_s: int) -> bool:
    load_rps = load * bench.model.max_load_rps
    means = bench.means(load_rps)._replace(memory_bytes=memory_bytes, disk_bytes_per_s=disk_bytes_per_s)
    return bench.met(bench.conditions(load_rps, means), load_rps)


def _moses(bench: Bench) -> Iterator[Row]:
    for allocation in paper.MOSES_FEASIBLE:
        over = bench.held_over_target(paper.MOSES_LOAD, allocation)
        hertz = "turbo" if allocation.frequency_hz is None else f"{allocation.frequency_hz / GB:g} GHz"
        name = f"moses holds its target at 90 % with {allocation.cores} cores, {allocation.ways} ways, {hertz}"
        yield Row("tuple", name, 1.0, over, bench.held(paper.MOSES_LOAD, allocation), "p99/target")


def _mongodb(bench: Bench) -> Iterator[Row]:
    one = Allocation(1, bench.machine.profile.cache_ways, _LOWEST_HZ)
    over = bench.held_over_target(paper.MONGODB_LOAD, one)
    held = bench.held(paper.MONGODB_LOAD, one)
    yield Row("fact", "mongodb holds its target at 90 % on one core at the lowest frequency", 1.0, over, held, "p99/target")
    published = paper.MONGODB_LEAST_MEMORY_BYTES
    least = least_memory_bytes(bench, paper.MONGODB_LOAD) or 0
    name = "mongodb at 90 %: the least memory with which any disk bandwidth is enough (Figure 3)"
    yield Row("fact", name, published, least, least == published, "bytes")
    small = least_disk_bytes_per_s(bench, paper.MONGODB_LOAD, published) or 0
    large = least_disk_bytes_per_s(bench, paper.MONGODB_LOAD, bench.machine.profile.memory_bytes) or 0
    name = "mongodb at 90 %: disk bandwidth needed with all memory, of that with 60 GB (Figure 3: less)"
    yield Row("fact", name, 1.0, large / small if small else 0.0, 0 < large < small, "")


def _compute(bench: Bench) -> Iterator[Row]:
    """Section 5: most sensitive to cores; with enough of them the rest can fall; and all of it more beside a memory stream."""
    node = bench.machine.profile
    halves = {
        "cores": Allocation(node.cores // 2, node.cache_ways, None),
        "ways": Allocation(node.cores, node.cache_ways // 2, None),
        "frequency": Allocation(node.cores, node.cache_ways, 1_800_000_000),
    }
    over = {name: bench.held_over_target(paper.HIGH_LOAD, half) for name, half in halves.items()}
    name = f"{bench.name} at 90 %: p99 with half the cores, over that with half the ways or of the top frequency (more than 1)"
    ratio = over["cores"] / max(over["ways"], over["frequency"])
    yield Row("fact", name, 1.0, ratio, ratio > 1.0, "")
    name = f"{bench.name} at 30 % with {RELAXED.cores} cores, {RELAXED.ways} ways, no turbo: p99 over target (not more than 1)"
    yield Row("fact", name, 1.0, bench.held_over_target(paper.LOW_LOAD, RELAXED), bench.held(paper.LOW_LOAD, RELAXED), "p99/target")
    few = bench.least_cores(paper.LOW_LOAD) or node.cores
    scarce, plenty = bench.least_hz(paper.LOW_LOAD, few) or 0, bench.least_hz(paper.LOW_LOAD, node.cores) or 0
    name = f"{bench.name} at 30 %: the frequency needed on all cores, of that on the fewest (less than 1)"
    yield Row("fact", name, 1.0, plenty / scarce, 0 < plenty < scarce, "")
    scarce, plenty = bench.least_ways(paper.LOW_LOAD, few) or 0, bench.least_ways(paper.LOW_LOAD, node.cores) or 0
    name = f"{bench.name} at 30 %: the ways needed on all cores, of those on the fewest (not more than 1)"
    yield Row("fact", name, 1.0, plenty / scarce, 0 < plenty <= scarce, "")
    beside = bench.least_cores(paper.LOW_LOAD, stream_bytes_per_s=STREAM_BYTES_PER_S) or 0
    beside_hz = bench.least_hz(paper.LOW_LOAD, node.cores, stream_bytes_per_s=STREAM_BYTES_PER_S) or 0
    alone_hz = bench.least_hz(paper.LOW_LOAD, node.cores) or 0
    name = f"{bench.name} at 30 %: cores needed beside a memory stream, of those without (Figure 2c: more cores or frequency)"
    yield Row("fact", name, 1.0, beside / few, beside >= few and (beside > few or beside_hz > alone_hz), "")


def _cache_demand(bench: Bench) -> Iterator[Row]:
    """Section 5: little cache at low load, more at high load, much more beside a memory stream."""
    low, high = bench.least_ways(paper.LOW_LOAD, FEW_CORES), bench.least_ways(paper.HIGH_LOAD, MANY_CORES)
    beside = bench.least_ways(paper.LOW_LOAD, FEW_CORES, stream_bytes_per_s=STREAM_BYTES_PER_S)
    cases = (
        (f"at 90 % on {MANY_CORES} cores, over those at 30 % on {FEW_CORES}", high),
        (f"at 30 % on {FEW_CORES} cores beside a memory stream, over those without", beside),
    )
    for name, more in cases:
        ratio = (more or 0) / (low or 1)
        yield Row("fact", f"{bench.name}: ways needed {name} (more than 1)", 1.0, ratio, low is not None and ratio > 1.0, "")
