"""From what was seen to what is claimed: every figure of ``results/demo.json``, and the two sentences at the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workloads.demo.calibration import Scan
from workloads.demo.plan import AFTER_NS, INTERVAL_NS, MS, PROGRAMS, STRESS, Calibration, Plan
from workloads.demo.trial import CpuSample, Trial
from workloads.intervals import PERCENTILE, Window, intervals, merge

VERSION = 1
DISTURBED_CORES = 0.05  # of the managed CPU gone to others: said beside the figures
GOAL = 0.10  # of a run's intervals; what the demo sets out to stay under


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one service fared under one manager."""

    intervals: int
    expected: int  # intervals that there should have been
    violations: int
    violations_after: int
    violations_after_settling: int
    stalled: int
    completed: int
    not_sent: int
    failed: int
    p99_ns: int | None
    load_generator_lag_p99_ns: int
    client_cpu_cores: float
    valid: bool
    reasons: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Its part of the results."""
        return {
            "intervals": self.intervals,
            "violations": self.violations,
            "violations_after_20s": self.violations_after,
            "violations_after_settling": self.violations_after_settling,
            "stalled": self.stalled,
            "p99_us": None if self.p99_ns is None else self.p99_ns // 1000,
            "completed": self.completed,
            "not_sent": self.not_sent,
            "failed": self.failed,
            "valid": self.valid,
            "invalid_reasons": list(self.reasons),
            "send_lag_p99_us": self.load_generator_lag_p99_ns // 1000,
            "client_cpu_cores": round(self.client_cpu_cores, 4),
        }


def service_intervals(trial: Trial, service: str) -> tuple[Window, ...]:
    """A service's windows merged into the intervals that are judged."""
    count = trial.length_ns // INTERVAL_NS
    return intervals(trial.windows[service], origin_ns=trial.origin_ns, length_ns=INTERVAL_NS, count=count)


