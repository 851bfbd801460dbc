"""What is simulated: the whole of a run, by hand or by name (``configs/scenarios``).

A *tenant* is a service in a run under a name of its own; two tenants may be of the same service ("memcached", "memcached-2").
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parties.config import load_data
from parties.config_schema import Mistake
from parties.model import NS_PER_S
from parties.policies.oracle import Oracle
from parties.policies.registry import policy_named
from parties.settings import PartiesSettings, SignalSettings
from simulator.library import CONFIGS, UnknownProfileError, job_model, node_profile, service_model
from simulator.load_profile import LoadError, LoadProfile, load_from, profile_of
from simulator.profile import JobModel, NodeProfile, ServiceModel

ORACLE = Oracle.name  # has to be given the model as well as the node
DEFAULT_NODE = "e5-2699v4"  # the paper's (Table 1)
DEFAULT_JOB = "compute-and-memory"  # the best-effort job of section 5.1
SUFFIX = ".toml"


class ScenarioError(ValueError):
    """A scenario that is no good. The message says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A service in a run: what it is, and what is asked of it."""

    model: ServiceModel
    load: LoadProfile


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that makes a run: the same scenario gives the same run.

    Raises ScenarioError where there is nothing to run, and UnknownPolicyError.
    """

    node: NodeProfile
    tenants: Mapping[str, Tenant]
    job: JobModel | None = None
    duration_s: float = 90.0  # section 5.1: 30 s to warm up, 60 s measured
    seed: int = 1
    policy: str = "parties"
    parties: PartiesSettings = field(default_factory=PartiesSettings)
    signal: SignalSettings = field(default_factory=SignalSettings)

    def __post_init__(self) -> None:
        if not self.tenants:
            raise ScenarioError("there is no service to simulate; name at least one with its load")
        if not (math.isfinite(self.duration_s) and self.duration_s >= 1):
            raise ScenarioError(f"a run of {self.duration_s:g} s is none; give at least one second")
        if self.policy != ORACLE:
            policy_named(self.policy)

    @property
    def models(self) -> dict[str, ServiceModel]:
        """What each tenant is."""
        return {name: tenant.model for name, tenant in self.tenants.items()}


def tenant_model(name: str) -> ServiceModel:
    """The service that a tenant's name speaks of: "memcached-2" is a second memcached. Raises UnknownProfileError."""
    try:
        return service_model(name)
    except UnknownProfileError:
        numbered = re.fullmatch(r"(.+)-[0-9]+", name)
        if numbered is None:
            raise
        return service_model(numbered[1])


def tenants_from(loads: Iterable[tuple[str, str]], *, folder: Path = Path()) -> dict[str, Tenant]:
    """Tenants of names and loads as they are written; a name given again is a further one of the same service.

    A service that is given by the path of its file has the name that the file says.

    Raises LoadError and UnknownProfileError.
    """
    tenants: dict[str, Tenant] = {}
    for name, load in loads:
        tenant = Tenant(tenant_model(name), load_from(load, folder=folder))
        own = tenant.model.name if "/" in name or name.endswith(SUFFIX) else name
        tenants[_free_name(own, tenants)] = tenant
    return tenants


def _free_name(name: str, taken: Mapping[str, Tenant]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


# Scenarios by name


@dataclass(frozen=True, slots=True)
class TenantFile:
    """``[[service]]`` of a scenario's file: its name, and a load or a profile ("time fraction" in each line)."""

    name: str
    model: str = ""  # a service by name or path; empty: by the tenant's name
    load: float = 0.0
    profile: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """A scenario's file."""

    services: tuple[TenantFile, ...]
    duration_ns: int
    node: str = DEFAULT_NODE
    best_effort: str = ""  # a job by name or path; empty: none
    policy: str = "parties"
    seed: int = 1
    parties: PartiesSettings = field(default_factory=PartiesSettings)
    signal: SignalSettings = field(default_factory=SignalSettings)


def scenario_names() -> list[str]:
    """The scenarios that come with the project."""
    return sorted(file.stem for file in (CONFIGS / "scenarios").glob(f"*{SUFFIX}"))


def scenario_named(name: str | Path) -> Scenario:
    """A scenario by name, or by the path of a file (anything with a "/" or that ends in ".toml").

    Raises UnknownProfileError or UnknownPolicyError for it or what it names, ScenarioError, and ``parties.config.ConfigError`` with
    every mistake of the file.
    """
    text = str(name)
    if isinstance(name, Path) or "/" in text or text.endswith(SUFFIX):
        return _scenario(load_data(Path(name), ScenarioFile, _mistakes))
    known = scenario_names()
    if text not in known:
        raise UnknownProfileError("scenario", text, known)
    return _scenario(load_data(CONFIGS / "scenarios" / f"{text}{SUFFIX}", ScenarioFile, _mistakes))


def _scenario(file: ScenarioFile) -> Scenario:
    return Scenario(
        node=node_profile(file.node),
        tenants={
            tenant.name: Tenant(service_model(tenant.model) if tenant.model else tenant_model(tenant.name), _load(tenant))
            for tenant in file.services
        },
        job=job_model(file.best_effort) if file.best_effort else None,
        duration_s=file.duration_ns / NS_PER_S,
        seed=file.seed,
        policy=file.policy,
        parties=file.parties,
        signal=file.signal,
    )


def _load(tenant: TenantFile) -> LoadProfile:
    return profile_of(tenant.profile) if tenant.profile else LoadProfile.steady(tenant.load)


def _mistakes(file: ScenarioFile) -> Iterator[Mistake]:
    names: set[str] = set()
    for index, tenant in enumerate(file.services):
        if tenant.name in names:
            yield Mistake(("service", index, "name"), f"is {tenant.name} a second time; give each service a name of its own")
        names.add(tenant.name)
        try:
            _load(tenant)
        except LoadError as error:
            yield Mistake(("service", index, "profile" if tenant.profile else "load"), str(error))
