"""Fixtures for the tests of the control process."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def undo_kit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Knobs with faults (``undo_kit.py`` beside this file), importable also in processes that the test starts."""
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", "")))))
    return importlib.import_module("undo_kit")
