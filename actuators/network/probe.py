"""What this kernel has for shaping egress, found by trying it where nobody is concerned: on the ``lo`` of a namespace of our own.

Asking is the only way: schedulers and classifiers are loaded when first used, and no file lists them. The namespace holds nothing
and vanishes with the socket. It costs a few milliseconds, once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from actuators.network.classify import load_group_program
from actuators.network.netlink import RouteSocket
from actuators.network.tc import ETH_P_IP, GroupRule, HtbClass, PortRule, TrafficControl

_ROOT = 0x00010000
_CLASS = _ROOT | 1
_SETTINGS = HtbClass(_ROOT, 125_000, 125_000, 1_000, 1_000, 60_000, 0)


@dataclass(frozen=True, slots=True)
class KernelSupport:
    """Why each part is missing; "" where it works. Where trying was not permitted all are taken to work, and a write will tell."""

    htb: str = ""
    ports: str = ""  # the u32 classifier
    groups: str = ""  # the bpf classifier


def kernel_support() -> KernelSupport:
    """Try HTB, u32 and bpf."""
    try:
        route = RouteSocket.in_new_namespace()
    except OSError:
        return KernelSupport()
    with closing(route):
        control = TrafficControl(route, route.interface_index("lo"))
        htb = _missing(lambda: _try_htb(control))
        if htb:
            return KernelSupport(htb, htb, htb)
        ports = _missing(lambda: control.add_port_rules(_ROOT, 2, ETH_P_IP, (PortRule(1, _CLASS),)))
        return KernelSupport("", ports, _missing(lambda: _try_groups(control)))


def _try_htb(control: TrafficControl) -> None:
    control.add_htb(_ROOT, _CLASS)
    control.set_class(_CLASS, _SETTINGS)


def _try_groups(control: TrafficControl) -> None:
    program = load_group_program(1, 1)
    try:
        control.add_group_rule(_ROOT, 1, GroupRule(1, 1, _CLASS), program)
    finally:
        os.close(program)


def _missing(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except OSError as error:
        return error.strerror or os.strerror(error.errno or errno.EIO)
    return ""
