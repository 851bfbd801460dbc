"""The model against the paper, figure by figure: plain rows of what is published and what we have.

By default all is judged on the model itself, by the percentile of the steady state without noise; ``SampledBench.of`` in place of
``Bench.of`` judges by finitely many requests, as a client would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from simulator.calibration import paper
from simulator.calibration.bench import Bench
from simulator.calibration.facts import facts
from simulator.calibration.row import Row

__all__ = ["CELLS_NEEDED", "CELL_TOLERANCE", "LOAD_TOLERANCE", "USE_TOLERANCE", "Bench", "Row", "rows"]

LOAD_TOLERANCE = 0.05
USE_TOLERANCE = 0.05
CELL_TOLERANCE = 10
CELLS_NEEDED = 46
"""The goals: largest loads within 5 %, at least 46 of the 54 cells within 10 points, and every stated allocation and fact true."""


def rows(services: Iterable[str] = paper.SERVICES, bench_of: Callable[[str], Bench] = Bench.of) -> Iterator[Row]:
    """Every published figure beside ours."""
    for service in services:
        bench = bench_of(service)
        yield from _table_2(bench)
        yield from _table_4(bench)
        yield from facts(bench)


def _table_2(bench: Bench) -> Iterator[Row]:
    service = bench.name
    published = paper.MAX_LOADS_RPS[service]
    ours = bench.largest_rps(bench.whole)
    yield Row("max-load", service, published, ours, _close(ours, published, LOAD_TOLERANCE), "rps")
    conditions = bench.whole(published)
    reads = published * conditions.disk_bytes
    uses = (
        ("cpu", paper.CPU_USE.get(service), published * conditions.cpu_s / paper.CORES, "of all cores"),
        ("disk", paper.DISK_USE.get(service), reads / bench.machine.profile.disk_bytes_per_s, "of the disk"),
        ("disk traffic", paper.DISK_BYTES_PER_S.get(service), reads, "bytes/s"),
        ("memory traffic", paper.MEMORY_BANDWIDTH_BYTES_PER_S[service], published * conditions.memory_traffic_bytes, "bytes/s"),
        ("network traffic", paper.NETWORK_BITS_PER_S[service], published * conditions.network_bits, "bits/s"),
    )
    for name, figure, found, unit in uses:
        if figure is not None:
            yield Row("use", f"{service} {name}", figure, found, _close(found, figure, USE_TOLERANCE), unit)
    process = bench.model.resident_bytes
    yield Row("use", f"{service} memory", paper.MEMORY_BYTES[service], process, process == paper.MEMORY_BYTES[service], "bytes")


def _table_4(bench: Bench) -> Iterator[Row]:
    full_rps = bench.interference_load_rps()
    for interference in paper.INTERFERENCE:
        published, ours = paper.cell(interference, bench.name), bench.cell(interference, full_rps)
        within = abs(ours - published) <= CELL_TOLERANCE
        yield Row("cell", f"{bench.name} {interference}", published, ours, within, "%")


def _close(ours: float, published: float, tolerance: float) -> bool:
    return abs(ours - published) <= tolerance * published
