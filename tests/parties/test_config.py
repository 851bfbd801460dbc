"""A configuration becomes settings, or one message that names everything wrong with it, where, and what to do."""

# ruff: noqa: E501 - a message is compared as it is printed, in one line

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parties.config import ConfigError, load, parse
from parties.config_schema import Key, all_keys
from parties.settings import (
    Amounts,
    BestEffortSettings,
    ControlSettings,
    CoreDivision,
    CoreSettings,
    DiskSettings,
    MemorySettings,
    NetworkSettings,
    NodeSettings,
    PartiesSettings,
    ServiceSettings,
    SignalSettings,
)

ROOT = Path(__file__).parents[2]

GOOD = """\
version = 1
[node.memory]
total = "8GB"
[[service]]
name = "web"
target = "10ms"
cgroup = "/web"
[[service]]
name = "db"
target = "600us"
cgroups = ["/db", "/db-writer"]
"""

DIVIDED = """\
version = 1
[node.cores]
reserved = "0"
managed = "1"
division = "fractions"
[[service]]
name = "web"
target = "10ms"
cgroup = "/web"
"""


def message(text: str) -> str:
    """The whole message that a text is refused with."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "parties.toml")
    return str(caught.value)


def test_fills_every_setting() -> None:
    """Each table and unit arrives in the field that it is derived from."""
    text = """
        version = 1
        interval = "250ms"
        policy = "equal"
        seed = 7
        absent_grace = "1min"
        runtime_directory = "/run/p"
        state_directory = "/var/p"
        record = "/r"
        [controllers]
        memory = "/mnt/memory"
        [node]
        name = "xeon"
        [node.cores]
        reserved = "0,24"
        managed = "1-23,25-47"
        division = "whole"
        step = "100m"
        floor = "0.2 cores"
        period = "20ms"
        [node.memory]
        total = "64GB"
        step = "2GB"
        [node.disk]
        device = "/dev/sda"
        rate = "500MB/s"
        step = "50MB/s"
        [node.network]
        device = "eth0"
        rate = "10Gbit/s"
        namespace = "ns"
        step = "1Gbit/s"
        [parties]
        upsize_slack = 0.1
        downsize_slack = 0.3
        downsize_block = "10s"
        migrate_after = "2min"
        memory_slack = "2GB"
        network_headroom_low = "1Gbit/s"
        network_headroom_high = "2Gbit/s"
        [signal]
        raw = true
        window = false
        bounds = false
        vote = false
        stalled = false
        sub_intervals = 3
        longest_window = "20s"
        confidence = 0.9
        stale_after = "3s"
        failing_error_rate = 0.2
        [[service]]
        name = "a"
        cgroup = "/a"
        target = "10ms"
        percentile = 95
        home = 1
        port = 80
        stateless = true
        in_memory = false
        minimum = { cores = "2 cores", cache = "2 ways", frequency = "1.2GHz", memory = "2GB", disk = "50MB/s" }
        [service.maximum]
        cores = "4 cores"
        network = "5Gbit/s"
        [[best_effort]]
        name = "b"
        cgroups = ["/b"]
        """
    least = Amounts(2000, 2, 1_200_000_000, 2_000_000_000, 50_000_000)
    most = Amounts(cores_millicores=4000, network_bits_per_s=5_000_000_000)
    service = ServiceSettings(
        "a",
        ("/a",),
        10_000_000,
        95.0,
        1,
        (80,),
        stateless=True,
        in_memory=False,
        minimum=least,
        maximum=most,
    )
    cores = CoreSettings((0, 24), (*range(1, 24), *range(25, 48)), CoreDivision.WHOLE, 100, 200, 20_000_000)
    assert parse(text).settings == ControlSettings(
        services=(service,),
        best_effort=(BestEffortSettings("b", ("/b",)),),
        node=NodeSettings(
            "xeon",
            cores,
            MemorySettings(64_000_000_000, 2_000_000_000),
            DiskSettings("/dev/sda", 500_000_000, 50_000_000),
            NetworkSettings("eth0", 10_000_000_000, "ns", 1_000_000_000),
        ),
        interval_ns=250_000_000,
        policy="equal",
        seed=7,
        parties=PartiesSettings(0.1, 0.3, 10_000_000_000, 120_000_000_000, 2_000_000_000, 1_000_000_000, 2_000_000_000),
        signal=SignalSettings(
            raw=True,
            window=False,
            bounds=False,
            vote=False,
            stalled=False,
            sub_intervals=3,
            longest_window_ns=20_000_000_000,
            confidence=0.9,
            stale_after_ns=3_000_000_000,
            failing_error_rate=0.2,
        ),
        absent_grace_ns=60_000_000_000,
        runtime_directory="/run/p",
        state_directory="/var/p",
        record="/r",
        controllers={"memory": "/mnt/memory"},
    )


def test_an_unmeasured_disk_is_no_mistake() -> None:
    """A rate that the file leaves to be measured cannot be compared with limits, and is not."""
    text = GOOD.replace("[[service]]", '[node.disk]\ndevice = "/dev/sda"\n[[service]]\nminimum.disk = "1GB/s"', 1)
    assert parse(text).settings.node.disk == DiskSettings("/dev/sda")


def test_what_is_left_out_keeps_its_default() -> None:
    """A short file gives the defaults of the settings, which stand in one place only."""
    assert parse(GOOD).settings == ControlSettings(
        services=(ServiceSettings("web", ("/web",), 10_000_000), ServiceSettings("db", ("/db", "/db-writer"), 600_000)),
        node=NodeSettings(memory=MemorySettings(8_000_000_000)),
    )


BAD_VALUES = [
    ("version = 1", "version = 2", "line 1, version: 2 is not known to parties 0.1.0, which reads version 1"),
    ("version = 1", "version = true", "line 1, version: True is not known to parties 0.1.0, which reads version 1"),
    ("version = 1\n", "", "version: is missing; begin the file with version = 1"),
    ("[node", 'intervall = "1s"\n[node', "line 2, intervall: unknown key; did you mean 'interval'?"),
    ("[node", 'target = "1s"\n[node', "line 2, target: unknown key here; it belongs in [[service]]"),
    (
        "[node",
        "[signal]\nxyz = 1\n[node",
        (
            "line 3, signal.xyz: unknown key; known here: bounds, confidence, failing_error_rate, longest_window, raw, stale_after, "
            "stalled, sub_intervals, vote, window"
        ),
    ),
    ('"10ms"', "10", 'line 6, service[0].target (web): 10 has no unit; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)'),
    (
        '"10ms"',
        '"10MB"',
        (
            'line 6, service[0].target (web): "10MB": \'MB\' is no unit of a duration; say "500ms" '
            "(accepted units: ns, us, µs, ms, s, min, h)"
        ),
    ),
    ('"10ms"', '"0ms"', 'line 6, service[0].target (web): "0ms": a duration must be more than zero; say "500ms"'),
    ('target = "10ms"\n', "", 'line 4, service[0].target (web): is missing; add target = "10ms"'),
    ("[node", 'interval = "49ms"\n[node', 'line 2, interval: 49ms is under the shortest, 50ms; say "500ms"'),
    ("[node", "seed = -1\n[node", "line 2, seed: must not be negative: -1"),
    ("[node", "seed = 1.5\n[node", "line 2, seed: must be a whole number, not 1.5"),
    (
        "[node",
        'policy = "partys"\n[node',
        "line 2, policy: there is no policy \"partys\"; did you mean 'parties'? known: equal, idle-only, parties, unmanaged",
    ),
    (
        "[node",
        'state_directory = "var"\n[node',
        'line 2, state_directory: "var" is not an absolute path; say "/run/parties" or the like',
    ),
    (
        "[node",
        f'runtime_directory = "/{"x" * 100}"\n[node',
        (
            "line 2, runtime_directory: the path of the socket histogram.sock in it takes 116 bytes, and a Unix socket's path at most 107; "
            "choose a shorter directory"
        ),
    ),
    (
        '"/db-writer"]',
        '"/web"]',
        'line 11, service[1].cgroups (db): "/web" (db) is the same as "/web" (web); every holder needs control groups of its own',
    ),
    (
        '"/db-writer"]',
        '"/web/db"]',
        'line 11, service[1].cgroups (db): "/web/db" (db) lies inside "/web" (web); every holder needs control groups of its own',
    ),
    (
        '"/web"',
        '"/db/web"',
        'line 11, service[1].cgroups (db): "/db" (db) contains "/db/web" (web); every holder needs control groups of its own',
    ),
    (
        '["/db", "/db-writer"]',
        '["/db"]\n[[best_effort]]\nname = "batch"\ncgroup = "/web/x"',
        'line 14, best_effort[0].cgroup (batch): "/web/x" (batch) lies inside "/web" (web); every holder needs control groups of its own',
    ),
    (
        '"/web"',
        '"web"',
        'line 7, service[0].cgroup (web): "web" is no path below the hierarchy\'s mount point; say "/web" or "/web/nginx"',
    ),
    (
        '"/web"',
        '"/web/../db"',
        'line 7, service[0].cgroup (web): "/web/../db" is no path below the hierarchy\'s mount point; say "/web" or "/web/nginx"',
    ),
    ('"/web"', "[]", 'line 7, service[0].cgroup (web): names no control group; say cgroup = "/web"'),
    (
        '"/web"',
        '"/web"\ncgroups = ["/x"]',
        "line 8, service[0].cgroups (web): is given twice, as cgroups and cgroup; keep one of the two",
    ),
    ('"db"', '"web"', 'line 9, service[1].name (web): "web" is taken by service[0].name; every name is used once'),
    (
        '"db"',
        '"best-effort"',
        'line 9, service[1].name (best-effort): "best-effort" is a word of the program (best-effort, idle, reserved); choose another',
    ),
    (
        '"db"',
        '"d b"',
        'line 9, service[1].name (d b): "d b" is no name; use 1 to 63 letters, digits, ".", "_", "-", a letter or digit first',
    ),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\npercentile = 100',
        "line 8, service[0].percentile (web): must lie between 0 and 100, say 99; not 100.0",
    ),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\npercentile = nan',
        "line 8, service[0].percentile (web): must lie between 0 and 100, say 99; not nan",
    ),
    ('cgroup = "/web"', 'cgroup = "/web"\nport = 65536', "line 8, service[0].port (web): 65536 is no port; say 1 to 65535"),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\nports = ["http"]',
        'line 8, service[0].ports[0] (web): must be a whole number, not "http"',
    ),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\nstateless = "no"',
        'line 8, service[0].stateless (web): must be true or false, not "no"',
    ),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\nminimum.memory = "9GB"',
        (
            "line 8, service[0].minimum.memory (web): 9GB is more than there is, 8GB\n"
            "  line 3, node.memory.total: 8GB cannot give each service its floor (web 9GB, db 1GB; together 10GB); "
            "raise total, lower the step or the minimums, or move a service elsewhere"
        ),
    ),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\nminimum.memory = "3GB"\nmaximum.memory = "2GB"',
        "line 8, service[0].minimum.memory (web): 3GB is more than the maximum, 2GB",
    ),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\nmaximum.memory = "0.5GB"',
        "line 8, service[0].maximum.memory (web): 500MB is less than what every service keeps, 1GB",
    ),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\nminimum.cores = "1 core"',
        "line 8, service[0].minimum.cores (web): has no effect, as cores is not managed; add [node.cores] or take it out",
    ),
    (
        '"8GB"',
        '"1.5GB"',
        (
            "line 3, node.memory.total: 1.5GB cannot give each service its floor (web 1GB, db 1GB; together 2GB); "
            "raise total, lower the step or the minimums, or move a service elsewhere"
        ),
    ),
    ('"8GB"', '"0.5GB"', "line 3, node.memory.total: 500MB is less than one step, 1GB; lower the step"),
    (
        "[[service]]",
        '[node.network]\ndevice = "eth0"\nrate = "0.1Gbit/s"\n[[service]]',
        "line 6, node.network.rate: 100Mbit/s is less than one step, 500Mbit/s; lower the step",
    ),
    (
        "[[service]]",
        '[node.disk]\ndevice = "/dev/sda"\nrate = "10MB/s"\nstep = "20MB/s"\n[[service]]',
        "line 6, node.disk.rate: 10MB/s is less than one step, 20MB/s; lower the step",
    ),
    (
        "[node",
        "[parties]\nupsize_slack = 0.3\n[node",
        "line 3, parties.upsize_slack: 0.3 must be less than downsize_slack, 0.2: between the two nothing moves",
    ),
    (
        "[node",
        "[parties]\ndownsize_slack = 1.0\n[node",
        "line 3, parties.downsize_slack: a slack is a part of the target, from 0 to under 1; not 1.0",
    ),
    (
        "[node",
        '[parties]\nnetwork_headroom_low = "2Gbit/s"\n[node',
        "line 3, parties.network_headroom_low: 2Gbit/s must be less than network_headroom_high, 1Gbit/s",
    ),
    ("[node", "[signal]\nconfidence = 1\n[node", "line 3, signal.confidence: must lie between 0 and 1, say 0.95; not 1.0"),
    (
        "[node",
        "[signal]\nfailing_error_rate = 0\n[node",
        "line 3, signal.failing_error_rate: must lie between 0 and 1, say 0.1; not 0.0",
    ),
    (
        "[node",
        "[signal]\nsub_intervals = 0\n[node",
        "line 3, signal.sub_intervals: 0 of them do not fit an interval of 500ms: say 1 or more, of at least 10ms each",
    ),
    (
        "[node",
        '[signal]\nlongest_window = "100ms"\n[node',
        "line 3, signal.longest_window: 100ms is shorter than the interval, 500ms; the window grows from the interval on",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), BAD_VALUES)
def test_explains_bad_values(old: str, new: str, expected: str) -> None:
    """Each mistake gets exactly this message, with its line."""
    found = message(GOOD.replace(old, new, 1))
    lines = expected.split("\n  ")
    if len(lines) == 1:
        assert found == f"parties.toml: {expected}"
    else:
        assert set(found.splitlines()) == {f"parties.toml: {len(lines)} mistakes", *(f"  {line}" for line in lines)}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('managed = "1"', 'managed = "0-1"', "line 4, node.cores.managed: CPU 0 is reserved as well; a CPU is one or the other"),
        ('reserved = "0"', "reserved = 0", 'line 3, node.cores.reserved: a CPU list is written as a text, not 0; say "0-3,8"'),
        (
            'division = "fractions"',
            'division = "half"',
            'line 5, node.cores.division: must be "auto" or "whole" or "fractions", not "half"',
        ),
        (
            'division = "fractions"',
            'division = "fractions"\nperiod = "5ms"',
            (
                "line 2, node.cores.floor: 100m of a period of 5ms is a quota of 500us, and the kernel refuses a quota under 1ms; "
                'raise the floor, or say period = "10ms"'
            ),
        ),
        (
            '"/web"',
            '["/web", "/web2"]',
            (
                "line 2, node.cores.floor: 100m of a period of 10ms, shared by 2 control groups, is a quota of 500us, and the kernel "
                'refuses a quota under 1ms; raise the floor, or say period = "20ms"'
            ),
        ),
        (
            'division = "fractions"',
            'division = "fractions"\nfloor = "120m"',
            "line 6, node.cores.floor: 120m is not a whole number of steps of 50m",
        ),
        (
            'division = "fractions"',
            'division = "fractions"\nperiod = "2s"',
            "line 6, node.cores.period: 2s is no period of CPU bandwidth that the kernel takes; say 1ms to 1s",
        ),
        (
            'division = "fractions"',
            'division = "fractions"\nperiod = "10.01ms"',
            (
                "line 2, node.cores.step: 50m of a period of 10.01ms is not a whole number of microseconds, which is how the kernel counts; "
                "lengthen the period"
            ),
        ),
        (
            '"/web"',
            '"/web"\nminimum.cores = "1.01 cores"',
            (
                "line 4, node.cores.managed: 1 core cannot give each service its floor (web 1.05 cores; together 1.05 cores); "
                "reserve fewer CPUs, lower the step or the minimums, or move a service elsewhere\n"
                "  line 10, service[0].minimum.cores (web): 1.01 cores is more than there is, 1 core"
            ),
        ),
    ],
)
def test_explains_bad_cores(old: str, new: str, expected: str) -> None:
    """What the kernel would refuse of divided cores is refused here, with the way out."""
    text = DIVIDED.replace(old, new, 1)
    found = message(text)
    lines = expected.split("\n  ")
    head = "parties.toml: " if len(lines) == 1 else "parties.toml: 2 mistakes\n  "
    assert found == head + "\n  ".join(lines)


def test_too_many_services_for_whole_cores() -> None:
    """Services that cannot each have a core of their own are refused where the file names the CPUs."""
    text = DIVIDED.replace("fractions", "whole") + '[[service]]\nname = "db"\ntarget = "1ms"\ncgroup = "/db"\n'
    assert message(text) == (
        "parties.toml: line 4, node.cores.managed: 1 core cannot give each service its floor (web 1 core, db 1 core; together 2 cores); "
        "reserve fewer CPUs, lower the step or the minimums, or move a service elsewhere"
    )


def test_names_all_mistakes_at_once() -> None:
    """Mistakes of every kind come together, in the order of the file, and what only follows from another is left out."""
    text = """
