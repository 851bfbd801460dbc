"""Units and containers become control-group paths, and a name that cannot be found is told with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actuators.cgroup.containers import slice_path
from actuators.cgroup.naming import Resolved, resolve, unit_of
from parties.settings import BestEffortSettings, ControlSettings, ServiceSettings

DRAWN = "4f" * 32
OTHER = "0123456789abcdef" * 4


class Tree:
    """A machine of files: systemd on v2, with what a test adds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.v2 = root / "sys/fs/cgroup"
        for place in ("sys/fs/cgroup", "proc/self", "run/systemd/system", "usr/lib/systemd/system", "etc/systemd/system"):
            (root / place).mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text("30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")

    def group(self, *paths: str) -> None:
        for path in paths:
            (self.v2 / path.strip("/")).mkdir(parents=True, exist_ok=True)

    def unit_file(self, name: str, target: str = "") -> None:
        file = self.root / "usr/lib/systemd/system" / name
        if target:
            file.symlink_to(target)
        else:
            file.touch()

    def file(self, path: str, content: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))

    def resolve(self, *, units: tuple[str, ...] = (), containers: tuple[str, ...] = (), cgroups: tuple[str, ...] = ()) -> Resolved:
        service = ServiceSettings("web", 1, cgroups=cgroups, units=units, containers=containers)
        return resolve(ControlSettings((service,)), self.root)

    def paths(self, **names: tuple[str, ...]) -> tuple[str, ...]:
        resolved = self.resolve(**names)
        assert resolved.problems == ()
        return resolved.settings.services[0].cgroups

    def problem(self, **names: tuple[str, ...]) -> str:
        (problem,) = self.resolve(**names).problems
        return problem.text


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("unit", "path"),
    [
        ("nginx.service", "/system.slice/nginx.service"),
        ("nginx", "/system.slice/nginx.service"),
        ("web@1.service", "/system.slice/system-web.slice/web@1.service"),
        ("rack-web.slice", "/rack.slice/rack-web.slice"),
        ("db.service", "/rack.slice/rack-db.slice/db.service"),
        ("session.scope", "/session.scope"),
        ("_odd.service", "/system.slice/__odd.service"),
    ],
)
def test_a_running_unit_is_found_wherever_its_slice_is(tree: Tree, unit: str, path: str) -> None:
    """A unit's group is found by its name below any slice, with or without ".service"."""
    tree.group(path, "/system.slice/other.service")
    assert tree.paths(units=(unit,)) == (path,)


def test_an_alias_is_followed(tree: Tree) -> None:
    """mysql.service is a link to mariadb.service, and that is the name of the group."""
    tree.unit_file("mariadb.service")
    tree.unit_file("mysql.service", "mariadb.service")
    tree.group("/system.slice/mariadb.service")
    assert tree.paths(units=("mysql.service",)) == ("/system.slice/mariadb.service",)


def test_a_group_of_a_users_manager_is_not_the_systems_unit(tree: Tree) -> None:
    """A unit of the same name below user@1000.service belongs to that user's manager, and is not taken for the system's."""
    tree.unit_file("app.service")
    tree.group("/user.slice/user-1000.slice/user@1000.service/app.slice/app.service")
    assert "not active" in tree.problem(units=("app.service",))


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("stopped.service", 'unit "stopped.service" is not active, so it has no control group; systemctl start stopped.service'),
        ("web@2.service", 'unit "web@2.service" is not active, so it has no control group; systemctl start web@2.service'),
        ("off.service", 'unit "off.service" is masked; systemctl unmask off.service && systemctl start off.service'),
        ("ngnix.service", 'there is no unit "ngnix.service"; did you mean "nginx.service"?'),
        ("zzz.scope", 'there is no unit "zzz.scope"; see systemctl list-units --all'),
    ],
)
def test_a_unit_without_a_group_says_what_to_do(tree: Tree, unit: str, words: str) -> None:
    """Not active, masked and unknown are told apart, the last with the nearest name."""
    for name in ("nginx.service", "stopped.service", "web@.service"):
        tree.unit_file(name)
    tree.unit_file("off.service", "/dev/null")
    tree.group("/system.slice/nginx.service")
    assert tree.problem(units=(unit,)) == words


def test_without_systemd_a_unit_cannot_be_named(tree: Tree) -> None:
    """Where another init runs the message says so, and nothing is a unit."""
    (tree.root / "run/systemd/system").rmdir()
    assert "systemd is not the service manager here" in tree.problem(units=("nginx.service",))
    assert tree.resolve(cgroups=("/system.slice/nginx.service",)).units == {}


