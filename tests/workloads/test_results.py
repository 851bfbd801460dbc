"""From recorded trials to ``demo.json``, the table, the plot and the two sentences."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from workloads.demo.calibration import Scan
from workloads.demo.live import final_table
from workloads.demo.plan import MANAGERS, Plan
from workloads.demo.plot import draw
from workloads.demo.results import best_effort_ops_per_s, sentences, summarise, worse_off
from workloads.demo.trial import Trial

Scans = dict[str, Scan]
MakeTrial = Callable[..., Trial]
LATE_UNDER = {"unmanaged": set(range(50, 110)), "idle-only": {60}, "equal": set(range(60, 100)), "parties": {2, 55, 56, 70}}


@pytest.fixture
def summary(plan: Plan, scans: Scans, make_trial: MakeTrial) -> dict[str, Any]:
    """The results of a run of all four managers, as they are read from the file."""
    trials = [make_trial(name, late={"memcached": LATE_UNDER[name]}) for name in MANAGERS]
    made = summarise(plan, scans, trials, versions={"memcached": "1.6"}, machine={"cpus": 2})
    return dict(json.loads(json.dumps(made)))


def test_results_have_the_documented_fields(summary: dict[str, Any]) -> None:
    """Every field that readers of demo.json rely on is there, with its type."""
    assert (summary["version"], summary["platform"], summary["seed"], summary["interval_ms"]) == (1, "host", 1, 500)
    assert set(summary["services"]) == {"memcached", "nginx"}
    for service in summary["services"].values():
        assert type(service["target_us"]) is int
        assert type(service["max_load_rps"]) is int
    assert tuple(summary["managers"]) == MANAGERS
    for manager in summary["managers"].values():
        assert isinstance(manager["best_effort_ops_per_s"], float)
        assert set(manager["services"]) == {"memcached", "nginx"}
        for service in manager["services"].values():
            for field in (
                "intervals",
                "violations",
                "violations_after_20s",
                "stalled",
                "p99_us",
                "completed",
                "not_sent",
                "failed",
            ):
                assert type(service[field]) is int, field
            assert service["valid"] is True
    ours = summary["managers"]["parties"]
    assert ours["moves"]["cores"] == 3
    assert ours["reverts"] == 1
    costs = ("cpu_fraction_of_core", "tick_cpu_p50_ms", "tick_cpu_p99_ms", "lateness_p99_ms", "missed_ticks", "rss_mb")
    assert all(ours["controller"][field] is not None for field in costs)


def test_violations_are_counted_where_they_are(summary: dict[str, Any]) -> None:
    """Of four late intervals one is in the first 20 s; the other service has none."""
    ours = summary["managers"]["parties"]["services"]
    assert (ours["memcached"]["intervals"], ours["memcached"]["violations"], ours["memcached"]["violations_after_20s"]) == (
        140,
        4,
        3,
    )
    assert (ours["nginx"]["violations"], ours["nginx"]["violations_after_20s"]) == (0, 0)
    assert worse_off(summary["managers"]["parties"]) == ("memcached", 3 / 100)


def test_best_effort_is_what_was_done_while_the_load_ran(make_trial: MakeTrial) -> None:
    """Operations per second are CPU time in the run times the job's own speed."""
    assert best_effort_ops_per_s(make_trial("parties", best_effort=0.25)) == pytest.approx(250.0)


def test_generator_that_could_not_keep_up_makes_the_run_invalid(plan: Plan, scans: Scans, make_trial: MakeTrial) -> None:
    """Send lag beyond its bound is marked with its reason, and said in words."""
    found = summarise(plan, scans, [make_trial("parties", valid=False)], versions={}, machine={})
    service = found["managers"]["parties"]["services"]["nginx"]
    assert service["valid"] is False
    assert service["invalid_reasons"] == ["late"]
    assert "not a sound measurement" in sentences(found)


def test_disturbance_by_others_is_measured_and_said(plan: Plan, scans: Scans, make_trial: MakeTrial) -> None:
    """CPU time of the managed machine that no group of the demo used is told, and mentioned where it is much."""
    found = summarise(plan, scans, [make_trial("equal"), make_trial("parties", foreign=0.2)], versions={}, machine={})
    assert found["managers"]["equal"]["disturbance"]["foreign_cores"] == 0.0
    assert found["managers"]["parties"]["disturbance"]["foreign_cores"] == pytest.approx(0.2)
    assert "of the managed CPU during parties" in sentences(found)


def test_missing_intervals_make_the_run_invalid(plan: Plan, scans: Scans, make_trial: MakeTrial) -> None:
    """A generator that fell silent did not measure, whatever it says of itself."""
    trial = make_trial("parties")
    trial.windows["nginx"] = trial.windows["nginx"][:400]
    found = summarise(plan, scans, [trial], versions={}, machine={})["managers"]["parties"]["services"]
    assert found["nginx"]["valid"] is False
    assert found["memcached"]["valid"] is True


def test_sentences_follow_the_figures(summary: dict[str, Any], plan: Plan, scans: Scans, make_trial: MakeTrial) -> None:
    """The two sentences carry the figures, name who did better, and change when the figures do."""
    text = sentences(summary)
    assert text.count(". ") == 1
    for words in ("3.0 %", "40.0 % (memcached) under equal", "1.00 times", "0.40 % of a core", "idle-only violated less"):
        assert words in text
    worse = [make_trial("equal"), make_trial("parties", late={"nginx": set(range(140))})]
    other = sentences(summarise(plan, scans, worse, versions={}, machine={}))
    assert "nginx) violated its target in 100.0 %" in other
    assert "equal violated less than parties" in other


def test_no_claim_without_parties(plan: Plan, scans: Scans, make_trial: MakeTrial) -> None:
    """A run of other managers alone says so."""
    assert "No claim" in sentences(summarise(plan, scans, [make_trial("equal")], versions={}, machine={}))


def test_table_has_a_row_for_each_manager_and_service(summary: dict[str, Any]) -> None:
    """The final table names every manager, and fits a terminal of 80 columns without cutting a word."""
    output = io.StringIO()
    Console(file=output, width=80).print(final_table(summary))
    text = output.getvalue()
    assert all(name in text for name in MANAGERS)
    assert text.count("nginx") == len(MANAGERS)
    assert "…" not in text


def test_plot_is_drawn_without_a_display(
    scans: Scans, make_trial: MakeTrial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PNG of a plausible size comes out of recorded data, with allocations and without, where there is no display."""
    monkeypatch.delenv("DISPLAY", raising=False)
    path = tmp_path / "demo.png"
    draw(
        [make_trial(name) for name in ("unmanaged", "parties")],
        {name: found.calibration.target_ns for name, found in scans.items()},
        path,
    )
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000
