"""A pool that a partition does not name is nobody's to hold: no sum to keep, and no limit to write."""

from __future__ import annotations

import pytest

from actuators.holders import changes
from parties.model import BEST_EFFORT, Core, Domain, InvariantError, Node, Partition, Pool, PoolKey, QosTarget, Resource, Service
from parties.placement import place

CORES, MEMORY = PoolKey(Resource.CORES, 0), PoolKey(Resource.MEMORY)
NODE = Node(
    "small",
    (Domain(0, (Core(0, (0,)), Core(1, (1,)))),),
    {CORES: Pool(CORES, total=2000, step=1000, floor=1000), MEMORY: Pool(MEMORY, total=8, step=1, floor=1)},
)
WEB = Service("web", QosTarget(10))
PARTITION = Partition({CORES: {"web": 1000, BEST_EFFORT: 1000}})


def test_a_pool_that_is_not_named_has_no_sum_to_keep() -> None:
    """Only that one: what is named has to add up, and to leave every service a step."""
    PARTITION.check(NODE, [WEB])
    with pytest.raises(InvariantError, match="adds up"):
        Partition({CORES: PARTITION.amounts[CORES], MEMORY: {"web": 7}}).check(NODE, [WEB])
    with pytest.raises(InvariantError, match="adds up"):
        Partition({CORES: PARTITION.amounts[CORES], MEMORY: {}}).check(NODE, [WEB])


def test_nothing_is_written_for_it() -> None:
    """Not even at the start, where every other holder is written: a limit of 0 would kill what is in memory."""
    placement = place(NODE, PARTITION, None)
    assert list(changes(["web", BEST_EFFORT], MEMORY, placement, None)) == []
    assert len(list(changes(["web", BEST_EFFORT], CORES, placement, None))) == 2
