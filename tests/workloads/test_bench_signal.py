"""The signal's bench: what it feeds, and that it does what it measures."""

import json
from pathlib import Path

from parties.histogram import Histogram
from workloads.bench_signal import BUCKETS, main, thinned


def test_a_thinned_histogram_has_the_same_largest_values() -> None:
    """As many buckets as asked for, no sample lost, the upper percentiles as before; a small one stays as it is."""
    full = Histogram({index: index % 5 + 1 for index in range(1000, 1100)})
    made = thinned(full, 37)
    assert len(made.columns()[0]) == 37
    assert made.count == full.count
    assert [made.percentile(at) for at in (80, 99, 100)] == [full.percentile(at) for at in (80, 99, 100)]
    assert thinned(full, 500) == full


def test_the_bench_measures_each_size_and_writes_its_figures(tmp_path: Path) -> None:
    """A short run: every part took some time, and the file has what was printed."""
    file = tmp_path / "bench.json"
    assert main(["--ticks", "3", "--rounds", "1", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert [cost["buckets"] for cost in result["costs"]] == list(BUCKETS)
    assert all(cost[part] > 0 for cost in result["costs"] for part in ("make_us", "feed_us", "views_us", "decide_us"))
