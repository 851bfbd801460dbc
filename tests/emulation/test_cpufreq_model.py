import errno
from typing import Any

import pytest

from tests.emulation.cpufreq_model import CpufreqModel
from tests.emulation.cpufreq_policy import CpufreqOptions

P0 = "/cpufreq/policy0"


def tree(**options: Any) -> CpufreqModel:  # noqa: ANN401 (the options' own)
    return CpufreqModel(CpufreqOptions(**options))


def value(model: CpufreqModel, name: str, policy: str = P0) -> str:
    return model.read(f"{policy}/{name}").strip()


def refused(model: CpufreqModel, path: str, text: str) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is what matters)
        model.write(path, text)
    return caught.value.errno


@pytest.mark.parametrize(
    ("written", "found"), [("1500000", "1500000"), ("1444000", "1500000"), ("1", "1200000"), ("9999999", "2201000")]
)
def test_setspeed_rounds_up_to_the_table(written: str, found: str) -> None:
    """acpi-cpufreq's userspace governor takes the lowest step that is not below, within the limits."""
    model = tree()
    model.write(f"{P0}/scaling_governor", "userspace\n")
    model.write(f"{P0}/scaling_setspeed", written)
    assert value(model, "scaling_setspeed") == found
    assert value(model, "cpuinfo_cur_freq") == found


@pytest.mark.parametrize("driver", ["acpi-cpufreq", "intel_pstate", "intel_cpufreq", "amd-pstate", "amd-pstate-epp"])
def test_setspeed_belongs_to_userspace(driver: str) -> None:
    """Under every other governor it reads <unsupported> and refuses to be written."""
    model = tree(driver=driver)
    assert value(model, "scaling_setspeed") == "<unsupported>"
    assert refused(model, f"{P0}/scaling_setspeed", "1500000") == errno.EINVAL


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp"])
def test_drivers_that_choose_have_two_governors(driver: str) -> None:
    """They take performance and powersave only."""
    model = tree(driver=driver)
    assert value(model, "scaling_available_governors") == "performance powersave"
    assert refused(model, f"{P0}/scaling_governor", "userspace\n") == errno.EINVAL
    model.write(f"{P0}/scaling_governor", "performance\n")
    assert value(model, "scaling_governor") == "performance"


def test_an_unknown_governor_is_refused() -> None:
    """Also one that this kernel was built without."""
    model = tree(governors=["performance", "schedutil"])
    assert refused(model, f"{P0}/scaling_governor", "userspace\n") == errno.EINVAL
    assert refused(model, f"{P0}/scaling_governor", "\n") == errno.EINVAL
    assert value(model, "scaling_governor") == "schedutil"


@pytest.mark.parametrize(
    ("driver", "written", "found"),
    [
        ("acpi-cpufreq", "1444000", "1400000"),  # down to the table
        ("acpi-cpufreq", "1", "1200000"),
        ("intel_pstate", "1444000", "1444000"),
        ("intel_pstate", "9999999", "3000000"),
        ("intel_pstate", "0", "1200000"),
        ("amd-pstate", "1444000", "1444000"),
    ],
)
def test_the_cap_is_clamped(driver: str, written: str, found: str) -> None:
    """A cap is taken, clamped to the hardware's limits and to a table where there is one; the frequency follows it."""
    model = tree(driver=driver)
    model.write(f"{P0}/scaling_max_freq", written)
    assert value(model, "scaling_max_freq") == found
    assert int(value(model, "scaling_cur_freq")) == int(found)


def test_the_cap_wins_over_the_floor() -> None:
    """A floor above the cap is lowered to it, and returns when the cap does."""
    model = tree(driver="intel_pstate")
    model.write(f"{P0}/scaling_min_freq", "2000000")
    model.write(f"{P0}/scaling_max_freq", "1500000")
    assert value(model, "scaling_min_freq") == "1500000"
    model.write(f"{P0}/scaling_max_freq", "2500000")
    assert value(model, "scaling_min_freq") == "2000000"


@pytest.mark.parametrize("text", ["", "fast", "\n"])
def test_junk_is_refused(text: str) -> None:
    """What is not a number is EINVAL."""
    assert refused(tree(), f"{P0}/scaling_max_freq", text) == errno.EINVAL


