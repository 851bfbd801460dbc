"""The policies by name."""

from __future__ import annotations

import difflib

from parties.interfaces import PolicyFactory
from parties.policies.equal import Equal
from parties.policies.heracles import Heracles
from parties.policies.idle_only import IdleOnly
from parties.policies.parties import Parties
from parties.policies.unmanaged import Unmanaged

POLICIES: dict[str, PolicyFactory] = {policy.name: policy for policy in (Parties, Equal, Unmanaged, IdleOnly, Heracles)}


class UnknownPolicyError(ValueError):
    """No policy has that name; the message gives the nearest names, or all."""


def policy_named(name: str) -> PolicyFactory:
    """The policy of that name. Raises UnknownPolicyError."""
    try:
        return POLICIES[name]
    except KeyError:
        near = difflib.get_close_matches(name, POLICIES, cutoff=0.5) or list(POLICIES)
        raise UnknownPolicyError(f"no policy is named {name!r}; did you mean {', '.join(near)}?") from None
