"""PARTIES (ASPLOS 2019): QoS-aware resource partitioning for several latency-critical services on one server."""

__version__ = "0.1.0"
