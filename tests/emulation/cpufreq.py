r"""/sys/devices/system/cpu of machines with every cpufreq driver, emulated behind FUSE at a directory of the test's own.

    with mounted_cpufreq(tmp_path / "cpu", CpufreqOptions(driver="intel_pstate", policies=[[0, 1]])) as cpu:
        (cpu.path / "cpu0/cpufreq/scaling_max_freq").write_text("1500000\n")
        cpu.ignore("*/scaling_max_freq")

Writes are logged, and faults ordered, by paths such as /cpufreq/policy0/scaling_max_freq: what symbolic links lead to.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.emulation.cpufreq_model import CpufreqModel
from tests.emulation.cpufreq_policy import CpufreqOptions
from tests.emulation.fuse_tree import Mounted, mounted, serve

__all__ = ["CpufreqOptions", "Mounted", "mounted_cpufreq"]


@contextlib.contextmanager
def mounted_cpufreq(mount: Path, options: CpufreqOptions | None = None) -> Iterator[Mounted]:
    """An emulated tree at ``mount`` until the block ends. Needs root and FUSE (``fuse_tree.why_not``)."""
    with mounted(__name__, asdict(options or CpufreqOptions()), mount) as handle:
        yield handle


def main() -> None:
    """The process that serves the tree: mount point, control descriptor, options."""
    serve(CpufreqModel(CpufreqOptions(**json.loads(sys.argv[3]))), sys.argv[1], int(sys.argv[2]), name="cpufreq")


if __name__ == "__main__":
    main()
