"""What is made of rows, against examples that were worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.experiments import paper, trials
from workloads.experiments.experiment import Row, Summary
from workloads.experiments.figures import (
    convergence,
    emu,
    fluctuating,
    managers,
    memory_disk,
    pairs,
    sensitivity,
    signal,
    six,
    triples,
)


def _line(summary: Summary, key: str) -> dict[str, Any]:
    (found,) = (line for line in summary["comparison"] if line["key"] == key)
    return dict(found)


def _cell(manager: str, others: dict[str, int], last: str, largest: int) -> dict[str, Any]:
    """A row as the frontier measures it."""
    tenants = [*others, last]
    return {
        "kind": "cell",
        "manager": manager,
        "mix": "+".join(tenants),
        "combination": " ".join(f"{name}={load}" for name, load in others.items()) + f" {last}=?",
        "last": last,
        "largest": largest,
        "aggregate": sum(others.values()) + largest if largest else None,
        "spared": 0.1,
        **others,
        last: largest or None,
    }


def _ray(manager: str, number: int, loads: dict[str, int] | None, mix: tuple[str, ...]) -> dict[str, Any]:
    return {
        "kind": "ray",
        "manager": manager,
        "mix": "+".join(mix),
        "combination": f"ray {number} of {len(mix)}",
        "last": None,
        "largest": None,
        "aggregate": sum(loads.values()) if loads else None,
        "spared": 0.1,
        **dict.fromkeys(mix),
        **(loads or {}),
    }


def test_pairs_tell_what_the_text_says_of_them() -> None:
    """One at high load beside 40-60 %; MongoDB near 100 % with anything; two MongoDBs at most 160 %."""
    rows = [
        _cell("parties", {"memcached": 40}, "xapian", 80),
        _cell("parties", {"memcached": 60}, "xapian", 70),
        _cell("parties", {"memcached": 100}, "xapian", 0),
        _cell("parties", {"xapian": 40}, "mongodb", 100),
        _cell("parties", {"xapian": 90}, "mongodb", 90),
        _cell("parties", {"mongodb": 60}, "mongodb-2", 90),
    ]
    summary = pairs.summarise(rows)
    assert summary["largest_sum_percent"] == {"memcached+xapian": 130, "xapian+mongodb": 180, "mongodb+mongodb-2": 150}
    high = _line(summary, "high-beside-middle")
    assert (high["ours"], high["holds"]) == (66.7, False)  # 80 and 100 of 80, 70 and 100; two MongoDBs are not asked
    assert (_line(summary, "mongodb-with-anything")["ours"], _line(summary, "mongodb-with-anything")["holds"]) == (90, True)
    assert (_line(summary, "two-mongodbs")["ours"], _line(summary, "two-mongodbs")["holds"]) == (150, True)
    beyond = pairs.summarise([*rows, _cell("parties", {"mongodb": 80}, "mongodb-2", 90)])
    assert not _line(beyond, "two-mongodbs")["holds"]


def test_triples_count_what_is_served() -> None:
    """A third service has room where its largest load is not nothing; the mean is of those."""
    rows = [_cell("parties", {"memcached": 10, "xapian": x}, third, largest) for third, x, largest in (
        ("nginx", 10, 50), ("nginx", 30, 20), ("nginx", 50, 0), ("moses", 10, 10), ("mongodb", 10, 100), ("sphinx", 10, 0)
    )]  # fmt: skip
    found = triples.summarise(rows)["thirds"]
    assert found["nginx"] == {"combinations": 3, "served": 2, "mean_largest_percent": 35, "largest_aggregate_percent": 70}
    assert found["sphinx"] == {"combinations": 1, "served": 0, "mean_largest_percent": None, "largest_aggregate_percent": None}


def test_six_services_tell_the_largest_aggregate() -> None:
    """Three loads are fixed and count."""
    rows = [
        _cell("parties", {"memcached": x, "xapian": 10, **six.FIXED}, "nginx", largest)
        for x, largest in ((10, 30), (20, 10), (40, 0))
    ]
    summary = six.summarise(rows)
    assert (summary["served"], summary["combinations"], summary["mean_largest_percent"]) == (2, 3, 20)
    assert summary["largest_aggregate_percent"] == 10 + 10 + 10 + 10 + 100 + 30


def test_managers_are_compared_over_the_combinations_that_either_serves() -> None:
    """NGINX's load over Heracles', the largest aggregate against Oracle's, and who is worst."""
    largest = {"unmanaged": (0, 0, 0), "heracles": (40, 10, 0), "parties": (60, 40, 0), "oracle": (60, 60, 10)}
    rows = [
        _cell(manager, {"memcached": x, "xapian": 30}, "nginx", value)
        for manager, values in largest.items()
        for x, value in zip((10, 50, 90), values, strict=True)
    ]
    summary = managers.summarise(rows)
    more = _line(summary, "more-than-heracles")
    assert (more["ours"], more["holds"]) == (25, True)  # 20 and 30 more; the third is served by neither
    less = _line(summary, "under-oracle")
    assert (less["ours"], less["holds"]) == (-14.3, False)  # 50 + 30 + 40 against 50 + 30 + 60
    assert _line(summary, "unmanaged-worst")["ours"] == "unmanaged"
    assert summary["managers"]["parties"]["emu_percent"] == 120
    assert summary["managers"]["oracle"]["served"] == 3


