"""The registry of knob kinds."""

import importlib
import pkgutil

import actuators
from actuators.registry import KINDS
from parties.knob import KnobKinds


def declared() -> list[KnobKinds]:
    """The kinds of every module below ``actuators``, whether the registry names it or not."""
    names = (module.name for module in pkgutil.walk_packages(actuators.__path__, "actuators."))
    modules = [importlib.import_module(name) for name in names if name != "actuators.registry"]
    return [module.KINDS for module in modules if hasattr(module, "KINDS")]


def test_every_module_s_kinds_are_known_under_one_name() -> None:
    """No kind is forgotten, and none hides another's: the journal would put one value back into the wrong place."""
    kinds = [name for module in declared() for name in module]
    assert sorted(kinds) == sorted(KINDS)
