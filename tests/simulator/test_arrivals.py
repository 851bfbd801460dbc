"""What is drawn ahead: streams by name, blocks that hang on seed, tenant and load alone, order statistics at key ranks."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from parties.histogram import rank_of
from simulator.arrivals import (
    BLOCK_TICKS,
    KEYS,
    LISTED_REQUESTS,
    SUB_INTERVALS,
    ListedBlock,
    SampledBlock,
    Streams,
    Trace,
    key_ranks,
    order_statistics,
)
from simulator.load_profile import LoadProfile
from simulator.queueing import GRID

INTERVAL_S = 0.5


def trace(
    rate_rps: float, tenant: str = "web", seed: int = 1, profile: LoadProfile | None = None, percentile: float = 99.0
) -> Trace:
    return Trace(
        tenant,
        profile or LoadProfile.steady(0.5),
        max_load_rps=2 * rate_rps,
        percentile=percentile,
        streams=Streams(seed),
        interval_s=INTERVAL_S,
    )


def sampled(made: Trace, number: int = 0) -> SampledBlock:
    block = made.block(number)
    assert isinstance(block, SampledBlock)
    return block


def listed(made: Trace, number: int = 0) -> ListedBlock:
    block = made.block(number)
    assert isinstance(block, ListedBlock)
    return block


def test_streams_hang_on_seed_and_name_alone() -> None:
    """The same name gives the same numbers whatever was drawn before; another name or seed gives others."""
    streams = Streams(5)
    streams.generator("other").random(7)
    first = streams.generator("a", "b").random(4).tolist()
    assert first == Streams(5).generator("a", "b").random(4).tolist()
    assert first != streams.generator("a", "c").random(4).tolist()
    assert first != streams.generator("ab").random(4).tolist()
    assert first != Streams(6).generator("a", "b").random(4).tolist()


def test_streams_are_the_same_in_another_process() -> None:
    """A name is not hashed with the process's own salt."""
    program = "from simulator.arrivals import Streams; print(Streams(5).generator('a', 3).integers(1 << 60))"
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": salt, "PYTHONPATH": "."},
        ).stdout
        for salt in ("1", "2")
    ]
    assert printed == [f"{Streams(5).generator('a', 3).integers(1 << 60)}\n"] * 2


@pytest.mark.parametrize("rate_rps", [20.0, 400.0, 50_000.0])
def test_the_same_trace_has_the_same_blocks_in_any_order(rate_rps: float) -> None:
    """A block is a function of its number: asking for others first changes no byte of it."""
    forward, backward = trace(rate_rps), trace(rate_rps)
    blocks = [forward.block(number) for number in (0, 1, 2)]
    again = [backward.block(number) for number in (2, 1, 0)][::-1]
    for one, other in zip(blocks, again, strict=True):
        for name in type(one).__slots__:
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


def test_tenants_and_blocks_are_independent() -> None:
    """Arrivals of two tenants, and of two blocks of one, are uncorrelated though seed and load are the same."""
    web, mail = sampled(trace(50_000.0)), sampled(trace(50_000.0, "mail"))
    following = sampled(trace(50_000.0), 1)
    for other in (mail, following):
        assert abs(np.corrcoef(web.counts.ravel(), other.counts.ravel())[0, 1]) < 0.2
        assert abs(np.corrcoef(web.positions[..., -1].ravel(), other.positions[..., -1].ravel())[0, 1]) < 0.2


def test_counts_are_poisson_of_the_load() -> None:
    """Mean and variance of the requests in a window are what the load says, in every engine."""
    busy = np.concatenate([sampled(trace(2_000.0), number).counts.ravel() for number in range(8)])
    assert busy.mean() == pytest.approx(200, rel=0.01)
    assert busy.var() == pytest.approx(200, rel=0.1)
    few = np.concatenate([np.diff(listed(trace(20.0), number).first) for number in range(16)])
    assert few.mean() == pytest.approx(10, rel=0.05)
    assert few.var() == pytest.approx(10, rel=0.2)


def test_the_load_decides_how_a_tenant_is_simulated() -> None:
    """Few requests are listed one by one; more come in a window per interval; many in one per sub-interval."""
    assert isinstance(trace(LISTED_REQUESTS / INTERVAL_S).block(0), ListedBlock)
    assert sampled(trace(LISTED_REQUESTS / INTERVAL_S * 1.01)).counts.shape == (BLOCK_TICKS, 1)
    assert sampled(trace(590.0)).counts.shape == (BLOCK_TICKS, 1)
    assert sampled(trace(610.0)).counts.shape == (BLOCK_TICKS, SUB_INTERVALS)
    assert sampled(trace(610.0, percentile=99.9)).counts.shape == (BLOCK_TICKS, 1)
    assert isinstance(trace(0.0).block(0), ListedBlock)