version = 1
interval = 500
polcy = "equal"
[node]
cores = 3
[node.memory]
step = "1GB"
[controllers]
memory = 3
[[service]]
name = "web"
target = "0ms"
cgroup = "/same"
prot = 80
[[service]]
name = "web"
cgroup = "/same"
target = "10ms"
[[best_effort]]
"""
    assert (
        message(text)
        == """\
parties.toml: 11 mistakes
  line 3, interval: 500 has no unit; say "500ms" (accepted units: ns, us, µs, ms, s, min, h)
  line 4, polcy: unknown key; did you mean 'policy'?
  line 6, node.cores: must be a table, not 3; write [node.cores]
  line 7, node.memory.total: is missing; add total = "1GiB"
  line 10, controllers.memory: must be a text in quotes, not 3
  line 13, service[0].target (web): "0ms": a duration must be more than zero; say "500ms"
  line 15, service[0].prot (web): unknown key; did you mean 'port'?
  line 17, service[1].name (web): "web" is taken by service[0].name; every name is used once
  line 18, service[1].cgroup (web): "/same" (web) is the same as "/same" (web); every holder needs control groups of its own
  line 20, best_effort[0].name: is missing; add name = "web"
  line 20, best_effort[0].cgroups: is missing; add cgroup = "/web\""""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('version = 1\nservice = "web"\nnode.memory.total = "1GB"', "line 2, service: is an array of tables; write [[service]]"),
        (
            'version = 1\n[service]\nname = "web"\n[node.memory]\ntotal = "1GB"',
            "line 2, service: is an array of tables; write [[service]]",
        ),
        (
            'version = 1\nservice = []\n[node.memory]\ntotal = "1GB"',
            "line 2, service: there is no service to manage; add [[service]] with name, cgroups, target",
        ),
        (
            'version = 1\n[node.memory]\ntotal = "1GB"',
            "service: is missing; add [[service]] with name, cgroups, target",
        ),
        (
            'version = 1\n[[service]]\nname = "web"\ntarget = "1ms"\ncgroup = "/web"\n',
            "node: nothing is managed; add [node.cores], [node.memory], [node.disk] or [node.network]",
        ),
        ("version = 1\ninterval = = 3", "line 2: is not valid TOML: Invalid value"),
        ("version = 1\n[node", "line 2: is not valid TOML: Expected ']' at the end of a table declaration"),
        ("version = 1\nversion = 2", "line 2: is not valid TOML: Cannot overwrite a value"),
    ],
)
def test_explains_bad_shapes(text: str, expected: str) -> None:
    """A file without the right tables, or that is no TOML, says what to write."""
    assert message(text) == f"parties.toml: {expected}"


