"""What decides: one policy a file. A policy is a plain object without files, sockets or clocks."""

from __future__ import annotations

from parties.policies.registry import POLICIES, UnknownPolicyError, policy_named

__all__ = ["POLICIES", "UnknownPolicyError", "policy_named"]
