"""What decides: one policy a file. A policy is a plain object without files, sockets or clocks."""

from __future__ import annotations

from parties.policies.oracle import Foresight
from parties.policies.registry import POLICIES, NeedsModelError, UnknownPolicyError, policy_named

__all__ = ["POLICIES", "Foresight", "NeedsModelError", "UnknownPolicyError", "policy_named"]