def test_a_changing_load_is_followed_window_by_window() -> None:
    """Expected rates are the profile's means over each sub-interval, a jump within one included, and go on in the next block."""
    profile = LoadProfile(((0.0, 0.1), (10.0, 0.1), (20.0, 0.6), (25.25, 0.6), (25.25, 0.2)))
    made = trace(50_000.0, profile=profile)
    rates = sampled(made).rates_rps.ravel() / 100_000.0
    assert rates[:100] == pytest.approx(0.1)
    assert rates[150] == pytest.approx(0.1 + 0.5 * 5.05 / 10)
    assert rates[252] == pytest.approx(0.4)  # the jump is in its middle
    assert rates[253:] == pytest.approx(0.2)
    assert sampled(made, 1).rates_rps == pytest.approx(0.2 * 100_000.0)


def test_listed_requests_are_in_order_and_in_their_interval() -> None:
    """Arrivals ascend, lie in the interval that counts them, and are uniform within it; demands are uniform."""
    block = listed(trace(40.0))
    ticks = np.repeat(np.arange(BLOCK_TICKS), np.diff(block.first))
    assert np.all(np.diff(block.arrivals_s) >= 0)
    assert np.array_equal(np.floor(block.arrivals_s / INTERVAL_S), ticks)
    assert stats.kstest(block.arrivals_s / INTERVAL_S - ticks, "uniform").pvalue > 0.01
    assert stats.kstest(block.demands.ravel(), "uniform").pvalue > 0.01
    assert len(block.demands) == block.first[-1]


@given(st.integers(0, 200_000), st.sampled_from([50.0, 90.0, 95.0, 99.0, 99.9]))
def test_key_ranks_are_ranks_and_the_percentile_is_one(count: int, percentile: float) -> None:
    """Ranks ascend within 1..n, begin with the largest sample, and have the nearest rank; of few samples every one is there."""
    ranks = key_ranks(np.array([count]), percentile)[:, 0].tolist()
    assert len(ranks) == KEYS
    assert ranks == sorted(ranks)
    assert ranks[0] == 1
    assert ranks[-1] <= max(count, 1)
    if count:
        assert count + 1 - rank_of(percentile, count) in ranks
    if 0 < count <= KEYS:
        assert set(ranks) == set(range(1, count + 1))


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=8), st.integers(0, 1000))
def test_every_sample_stands_under_one_key(counts: list[int], seed: int) -> None:
    """Cumulated counts ascend to the number of samples, each rank lies among those that it stands for, and positions ascend."""
    positions, cumulated = order_statistics(np.random.default_rng(seed), np.array(counts), 99.0)
    ranks = (np.array(counts) + 1 - key_ranks(np.array(counts), 99.0)[::-1]).T
    before = np.concatenate((np.zeros((len(counts), 1)), cumulated[:, :-1]), axis=1)
    assert np.array_equal(cumulated[:, -1], counts)
    assert np.all(np.diff(cumulated, axis=1) >= 0)
    assert np.all((ranks <= cumulated) | (ranks == 0))
    again = np.diff(ranks, axis=1, prepend=-1) == 0  # the same sample as the key before it
    assert np.all((before < ranks) | again | (ranks == 0))
    assert np.all(np.diff(positions, axis=1) >= 0)
    assert np.all(positions >= 0)


@pytest.mark.parametrize("count", [1, 9, 60, 800, 50_000])
def test_order_statistics_have_their_beta_distributions(count: int) -> None:
    """The sample of rank r of n is beta(r, n + 1 - r), for every key; and two keys are as correlated as they have to be."""
    windows = np.full(3_000, count)
    positions, _ = order_statistics(np.random.default_rng(3), windows, 99.0)
    ranks = count + 1 - key_ranks(windows[:1], 99.0)[::-1, 0]
    uniform = np.interp(positions, np.arange(len(GRID)), np.log10(1 - GRID))
    above = 10.0**uniform
    for key in range(0, KEYS, 3):
        rank = int(ranks[key])
        assert stats.kstest(above[:, key], stats.beta(count + 1 - rank, rank).cdf).pvalue > 0.001
    low, high = int(ranks[KEYS // 2]), int(ranks[-1])
    if low < high:
        expected = np.sqrt(low * (count + 1 - high) / (high * (count + 1 - low)))
        assert np.corrcoef(above[:, KEYS // 2], above[:, -1])[0, 1] == pytest.approx(expected, abs=0.06)
