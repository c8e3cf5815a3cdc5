# SPDX-License-Identifier: Apache-2.0
"""Warnings about specs that the engines accept."""

from __future__ import annotations

import pytest

from gpuiso.cdi.cache import load
from gpuiso.cdi.engines import Engine, every_engine_reads, installed_engines, newest_readable
from gpuiso.cdi.lint import RULES, lint_cache
from tests.cdi.fake_host import FakeHost, node

HOOK = "/usr/bin/nvidia-cdi-hook"
NODES = (
    node("/dev/nvidia-uvm", "c", mode=0o666, major=509, minor=0),
    node("/dev/nvidia0", "c", mode=0o666, major=195, minor=0),
    node("/etc/passwd"),
    node(HOOK),
    node("/lib/x.so"),
)


def found(edits: str, *, version: str = "0.6.0", mode: int = 0o644, engines: tuple[Engine, ...] = ()) -> list[str]:
    """``RULE where`` of what is said about a spec whose one device has ``edits`` (a flow mapping)."""
    text = f"cdiVersion: {version}\nkind: vendor.com/gpu\ndevices: [{{name: d0, containerEdits: {edits}}}]\n"
    spec = node("/etc/cdi/s.yaml", mode=mode)
    host = FakeHost((*NODES, spec), {"/etc/cdi/s.yaml": text}, unknown=["/dev/unknown", "/unknown"])
    cache = load(host, ("/etc/cdi",))
    assert cache.errors == ()
    return [f"{w.rule} {w.where}".strip() for w in lint_cache(host, cache, lambda: engines)]


def in_device(rest: str) -> str:
    return f"devices[0].containerEdits.{rest}"


@pytest.mark.parametrize(
    "edits",
    [
        "{env: [A=1]}",
        "{deviceNodes: [{path: /dev/nvidia0}]}",
        "{deviceNodes: [{path: /dev/nvidia0, type: c, major: 195, minor: 0}]}",
        "{deviceNodes: [{path: /dev/nvidia0, type: u, major: 195}]}",
        "{deviceNodes: [{path: /dev/unknown, type: c, major: 1}]}",
        "{mounts: [{hostPath: /lib/x.so, containerPath: /x}, {hostPath: /unknown, containerPath: /x}]}",
        f"{{hooks: [{{hookName: createContainer, path: {HOOK}, timeout: 1}}]}}",
        "{hooks: [{hookName: startContainer, path: /in/the/container}]}",
    ],
)
def test_nothing_is_said_about_what_is_right_or_cannot_be_known(edits: str) -> None:
    assert found(edits) == []


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ("{deviceNodes: [{path: /dev/nvidia-uvm, major: 510}]}", "CDI-NODE-STALE deviceNodes[0]"),
        ("{deviceNodes: [{path: /dev/nvidia-uvm, type: c, major: 510}]}", "CDI-NODE-STALE deviceNodes[0]"),
        ("{deviceNodes: [{path: /dev/nvidia0, type: c, major: 195, minor: 1}]}", "CDI-NODE-STALE deviceNodes[0]"),
        ("{deviceNodes: [{path: /dev/nvidia0, type: b, major: 195}]}", "CDI-NODE-STALE deviceNodes[0]"),
        ("{deviceNodes: [{path: /dev/nvidia0, major: 195}]}", "CDI-NODE-UNTYPED deviceNodes[0]"),
        ("{deviceNodes: [{path: /dev/nvidia9}]}", "CDI-NODE-MISSING deviceNodes[0]"),
        ("{deviceNodes: [{path: /etc/passwd}]}", "CDI-NODE-MISSING deviceNodes[0]"),
        ("{deviceNodes: [{path: /dev/x, type: c, major: -1}]}", "CDI-NODE-WILDCARD deviceNodes[0]"),
        ("{deviceNodes: [{path: dev/x, hostPath: /dev/nvidia0}]}", "CDI-PATH-RELATIVE deviceNodes[0].path"),
        ("{mounts: [{hostPath: /none, containerPath: /x}]}", "CDI-MOUNT-MISSING mounts[0].hostPath"),
        ("{mounts: [{hostPath: /lib/x.so, containerPath: x}]}", "CDI-PATH-RELATIVE mounts[0].containerPath"),
        ("{hooks: [{hookName: poststop, path: x}]}", "CDI-HOOK-RELATIVE hooks[0].path"),
        ("{hooks: [{hookName: poststop, path: /none}]}", "CDI-HOOK-MISSING hooks[0].path"),
        (f"{{hooks: [{{hookName: poststop, path: {HOOK}, timeout: 0}}]}}", "CDI-HOOK-TIMEOUT hooks[0].timeout"),
    ],
)
def test_what_goes_wrong_is_named(edits: str, expected: str) -> None:
    rule, _, where = expected.partition(" ")
    assert found(edits) == [f"{rule} {in_device(where)}"]
    assert rule in RULES


def test_a_file_that_ordinary_users_cannot_read() -> None:
    assert found("{env: [A=1]}", mode=0o600) == ["CDI-UNREADABLE"]


def test_an_engine_that_is_too_old_for_the_version() -> None:
    engines = (Engine("podman", "4.9.3", "0.6.0"), Engine("docker", "99.0.0", None))
    assert found("{env: [A=1]}", version="0.7.0", engines=engines) == ["CDI-VERSION-TOO-NEW cdiVersion"]
    assert found("{env: [A=1]}", version="0.6.0", engines=engines) == []


def test_engines_are_asked_only_about_versions_that_some_cannot_read() -> None:
    assert every_engine_reads((0, 6, 0))
    assert not every_engine_reads((0, 7, 0))


def test_engines_are_found_by_what_they_print() -> None:
    host = FakeHost(
        commands={
            ("podman", "--version"): "podman version 4.9.3\n",
            ("dockerd", "--version"): "Docker version 28.0.4, build 6430e49\n",
            ("containerd", "--version"): "containerd github.com/containerd/containerd/v2 v2.2.1 dea7da59\n",
        }
    )
    assert installed_engines(host) == (
        Engine("podman", "4.9.3", "0.6.0"),
        Engine("docker", "28.0.4", "0.8.0"),
        Engine("containerd", "2.2.1", None),
    )
    assert installed_engines(FakeHost()) == ()
    assert newest_readable("docker", (25, 0)) == "0.6.0"


def test_shadowed_and_conflicting_devices() -> None:
    def spec(*names: str) -> str:
        devices = ", ".join(f"{{name: {name}, containerEdits: {{env: [A=1]}}}}" for name in names)
        return f"cdiVersion: 0.6.0\nkind: v.com/gpu\ndevices: [{devices}]\n"

    host = FakeHost(
        files={
            "/etc/cdi/a.yaml": spec("old", "both"),
            "/run/cdi/b.yaml": spec("old", "both", "own"),
            "/run/cdi/c.yaml": spec("both"),
        }
    )
    cache = load(host, ("/etc/cdi", "/run/cdi"))
    assert list(cache.devices) == ["v.com/gpu=old", "v.com/gpu=own"]
    assert cache.conflicts == {"v.com/gpu=both": ("/run/cdi/b.yaml", "/run/cdi/c.yaml")}
    assert {(w.rule, w.file) for w in lint_cache(host, cache)} == {
        ("CDI-SHADOWED", "/etc/cdi/a.yaml"),
        ("CDI-CONFLICT", "/run/cdi/c.yaml"),
    }
    assert {error.file for error in cache.errors} == {"/run/cdi/b.yaml", "/run/cdi/c.yaml"}
