"""Containers by name: what the engines' own files say of a name, and which control groups can be theirs.

No engine is asked and no engine's library is used: a name is turned into an identifier by the files that the engine keeps, and the
identifier into the names that its control group can have. Whether the container runs is seen by whether such a group is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_SHORTEST_ID = 6
"""Fewer characters of a container's identifier are no name for it."""

_DOCKER_ROOTS = ("var/lib/docker", "var/snap/docker/common/var-lib-docker")
_DOCKER_SETTINGS = "etc/docker/daemon.json"
_PODMAN_LISTS = tuple(
    f"{storage}/{driver}-containers/{name}containers.json"
    for storage in ("var/lib/containers/storage", "run/containers/storage")
    for driver in ("overlay", "vfs", "btrfs", "zfs")
    for name in ("", "volatile-")
)
_CONTAINERD_TASKS = ("run/containerd/io.containerd.runtime.v2.task", "run/k3s/containerd/io.containerd.runtime.v2.task")
_ROOT_SLICE = "-.slice"
_LXC_PREFIX = "lxc.payload."
_DRAWN = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Container:
    """One container as its engine's files know it.

    ``key`` is the engine's identifier, ``names`` all that an operator may call it, the best one first; ``groups`` are the last
    components, or the whole paths where they begin with "/", that its control group can have.
    """

    key: str
    names: tuple[str, ...]
    groups: tuple[str, ...]

    def begins_with(self, name: str) -> bool:
        """Whether ``name`` is the beginning of an identifier that was drawn, which people shorten."""
        return len(name) >= _SHORTEST_ID and _DRAWN.fullmatch(self.key) is not None and self.key.startswith(name)


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine: what it is called, how its containers are found below a root, and what lists them for a person."""

    name: str
    containers: Callable[[Path], Iterator[Container]]
    lists: str


def _docker(root: Path) -> Iterator[Container]:
    for data in _docker_data(root):
        for file in sorted(data.glob("containers/*/config.v2.json")):
            content = _object(file)
            key = str(content.get("ID", file.parent.name))
            name = str(content.get("Name", "")).lstrip("/")
            yield Container(key, _named(key, name), (f"docker-{key}.scope", key))


def _docker_data(root: Path) -> Iterator[Path]:
    if isinstance(place := _object(root / _DOCKER_SETTINGS).get("data-root"), str):
        yield root / place.lstrip("/")
    yield from (root / place for place in _DOCKER_ROOTS)


def _podman(root: Path) -> Iterator[Container]:
    for file in _PODMAN_LISTS:
        for content in _objects(root / file):
            key = str(content.get("id", ""))
            names = content.get("names")
            listed = [str(name) for name in names] if isinstance(names, list) else []
            if key:
                yield Container(key, _named(key, *listed), (f"libpod-{key}.scope", f"libpod-{key}"))


def _containerd(root: Path) -> Iterator[Container]:
    for tasks in _CONTAINERD_TASKS:
        for file in sorted((root / tasks).glob("*/*/config.json")):
            content, namespace, key = _object(file), file.parent.parent.name, file.parent.name
            linux, notes = _mapping(content.get("linux")), _mapping(content.get("annotations"))
            group = _cgroups_path(str(linux.get("cgroupsPath", "")))
            names = (*_containerd_names(notes), key, f"{namespace}/{key}")
            yield Container(key, names, (group,) if group else (key,))


def _containerd_names(notes: Mapping[str, object]) -> Iterator[str]:
    """What nerdctl and Kubernetes call a container; of the latter also with its pod, as names repeat from pod to pod."""
    if name := notes.get("nerdctl/name"):
        yield str(name)
    if name := notes.get("io.kubernetes.cri.container-name"):
        yield str(name)
        yield f"{notes.get('io.kubernetes.cri.sandbox-name', '')}/{name}"


def _cgroups_path(text: str) -> str:
    """The control group's path from the OCI field: a path, or systemd's "slice:prefix:name"."""
    slice_name, colon, scope = text.partition(":")
    if not colon:
        return "/" + text.strip("/") if text.strip("/") else ""
    prefix, _, name = scope.partition(":")
    unit = f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    return f"{slice_path(slice_name or 'system.slice')}/{unit}"


def slice_path(name: str) -> str:
    """Where systemd puts a slice: "a-b.slice" lies in "a.slice"."""
    if name == _ROOT_SLICE:
        return ""
    parts = name.removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(parts[: index + 1])}.slice" for index in range(len(parts)))


def _lxc(root: Path) -> Iterator[Container]:
    for file in sorted((root / "var/lib/lxc").glob("*/config")):
        yield _lxc_container(file.parent.name)


def _lxc_container(name: str) -> Container:
    return Container(name, (name,), (f"{_LXC_PREFIX}{name}", f"/lxc/{name}"))


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("docker", _docker, "docker ps -a"),
        Engine("podman", _podman, "podman ps -a"),
        Engine("containerd", _containerd, "ctr -n NAMESPACE task ls"),
        Engine("lxc", _lxc, "lxc-ls -f"),
    )
}


def find_containers(engine: Engine, name: str, root: Path) -> tuple[list[Container], list[str]]:
    """The containers that ``name`` can mean, and every name there is.

    A name that LXC's files do not know is tried all the same: LXD and Incus keep them in a database.
    """
    known = list({container.names: container for container in engine.containers(root)}.values())
    found = [container for container in known if name in container.names]
    found = found or [container for container in known if container.begins_with(name)]
    if not found and engine.name == "lxc":
        found = [_lxc_container(name)]
    return found, sorted({container.names[0] for container in known})


def _named(key: str, *names: str) -> tuple[str, ...]:
    return (*(name for name in names if name), key)


def _object(file: Path) -> Mapping[str, object]:
    return _mapping(_json(file))


def _objects(file: Path) -> list[Mapping[str, object]]:
    content = _json(file)
    return [_mapping(entry) for entry in content] if isinstance(content, list) else []


def _mapping(content: object) -> Mapping[str, object]:
    return content if isinstance(content, dict) else {}


def _json(file: Path) -> object:
    """A file's content; None where it is missing, cut short or not for us, as it is the engine's to keep whole."""
    try:
        content: object = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return content