def test_explains_files_that_cannot_be_read(tmp_path: Path) -> None:
    """No file, a directory, a binary and a giant each get one line."""
    missing, binary, giant = tmp_path / "missing.toml", tmp_path / "binary", tmp_path / "giant"
    binary.write_bytes(b"version = 1\nname = '\xff'")
    giant.write_bytes(b"#" * ((1 << 20) + 1))
    cases = {
        missing: f"{missing}: cannot be read: No such file or directory; say where it is with -c FILE",
        tmp_path: f"{tmp_path}: cannot be read: Is a directory",
        binary: f"{binary}: line 2: is not UTF-8 text; save it as UTF-8",
        giant: f"{giant}: is larger than 1 MiB; is it a configuration?",
    }
    for file, expected in cases.items():
        with pytest.raises(ConfigError) as caught:
            load(file)
        assert str(caught.value) == expected


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300)
@given(data=st.data())
def test_any_data_is_read_or_explained(data: st.DataObject) -> None:
    """Junk in the place of any key never leads to another exception than a list of mistakes."""
    tables: dict[str, object] = {"version": 1}
    for path, key in data.draw(st.lists(st.sampled_from(sorted(all_keys(), key=repr)), max_size=4)):
        place = tables
        for part in path:
            inner = place.setdefault(part, {})
            place = inner if isinstance(inner, dict) else {}
        place[key.name] = data.draw(JUNK)
    text = "\n".join(f"{name} = {_toml(value)}" for name, value in tables.items())
    try:
        found = parse(text).settings.services
    except ConfigError as error:
        found = error.problems  # type: ignore[assignment]
    assert found


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(name))} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(char if char.isalnum() and char.isascii() else f"\\U{ord(char):08x}" for char in value) + '"'
    return {"True": "true", "False": "false", "None": '""'}.get(str(value), str(value))


