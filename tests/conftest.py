"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples in every run, and no verdict on the speed of a machine that others use too.
settings.register_profile("parties", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("parties")
