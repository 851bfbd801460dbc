"""A configuration becomes settings, or one message that names everything wrong with it, where, and what to do."""

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
    CacheMechanism,
    CacheSettings,
    ControlSettings,
    CoreDivision,
    CoreSettings,
    DiskSettings,
    ExitPolicy,
    ExitSettings,
    ForeignAction,
    ForeignSettings,
    FrequencyMechanism,
    FrequencySettings,
    MemorySettings,
    NetworkSettings,
    NodeSettings,
    PartiesSettings,
    RestSettings,
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
        [node.cache]
        mechanism = "resctrl"
        reserved = "2 ways"
        mount = "/sys/fs/resctrl"
        [node.frequency]
        mechanism = "cap"
        step = "50MHz"
        turbo = false
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
        [rest]
        processes = true
        kernel_threads = true
        interrupts = true
        [exit]
        cores = "hold"
        rest = "safe"
        [foreign]
        action = "yield"
        first = "2s"
        most = 5
        window = "30s"
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
        units = ["a.service", "a-worker.service"]
        container = "docker:a"
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
        10_000_000,
        ("/a",),
        ("a.service", "a-worker.service"),
        ("docker:a",),
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
            CacheSettings(CacheMechanism.RESCTRL, 2, "/sys/fs/resctrl"),
            FrequencySettings(FrequencyMechanism.CAP, 50_000_000, turbo=False),
            MemorySettings(64_000_000_000, 2_000_000_000),
            DiskSettings("/dev/sda", 500_000_000, 50_000_000),
            NetworkSettings("eth0", 10_000_000_000, "ns", 1_000_000_000),
        ),
        rest=RestSettings(processes=True, kernel_threads=True, interrupts=True),
        exit=ExitSettings(cores=ExitPolicy.HOLD, rest=ExitPolicy.SAFE),
        foreign=ForeignSettings(ForeignAction.YIELD, 2_000_000_000, 5, 30_000_000_000),
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
        services=(ServiceSettings("web", 10_000_000, ("/web",)), ServiceSettings("db", 600_000, ("/db", "/db-writer"))),
        node=NodeSettings(memory=MemorySettings(8_000_000_000)),
    )


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
    ("node", "cache"): CacheSettings,
    ("node", "frequency"): FrequencySettings,
    ("node", "memory"): MemorySettings,
    ("node", "disk"): DiskSettings,
    ("node", "network"): NetworkSettings,
    ("rest",): RestSettings,
    ("exit",): ExitSettings,
    ("foreign",): ForeignSettings,
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
