"""Network bandwidth: a threshold resource with a rule of its own, for every service in every interval (section 4.3).

Headroom is what a service may send less what it sends. Too little and it gets a step; more than enough and it gives one. A step
comes from idle, then from best-effort jobs, and never from another service: a service with more than enough gives by this same
rule, and what it gives can be had an interval later, so that no move leans on another of the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence

from parties.model import BEST_EFFORT, IDLE, Holder, Move, Node, Pool, Reason, Resource, Service, ServiceState
from parties.policies.exchange import Exchange
from parties.settings import PartiesSettings

_NETWORK, _ABSENT = Resource.NETWORK, ServiceState.ABSENT  # reading them there costs as much as a call


def network_moves(services: Sequence[Service], exchange: Exchange, settings: PartiesSettings) -> tuple[Move, ...]:
    """The network moves of an interval, at most one step for each service. A service whose use is unknown keeps what it has."""
    moves: list[Move] = []
    for service in services:
        pool = exchange.open_pool(_NETWORK, service)
        use = exchange.usage(service).network_bits_per_s
        if pool is None or use is None or exchange.state(service) is _ABSENT:
            continue
        amount = exchange.amount(pool, service.name)
        headroom = amount - use
        if headroom < settings.network_headroom_low_bits_per_s and amount + pool.step <= service.ceiling(pool):
            giver = _giver(pool, exchange, moves)
            if giver is not None:
                moves.append(exchange.move(pool, giver, service.name, Reason.NETWORK_HEADROOM_LOW))
        elif headroom > settings.network_headroom_high_bits_per_s and amount - pool.step >= service.floor(pool):
            moves.append(exchange.move(pool, service.name, exchange.recipient, Reason.NETWORK_HEADROOM_HIGH))
    return tuple(moves)


def check_network(node: Node, settings: PartiesSettings) -> None:
    """Raise ValueError where the two thresholds lie so close that a step would go to and fro for ever."""
    gap = settings.network_headroom_high_bits_per_s - settings.network_headroom_low_bits_per_s
    for pool in node.managed_pools():
        if pool.key.resource is Resource.NETWORK and gap < pool.step:
            raise ValueError(
                f"network_headroom_high_bits_per_s must exceed network_headroom_low_bits_per_s by at least the network's step, "
                f"{pool.step} bits/s, or a step would go to and fro; they are {gap} apart"
            )


def _giver(pool: Pool, exchange: Exchange, moves: Sequence[Move]) -> Holder | None:
    for holder in (IDLE, BEST_EFFORT):
        promised = sum(move.amount for move in moves if move.pool == pool.key and move.giver == holder)
        if exchange.spare(pool, holder) - promised >= pool.step:
            return holder
    return None