def test_units_are_told_from_groups_below_them(tree: Tree) -> None:
    """A unit's own group and a container's scope are systemd's to write; what a delegated unit holds is not."""
    scope = f"/system.slice/docker-{DRAWN}.scope"
    below = "/system.slice/rack.service/web"
    tree.group(scope, below, "/bare")
    assert tree.resolve(cgroups=(scope, below, "/bare", "/rack.slice")).units == {
        scope: f"docker-{DRAWN}.scope",
        "/rack.slice": "rack.slice",
    }


def test_units_of_legacy_machines_are_found_in_systemds_own_hierarchy(tmp_path: Path) -> None:
    """On v1 the named hierarchy and the controllers' trees hold the unit's group."""
    tree = Tree(tmp_path)
    (tmp_path / "proc/self/mountinfo").write_text(
        "30 1 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
        "31 1 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    )
    (tree.v2 / "systemd/system.slice/nginx.service").mkdir(parents=True)
    (tree.v2 / "cpu/docker" / DRAWN).mkdir(parents=True)
    tree.file(f"var/lib/docker/containers/{DRAWN}/config.v2.json", {"ID": DRAWN, "Name": "/web"})
    assert tree.paths(units=("nginx",), containers=("docker:web",)) == ("/system.slice/nginx.service", f"/docker/{DRAWN}")


@pytest.mark.parametrize("name", ["web", DRAWN, DRAWN[:12]])
@pytest.mark.parametrize("path", [f"/system.slice/docker-{DRAWN}.scope", f"/docker/{DRAWN}", f"/kube/pods/{DRAWN}"])
def test_a_docker_container_is_found_by_name_and_identifier(tree: Tree, name: str, path: str) -> None:
    """With systemd's driver, with the plain one and below a parent of one's own; the group inside it is not taken for it."""
    tree.file(f"var/lib/docker/containers/{DRAWN}/config.v2.json", {"ID": DRAWN, "Name": "/web"})
    tree.file(f"var/lib/docker/containers/{OTHER}/config.v2.json", {"ID": OTHER, "Name": "/web2"})
    tree.group(path, f"{path}/init.scope", f"/system.slice/docker-{OTHER}.scope")
    assert tree.paths(containers=(f"docker:{name}",)) == (path,)


def test_docker_may_keep_its_data_elsewhere(tree: Tree) -> None:
    """data-root of daemon.json is looked into."""
    tree.file("etc/docker/daemon.json", {"data-root": "/srv/docker"})
    tree.file(f"srv/docker/containers/{DRAWN}/config.v2.json", {"ID": DRAWN, "Name": "/web"})
    tree.group(f"/docker/{DRAWN}")
    assert tree.paths(containers=("docker:web",)) == (f"/docker/{DRAWN}",)


def test_a_podman_container_is_found(tree: Tree) -> None:
    """By the list in its storage; in a pod its scope lies in the pod's slice."""
    tree.file("var/lib/containers/storage/overlay-containers/containers.json", [{"id": DRAWN, "names": ["web"]}])
    path = f"/machine.slice/machine-libpod_pod_9.slice/libpod-{DRAWN}.scope"
    tree.group(f"{path}/container", f"/machine.slice/libpod-conmon-{DRAWN}.scope")
    assert tree.paths(containers=("podman:web",)) == (path,)


@pytest.mark.parametrize("name", ["c1", "k8s.io/c1", "app", "shop-1/app"])
@pytest.mark.parametrize(
    ("cgroups_path", "path"),
    [
        (
            "kubepods-burstable-pod7.slice:cri-containerd:c1",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice",
        ),
        ("/k8s.io/c1", "/k8s.io/c1"),
        ("", "/default/c1"),
    ],
)
def test_a_containerd_task_is_found(tree: Tree, name: str, cgroups_path: str, path: str) -> None:
    """By identifier, with its namespace, or as Kubernetes calls it; the group as the task's own configuration says."""
    notes = {"io.kubernetes.cri.container-name": "app", "io.kubernetes.cri.sandbox-name": "shop-1"}
    bundle = {"linux": {"cgroupsPath": cgroups_path}, "annotations": notes}
    tree.file("run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json", bundle)
    path = f"{path}/cri-containerd-c1.scope" if ":" in cgroups_path else path
    tree.group(path)
    assert tree.paths(containers=(f"containerd:{name}",)) == (path,)


def test_the_beginning_of_a_chosen_name_is_no_name(tree: Tree) -> None:
    """Identifiers that were drawn may be shortened, names that somebody chose may not."""
    tree.file("run/containerd/io.containerd.runtime.v2.task/default/webserver-2/config.json", {"linux": {"cgroupsPath": "/w"}})
    tree.group("/w")
    assert "there is no container" in tree.problem(containers=("containerd:webserver",))


@pytest.mark.parametrize("path", ["/lxc.payload.web", "/lxc/web"])
def test_an_lxc_container_is_found(tree: Tree, path: str) -> None:
    """Also where no file speaks of it, as LXD and Incus keep a database."""
    tree.group(path, "/lxc.monitor.web", "/system.slice/lxc.service")
    assert tree.paths(containers=("lxc:web",)) == (path,)


def test_the_same_name_in_two_pods_has_to_be_told_apart(tree: Tree) -> None:
    """An ambiguous name is refused with the names that are not."""
    for key in ("c1", "c2"):
        bundle = {"linux": {"cgroupsPath": f"/k/{key}"}, "annotations": {"io.kubernetes.cri.container-name": "app"}}
        tree.file(f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{key}/config.json", bundle)
        tree.group(f"/k/{key}")
    words = 'container "containerd:app" can be any of 2: "containerd:c1", "containerd:c2"; name one of these'
    assert tree.problem(containers=("containerd:app",)) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("docker:web", 'container "docker:web" is not running, so it has no control group; start it (see docker ps -a)'),
        ("docker:wbe", 'there is no container "docker:wbe"; did you mean "web"?'),
        ("docker:4f4f4", 'there is no container "docker:4f4f4"; see docker ps -a'),
        ("lxc:gone", 'there is no container "lxc:gone"; see lxc-ls -f'),
        ("web", "names no engine that is known"),
        ("rkt:web", "names no engine that is known"),
        ("docker:", "names no engine that is known"),
    ],
)
def test_a_container_without_a_group_says_what_to_do(tree: Tree, name: str, words: str) -> None:
    """Stopped, unknown, too short and without an engine are told apart."""
    tree.file(f"var/lib/docker/containers/{DRAWN}/config.v2.json", {"ID": DRAWN, "Name": "/web"})
    assert words in tree.problem(containers=(name,))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ID": 5}', '{"linux": []}'])