@pytest.mark.parametrize("name", ["parties.toml", "two-cores.toml"])
def test_the_examples_are_good(name: str) -> None:
    """Every example loads without a mistake."""
    assert load(ROOT / "configs" / name).settings.services


def test_every_key_is_documented() -> None:
    """Each key of the format has a row in its table's section of the documentation, with its default."""
    sections = _sections((ROOT / "docs/configuration.md").read_text())
    for path, key in all_keys():
        if key.table is None and key.field != "controllers":
            rows = [line for line in sections[".".join(path)].splitlines() if line.startswith(f"| `{key.name}` |")]
            assert len(rows) == 1, (path, key.name)
            assert rows[0].split(" | ")[2] in _defaults(path, key), (path, key.name)
    assert "controllers" in sections


def _defaults(path: tuple[str, ...], key: Key) -> set[str]:
    """What the documentation may say of a key's default."""
    if key.required:
        return {"required"}
    (field,) = (field for field in dataclasses.fields(OWNERS[path]) if field.name == key.field)
    value: object = field.default
    if key.quantity is not None:
        assert isinstance(value, int)
        return {f'`"{key.quantity.format(value)}"`'} if value else {"measured", "no limit", "a twentieth of the rate"}
    if value is None:
        return {"found out"}
    if isinstance(value, tuple):
        return {"`[]`", '`""`'}
    return {
        f'`"{value}"`' if isinstance(value, str) else f"`{str(value).lower()}`",
        f"`{value:g}`" if isinstance(value, float) else "",
    }


OWNERS: dict[tuple[str, ...], type] = {
    (): ControlSettings,
    ("node",): NodeSettings,
    ("node", "cores"): CoreSettings,
    ("node", "memory"): MemorySettings,
    ("node", "disk"): DiskSettings,
    ("node", "network"): NetworkSettings,
    ("signal",): SignalSettings,
    ("parties",): PartiesSettings,
    ("service",): ServiceSettings,
    ("service", "minimum"): Amounts,
    ("service", "maximum"): Amounts,
    ("best_effort",): BestEffortSettings,
}


def _sections(text: str) -> dict[str, str]:
    """The documentation's text by table: the headings name the tables in brackets, "Top level" is the one without."""
    sections: dict[str, str] = {}
    for part in text.split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        sections.update(dict.fromkeys(re.findall(r"\[([a-z_.]+)\]", heading) or [""], body))
    return sections


def test_no_setting_is_declared_twice() -> None:
    """Every field of every settings class is reached by exactly one key."""
    fields = [(path, key.field) for path, key in all_keys()]
    assert len(fields) == len(set(fields))
    assert {key.field for path, key in all_keys() if not path} == {field.name for field in dataclasses.fields(ControlSettings)}
