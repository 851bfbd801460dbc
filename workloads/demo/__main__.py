"""``python -m workloads.demo``: the same as ``parties demo``."""

from workloads.cli import demo

demo(prog_name="python -m workloads.demo")
