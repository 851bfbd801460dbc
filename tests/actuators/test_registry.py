"""The registry of knob kinds."""

import importlib
import pkgutil

import actuators
import monitors
from actuators.registry import KINDS


def test_every_module_s_kinds_are_known_under_one_name() -> None:
    """No kind is left out or hides another's: the journal would put one value back into the wrong place, or not at all."""
    found: dict[str, object] = {}
    for info in (
        *pkgutil.walk_packages(actuators.__path__, "actuators."),
        *pkgutil.walk_packages(monitors.__path__, "monitors."),
    ):
        kinds = getattr(importlib.import_module(info.name), "KINDS", {})
        for name in kinds if info.name != "actuators.registry" else ():
            assert found.setdefault(name, kinds[name]) is kinds[name], name
    assert set(KINDS) == set(found)