def test_emu_is_compared_where_both_serve() -> None:
    """Means over the rays that both serve; what one cannot serve at all is told apart; tables as well."""
    two, six_services = ("xapian", "moses"), ("memcached", "xapian", "nginx", "moses", "mongodb", "sphinx")
    rows = [
        *(_ray("parties", n, loads, two) for n, loads in enumerate([{"xapian": 60, "moses": 60}, {"xapian": 50, "moses": 30}])),
        *(_ray("heracles", n, loads, two) for n, loads in enumerate([{"xapian": 50, "moses": 50}, None])),
        *(_ray("oracle", n, loads, two) for n, loads in enumerate([{"xapian": 60, "moses": 70}, {"xapian": 60, "moses": 40}])),
        _ray("parties", 0, dict.fromkeys(six_services, 20), six_services),
        _ray("heracles", 0, dict.fromkeys(six_services, 10), six_services),
        _ray("oracle", 0, dict.fromkeys(six_services, 20), six_services),
        _cell("parties", {"xapian": 40}, "moses", 60),
        _cell("heracles", {"xapian": 40}, "moses", 40),
        _cell("oracle", {"xapian": 40}, "moses", 60),
        _cell("parties", {"xapian": 80}, "moses", 10),
        _cell("heracles", {"xapian": 80}, "moses", 0),
        _cell("oracle", {"xapian": 80}, "moses", 20),
    ]
    summary = emu.summarise(rows)
    first = summary["rays"][2]
    assert first["mean_emu_percent"] == {"parties": 100, "heracles": 50, "oracle": 115}
    assert first["served"] == {"parties": 2, "heracles": 1, "oracle": 2}
    assert (first["samples"], first["served_by_both"]) == (2, 1)
    assert first["parties_over_heracles_percent"] == 20
    assert first["unserved_as_none_parties_over_heracles_percent"] == 100
    assert first["parties_over_oracle_percent"] == -13
    assert summary["rays"][6]["parties_over_heracles_percent"] == 100
    assert summary["rays"][3]["samples"] == 0
    assert summary["rays_without_sphinx"][2] == first  # neither service of two is Sphinx; all six contain it
    assert set(summary["rays_without_sphinx"]) == {2, 3, 4, 5}
    table = summary["mixes"][2]
    assert table["parties_over_heracles_percent"] == 25
    assert table["mix_emu_percent"] == {"parties": 100, "heracles": 80, "oracle": 100}
    assert table["mix_parties_over_heracles_percent"] == 25
    assert _line(summary, "over-heracles-2")["holds"]  # 20 is within 10 points of 13
    assert not _line(summary, "over-heracles-6")["holds"]
    assert not _line(summary, "grows")["holds"]  # three sizes have nothing to compare
    assert (_line(summary, "under-oracle")["ours"], _line(summary, "under-oracle")["holds"]) == (-13, False)


def test_emu_grows_only_if_it_does_with_every_service() -> None:
    """One size out of order is enough to say no."""

    def rows(gains: dict[int, int]) -> list[Row]:
        found: list[Row] = []
        for size, gain in gains.items():
            mix = tuple("abcdef"[:size])
            for manager, total in (("parties", 100 + gain), ("heracles", 100), ("oracle", 100 + gain)):
                found.append(_ray(manager, 0, {**dict.fromkeys(mix, 0), mix[0]: total}, mix))
        return found

    assert _line(emu.summarise(rows({2: 10, 3: 20, 4: 30, 5: 40, 6: 50})), "grows")["holds"]
    assert not _line(emu.summarise(rows({2: 10, 3: 20, 4: 15, 5: 40, 6: 50})), "grows")["holds"]