def test_limits_may_settle_later() -> None:
    """With a delay the write has returned and the old limit is still read, as on kernels that update in the background."""
    model = tree(driver="intel_pstate", settle_ms=60_000)
    model.write(f"{P0}/scaling_max_freq", "1500000")
    assert value(model, "scaling_max_freq") == "3000000"


def test_cpus_of_one_domain_share_their_policy() -> None:
    """Both CPUs lead to one policy, which names them; the others have their own."""
    model = tree(policies=[[0, 1], [2], [3]], cores=4)
    assert model.target("/cpu1/cpufreq") == "../cpufreq/policy0"
    assert value(model, "affected_cpus") == "0 1"
    assert [name for name in model.names("/cpufreq") if name.startswith("policy")] == ["policy0", "policy2", "policy3"]


def test_turbo_is_a_step_of_its_own() -> None:
    """The table's top is turbo: above the base frequency, and only while boost is on."""
    model = tree()
    model.write(f"{P0}/scaling_governor", "performance\n")
    assert value(model, "scaling_cur_freq") == "3000000"
    model.write("/cpufreq/boost", "0")
    assert value(model, "scaling_cur_freq") == "2200000"
    assert refused(model, "/cpufreq/boost", "2") == errno.EINVAL


def test_no_turbo_caps_intel_pstate() -> None:
    """no_turbo lowers what a cap can be; firmware that bars turbo refuses to have it changed."""
    model = tree(driver="intel_pstate")
    model.write("/intel_pstate/no_turbo", "1")
    assert value(model, "scaling_max_freq") == "2200000"
    assert value(model, "cpuinfo_max_freq") == "3000000"
    assert refused(tree(driver="intel_pstate", turbo_barred=True), "/intel_pstate/no_turbo", "0") == errno.EPERM


def test_the_status_changes_the_driver() -> None:
    """Passive makes intel_pstate intel_cpufreq, with every governor; other words are refused, off with hardware P-states too."""
    model = tree(driver="intel_pstate")
    assert model.read("/intel_pstate/status") == "active\n"
    assert refused(model, "/intel_pstate/status", "wild\n") == errno.EINVAL
    assert refused(model, "/intel_pstate/status", "off\n") == errno.EBUSY
    model.write("/intel_pstate/status", "passive\n")
    assert value(model, "scaling_driver") == "intel_cpufreq"
    model.write(f"{P0}/scaling_governor", "userspace")
    model.write(f"{P0}/scaling_setspeed", "1444000")
    assert value(model, "scaling_setspeed") == "1500000"


def test_a_machine_without_a_driver() -> None:
    """It has the directory cpufreq, empty, and no link to it."""
    model = tree(driver="")
    assert model.names("/cpufreq") == []
    assert "cpufreq" not in model.names("/cpu0")


def test_topology_of_two_sockets() -> None:
    """CPUs are numbered as Linux does, second threads last; the L3 of each socket has the id that was asked for."""
    model = tree(sockets=2, cores=2, threads=2, l3_ids=[0, 8])
    assert model.read("/cpu6/topology/thread_siblings_list") == "2,6\n"
    assert model.read("/cpu6/topology/physical_package_id") == "1\n"
    assert model.read("/cpu6/cache/index3/id") == "8\n"
    assert model.read("/cpu6/cache/index3/shared_cpu_list") == "2-3,6-7\n"


def test_every_name_listed_can_be_read() -> None:
    """Each listed name has a mode, and each file that can be read a text."""
    for driver in ("acpi-cpufreq", "intel_pstate", "intel_cpufreq", "amd-pstate", "amd-pstate-epp"):
        model, waiting, count = tree(driver=driver), ["/"], 0
        while waiting:
            path = waiting.pop()
            for name in model.names(path):
                child = f"{path.rstrip('/')}/{name}"
                kind = model.mode(child) & 0o170000
                if kind == 0o040000:
                    waiting.append(child)
                elif kind == 0o100000:
                    assert model.read(child).endswith("\n")
                    count += 1
        assert count > 80
