"""The largest load that a manager serves along a way through the loads of a mix, in steps of 10 %.

A way is either one service's load from 10 to 100 % beside fixed loads of the others (a cell of Figures 5, 6 and 8), or a ray: every
load grows in proportion to its weight until all are at 100 %. Serving is taken to be monotone along a way, so that a few runs find
the largest load instead of all of them; because runs are random, the step after the first that failed is tried as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workloads.experiments.experiment import Point, Row, derived_seed
from workloads.experiments.trials import SPARED, STEPS, works

POINTS_FILE = "frontier"
UNMANAGED, HERACLES, PARTIES, ORACLE = "unmanaged", "heracles", "parties", "oracle"
TICKS = 20  # of a ray's scale for each step of 10 %: fine enough that services step one at a time

Way = tuple[dict[str, int], ...]


def cell(seed: int, manager: str, loads: Mapping[str, int], last: str, repeats: int) -> Point:
    """The largest load of one service beside fixed loads of the others. Keys are tenants' names."""
    params: dict[str, Any] = {"manager": manager, "loads": dict(loads), "last": last, "repeats": repeats, "spared": SPARED}
    return Point(f"{manager} {_combination(params)}", seed, params, _weight(manager, len(loads) + 1, repeats))


def ray(seed: int, manager: str, weights: Mapping[str, float], repeats: int, spared: float = SPARED) -> Point:
    """The largest loads in these proportions; ``spared`` is the rule by which a combination is judged."""
    params: dict[str, Any] = {"manager": manager, "weights": dict(weights), "repeats": repeats, "spared": spared}
    rule = "" if spared == SPARED else f" spared={spared:g}"
    return Point(f"{manager} {_combination(params)}{rule}", seed, params, 1.5 * _weight(manager, len(weights), repeats))


def measure(point: Point) -> Sequence[Row]:
    """The row of a cell or a ray: how far it goes, at which loads, and how many combinations were tried."""
    params = point.params
    way = cell_way(params["loads"], params["last"]) if "last" in params else ray_way(params["weights"])
    manager = params["manager"]
    tenants = tuple(way[0])
    # The same arrivals for every manager and every load of a way: what differs is what is compared.
    combination = _combination(params)
    seeds = [derived_seed(point.seed, combination, repeat) for repeat in range(params["repeats"])]
    tried: dict[int, bool] = {}

    def serves(index: int) -> bool:
        if index not in tried:
            tried[index] = works(way[index], manager, seeds, params["spared"])
        return tried[index]

    reached = largest(serves, len(way), hint=len(way) // 2)
    found = way[reached - 1] if reached else None
    row: dict[str, Any] = {
        "kind": "cell" if "last" in params else "ray",
        "manager": manager,
        "mix": "+".join(tenants),
        "combination": combination,
        "last": params.get("last"),
        "largest": (found[params["last"]] if found else 0) if "last" in params else None,
        "aggregate": sum(found.values()) if found else None,
        "combinations": len(tried),
        "repeats": params["repeats"],
        "spared": params["spared"],
    }
    # A cell says at which loads of the others it is, served or not; a ray has loads only where it is served.
    loads = {**params["loads"], **(found or {})} if "last" in params else (found or {})
    return [{**row, **{name: loads.get(name) for name in tenants}}]


def _combination(params: Mapping[str, Any]) -> str:
    """What is combined, whoever manages it and by whichever rule it is judged: the loads of a cell, the weights of a ray."""
    if "last" in params:
        fixed = "".join(f"{name}={load} " for name, load in params["loads"].items())
        return f"{fixed}{params['last']}=?"
    return " ".join(f"{name}*{weight:g}" for name, weight in params["weights"].items())


def cell_way(loads: Mapping[str, int], last: str) -> Way:
    """From 10 to 100 % of one service, beside the others as they are."""
    return tuple({**loads, last: load} for load in STEPS)


def ray_way(weights: Mapping[str, float]) -> Way:
    """Every different combination of steps on the way from all at 10 % to all at 100 %, in proportion to the weights."""
    found: list[dict[str, int]] = []
    largest_weight, smallest = max(weights.values()), min(weights.values())
    last = round(len(STEPS) * TICKS * largest_weight / smallest)
    for tick in range(last + 1):
        scale = tick / TICKS / largest_weight
        loads = {name: min(STEPS[-1], max(STEPS[0], 10 * round(weight * scale))) for name, weight in weights.items()}
        if not found or loads != found[-1]:
            found.append(loads)
    return tuple(found)


def largest(serves: Callable[[int], bool], count: int, *, hint: int) -> int:
    """How many steps are served, 0 for none: by bisection from ``hint``, and by a look one step beyond the first failure."""
    low, high = -1, count  # served, and not served; both ends are not asked for
    index = min(max(hint, 0), count - 1)
    while True:
        while high - low > 1:
            if serves(index):
                low = index
            else:
                high = index
            index = (low + high) // 2
        beyond = high + 1
        if beyond >= count or not serves(beyond):
            return low + 1
        low, high = beyond, count
        index = (low + high) // 2


def _weight(manager: str, services: int, repeats: int) -> float:
    """What it costs beside others: services times runs; Oracle needs none."""
    return 0.2 if manager == ORACLE else services * repeats
