"""Tests of the load generator's binary against small real servers."""
