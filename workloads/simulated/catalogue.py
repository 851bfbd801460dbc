"""What can be simulated, by name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from parties.live import amount_text, latency_text
from parties.model import Resource
from parties.policies.registry import POLICIES
from simulator.library import CONFIGS, job_model, names, node_profile, service_model
from simulator.scenario import ORACLE, SUFFIX, scenario_names

ORACLE_SUMMARY = "A feasible allocation by search on the model"


def known(kind: str) -> Sequence[str]:
    """The names of "nodes", "services", "jobs", "policies" or "scenarios"."""
    if kind == "policies":
        return [*POLICIES, ORACLE]
    return scenario_names() if kind == "scenarios" else names(kind.removesuffix("s"))


def as_json() -> dict[str, Any]:
    """Everything by kind and name, with a line on each."""
    return {
        "nodes": {name: _node(name) for name in known("nodes")},
        "services": {name: _service(name) for name in known("services")},
        "jobs": {name: _job(name) for name in known("jobs")},
        "policies": {name: _policy(name) for name in known("policies")},
        "scenarios": {name: _scenario(name) for name in known("scenarios")},
    }


def listing() -> str:
    """The same for people."""
    lines = []
    for kind, found in as_json().items():
        width = max((len(name) for name in found), default=0)
        lines += [kind, *(f"  {name:<{width}}  {text}" for name, text in found.items()), ""]
    lines.append("Nodes and scenarios may also be files (docs/simulator.md).")
    return "\n".join(lines)


def _node(name: str) -> str:
    node = node_profile(name)
    memory, disk, network = (
        amount_text(resource, value)
        for resource, value in (
            (Resource.MEMORY, node.memory_bytes),
            (Resource.DISK, node.disk_bytes_per_s),
            (Resource.NETWORK, node.network_bits_per_s),
        )
    )
    return f"{node.cores} cores, {node.cache_ways} ways, {memory}, disk {disk}, network {network}"


def _service(name: str) -> str:
    model = service_model(name)
    kept = "in memory" if model.in_memory else "on disk"
    target = f"p{model.percentile:g} of {latency_text(model.target_ns)}"
    return f"{target}, maximum load {_rate(model.max_load_rps)} requests/s, data {kept}"


def _rate(rps: float) -> str:
    return f"{rps:,.0f}" if rps >= 100 else f"{rps:g}"  # noqa: PLR2004 - below, decimals count


def _job(name: str) -> str:
    job = job_model(name)
    return f"{job.compute_threads} threads that compute, {job.memory_threads} that stream through memory"


def _policy(name: str) -> str:
    if name == ORACLE:
        return ORACLE_SUMMARY
    return _first_sentence(inspect.getdoc(POLICIES[name]) or "")


def _scenario(name: str) -> str:
    """The first sentence of its file, which begins with a comment on what it is."""
    words: list[str] = []
    for line in (CONFIGS / "scenarios" / f"{name}{SUFFIX}").read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text:
            break
        words.append(text)
    return _first_sentence(" ".join(words))


def _first_sentence(text: str) -> str:
    return text.partition("\n")[0].partition(". ")[0].removesuffix(".")