def test_convergence_grows_by_the_ratio_of_means() -> None:
    """Means, medians and worst of those that converge; the others are counted."""
    times: dict[int, list[float | None]] = {2: [0.0, 10.0, 5.0], 3: [6.0], 4: [8.0], 5: [None], 6: [12.0, 18.0, None]}
    rows = [{"services": size, "converged_s": time} for size, found in times.items() for time in found]
    summary = convergence.summarise(rows)
    assert summary["growth"] == 3.0  # 15 over 5
    assert summary["sizes"][2] == {
        "combinations": 3, "mean_s": 5, "median_s": 5, "p90_s": 9, "worst_s": 10, "at_once": 1, "never": 0
    }  # fmt: skip
    assert summary["sizes"][5]["mean_s"] is None
    assert (_line(summary, "worst")["ours"], _line(summary, "worst")["holds"]) == (18, True)
    assert _line(summary, "growth")["holds"]
    assert (_line(summary, "never")["ours"], _line(summary, "never")["holds"]) == ("2 of 9", False)


def _interval(manager: str, time_s: float, **changes: object) -> Row:
    base: dict[str, Any] = {
        "peak": 60, "manager": manager, "run": 0, "time_s": time_s, "reason": "hold-targets-met", "subject": None
    }  # fmt: skip
    for name in fluctuating.SERVICES:
        base |= {f"violated {name}": False, f"load {name}": 10.0, f"ratio {name}": 0.5}
    return {**base, **changes}


def _story() -> list[Row]:
    """Figure 9 as the paper tells it, with one bad interval and a failure before the rise that are none of the story."""
    rows: list[Row] = []
    for step in range(1, 321):
        time_s = step / 2
        load = min(60.0, 10 + max(0.0, time_s - 25) * 50 / 35)
        for manager in ("unmanaged", "heracles"):
            late = 5 <= time_s <= 10 or time_s == 30 or 46 <= time_s <= 100
            rows.append(_interval(manager, time_s, **{"violated xapian": late, "load memcached": load}))
        took = {"reason": "downsize-largest-slack", "subject": "memcached"} if time_s in {20, 137} else {}
        late = 50 <= time_s <= 55 or 60 <= time_s <= 67
        rows.append(_interval("parties", time_s, **{"violated memcached": late, "violated xapian": 50 <= time_s <= 51, **took}))
    return rows


def test_the_story_of_fluctuating_load_is_told_with_its_times() -> None:
    """When a manager fails for good, when PARTIES has settled, who violated on the way, when it first takes back."""
    story = _story()
    summary = fluctuating.summarise([*story, *({**row, "peak": 50} for row in story)])
    assert (_line(summary, "unmanaged-fails")["ours"], _line(summary, "unmanaged-fails")["holds"]) == (40, True)
    assert summary["peaks"]["60"]["heracles"]["fails_at_s"] == 46
    assert summary["peaks"]["60"]["heracles"]["violated_percent_before_rise"] == 22  # 11 of 50
    assert (_line(summary, "settles")["ours"], _line(summary, "settles")["holds"]) == (7.5, True)
    assert (_line(summary, "who-violates")["ours"], _line(summary, "who-violates")["holds"]) == ("memcached, xapian", True)
    assert (_line(summary, "reclaims")["ours"], _line(summary, "reclaims")["holds"]) == (137, True)
    assert summary["peaks"]["60"]["parties"]["violated_percent"] == round(100 * 26 / 320, 1)
    assert summary["peaks"]["60"]["parties"]["violated_percent_at_top"] == round(100 * 15 / 121, 1)
    assert (_line(summary, "stays")["ours"], _line(summary, "stays")["holds"]) == (0, True)


def test_the_story_of_each_peak_is_told_by_itself() -> None:
    """What never settles while its peak lasts has not settled, even if every target is met as the load falls."""
    story = _story()
    late = [
        {**row, "peak": 50, "violated moses": row["manager"] == "parties" and 25 <= float(str(row["time_s"])) <= 125}
        for row in story
    ]
    summary = fluctuating.summarise([*story, *late])
    assert (_line(summary, "settles-50")["ours"], _line(summary, "settles-50")["holds"]) == ("never", False)
    assert (_line(summary, "stays-50")["ours"], _line(summary, "stays-50")["holds"]) == (100, False)
    assert _line(summary, "who-violates-50")["ours"] == "memcached, moses, xapian"
    assert _line(summary, "settles")["holds"]
    assert {row[0] for row in summary["tables"][0]["rows"]} == {60, 50}