def judge(trial: Trial, service: str, *, target_ns: int, settle_ns: int) -> Verdict:
    """Count what happened to a service. An interval that the generator did not report makes the run invalid."""
    found = service_intervals(trial, service)
    expected = trial.length_ns // INTERVAL_NS
    totals = trial.totals[service]
    reasons = () if totals.valid else totals.reasons
    if len(found) < expected:
        reasons = (*reasons, f"{expected - len(found)} of {expected} intervals were not reported")
    whole = merge(found) if found else None
    violated = [window for window in found if window.violated(target_ns)]

    def after(start_ns: int) -> int:
        return sum(window.start_ns - trial.origin_ns >= start_ns - INTERVAL_NS // 2 for window in violated)

    return Verdict(
        intervals=len(found),
        expected=expected,
        violations=len(violated),
        violations_after=after(AFTER_NS),
        violations_after_settling=after(settle_ns),
        stalled=sum(window.stalled() for window in found),
        completed=whole.completed if whole else 0,
        not_sent=whole.unsent if whole else 0,
        failed=whole.failed if whole else 0,
        p99_ns=whole.latency_ns(PERCENTILE) if whole else None,
        load_generator_lag_p99_ns=totals.lag_p99_ns,
        client_cpu_cores=totals.cpu_ns / trial.length_ns,
        valid=not reasons,
        reasons=reasons,
    )


def best_effort_ops_per_s(trial: Trial) -> float:
    """Operations per second while the load ran: CPU time used then, at the speed that the job reports of itself."""
    begin, end = _at(trial.cpu, trial.origin_ns), _at(trial.cpu, trial.origin_ns + trial.length_ns)
    elapsed_ns = end.at_ns - begin.at_ns
    if elapsed_ns <= 0:
        return 0.0
    return trial.operations_per_cpu_s * (end.used_ns[STRESS.name] - begin.used_ns[STRESS.name]) / elapsed_ns


def disturbance(trial: Trial) -> dict[str, float]:
    """Cores of the managed machine that others had while the load ran: processes not of the demo, and the hypervisor."""
    begin, end = _at(trial.cpu, trial.origin_ns), _at(trial.cpu, trial.origin_ns + trial.length_ns)
    elapsed_ns = max(1, end.at_ns - begin.at_ns)
    ours_ns = sum(end.used_ns.values()) - sum(begin.used_ns.values())
    foreign_ns = max(0, end.managed.busy_ns - begin.managed.busy_ns - ours_ns)
    return {
        "foreign_cores": round(foreign_ns / elapsed_ns, 3),
        "stolen_cores": round((end.managed.stolen_ns - begin.managed.stolen_ns) / elapsed_ns, 3),
    }


def cpu_use(samples: Sequence[CpuSample], name: str) -> tuple[tuple[int, float], ...]:
    """Cores that a group used, between each sample and the one before."""
    return tuple(
        (after.at_ns, (after.used_ns[name] - before.used_ns[name]) / (after.at_ns - before.at_ns))
        for before, after in itertools.pairwise(samples)
    )


def outcome(plan: Plan, calibrations: Mapping[str, Calibration], trial: Trial) -> str:
    """A trial in one line."""
    parts = []
    for program in PROGRAMS:
        target_ns = calibrations[program.name].target_ns
        verdict = judge(trial, program.name, target_ns=target_ns, settle_ns=round(plan.timeline.settle_s * 1e9))
        parts.append(f"{program.name} violated in {verdict.violations} of {verdict.intervals} intervals")
    return f"{trial.manager}: {', '.join(parts)}; best effort {best_effort_ops_per_s(trial):.0f} operations/s"


def summarise(
    plan: Plan, scans: Mapping[str, Scan], trials: Iterable[Trial], *, versions: Mapping[str, str], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole of ``results/demo.json``."""
    return {
        "version": VERSION,
        "platform": "host",
        "quick": plan.quick,
        "seed": plan.seed,
        "interval_ms": INTERVAL_NS // MS,
        "percentile": PERCENTILE,
        "length_s": plan.timeline.length_s,
        "settle_s": plan.timeline.settle_s,
        "machine": dict(machine),
        "versions": dict(versions),
        "services": {name: _service_json(found) for name, found in scans.items()},
        "load": {name: [list(point) for point in profile] for name, profile in _profiles(plan, scans).items()},
        "managers": {trial.manager: _manager_json(plan, scans, trial) for trial in trials},
    }


def worse_off(manager: Mapping[str, Any], field: str = "violations_after_settling") -> tuple[str, float]:
    """The service that violates in the larger share of the intervals after settling, and that share."""
    shares = {name: service[field] / max(1, service["intervals_after_settling"]) for name, service in manager["services"].items()}
    name = max(shares, key=lambda service: shares[service])
    return name, shares[name]


def sentences(summary: Mapping[str, Any]) -> str:
    """What came out, in two sentences computed from the figures."""
    managers = summary["managers"]
    if "parties" not in managers:
        return f"No claim is made: parties was not among the managers tried ({', '.join(managers)})."
    ours_name, ours = worse_off(managers["parties"])
    parts = [f"its worse-off service ({ours_name}) violated its target in {_percent(ours)} of the intervals after settling"]
    for name, manager in managers.items():
        if name != "parties":
            service, share = worse_off(manager)
            parts.append(f"{_percent(share)} ({service}) under {name}")
    first = f"Under parties {parts[0]}" + (f", against {'; '.join(parts[1:])}." if parts[1:] else ".")
    return f"{first} {_second_sentence(summary, ours)}"


def _second_sentence(summary: Mapping[str, Any], ours: float) -> str:
    managers = summary["managers"]
    spent = managers["parties"]["controller"]["cpu_fraction_of_core"]
    work = managers["parties"]["best_effort_ops_per_s"]
    against = ""
    if "equal" in managers and managers["equal"]["best_effort_ops_per_s"] > 0:
        against = f", {work / managers['equal']['best_effort_ops_per_s']:.2f} times what the equal split left it"
    second = f"The best-effort job did {work:.0f} operations/s{against}, the controller used {_percent(spent, 2)} of a core"
    total = max(service["violations"] / max(1, service["intervals"]) for service in managers["parties"]["services"].values())
    second += f", and over all intervals the worse-off service violated in {_percent(total)} (goal: under {_percent(GOAL, 0)})"
    beaten = [name for name, manager in managers.items() if name != "parties" and worse_off(manager)[1] < ours]
    if beaten:
        second += f"; {' and '.join(beaten)} violated less than parties"
    unsound = [name for name, manager in managers.items() if not all(s["valid"] for s in manager["services"].values())]
    if unsound:
        second += f"; not a sound measurement, as the load generator could not keep its schedule: {', '.join(unsound)}"
    disturbed = [name for name, manager in managers.items() if sum(manager["disturbance"].values()) > DISTURBED_CORES]
    if disturbed:
        second += f"; others took more than {_percent(DISTURBED_CORES, 0)} of the managed CPU during {', '.join(disturbed)}"
    if summary["quick"]:
        second += "; a quick run is too short for claims"
    return second + "."


def _service_json(found: Scan) -> dict[str, Any]:
    return {
        "target_us": found.calibration.target_ns // 1000,
        "max_load_rps": found.calibration.max_load_rps,
        "knee_rps": round(found.knee_rps),
        "knee_p99_us": found.knee_p99_ns // 1000,
        "scan": [
            {"load_rps": round(point.load_rps), "p99_us": point.p99_ns // 1000, "saturated": point.saturated}
            for point in found.points
        ],
    }


def _profiles(plan: Plan, scans: Mapping[str, Scan]) -> dict[str, list[tuple[float, int]]]:
    profiles = plan.profiles({name: found.calibration for name, found in scans.items()})
    return {name: [(at_s, round(rate)) for at_s, rate in profile] for name, profile in profiles.items()}


def _manager_json(plan: Plan, scans: Mapping[str, Scan], trial: Trial) -> dict[str, Any]:
    settle_ns = round(plan.timeline.settle_s * 1e9)
    services = {}
    for program in PROGRAMS:
        verdict = judge(trial, program.name, target_ns=scans[program.name].calibration.target_ns, settle_ns=settle_ns)
        services[program.name] = {
            **verdict.as_json(),
            "intervals_after_settling": max(0, verdict.expected - settle_ns // INTERVAL_NS),
            "errors": list(trial.errors.get(program.name, ()))[:20],
        }
    report = trial.report
    return {
        "services": services,
        "best_effort_ops_per_s": round(best_effort_ops_per_s(trial), 1),
        "disturbance": disturbance(trial),
        "moves": report.get("moves", {}),
        "reverts": report.get("reverts", 0),
        "controller": {
            name: report.get(name)
            for name in (
                *("cpu_fraction_of_core", "tick_cpu_p50_ms", "tick_cpu_p99_ms", "lateness_p99_ms"),
                *("missed_ticks", "rss_mb", "ticks", "refused", "migrations"),
            )
        },
        "events": [event for event in trial.events if event.get("level") != "info"][:50],
    }


def _at(samples: Sequence[CpuSample], at_ns: int) -> CpuSample:
    """The sample nearest to a time."""
    return min(samples, key=lambda sample: abs(sample.at_ns - at_ns))


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"
