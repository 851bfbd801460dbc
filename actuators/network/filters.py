"""The filters of our qdisc: which packet belongs to which class."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from actuators.network.classify import load_class_id_program, load_group_program
from actuators.network.device import HANDLE, Device
from actuators.network.tc import (
    ETH_P_ALL,
    ETH_P_IP,
    ETH_P_IPV6,
    ClassIdRule,
    Filter,
    GroupRule,
    PortRule,
    PortTable,
    TrafficControl,
    class_id_rules,
    group_rules,
    handle_text,
    parse_handle,
    port_rules,
    port_table,
    rule_of,
    unpack_filters,
)
from parties.knob import KnobRef

_GROUP_PREFERENCE: Final = 1
_GROUP_PLACE: Final = (_GROUP_PREFERENCE, ETH_P_ALL)
_PORT_PLACES: Final = ((2, ETH_P_IP), (3, ETH_P_IPV6))
"""Preference and protocol of each table of ports."""


class FilterKnob:
    """All filters of our qdisc together: ``port=PORT>CLASS``, ``cgroup=DEPTH/ID>CLASS``, ``net-cls=NUMBER>CLASS``, sorted.

    One knob, because u32's tables belong to the qdisc and not to one filter. A change touches what differs alone, and adds before
    it removes: there is no moment in which a packet that some rule is for, before and after, goes to the class of the rest.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bodies: list[bytes] = []  # as last read, and what they say
        self._text = ""

    @property
    def ref(self) -> KnobRef:
        """Kind "tc-filter": namespace, device, parent handle."""
        return KnobRef("tc-filter", (self._device.namespace, self._device.name, handle_text(HANDLE)))

    def read(self) -> str | None:
        """The rules in force; None where there are none."""
        with self._device.control("read the filters") as control:
            bodies = control.filters(HANDLE)
        if bodies != self._bodies:  # taking them apart costs four times what asking costs, and they seldom change
            self._bodies, self._text = bodies, _filters_text(unpack_filters(bodies))
        return self._text or None

    def write(self, value: str) -> None:
        """Add the rules that are missing, then remove those that are too many."""
        groups, ports, class_ids = parse_filters(value)
        with self._device.changing("set the filters") as control:
            found = unpack_filters(control.filters(HANDLE))
            tables = [_Table(place, port_table(found, *place)) for place in _PORT_PLACES]
            there = {rule_of(one) for one in found}
            _add_group_rules(control, [rule for rule in groups if rule not in there])
            _add_class_id_rules(control, [rule for rule in class_ids if rule not in there])
            if ports and all(table.found.whole for table in tables):
                _change_ports(control, tables, ports)
            else:
                _make_ports(control, tables, ports)
            for one in found:
                if (one.preference, one.protocol) == _GROUP_PLACE and rule_of(one) not in (*groups, *class_ids):
                    control.delete_filter(HANDLE, one)
            for preference, protocol in {(one.preference, one.protocol) for one in found} - {_GROUP_PLACE, *_PORT_PLACES}:
                control.delete_preference(HANDLE, preference, protocol)

    def same(self, wanted: str, found: str | None) -> bool:
        """Exact equality; no rules at all are written as ""."""
        return wanted == (found or "")

    def restore(self, old: str | None) -> None:
        """Remove every filter of our qdisc, or bring back the listed ones."""
        if old is not None:
            self.write(old)
        elif self.read() is not None:
            with self._device.changing("remove the filters") as control:
                control.flush_filters(HANDLE)


def _add_group_rules(control: TrafficControl, rules: Iterable[GroupRule]) -> None:
    for rule in rules:
        with _loaded(load_group_program(rule.depth, rule.group_id)) as program:
            control.add_group_rule(HANDLE, _GROUP_PREFERENCE, rule, program)


def _add_class_id_rules(control: TrafficControl, rules: Iterable[ClassIdRule]) -> None:
    for rule in rules:
        with _loaded(load_class_id_program(rule.number)) as program:
            control.add_class_id_rule(HANDLE, _GROUP_PREFERENCE, rule, program)


@contextmanager
def _loaded(program: int) -> Iterator[int]:
    try:
        yield program
    finally:
        os.close(program)


class _Table(NamedTuple):
    """A table of ports: its preference and protocol, and what was found of it."""

    place: tuple[int, int]
    found: PortTable


def _change_ports(control: TrafficControl, tables: Sequence[_Table], ports: Sequence[PortRule]) -> None:
    for table in tables:
        for rule in ports:
            if rule not in table.found.rules:
                control.add_port_rule(HANDLE, *table.place, rule)
    for one in [one for table in tables for rule, filters in table.found.rules.items() for one in filters if rule not in ports]:
        control.delete_filter(HANDLE, one)


def _make_ports(control: TrafficControl, tables: Sequence[_Table], ports: Sequence[PortRule]) -> None:
    """Both tables or none: what is left of one that somebody damaged only goes when the other goes too."""
    for table in tables:
        if table.found.there:
            control.delete_preference(HANDLE, *table.place)
    for table in tables if ports else ():
        control.add_port_rules(HANDLE, *table.place, ports)


def _filters_text(found: list[Filter]) -> str:
    groups = group_rules(found)
    version4, version6 = (port_rules(found, preference, protocol) for preference, protocol in _PORT_PLACES)
    text = filter_text(groups, version4, class_id_rules(found))
    return text if version4 == version6 else f"{text} but for IPv6 {filter_text((), version6)}"


def filter_text(groups: Iterable[GroupRule], ports: Iterable[PortRule], class_ids: Iterable[ClassIdRule] = ()) -> str:
    """The rules in one line, sorted."""
    words = [f"cgroup={rule.depth}/{rule.group_id}>{handle_text(rule.class_id)}" for rule in groups]
    words += [f"net-cls={rule.number}>{handle_text(rule.class_id)}" for rule in class_ids]
    words += [f"port={rule.port}>{handle_text(rule.class_id)}" for rule in ports]
    return " ".join(sorted(words))


def parse_filters(text: str) -> tuple[list[GroupRule], list[PortRule], list[ClassIdRule]]:
    """The inverse of ``filter_text``. Raises ValueError."""
    groups, ports, class_ids = [], [], []
    for word in text.split():
        matched, _arrow, class_text = word.partition(">")
        kind, _equals, what = matched.partition("=")
        if kind == "port":
            ports.append(PortRule(int(what), parse_handle(class_text)))
        elif kind == "net-cls":
            class_ids.append(ClassIdRule(int(what), parse_handle(class_text)))
        elif kind == "cgroup":
            depth, _slash, group_id = what.partition("/")
            groups.append(GroupRule(int(depth), int(group_id), parse_handle(class_text)))
        else:
            raise ValueError(f"not a filter rule: {word!r}")
    return groups, ports, class_ids