def test_memory_and_disk_give_the_least_that_is_enough() -> None:
    """The least disk for each memory; at 90 % none is enough under 60 GB, and more memory needs less."""
    least = {40: None, 60: 9, 80: 7, 100: 6}
    rows: list[Row] = [
        {"load_percent": 90, "memory_gb": memory, "disk_mb_per_s": disk, "ratio": 1.0, "met": enough is not None and disk >= enough}
        for memory, enough in least.items()
        for disk in range(1, 10)
    ]
    summary = memory_disk.summarise(rows)
    assert summary["least_memory_gb"] == 60
    assert all(line["holds"] for line in summary["comparison"])
    below = [{**row, "met": True} if (row["memory_gb"], row["disk_mb_per_s"]) == (40, 9) else row for row in rows]
    assert not _line(memory_disk.summarise(below), "least-memory")["holds"]
    level = [{**row, "met": row["met"] or row["disk_mb_per_s"] == 5} for row in rows]
    assert not _line(memory_disk.summarise(level), "fungible")["holds"]


def test_sensitivity_knows_which_allocation_is_enough() -> None:
    """Moses' three allocations, MongoDB on one core, and who needs more beside the antagonist."""
    top = 3600

    def lowest(service: str, condition: str, cores: int, ways: int) -> int | None:
        if service == "moses" and condition == sensitivity.HIGH_LOAD:
            return {(10, 11): top, (14, 11): 1900, (14, 2): 2200}.get((cores, ways))
        if condition == sensitivity.ANTAGONIST:
            return None if service == "xapian" else 1200
        return 1200

    rows: list[Row] = [
        {"condition": condition, "service": name, "cores": cores, "ways": ways, "lowest_mhz": lowest(name, condition, cores, ways)}
        for condition in sensitivity.CONDITIONS
        for name in trials.SERVICES
        for cores in (1, 10, 14)
        for ways in (2, 11)
    ]
    summary = sensitivity.summarise(rows)
    assert [_line(summary, f"moses-{n}")["ours"] for n in (1, 2, 3)] == ["yes", "no", "yes"]
    assert _line(summary, "mongodb-one-core")["holds"]
    assert (_line(summary, "antagonist")["ours"], _line(summary, "antagonist")["holds"]) == ("xapian", False)
    assert summary["least_cores"][sensitivity.HIGH_LOAD]["moses"] == 10


def test_the_signals_figures_are_means_of_runs() -> None:
    """By mix and variant; convergence is of the runs that converge."""
    rows: list[Row] = [
        {
            "mix": mix, "variant": variant, "run": run, "violated_percent": 10.0 * run, "reverts": run, "downsizes": 4,
            "decisions": 8, "on_few_samples": 2 * run, "converged_s": 3.0 if run else None, "meets_all": True, "best_effort": 0.5,
        }
        for mix in signal.MIXES for variant in signal.VARIANTS for run in (0, 1)
    ]  # fmt: skip
    found = signal.summarise(rows)["mixes"]["low rate"]["raw"]
    assert (found["violated_percent"], found["reverts"], found["on_few_samples"]) == (5, 0.5, 1)
    assert (found["converged_s"], found["converged_runs"], found["runs"]) == (3, 1, 2)


def test_reasons_are_for_figures_that_are_compared() -> None:
    """Every reason in the file is a line for an experiment of the registry."""
    from workloads.experiments.registry import NAMES  # noqa: PLC0415 - for this test alone

    known = paper._reasons()
    assert set(known) <= set(NAMES)
    assert all(reason and "\n" not in reason for reasons in known.values() for reason in reasons.values())


@pytest.mark.parametrize(("ours", "holds"), [(13.0, True), (23.0, True), (23.1, False), (3.0, True), (None, False)])
def test_near_is_within_the_tolerance(ours: float | None, holds: bool) -> None:  # noqa: FBT001 - a parameter of the table
    """At the edge is near; nothing measured is not."""
    assert paper.near(ours, 13, 10) is holds
