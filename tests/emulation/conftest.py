"""Emulated trees for tests; they are skipped, with the reason, where none can be mounted."""

from __future__ import annotations

import shutil

import pytest

from tests.emulation.fuse_tree import why_not


@pytest.fixture
def fuse() -> None:
    """Skip where no tree can be mounted."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def pqos_command() -> None:
    """Skip without the command."""
    if shutil.which("pqos") is None:
        pytest.skip("no pqos: apt-get install intel-cmt-cat")


@pytest.fixture
def cpupower_command() -> None:
    """Skip without the command."""
    if shutil.which("cpupower") is None:
        pytest.skip("no cpupower: apt-get install linux-cpupower")
