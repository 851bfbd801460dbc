"""Fixtures of whoever tests against a fake systemd; a directory's ``conftest.py`` imports those that its tests use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_systemd import FakeSystemd


@pytest.fixture
def root() -> Iterator[Path]:
    """Short, as a socket's path may have no more than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sd") as directory:
        yield Path(directory)


@pytest.fixture
def systemd(root: Path) -> Iterator[FakeSystemd]:
    """A fake systemd without units."""
    fake = FakeSystemd(root)
    yield fake
    fake.close()
