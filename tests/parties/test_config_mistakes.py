"""Every mistake in a configuration has its message: where, what, and what to do."""

# ruff: noqa: E501 - a message is compared as it is printed, in one line

from __future__ import annotations

import pytest

from parties.config import ConfigError, parse

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
        "line 2, policy: there is no policy \"partys\"; did you mean 'parties'? known: equal, heracles, idle-only, parties, unmanaged",
    ),
    (
        "[node",
        'policy = "oracle"\n[node',
        (
            "line 2, policy: the policy 'oracle' needs a model of the services, which only the simulated node has; "
            "try it with 'parties simulate', or choose another policy"
        ),
    ),
    (
        '[node.memory]\ntotal = "8GB"',
        'policy = "heracles"\n[node.cores]\nmanaged = "0-3"',
        (
            "line 2, policy: heracles manages one service and puts the others into one holder with best effort, which is not done on a "
            "real machine yet; keep one [[service]], choose another policy, or try this one with 'parties simulate'"
        ),
    ),
    (
        'cgroup = "/web"',
        'cgroup = "/web"\npeak_load_rps = -1.0',
        "line 8, service[0].peak_load_rps (web): must be a number of requests per second, not -1.0",
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
    (
        '"/web"',
        "[]",
        'line 7, service[0].cgroup (web): names no control group; say cgroup = "/web", unit = "web.service" or container = "docker:web"',
    ),
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
    (
        '"8GB"',
        '"8GB"\nbest_effort_minimum = "1GB"',
        "line 4, node.memory.best_effort_minimum: has no effect, as there are no best-effort jobs; add [[best_effort]] or take it out",
    ),
    (
        '"8GB"\n',
        '"8GB"\nbest_effort_minimum = "6.5GB"\n[[best_effort]]\nname = "batch"\ncgroup = "/batch"\n',
        (
            "line 3, node.memory.total: 8GB cannot give each service its floor (web 1GB, db 1GB, best effort 7GB; together 9GB); "
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
  line 20, best_effort[0].cgroups: names no control group; say cgroup = "/web", unit = "web.service" or container = "docker:web\""""
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
            "service: is missing; add [[service]] with name, target",
        ),
        (
            'version = 1\n[[service]]\nname = "web"\ntarget = "1ms"\ncgroup = "/web"\n',
            "node: nothing is managed; add [node.cores], [node.cache], [node.frequency], [node.memory], [node.disk] or [node.network]",
        ),
        ("version = 1\ninterval = = 3", "line 2: is not valid TOML: Invalid value"),
        ("version = 1\n[node", "line 2: is not valid TOML: Expected ']' at the end of a table declaration"),
        ("version = 1\nversion = 2", "line 2: is not valid TOML: Cannot overwrite a value"),
    ],
)
def test_explains_bad_shapes(text: str, expected: str) -> None:
    """A file without the right tables, or that is no TOML, says what to write."""
    assert message(text) == f"parties.toml: {expected}"


def test_heracles_says_which_tables_have_no_effect() -> None:
    """It partitions neither memory nor disk, so that a table for either would be ignored; without them one service is good."""
    one = DIVIDED.replace("version = 1", 'version = 1\npolicy = "heracles"')
    assert parse(one).settings.policy == "heracles"
    tables = '[node.memory]\ntotal = "8GB"\n[node.disk]\ndevice = "/dev/sda"\n[[service]]'
    text = message(one.replace("[[service]]", tables))
    assert "line 7, node.memory: has no effect, as heracles partitions neither memory nor disk; take it out" in text
    assert "line 9, node.disk: has no effect, as heracles partitions neither memory nor disk; take it out" in text


@pytest.mark.parametrize("cores", ["", "[node.cores]\n", '[node.cores]\nreserved = ""\n'])
@pytest.mark.parametrize("key", ["processes", "kernel_threads", "interrupts"])
def test_the_rest_needs_reserved_cpus(key: str, cores: str) -> None:
    """Without them there is no place to keep it; with them all is well."""
    text = GOOD.replace("[node.memory]", f"[rest]\n{key} = true\n{cores}[node.memory]")
    assert f"rest.{key}: there are no reserved CPUs to keep the rest of the machine on; name some in [node.cores]" in message(text)
    good = GOOD.replace("[node.memory]", f'[rest]\n{key} = true\n[node.cores]\nreserved = "0"\n[node.memory]')
    assert getattr(parse(good, "parties.toml").settings.rest, key) is True
