"""Nodes, services and jobs as files: what ships loads, and every mistake is told at once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from parties.config import ConfigError
from parties.config_schema import keys_of
from simulator.library import CONFIGS, UnknownProfileError, job_model, names, node_profile, service_model
from simulator.machine import Machine
from simulator.profile import JobModel, NodeProfile, ServiceModel

NODE_FILE = CONFIGS / "nodes" / "e5-2699v4.toml"
SERVICE_FILE = CONFIGS / "services" / "xapian.toml"
JOB_FILE = CONFIGS / "jobs" / "compute-and-memory.toml"


def written(folder: Path, source: Path, *changes: tuple[str, str]) -> Path:
    """A copy of a file with lines changed, each by the key that it begins with; without a value the line is left out."""
    lines = []
    for line in source.read_text(encoding="utf-8").splitlines():
        key = line.split(" = ")[0]
        value = dict(changes).get(key)
        if value != "":
            lines.append(line if value is None else f"{key} = {value}")
    copy = folder / source.name
    copy.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return copy


def line_of(file: Path, key: str) -> int:
    """The number of the line that sets a key."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(f"{key} = "))


def test_everything_that_ships_loads() -> None:
    """The two nodes, the paper's six services and its job load; the file's name is the name; all services run on both nodes."""
    assert names("service") == ["memcached", "mongodb", "moses", "nginx", "sphinx", "xapian"]
    assert len(names("node")) >= 2
    tenants = {name: service_model(name) for name in names("service")}
    assert {model.name for model in tenants.values()} == set(tenants)
    for name in names("job"):
        assert job_model(name).name == name
    for name in names("node"):
        assert node_profile(name).name == name
        Machine(node_profile(name), tenants, job_model("compute-and-memory"))


def test_the_papers_node() -> None:
    """What Table 1 and section 5 say of the server is what its file says."""
    node = node_profile("e5-2699v4")
    assert (node.cores, node.cache_ways, node.memory_bytes) == (14, 20, 120_000_000_000)
    assert node.levels_hz == tuple(range(1_200_000_000, 2_200_000_001, 100_000_000))
    assert (node.turbo_hz[0], node.turbo_hz[-1], len(node.turbo_hz)) == (3_600_000_000, 2_800_000_000, 8)
    assert (node.memory_bandwidth_bytes_per_s, node.network_bits_per_s) == (50_000_000_000, 10_000_000_000)
    assert node.power_milliwatts == 145_000


@pytest.mark.parametrize("profile", [NodeProfile, ServiceModel, JobModel])
def test_every_key_is_documented(profile: type) -> None:
    """docs/simulator.md names every key of every kind of file."""
    text = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")
    assert [key.name for key in keys_of(profile) if f"`{key.name}`" not in text] == []


def test_a_path_is_a_file_and_a_name_is_not(tmp_path: Path) -> None:
    """A file of one's own is read by its path, as text or Path."""
    mine = written(tmp_path, SERVICE_FILE, ("name", '"search"'), ("target", '"7ms"'))
    assert service_model(mine).name == "search"
    assert service_model(str(mine)).target_ns == 7_000_000


@pytest.mark.parametrize(
    ("load", "name", "message"),
    [
        (node_profile, "e5-2699v3", 'there is no node "e5-2699v3"; did you mean e5-2699v4?'),
        (service_model, "memcache", 'there is no service "memcache"; did you mean memcached?'),
        (service_model, "zzz", 'there is no service "zzz"; known: memcached, mongodb, moses, nginx, sphinx, xapian'),
        (job_model, "compute", 'there is no job "compute"'),
    ],
)
def test_unknown_names(load: object, name: str, message: str) -> None:
    """An unknown name is told with the nearest ones, or with all."""
    with pytest.raises(UnknownProfileError) as caught:
        load(name)  # type: ignore[operator]
    assert str(caught.value).startswith(message)


