"""Container engines in the guest: Docker, Podman, containerd and LXC, with containers of one busybox that come from nowhere else.

Nothing is fetched: the root file systems are made here. No engine starts with the machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from .machine import GuestMachine

DOCKER_SETTINGS = "/etc/docker/daemon.json"
DOCKER_ELSEWHERE = "/srv/docker-data"
LIMIT_S = 180.0

_UNITS = "containerd.service docker.service docker.socket"
_LOOP = """\
#!/bin/sh
while :; do n=0; while [ $n -lt 300 ]; do n=$((n + 1)); done; sleep 1; done
"""
_PREPARE = f"""\
mkdir -p /srv/rootfs/bin /srv/rootfs/dev /srv/rootfs/etc /srv/rootfs/proc /srv/rootfs/sys /srv/rootfs/tmp
cp /bin/busybox /srv/rootfs/bin/busybox
for name in sh sleep; do ln -sf busybox /srv/rootfs/bin/$name; done
cat > /srv/rootfs/loop <<'END'
{_LOOP}END
chmod 755 /srv/rootfs/loop
for engine in podman containerd lxc; do cp -a /srv/rootfs /srv/$engine; done
systemctl unmask --quiet {_UNITS}
"""
_LXC = """\
lxc.uts.name = {name}
lxc.rootfs.path = dir:/srv/lxc
lxc.init.cmd = /loop
lxc.net.0.type = empty
lxc.apparmor.profile = unconfined
"""
_DRAWN = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Way:
    """How an engine is told what to do with a container; NAME and OPTIONS are replaced, and ``pid`` prints its first process."""

    run: str
    pid: str
    restart: str
    remove: str


_DOCKER = Way(
    run="docker run -d --name NAME --network none --security-opt apparmor=unconfined OPTIONS busybox /loop",
    pid="docker inspect -f '{{.State.Pid}}' NAME",
    restart="docker restart -t 0 NAME",
    remove="docker rm -f NAME",
)
_PODMAN = Way(
    run="podman run -d --name NAME --network none OPTIONS --rootfs /srv/podman /loop",
    pid="podman inspect -f '{{.State.Pid}}' NAME",
    restart="podman restart -t 0 NAME",
    remove="podman rm -f -t 0 NAME",
)
_END_TASK = "ctr task kill -s KILL NAME; while ctr task ls | grep -q '^NAME .*RUNNING'; do sleep 0.1; done; ctr task rm NAME"
_CONTAINERD = Way(
    run="ctr run -d OPTIONS --rootfs /srv/containerd NAME /loop",
    pid="ctr task ls | awk '$1 == \"NAME\" { print $2 }'",
    restart=f"{_END_TASK}; ctr task start -d NAME",
    remove=f"{_END_TASK}; ctr container rm NAME",
)
_LXC_WAY = Way(
    run="lxc-start -n NAME",
    pid="lxc-info -n NAME -p -H",
    restart="lxc-stop -n NAME -k; lxc-start -n NAME",
    remove="lxc-stop -n NAME -k; rm -r /var/lib/lxc/NAME",
)
WAYS = {"docker": _DOCKER, "podman": _PODMAN, "containerd": _CONTAINERD, "lxc": _LXC_WAY}


@dataclass(frozen=True, slots=True)
class Box:
    """A container: its engine, its name, and what it is started with."""

    engine: str
    name: str
    options: str = ""


@dataclass(slots=True)
class Engines:
    """The engines of one machine, and the containers that were started."""

    guest: GuestMachine
    boxes: dict[str, Box] = field(default_factory=dict)
    _pids: dict[str, int] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the root file systems, and let the engines be started."""
        self.guest.shell(_PREPARE)

    def start_docker(self, *, driver: str, data: str = "", keeps_containers: bool = False) -> None:
        """Start dockerd, and containerd with it, with a control-group driver; ``keeps_containers`` while it is down."""
        settings = {
            "bridge": "none",
            "iptables": False,
            "ip-forward": False,
            "exec-opts": [f"native.cgroupdriver={driver}"],
            "live-restore": keeps_containers,
            **({"data-root": data} if data else {}),
        }
        self.guest.write(DOCKER_SETTINGS, json.dumps(settings))
        self.guest.output("systemctl", "start", "docker", limit_s=LIMIT_S)
        self.guest.shell("tar -C /srv/rootfs -c . | docker import - busybox", LIMIT_S)

    def stop_docker(self) -> None:
        """Stop dockerd and what would start it again; what becomes of its containers is its own affair."""
        self.guest.output("systemctl", "stop", "docker.socket", "docker.service", limit_s=LIMIT_S)

    def run(self, *boxes: Box) -> None:
        """Start containers, side by side."""
        self.boxes |= {box.name: box for box in boxes}
        for box in boxes:
            if box.engine == "lxc":
                self.guest.write(f"/var/lib/lxc/{box.name}/config", _LXC.format(name=box.name))
        self._do(*((box, WAYS[box.engine].run.replace("OPTIONS", box.options)) for box in boxes))

    def restart(self, *names: str) -> None:
        """Restart containers, with the same identifiers, side by side."""
        self._do(*((self.boxes[name], WAYS[self.boxes[name].engine].restart) for name in names))
        for name in names:
            self._pids.pop(name, None)

    def remove(self, *names: str) -> None:
        """End containers for good, side by side."""
        boxes = [self.boxes.pop(name) for name in names]
        self._do(*((box, WAYS[box.engine].remove) for box in boxes))
        for name in names:
            self._pids.pop(name, None)

    def forget(self, name: str) -> None:
        """It has ended without us."""
        self.boxes.pop(name)

    def pids(self, *names: str) -> dict[str, int]:
        """The first process of each, as its engine says."""
        asked = [name for name in names if name not in self._pids]
        said = self._do(*((self.boxes[name], WAYS[self.boxes[name].engine].pid) for name in asked))
        self._pids |= {name: int(text.split()[-1]) for name, text in zip(asked, said, strict=True)}
        return {name: self._pids[name] for name in names}

    def ask_anew(self) -> None:
        """Have the engines say once more which processes there are."""
        self._pids.clear()

    def identifier(self, name: str) -> str:
        """What docker or podman has drawn for it."""
        box = self.boxes[name]
        (said,) = self._do((box, f"{box.engine} inspect -f '{{{{.Id}}}}' NAME"))
        return str(_DRAWN.findall(said)[0])

    def versions(self) -> str:
        """What was run."""
        return self.guest.shell(
            "dpkg-query -W -f '${Package} ${Version}\\n' containerd conmon crun docker.io lxc podman runc systemd", LIMIT_S
        )

    def _do(self, *commands: tuple[Box, str]) -> list[str]:
        scripts = [command.replace("NAME", box.name) for box, command in commands]
        begun = [self.guest.begin("sh", "-eu", stdin=script, limit_s=LIMIT_S) for script in scripts]
        answers = [self.guest.wait(number, LIMIT_S) for number in begun]
        for script, answer in zip(scripts, answers, strict=True):
            assert answer.code == 0, f"{script}: {answer}"
        return [answer.out for answer in answers]
