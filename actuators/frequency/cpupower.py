"""cpupower's library: what cpufreq offers on this machine, and changes of a policy.

Debian's package libcpupower1, declared here by hand as only a dozen of its functions are wanted. It works on /sys alone, so it is
not used where the roots are others. It tells only that something failed, never why: whoever needs the kernel's words repeats the
write by file. Its calls open and close every file anew (measured in docs/frequency.md), so the steps of the loop go through kept
descriptors.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

PACKAGE = "libcpupower1"
NAMES = ("libcpupower.so.1", "libcpupower.so.0")
"""The names that distributions give it, Debian's first. The functions used here are the same in both."""


class PolicyLimits(NamedTuple):
    """A policy as the library gives it."""

    min_khz: int
    max_khz: int
    governor: str


class _Policy(ctypes.Structure):
    _fields_ = (("min", ctypes.c_ulong), ("max", ctypes.c_ulong), ("governor", ctypes.c_char_p))


class _NameNode(ctypes.Structure):
    pass


class _SpeedNode(ctypes.Structure):
    pass


class _CpuNode(ctypes.Structure):
    pass


_NameNode._fields_ = (
    ("value", ctypes.c_char_p),
    ("next", ctypes.POINTER(_NameNode)),
    ("first", ctypes.POINTER(_NameNode)),
)
_SpeedNode._fields_ = (
    ("value", ctypes.c_ulong),
    ("next", ctypes.POINTER(_SpeedNode)),
    ("first", ctypes.POINTER(_SpeedNode)),
)
_CpuNode._fields_ = (
    ("value", ctypes.c_uint),
    ("next", ctypes.POINTER(_CpuNode)),
    ("first", ctypes.POINTER(_CpuNode)),
)


class Cpupower:
    """The library, loaded. ``cpu`` is a Linux CPU number throughout; frequencies are in kHz. No method raises."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, node in (
            ("affected_cpus", _CpuNode),
            ("related_cpus", _CpuNode),
            ("available_governors", _NameNode),
            ("available_frequencies", _SpeedNode),
        ):
            self._declare(f"cpufreq_get_{name}", ctypes.POINTER(node), ctypes.c_uint)
            self._declare(f"cpufreq_put_{name}", None, ctypes.POINTER(node))
        self._declare("cpufreq_get_driver", ctypes.c_void_p, ctypes.c_uint)
        self._declare("cpufreq_put_driver", None, ctypes.c_void_p)
        self._declare("cpufreq_get_policy", ctypes.POINTER(_Policy), ctypes.c_uint)
        self._declare("cpufreq_put_policy", None, ctypes.POINTER(_Policy))
        number = ctypes.POINTER(ctypes.c_ulong)
        self._declare("cpufreq_get_hardware_limits", ctypes.c_int, ctypes.c_uint, number, number)
        self._declare("cpufreq_set_policy", ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Policy))

    def driver(self, cpu: int) -> str:
        """The scaling driver; empty where there is none."""
        pointer = self._library.cpufreq_get_driver(cpu)
        if not pointer:
            return ""
        try:
            return _text(ctypes.string_at(pointer)).strip()
        finally:
            self._library.cpufreq_put_driver(pointer)

    def governors(self, cpu: int) -> tuple[str, ...]:
        """The governors that the kernel has loaded for this CPU."""
        return tuple(_text(value) for value in self._listed("available_governors", cpu))

    def frequencies(self, cpu: int) -> tuple[int, ...]:
        """The frequencies that the driver has in its table, ascending; empty where it takes any."""
        return tuple(sorted(self._listed("available_frequencies", cpu)))

    def affected(self, cpu: int) -> tuple[int, ...]:
        """The online CPUs that share this one's policy, itself included."""
        return tuple(sorted(self._listed("affected_cpus", cpu)))

    def related(self, cpu: int) -> tuple[int, ...]:
        """The same with those that are offline."""
        return tuple(sorted(self._listed("related_cpus", cpu)))

    def hardware_limits(self, cpu: int) -> tuple[int, int]:
        """The lowest and the highest frequency of the hardware; zeros where it does not tell."""
        low, high = ctypes.c_ulong(0), ctypes.c_ulong(0)
        if self._library.cpufreq_get_hardware_limits(cpu, ctypes.byref(low), ctypes.byref(high)):
            return 0, 0
        return low.value, high.value

    def policy(self, cpu: int) -> PolicyLimits | None:
        """The policy in force."""
        pointer = self._library.cpufreq_get_policy(cpu)
        if not pointer:
            return None
        try:
            found = pointer.contents
            return PolicyLimits(found.min, found.max, _text(found.governor))
        finally:
            self._library.cpufreq_put_policy(pointer)

    def set_policy(self, cpu: int, wanted: PolicyLimits) -> bool:
        """Set limits and governor, in an order that passes; False if it failed, for whatever reason."""
        policy = _Policy(wanted.min_khz, wanted.max_khz, wanted.governor.encode())
        return not self._library.cpufreq_set_policy(cpu, ctypes.byref(policy))

    def _declare(self, name: str, result: Any, *arguments: Any) -> None:  # noqa: ANN401 (ctypes has no type for types)
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, arguments

    def _listed(self, what: str, cpu: int) -> list[Any]:
        first = getattr(self._library, f"cpufreq_get_{what}")(cpu)
        if not first:
            return []
        try:
            return [node.value for node in _nodes(first)]
        finally:
            getattr(self._library, f"cpufreq_put_{what}")(first)


def _nodes(node: Any) -> Iterator[Any]:  # noqa: ANN401 (a pointer to one of three structures)
    while node:
        yield node.contents
        node = node.contents.next


def _text(value: bytes | None) -> str:
    return (value or b"").decode("ascii", errors="replace")


@functools.cache
def load() -> Cpupower | None:
    """The library, or None where it is missing or lacks a function. Looked for once."""
    for name in NAMES:
        try:
            return Cpupower(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
    return None
