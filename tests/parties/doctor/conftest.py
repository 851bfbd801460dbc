"""Fixtures for the tests of the doctor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cpuid_kit import processor
from machines import machine

from actuators.network.probe import KernelSupport
from parties.doctor.subject import Subject

__all__ = ["processor", "shapes", "subject_of"]

Shapes = Callable[[str], Path]


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    """Machine shapes by name, each unpacked once; nobody writes to them."""
    unpacked: dict[str, Path] = {}

    def shape(name: str) -> Path:
        if name not in unpacked:
            unpacked[name] = machine(name, tmp_path_factory.mktemp(name))
        return unpacked[name]

    return shape


@pytest.fixture(scope="session")
def subject_of(shapes: Shapes) -> Callable[[str], Subject]:
    """The subject of a shape, whose kernel has all that is needed for the network, as root and without waiting."""
    return lambda name: Subject(root=shapes(name), user_id=0, wait=lambda: None, support=KernelSupport())