def test_absent_file(tmp_path: Path) -> None:
    """A path that is not there is one message with the path."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        node_profile(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cores", "0", "must be from 1 to 4096, not 0"),
        ("cores", '"many"', 'must be a whole number, not "many"'),
        ("cache", '"0 ways"', "an amount of cache must be more than zero"),
        ("cache_size", "55", "55 has no unit"),
        ("memory", '"-120GB"', "a size must be more than zero"),
        ("levels", "[]", "is empty; say what there is"),
        ("levels", '["2GHz", "1.9GHz"]', "must ascend, each once"),
        ("levels", '["2GHz", "2GHz"]', "must ascend, each once"),
        ("levels", '["2GHz", "fast"]', 'cannot read "fast" as a frequency'),
        ("turbo", "[]", "is empty; say what there is"),
        ("turbo", '["3GHz", "3.1GHz"]', "must not rise with the number of active cores"),
        ("turbo", '["2.2GHz"]', "begins at 2.2 GHz, which must be more than the highest level 2.2 GHz"),
        ("turbo", '["3GHz", "2GHz"]', "falls to 2 GHz, under the highest level 2.2 GHz"),
        ("memory_step", '"7GB"', "does not divide memory: 120000000000 is no multiple of 7000000000"),
        ("network_step", '"3Gbit/s"', "does not divide network"),
        ("disk", '"9000001B/s"', "is not a multiple of 20 bytes/s; say disk_step"),
        ("cache_classes", "0", "must be at least 1, not 0"),
        ("power_milliwatts", "0", "must be more than zero, not 0"),
        ("base_milliwatts", "145000", "leaves nothing of power_milliwatts = 145000"),
        ("memory_latency_rise", "-1", "must not be negative, not -1"),
        ("name", "", "is missing; add name"),
    ],
)
def test_impossible_nodes(tmp_path: Path, key: str, value: str, message: str) -> None:
    """Each mistake is one message with file, line and key."""
    file = written(tmp_path, NODE_FILE, (key, value))
    with pytest.raises(ConfigError) as caught:
        node_profile(file)
    assert len(caught.value.problems) == 1
    problem = caught.value.problems[0]
    assert problem.path.startswith(key)
    assert message in problem.message
    assert problem.line == (line_of(file, key) if value else None)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("max_load_rps", "0", "must be more than zero, not 0"),
        ("percentile", "40.0", "must be from 50 to 99.99, not 40"),
        ("target", '"0ms"', "a duration must be more than zero"),
        ("sibling_slowdown", "0.9", "must be at least 1"),
        ("miss_floor", "1.5", "is a fraction from 0 to 1, not 1.5"),
        ("working_set_idle", "-0.1", "is a fraction from 0 to 1, not -0.1"),
        ("service_scv", "-1", "must not be negative, not -1"),
        ("service_scv", '"high"', 'must be a number, not "high"'),
    ],
)
def test_impossible_services(tmp_path: Path, key: str, value: str, message: str) -> None:
    """As for nodes."""
    text = SERVICE_FILE.read_text(encoding="utf-8")
    source = tmp_path / "source.toml"
    source.write_text(text if f"\n{key} = " in text else f"{text}{key} = 1\n", encoding="utf-8")
    file = written(tmp_path / ".", source, (key, value))
    with pytest.raises(ConfigError) as caught:
        service_model(file)
    assert [(problem.path, problem.line) for problem in caught.value.problems] == [(key, line_of(file, key))]
    assert message in caught.value.problems[0].message


def test_impossible_job(tmp_path: Path) -> None:
    """A job without threads is none."""
    file = written(tmp_path, JOB_FILE, ("compute_threads", "0"), ("memory_threads", "0"))
    with pytest.raises(ConfigError, match="a job has at least one thread"):
        job_model(file)


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    """Mistakes of single values, between values, and unknown keys come in one message, in the order of lines."""
    file = written(tmp_path, NODE_FILE, ("cores", "0"), ("memory", "120"), ("turbo", '["2GHz"]'), ("name", '"x"\ncolour = 3'))
    with pytest.raises(ConfigError) as caught:
        node_profile(file)
    assert [problem.path for problem in caught.value.problems] == ["colour", "cores", "turbo", "turbo", "memory"]
    assert caught.value.problems[0].message.startswith("unknown key; known here: base_milliwatts")
    assert str(caught.value).startswith(f"{file}: 5 mistakes\n")
