"""The policies by name."""

from __future__ import annotations

import difflib
import functools

from parties.interfaces import PolicyFactory
from parties.policies.equal import Equal
from parties.policies.heracles import Heracles
from parties.policies.idle_only import IdleOnly
from parties.policies.oracle import Foresight, Oracle
from parties.policies.parties import Parties
from parties.policies.unmanaged import Unmanaged

POLICIES: dict[str, PolicyFactory] = {policy.name: policy for policy in (Parties, Equal, Unmanaged, IdleOnly, Heracles)}
"""Those that need to know nothing but node and services. Oracle needs a model as well."""


class UnknownPolicyError(ValueError):
    """No policy has that name; the message gives the nearest names, or all."""


class NeedsModelError(UnknownPolicyError):
    """Oracle was asked for where there is no model of the services."""

    def __init__(self) -> None:
        super().__init__(
            "the policy 'oracle' needs a model of the services, which only the simulated node has; "
            "try it with 'parties simulate', or choose another policy"
        )


def policy_named(name: str, *, foresight: Foresight | None = None) -> PolicyFactory:
    """The policy of that name; ``foresight`` is for the one that needs it. Raises UnknownPolicyError and NeedsModelError."""
    if name == Oracle.name:
        if foresight is None:
            raise NeedsModelError
        return functools.partial(Oracle, foresight=foresight)
    try:
        return POLICIES[name]
    except KeyError:
        near = difflib.get_close_matches(name, [*POLICIES, Oracle.name], cutoff=0.5) or [*POLICIES, Oracle.name]
        raise UnknownPolicyError(f"no policy is named {name!r}; did you mean {', '.join(near)}?") from None
