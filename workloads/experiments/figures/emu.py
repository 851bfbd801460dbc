"""Figure 7: effective machine utilisation of PARTIES, Heracles and Oracle for mixes of two to six services.

EMU is the highest aggregate load, each service in percent of its maximum. The paper does not say what one sample of its figure is.
Here it is a *ray*: loads in random proportions grow together until the manager fails. That is defined alike for two services and
for six. For mixes of two and three there are tables as well: for each combination of the others' loads the largest load of the
last.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.experiments.experiment import Experiment, Point, Row, Summary, derived_seed
from workloads.experiments.frontier import HERACLES, ORACLE, PARTIES, POINTS_FILE, cell, measure, ray
from workloads.experiments.paper import compare, near
from workloads.experiments.plot import MANAGER_COLOURS, figure_of, save, title_of
from workloads.experiments.tables import aligned, mean, number, percent_more, rounded
from workloads.experiments.trials import REPEATS, SMALLEST_WEIGHT, STEPS, mixes

SIZES = (2, 3, 4, 5, 6)
MANAGERS = (PARTIES, HERACLES, ORACLE)
RARE = "sphinx"  # 14 requests/s at most: a p99 takes 7 s and more; told apart, as it decides most mixes that it is in
TABLED = (2, 3)  # sizes whose whole grid is measured
RAYS, QUICK_RAYS = 100, 16  # for each size
QUICK_STEPS = (20, 40, 60, 80, 100)

STRICT = 0.0  # no interval is spared: over all requests of the measured minute
PAPER_OVER_HERACLES = {2: 13, 6: 61}  # percent, mean
PAPER_UNDER_ORACLE = 10
TOLERANCE = 10  # percentage points within which a gain is called the paper's


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """Rays for every size, tables for two and three services; the same for each manager."""
    repeats = 1 if quick else REPEATS
    rays = _rays(seed, QUICK_RAYS if quick else RAYS)
    found = [ray(seed, manager, weights, repeats) for weights in rays for manager in MANAGERS]
    found += [ray(seed, manager, weights, repeats, spared=STRICT) for weights in rays for manager in MANAGERS if manager != ORACLE]
    for size in TABLED[:1] if quick else TABLED:
        for mix in mixes(size):
            *others, last = mix
            grid = itertools.product(QUICK_STEPS if quick else STEPS, repeat=len(others))
            cells = [dict(zip(others, loads, strict=True)) for loads in grid]
            found += [cell(seed, manager, loads, last, repeats) for loads in cells for manager in MANAGERS]
    return found


def _rays(seed: int, count: int) -> list[dict[str, float]]:
    """Random proportions for each size, its mixes in turn; a smaller count gives the first ones of a larger."""
    found = []
    for size in SIZES:
        rng = random.Random(derived_seed(seed, "rays", size))  # noqa: S311 - wants a seed
        turn = list(mixes(size))
        rng.shuffle(turn)
        for _, mix in zip(range(count), itertools.cycle(turn), strict=False):
            found.append({name: round(rng.uniform(SMALLEST_WEIGHT, 1.0), 2) for name in mix})
    return found


def summarise(rows: Sequence[Row]) -> Summary:
    """EMU by number of services, PARTIES over Heracles and against Oracle, in every way in which the figure may be meant."""
    strict = _strict(rows)
    rows = [row for row in rows if row["spared"] != STRICT]
    sizes = {size: _size(rows, size) for size in SIZES}
    judged = {size: _size([row for row in rows if RARE not in str(row["mix"])], size) for size in SIZES[:-1]}
    tables = {size: found for size in TABLED if (found := _table(rows, size)) is not None}
    gains = {size: sizes[size]["parties_over_heracles_percent"] for size in SIZES}
    known = [gain for gain in gains.values() if gain is not None]
    growing = len(known) == len(SIZES) and all(after > before for before, after in itertools.pairwise(known))
    behind = {size: sizes[size]["parties_over_oracle_percent"] for size in SIZES}
    furthest = min((value for value in behind.values() if value is not None), default=None)
    comparison = [
        compare(
            f"over-heracles-{size}",
            f"EMU of PARTIES over Heracles, {size} services, mean of the {sizes[size]['served_by_both']} rays that both serve",
            paper=paper,
            ours=gains[size],
            unit="% more",
            holds=near(gains[size], paper, TOLERANCE),
        )
        for size, paper in PAPER_OVER_HERACLES.items()
    ]
    comparison += [
        compare(
            "grows", "the gap to Heracles grows with every service", paper="yes", ours="yes" if growing else "no", holds=growing
        ),
        compare(
            "under-oracle",
            "EMU of PARTIES against Oracle's, the size with the largest gap",
            paper=f"at most {PAPER_UNDER_ORACLE} less",
            ours=furthest,
            unit="%",
            holds=furthest is not None and furthest >= -PAPER_UNDER_ORACLE,
        ),
    ]
    said = ", ".join(
        f"{size}: {gain:+.0f} % ({sizes[size]['served_by_both']} rays)" for size, gain in gains.items() if gain is not None
    )
    return {
        "headline": f"EMU of PARTIES over Heracles by number of services: {said or 'nothing served by both'}.",
        "comparison": comparison,
        "tables": [
            _listing("Rays: mean EMU by number of services", sizes),
            _listing("Rays without Sphinx, whose p99 a controller cannot know in time", judged),
            _listing("Tables of mixes: mean EMU", tables),
            _listing("Rays, every interval of the minute counted: mean EMU", strict),
        ],
        "rays": sizes,
        "rays_without_sphinx": judged,
        "rays_strict": strict,
        "mixes": tables,
        "sample_unit": "a ray: loads in random proportions grow together in steps of 10 % until the manager fails",
    }


def _strict(rows: Sequence[Row]) -> dict[int, dict[str, Any]]:
    """The rays judged by every interval; Oracle, which makes no trials, is judged alike in both ways."""
    found = [row for row in rows if row["kind"] == "ray" and (row["spared"] == STRICT or row["manager"] == ORACLE)]
    sizes = {_services(row) for row in found if row["spared"] == STRICT}
    return {size: _size(found, size) for size in sorted(sizes)}


def _size(rows: Sequence[Row], size: int) -> dict[str, Any]:
    together = aligned([row for row in rows if row["kind"] == "ray" and _services(row) == size], ("combination",))
    return _gains(together)


def _table(rows: Sequence[Row], size: int) -> dict[str, Any] | None:
    """Of whole grids: the gains over combinations, and over mixes, whose EMU is the highest of their combinations."""
    found = [row for row in rows if row["kind"] == "cell" and _services(row) == size]
    if not found:
        return None
    combinations = _gains(aligned(found, ("combination",)))
    best: dict[tuple[str, str], float] = {}
    for row in found:
        key = (str(row["mix"]), str(row["manager"]))
        best[key] = max(best.get(key, 0.0), number(row, "aggregate") if row["aggregate"] is not None else 0.0)
    of_mixes = {manager: mean(value for (_, who), value in best.items() if who == manager) for manager in MANAGERS}
    return {
        **combinations,
        "mix_emu_percent": {manager: rounded(value) for manager, value in of_mixes.items()},
        "mix_parties_over_heracles_percent": rounded(percent_more(of_mixes[PARTIES], of_mixes[HERACLES])),
        "mix_parties_over_oracle_percent": rounded(percent_more(of_mixes[PARTIES], of_mixes[ORACLE])),
    }


def _gains(together: Sequence[Mapping[str, Row]]) -> dict[str, Any]:
    """Mean EMU of each manager over the samples that both serve, and how many each serves at all."""
    emu = {manager: [row[manager]["aggregate"] for row in together] for manager in MANAGERS}
    both = [row for row in together if all(row[manager]["aggregate"] is not None for manager in (PARTIES, HERACLES))]
    served = [row for row in together if all(row[manager]["aggregate"] is not None for manager in (PARTIES, ORACLE))]
    whole = {manager: mean(float(value or 0) for value in values) for manager, values in emu.items()}
    return {
        "samples": len(together),
        "served": {manager: sum(value is not None for value in values) for manager, values in emu.items()},
        "served_by_both": len(both),
        "mean_emu_percent": {manager: rounded(value) for manager, value in whole.items()},
        "parties_over_heracles_percent": rounded(
            percent_more(
                mean(number(row[PARTIES], "aggregate") for row in both), mean(number(row[HERACLES], "aggregate") for row in both)
            )
        ),
        "unserved_as_none_parties_over_heracles_percent": rounded(percent_more(whole[PARTIES], whole[HERACLES])),
        "parties_over_oracle_percent": rounded(
            percent_more(
                mean(number(row[PARTIES], "aggregate") for row in served), mean(number(row[ORACLE], "aggregate") for row in served)
            )
        ),
    }


def _services(row: Row) -> int:
    return len(str(row["mix"]).split("+"))


def _listing(title: str, sizes: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    columns = ["services", "samples", *(f"{title_of(m)} (%)" for m in MANAGERS), *(f"served by {title_of(m)}" for m in MANAGERS)]
    columns += ["over Heracles (%)", "not served as 0: over Heracles (%)", "against Oracle (%)"]
    rows = [
        [
            size,
            found["samples"],
            *(found["mean_emu_percent"][manager] for manager in MANAGERS),
            *(found["served"][manager] for manager in MANAGERS),
            found["parties_over_heracles_percent"],
            found["unserved_as_none_parties_over_heracles_percent"],
            found["parties_over_oracle_percent"],
        ]
        for size, found in sizes.items()
    ]
    return {"title": title, "columns": columns, "rows": rows}


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """Violins of the rays' EMU by number of services and manager, and the gain over Heracles beside the paper's."""
    figure, axes = figure_of(1, 2, width=5.2, height=3.6)
    left, right = axes[0]
    for place, manager in enumerate(MANAGERS):
        for size in SIZES:
            values = [
                number(row, "aggregate")
                for row in rows
                if row["kind"] == "ray"
                and row["spared"] != STRICT
                and row["manager"] == manager
                and _services(row) == size
                and row["aggregate"] is not None
            ]
            if values:
                _violin(left, values, size + 0.27 * (place - 1), manager)
        left.plot([], [], color=MANAGER_COLOURS[manager], linewidth=5, alpha=0.5, label=title_of(manager))
    left.set_xticks(SIZES)
    left.set_xlabel("services")
    left.set_ylabel("EMU (%)")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize="small")
    gains = {size: found["parties_over_heracles_percent"] for size, found in summary["rays"].items()}
    shown = {int(size): gain for size, gain in gains.items() if gain is not None}
    right.bar(list(shown), list(shown.values()), width=0.5, color=MANAGER_COLOURS[PARTIES], alpha=0.6, label="here")
    right.plot(list(PAPER_OVER_HERACLES), list(PAPER_OVER_HERACLES.values()), "k_", markersize=26, markeredgewidth=2, label="paper")
    right.axhline(0, color="black", linewidth=0.6)
    right.set_xticks(SIZES)
    right.set_xlabel("services")
    right.set_ylabel("EMU of PARTIES over Heracles (%)")
    right.legend(frameon=False, fontsize="small")
    save(figure, path)


def _violin(axes: Any, values: Sequence[float], at: float, manager: str) -> None:  # noqa: ANN401 - matplotlib's Axes has untyped parts
    if len(set(values)) > 1:
        parts = axes.violinplot([list(values)], positions=[at], widths=0.24, showextrema=False)
        for body in parts["bodies"]:
            body.set_facecolor(MANAGER_COLOURS[manager])
            body.set_alpha(0.45)
    axes.plot([at], [mean(values)], color=MANAGER_COLOURS[manager], marker="o", markersize=3)


EXPERIMENT = Experiment(
    name="emu",
    figure="Figure 7",
    title="Effective machine utilisation, two to six services",
    method=(
        f"Sampled: {RAYS} rays for each number of services (quick: {QUICK_RAYS}), each a mix in turn with random "
        "proportions; bisection finds how far each manager serves them, to 10 % of one service. Whole grids as well: for "
        "every mix of two and of three services (quick: of two, in steps of 20 %) and all loads of the others the largest "
        "load of the last. Most of 3 runs (quick: of 1) decide; all managers get the same arrivals; Oracle is exact on the "
        "model. No best-effort job."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
    points_file=POINTS_FILE,
)
