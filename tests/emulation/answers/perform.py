"""Does recorded steps on a resctrl file system or a cpufreq tree, and notes what it answers.

Needs nothing but Python, so that it runs in a small virtual machine: ``python3 perform.py MOUNT STEPS.json > ANSWERS.json`` repeats
the steps on a real kernel and fills in the errno (by name, null for success), ``info/last_cmd_status`` where there is one, and what
was read.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

Step = dict[str, Any]
ANY = "any"


def perform(step: Step, mount: Path) -> Step:
    """One step on the file system: the same step with the answers filled in."""
    path = mount / step["path"]
    answer = {key: step[key] for key in ("do", "path", "data") if key in step} | {"errno": None}
    try:
        if step["do"] == "write":
            with path.open("wb", buffering=0) as file:
                file.write(step["data"].encode())
        elif step["do"] == "read":
            answer["reads"] = path.read_text().removesuffix("\n")
        elif step["do"] == "list":
            answer["reads"] = " ".join(sorted(entry.name for entry in path.iterdir()))
        else:
            getattr(path, step["do"])()
    except OSError as error:
        answer["errno"] = errno.errorcode.get(error.errno or 0, str(error.errno))
    status = mount / "info/last_cmd_status"
    if step["do"] not in {"read", "list"} and status.exists():
        answer["status"] = status.read_text().removesuffix("\n")
    return answer


def differences(recorded: Step, found: Step) -> list[str]:
    """In what two answers to a step differ; what was not recorded does not count."""
    told = []
    for key in ("errno", "status", "reads"):
        if key not in recorded or (recorded[key] == ANY and found[key] is not None):
            continue
        if recorded[key] != found.get(key):
            what = f"{recorded['do']} {recorded['path']} {recorded.get('data', '')!r}"
            told.append(f"{what}: {key} {found.get(key)!r}, not {recorded[key]!r}")
    return told


def main() -> None:
    """Repeat the steps of a file and print them with what was answered."""
    document = json.loads(Path(sys.argv[2]).read_text())
    answers = [perform(step, Path(sys.argv[1])) for step in document["steps"]]
    lines = ",\n    ".join(json.dumps(answer) for answer in answers)
    head = {key: value for key, value in document.items() if key != "steps"} | {"kernel": " ".join(os.uname()[2:4])}
    print("{", *(f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()), sep="\n")  # noqa: T201 (what it is for)
    print(f'  "steps": [\n    {lines}\n  ]\n}}')  # noqa: T201


if __name__ == "__main__":
    main()