def test_files_of_the_engines_may_be_damaged(tree: Tree, content: str) -> None:
    """A file that is cut short or of another form is as good as none."""
    for file in (
        f"var/lib/docker/containers/{DRAWN}/config.v2.json",
        "etc/docker/daemon.json",
        "var/lib/containers/storage/overlay-containers/containers.json",
        "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json",
    ):
        tree.file(file, content)
    for engine in ("docker", "podman", "containerd", "lxc"):
        assert "there is no container" in tree.problem(containers=(f"{engine}:web",))


def test_all_problems_are_told_at_once_and_the_rest_is_resolved(tree: Tree) -> None:
    """Every name of every member has its own problem; what can be found is filled in, and no group twice."""
    tree.group("/system.slice/nginx.service")
    settings = ControlSettings(
        (ServiceSettings("web", 1, cgroups=("/system.slice/nginx.service",), units=("nginx", "a.service")),),
        (BestEffortSettings("batch", units=("b.service",), containers=("docker:c",)),),
    )
    resolved = resolve(settings, tree.root)
    assert [(problem.member, problem.key) for problem in resolved.problems] == [
        ("web", "units"),
        ("batch", "units"),
        ("batch", "containers"),
    ]
    assert resolved.settings.services[0].cgroups == ("/system.slice/nginx.service",)
    assert str(resolved.problems[0]).startswith('web: there is no unit "a.service"')


@pytest.mark.parametrize(
    ("name", "path"), [("a.slice", "/a.slice"), ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice"), ("-.slice", "")]
)
def test_a_slice_lies_in_the_one_of_its_prefix(name: str, path: str) -> None:
    """The rule of systemd for slices."""
    assert slice_path(name) == path


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/a.service", "a.service"),
        ("/a.scope", "a.scope"),
        ("/system.slice", "system.slice"),
        ("/system.slice/a.service/b.scope", ""),
        ("/web", ""),
        ("/lxc/a.service", ""),
    ],
)
def test_a_unit_is_known_by_its_path(path: str, unit: str) -> None:
    """Only slices may lie above a unit's own group."""
    assert unit_of(path) == unit
