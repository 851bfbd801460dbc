"""One service alone on the paper's server with so much of each resource: its tail over its target, on the model, exactly."""

from __future__ import annotations

from functools import cache

from parties.model import NS_PER_S
from simulator.conditions import Conditions, Share
from simulator.machine import Machine
from simulator.profile import JobModel
from simulator.queueing import percentile_s, respond
from workloads.experiments.trials import model_of, node

ANTAGONIST = JobModel("memory-bandwidth antagonist", compute_threads=0, memory_threads=8)
"""Two thirds of the one of Table 4: 8 threads that stream 34 GB/s, on cores that are not among the managed ones.

Figure 2c's is not described. Beside all 50 GB/s of Table 4 four of the six services have no allocation here at 30 % load, and there
would be nothing to see of what they need.
"""
ANTAGONIST_CORES = 4
WHOLE = 0


def levels_hz() -> tuple[int, ...]:
    """The frequencies that can be given, ascending; the last stands for turbo."""
    return (*node().levels_hz, node().top_hz)


def tail_over_target(  # noqa: PLR0913 - one for each resource, by name
    service: str,
    load_percent: float,
    *,
    cores: int = WHOLE,
    ways: int = WHOLE,
    frequency_hz: int = WHOLE,
    memory_bytes: int = WHOLE,
    disk_bytes_per_s: int = WHOLE,
    antagonist: bool = False,
) -> float | None:
    """The service's percentile over its target in steady state; None where it cannot keep up. What is not said is whole."""
    model = model_of(service)
    machine, profile = _machine(service, antagonist=antagonist), node()
    share = Share(
        (service,),
        best_effort=False,
        cores=cores or profile.cores,
        ways=ways or profile.cache_ways,
        frequency_hz=frequency_hz or profile.top_hz,
        memory_bytes=memory_bytes or profile.memory_bytes,
        disk_bytes_per_s=disk_bytes_per_s or profile.disk_bytes_per_s,
        network_bits_per_s=profile.network_bits_per_s,
    )
    beside = share._replace(tenants=(), best_effort=True, cores=ANTAGONIST_CORES, ways=0)
    rate_rps = load_percent / 100 * model.max_load_rps
    shares = [share, beside] if antagonist else [share]
    return over_target(machine.outlook(shares, {service: rate_rps}).services[service], service, rate_rps)


def over_target(conditions: Conditions, service: str, rate_rps: float) -> float | None:
    """The percentile under these conditions over the target; None where the service cannot keep up."""
    model = model_of(service)
    response = respond(conditions, rate_rps)
    if response.capacity_rps <= rate_rps:
        return None
    return percentile_s(response, model.percentile) * NS_PER_S / model.target_ns


@cache
def _machine(service: str, *, antagonist: bool) -> Machine:
    return Machine(node(), {service: model_of(service)}, ANTAGONIST if antagonist else None)
