r"""resctrl on a machine without it: the kernel's file system emulated behind FUSE, at a directory of the test's own.

    with mounted_resctrl(tmp_path / "resctrl", ResctrlOptions(ways=20, domains={0: [0], 3: [1]})) as resctrl:
        (resctrl.path / "schemata").write_text("L3:0=ff\n")
        resctrl.fail(errno.EBUSY, "*/schemata")

Thread numbers are those of this machine. ``resctrl.order("set_counter", group="", domain=0, event="llc_occupancy", value="4096")``
sets what monitoring says, ``order("set_mask", ...)`` changes a mask behind everyone's back, ``order("get_state")`` tells all.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.emulation.fuse_tree import Mounted, mounted, serve
from tests.emulation.resctrl_model import ResctrlModel, ResctrlOptions
from tests.emulation.threads import Threads

__all__ = ["Mounted", "ResctrlOptions", "mounted_resctrl"]


@contextlib.contextmanager
def mounted_resctrl(mount: Path, options: ResctrlOptions | None = None) -> Iterator[Mounted]:
    """An emulated resctrl at ``mount`` until the block ends. Needs root and FUSE (``fuse_tree.why_not``)."""
    with mounted(__name__, asdict(options or ResctrlOptions()), mount) as handle:
        yield handle


def main() -> None:
    """The process that serves the tree: mount point, control descriptor, options."""
    options = json.loads(sys.argv[3])
    if options["domains"] is not None:
        options["domains"] = {int(domain): cpus for domain, cpus in options["domains"].items()}
    model = ResctrlModel(ResctrlOptions(**options), Threads(), sorted(os.sched_getaffinity(0)))
    serve(model, sys.argv[1], int(sys.argv[2]), name="resctrl")


if __name__ == "__main__":
    main()
