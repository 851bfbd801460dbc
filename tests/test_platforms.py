"""What the documentation says of tests is true."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/platforms.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    """Each reference of docs/platforms.md is a function of that file, and each number in the table has its tests."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
    assert len(named) > 20
    for file, function in named:
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (file, function)
    used = {int(number) for number in re.findall(r"\[(\d+)\]", TEXT)}
    explained = {int(number) for number in re.findall(r"^\| (\d+) \| `", TEXT, re.MULTILINE)}
    assert used == explained
