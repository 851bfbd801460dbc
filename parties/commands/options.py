"""Option types that several subcommands share."""

from __future__ import annotations

import click

from parties.units import DURATION, Quantity, UnitError


class QuantityType(click.ParamType[int]):
    """An option that is a quantity with its unit, as in the configuration: "60s", "1GiB"."""

    def __init__(self, quantity: Quantity) -> None:
        self.quantity = quantity
        self.name = quantity.name.split()[-1]

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The integer in base units; one that was converted already stays."""
        if isinstance(value, int):
            return value
        try:
            return self.quantity.parse(value)
        except UnitError as error:
            self.fail(str(error), param, ctx)


DURATION_TYPE = QuantityType(DURATION)
