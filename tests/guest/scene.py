"""What the daemon manages in the guest: memcached and nginx as units, a best-effort job, clients behind a network link.

The store's target cannot be met and the web server's is met with ease, so that moves of every resource follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from .machine import GuestMachine

PREPARE = """\
modprobe acpi-cpufreq
for governor in powersave userspace ondemand conservative; do modprobe cpufreq_$governor; done
grep -q resctrl /proc/filesystems && mount -t resctrl resctrl /sys/fs/resctrl
true
"""
"""What a boot leaves to be done for frequency and cache."""

UNITS = ("store.service", "web.service", "batch.service")
CONFIGURATION = "/etc/parties/parties.toml"
STATE = "/var/lib/parties"
RUNTIME = "/run/parties"

_READ = "dd if=/dev/vdc of=/dev/null bs=64k count=16 iflag=direct status=none"
_AFTER_CLIENTS = "[Unit]\nRequires=clients.service\nAfter=clients.service\n"
_UNIT_FILES = {
    "store.service": f"{_AFTER_CLIENTS}[Service]\nExecStart=/usr/bin/memcached -u nobody -m 32 -l 10.9.0.1 -t 2\n",
    "web.service": f"{_AFTER_CLIENTS}[Service]\nExecStart=/usr/sbin/nginx -c /etc/web.conf\nKillMode=mixed\n",
    "batch.service": f"[Service]\nExecStart=/bin/sh -c 'while :; do {_READ}; sleep 0.3; done'\n",
    "clients.service": (
        "[Unit]\nDescription=A namespace for the clients\n[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        "ExecStart=/bin/ip netns add clients\n"
        "ExecStart=/bin/ip link add services0 type veth peer name clients0 netns clients\n"
        "ExecStart=/bin/ip address add 10.9.0.1/24 dev services0\nExecStart=/bin/ip link set services0 up\n"
        "ExecStart=/bin/ip -n clients address add 10.9.0.2/24 dev clients0\nExecStart=/bin/ip -n clients link set clients0 up\n"
    ),
    "load.service": (
        f"{_AFTER_CLIENTS}[Service]\nNetworkNamespacePath=/run/netns/clients\n"
        "Environment=PYTHONPATH=/opt/project\nExecStart=/usr/bin/python3 /opt/project/tests/guest/load.py "
        f"{RUNTIME}/histogram.sock 10.9.0.1\n"
    ),
}
_SILENT = "[Service]\nExecStart=/bin/sleep infinity\n"
_NGINX = """\
daemon off; master_process off; user nobody nogroup; pid /run/web.pid; error_log stderr;
events { worker_connections 64; }
http { access_log off; server { listen 10.9.0.1:8080; location / { return 200 "ok\\n"; } } }
"""


@dataclass(frozen=True, slots=True)
class Managed:
    """What the configuration has beyond cores and memory. ``silent``: services before all others, which report nothing."""

    frequency: bool = False
    cache: bool = False
    disk: bool = True
    network: bool = True
    silent: tuple[str, ...] = ()
    policy: str = "parties"
    store_target: str = "1us"


def configuration(managed: Managed) -> str:
    """The daemon's configuration for the scene."""
    tables = [
        f'version = 1\ninterval = "500ms"\npolicy = "{managed.policy}"',
        '[node.cores]\nreserved = "0"\ndivision = "whole"',
        '[node.memory]\ntotal = "600MB"\nstep = "50MB"',
    ]
    if managed.network:
        tables.append('[node.network]\ndevice = "services0"\nrate = "1Gbit/s"\nstep = "50Mbit/s"')
    if managed.disk:
        tables.append('[node.disk]\ndevice = "/dev/vdc"\nrate = "200MB/s"')
    if managed.frequency:
        tables.append("[node.frequency]")
    if managed.cache:
        tables.append("[node.cache]")
    tables += [
        *(_service(name, "10s", port) for port, name in enumerate(managed.silent, start=9000)),
        _service("store", managed.store_target, 11211),
        _service("web", "10s", 8080),
        '[[best_effort]]\nname = "batch"\nunit = "batch.service"',
    ]
    return "\n\n".join(tables) + "\n"


def _service(name: str, target: str, port: int) -> str:
    return (
        f'[[service]]\nname = "{name}"\nunit = "{name}.service"\ntarget = "{target}"\npercentile = 50\n'
        f"ports = [{port}]\nin_memory = false"
    )


def set_up(guest: GuestMachine, managed: Managed) -> None:
    """Start the services, the job and the clients, and write the daemon's configuration."""
    silent = {f"{name}.service": _SILENT for name in managed.silent}
    for name, text in {**_UNIT_FILES, **silent}.items():
        guest.write(f"/etc/systemd/system/{name}", text + "[Install]\nWantedBy=multi-user.target\n")
    guest.write("/etc/web.conf", _NGINX)
    guest.write(CONFIGURATION, configuration(managed))
    guest.output("systemctl", "daemon-reload")
    guest.output("systemctl", "enable", "--quiet", "--now", *UNITS, *silent, "load.service")


def await_start(guest: GuestMachine) -> None:
    """Wait until, after a boot, all of it runs again."""
    guest.output("systemctl", "start", *UNITS, "load.service")
