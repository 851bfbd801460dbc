"""Runs in the guest: calls one function of a module of this folder, and prints its result as the last line, in JSON.

``python3 -m tests.guest.inside MODULE FUNCTION '{"argument": value}'``
"""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """Call it; a failed assertion ends in a traceback and exit code 1, as everywhere."""
    module, function, arguments = sys.argv[1:]
    result = getattr(importlib.import_module(f"tests.guest.{module}"), function)(**json.loads(arguments))
    sys.stdout.write(f"\n{json.dumps(result)}\n")


if __name__ == "__main__":
    main()
