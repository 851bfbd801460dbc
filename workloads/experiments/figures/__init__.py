"""One experiment in each file; its ``EXPERIMENT`` is found by the registry."""
