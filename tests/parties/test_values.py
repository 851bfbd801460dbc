"""How values that are made in every interval behave: as frozen ones to whoever uses them properly."""

import dataclasses
import pickle

from parties.model import IDLE, Move, Partition, PoolKey, Reason, Resource, Usage

CORES, DISK = PoolKey(Resource.CORES, 0), PoolKey(Resource.DISK)
MOVE = Move(1, CORES, IDLE, "web", 50, Reason.UPSIZE_FROM_IDLE)


def test_values_are_equal_hash_alike_and_are_changed_by_copying() -> None:
    """What policies and the record rely on: a move is found in a mapping by its contents, and a changed one is another."""
    again = Move(1, CORES, IDLE, "web", 50, Reason.UPSIZE_FROM_IDLE)
    other = dataclasses.replace(again, amount=100)
    assert {MOVE: 1}[again] == 1
    assert (other.amount, again.amount) == (100, 50)
    assert other != again
    assert pickle.loads(pickle.dumps(other)) == other  # noqa: S301 - made here


def test_values_have_only_their_fields() -> None:
    """A misspelt one is not made on the fly."""
    assert not hasattr(Usage(), "__dict__")


def test_a_partition_is_left_alone_by_what_comes_after_it() -> None:
    """Also by two moves of one pool; the pools that nothing moves in are the same ones."""
    before = Partition({CORES: {IDLE: 100, "web": 50}, DISK: {IDLE: 9}})
    after = before.after([MOVE, dataclasses.replace(MOVE, taker="db")])
    assert before == Partition({CORES: {IDLE: 100, "web": 50}, DISK: {IDLE: 9}})
    assert after.amounts[CORES] == {IDLE: 0, "web": 100, "db": 50}
    assert after.amounts[DISK] is before.amounts[DISK]
