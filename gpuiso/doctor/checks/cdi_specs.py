# SPDX-License-Identifier: Apache-2.0
"""CDI specifications of GPUs that have gone stale, that an engine cannot read, or that lack what is asked of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuiso.cdi.cache import Cache, SpecFile, load
from gpuiso.cdi.engines import Engine, installed_engines
from gpuiso.cdi.names import split_kind
from gpuiso.cdi.spec import DeviceNode
from gpuiso.cdi.version import parse_version
from gpuiso.doctor.checks.engine_setup import rootless_users
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host, Node

__all__ = ["STALE", "regenerate", "stale_numbers"]

STALE = Rule(
    "GPU-CDI-STALE-MAJMIN",
    "error",
    "A CDI specification carries device numbers of another boot or driver",
    "a CDI specification gives a GPU node other numbers than it has now: containers get a node of another driver",
    (
        "https://github.com/NVIDIA/NemoClaw/pull/4733",
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
    ),
)
UNRESOLVABLE = Rule(
    "GPU-CDI-UNRESOLVABLE",
    "error",
    "A container asks for a CDI device that no specification defines",
    "the CDI device is in no specification that the engine can read: missing, unreadable, of another class",
    (
        "https://github.com/containers/podman/issues/17539",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1239",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828",
    ),
)
SPEC_VERSION = Rule(
    "GPU-CDI-SPEC-VERSION",
    "warning",
    "A CDI specification is of a later version than an engine can read",
    "the engine decodes CDI strictly and refuses the whole file, so that its devices are unresolvable",
    (
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1940",
        "https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md",
    ),
)

_GPU_NODES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/accel/")
_LOWEST_READ = (0, 6, 0)  # what the oldest engine of gpuiso.cdi.engines reads
_ERROR = re.compile(r"unresolvable CDI devices ([^\s\"',;)]+(?:, ?[^\s\"',;)]+)*)")


def _cache(host: Host) -> Cache | None:
    """The specifications, None where the host has none."""
    if not any(host.listdir(directory) for directory in ("/etc/cdi", "/var/run/cdi")):
        return None
    return load(host)


def regenerate(host: Host, path: str) -> list[Fix]:
    """How to write a specification anew."""
    try:
        ctk = host.stat("/usr/bin/nvidia-ctk") is not None
    except Unknown:
        ctk = True
    command = f"sudo nvidia-ctk cdi generate --output={path}" if ctk else f"sudo gpuiso cdi generate --output {path}"
    return [
        Fix("Write it anew, then create the containers again that were made from it", command),
        Fix(
            "Have it kept up to date at every boot and driver update (toolkit 1.18 and later)",
            "sudo systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service",
        ),
    ]


def _used_files(cache: Cache) -> Iterator[SpecFile]:
    """Those of which at least one device is not replaced by a later directory."""
    used = {device.file.path for device in cache.devices.values()}
    yield from (file for file in cache.files if file.path in used)


def _nodes(file: SpecFile) -> Iterator[DeviceNode]:
    for edits in file.spec.all_edits():
        yield from edits.device_nodes


def _stale(host: Host, node: DeviceNode) -> Node | None:
    """What stands at the host's path of a node now, if the specification gives other numbers."""
    source = node.host_path or node.path
    if not node.major or not source.startswith(_GPU_NODES):
        return None
    actual = host.stat(source)
    if actual is None or actual.type not in ("b", "c") or (actual.major, actual.minor) == (node.major, node.minor):
        return None
    return actual


def stale_numbers(machine: Machine) -> dict[tuple[str, int, int], str]:
    """The stale nodes by path in a container and numbers, with the file that carries them: no process is blamed twice.

    What cannot be read is left out.
    """
    try:
        cache = _cache(machine.host)
        if cache is None:
            return {}
        found = {}
        for file in _used_files(cache):
            for node in _nodes(file):
                if _stale(machine.host, node) is not None:
                    found[node.path, node.major, node.minor] = file.path
        return found
    except Unknown:
        return {}


@machine_check(STALE)
def stale(machine: Machine) -> Iterator[Finding]:
    """Numbers in specifications against the nodes of the host."""
    host = machine.host
    if not machine.inventory.gpus or (cache := _cache(host)) is None:
        return
    right = {node.path for node in machine.nvidia_nodes if node.right}
    for file in _used_files(cache):
        wrong = {}
        for node in _nodes(file):
            actual = _stale(host, node)
            source = node.host_path or node.path
            if actual is not None and (source in right or not source.startswith("/dev/nvidia")):
                wrong[source] = (node, actual)  # where the host's own node is wrong, that is another finding
        if wrong:
            yield _stale_finding(host, file, wrong)


def _stale_finding(host: Host, file: SpecFile, wrong: Mapping[str, tuple[DeviceNode, Node]]) -> Finding:
    path, (node, actual) = next(iter(wrong.items()))
    others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return STALE.finding(
        f"{path} is {actual.major}:{actual.minor} on this host, and {file.path} gives it {node.major}:{node.minor}"
        f"{others}: a container that gets GPUs from it has a node that leads to no driver or to another one"
        + (", and cuInit fails with 999 in it although nvidia-smi works." if "uvm" in path else "."),
        evidence=[
            *(Evidence(file.path, f"{source}: {old.major}:{old.minor}") for source, (old, _) in wrong.items()),
            *(Evidence(source, f"{now.type} {now.major}:{now.minor}") for source, (_, now) in wrong.items()),
        ],
        fix=regenerate(host, file.path),
    )


@machine_check(SPEC_VERSION)
def too_new(machine: Machine) -> Iterator[Finding]:
    """Versions of specifications against the releases of the engines; these are only asked where it may matter."""
    host = machine.host
    if not machine.inventory.gpus or (cache := _cache(host)) is None:
        return
    files = [file for file in _used_files(cache) if (parse_version(file.spec.version) or ()) > _LOWEST_READ]
    if not files:
        return
    for engine in installed_engines(host):
        newest = parse_version(engine.reads) if engine.reads is not None else None
        refused = [file for file in files if newest is not None and (parse_version(file.spec.version) or ()) > newest]
        if refused:
            yield _version_finding(engine, refused)


def _version_finding(engine: Engine, refused: list[SpecFile]) -> Finding:
    file = refused[0]
    asked = engine.name if engine.name != "docker" else "dockerd"
    return SPEC_VERSION.finding(
        f"{engine.name} {engine.release} reads CDI up to version {engine.reads} and refuses {file.path}, which says"
        f" {file.spec.version}: it calls its devices unresolvable, although other tools list them.",
        evidence=[
            Evidence(f"{asked} --version", engine.release),
            *(Evidence(each.path, f"cdiVersion {each.spec.version}") for each in refused),
        ],
        fix=[
            Fix(
                "Write the specification without the fields that need the later version",
                f"sudo gpuiso cdi generate --no-additional-gids --output {file.path}",
            ),
            Fix(f"Or install a later {engine.name}"),
        ],
    )


@machine_check(UNRESOLVABLE)
def unresolvable(machine: Machine) -> Iterator[Finding]:
    """What containers ask for, against what specifications define."""
    host = machine.host
    if not machine.inventory.gpus:
        return
    for identifier, container in sorted(host.docker_containers().items()):
        state = container.get("State") or {}
        match = _ERROR.search(str(state.get("Error") or ""))
        asked = match[1].replace(" ", "").split(",") if match is not None else list(_cdi_requests(container))
        if state.get("Running") or not asked:
            continue
        cache = _cache(host) or load(host)
        missing = [device for device in asked if device not in cache.devices]
        if missing:
            yield _missing(host, identifier, container, cache, missing, failed=match is not None)


def _cdi_requests(container: Mapping[str, Any]) -> Iterator[str]:
    for request in (container.get("HostConfig") or {}).get("DeviceRequests") or ():
        if request.get("Driver") == "cdi":
            yield from map(str, request.get("DeviceIDs") or ())


def _missing(
    host: Host, identifier: str, container: Mapping[str, Any], cache: Cache, missing: list[str], *, failed: bool
) -> Finding:
    name = str(container.get("Name") or identifier[:12]).lstrip("/")
    why, evidence, fix = _why(host, cache, missing[0])
    severity: Severity = "error" if failed else "warning"
    source = f"docker inspect {name}: " + ("State.Error" if failed else "HostConfig.DeviceRequests")
    return UNRESOLVABLE.finding(
        f"Container {name} asks for {', '.join(missing)} and cannot start: {why}",
        severity=severity,
        evidence=[Evidence(source, f"{'unresolvable CDI devices ' if failed else ''}{', '.join(missing)}"), *evidence],
        fix=fix,
        target=Target(container=identifier),
    )


def _why(host: Host, cache: Cache, device: str) -> tuple[str, list[Evidence], list[Fix]]:
    kind = device.partition("=")[0]
    if device in cache.conflicts:
        files = cache.conflicts[device]
        return (
            f"{' and '.join(files)} both define it, so that none may have it.",
            [Evidence(file, f"defines {device}") for file in files],
            [Fix("Remove all files but one", f"sudo rm {files[0]}")],
        )
    bad = [error for error in cache.errors if error.file]
    names = sorted(known for known in cache.devices if known.startswith(f"{kind}="))
    if names:
        only = f"the class {kind} has only {', '.join(each.partition('=')[2] for each in names)}."
        advice = "Ask for a device that exists, or write the specification anew: GPUs or MIG devices changed since"
        if split_kind(kind)[0].startswith("management."):
            advice = "Ask for nvidia.com/gpu instead: the management class is for agents that need every GPU"
        path = cache.devices[names[0]].file.path
        return only, [Evidence(path, f"defines {', '.join(names)}")], [Fix(advice, *_command(host, path, advice))]
    if bad:
        return (
            f"{bad[0].file} cannot be used.",
            [Evidence(error.file, error.message) for error in bad[:3]],
            [Fix("Correct it, or write it anew", "sudo gpuiso cdi validate")],
        )
    return (
        f"no specification in {' or '.join(cache.directories)} defines the class {kind}.",
        [Evidence(directory, _listed(host, directory)) for directory in cache.directories],
        regenerate(host, "/etc/cdi/nvidia.yaml"),
    )


def _command(host: Host, path: str, advice: str) -> tuple[str | None]:
    return (regenerate(host, path)[0].command if "anew" in advice else None,)


def _listed(host: Host, directory: str) -> str:
    names = host.listdir(directory)
    return "does not exist" if names is None else ", ".join(names) or "empty"


@machine_check(UNRESOLVABLE)
def unreadable(machine: Machine) -> Iterator[Finding]:
    """Specifications that the users of rootless engines may not read."""
    host = machine.host
    if not machine.inventory.gpus or (cache := _cache(host)) is None:
        return
    files = list(_used_files(cache))
    closed = []
    for path, bits in [(file.path.rpartition("/")[0], 0o5) for file in files] + [(file.path, 0o4) for file in files]:
        node = host.stat(path)
        if node is not None and node.mode & bits != bits and (path, node) not in closed:
            closed.append((path, node))
    users = list(rootless_users(host)) if closed else []
    if not users:
        return
    yield UNRESOLVABLE.finding(
        f"uid {', '.join(map(str, users))} runs containers without root, and may not read"
        f" {', '.join(path for path, _ in closed)}: for its engine every GPU is an unresolvable CDI device.",
        severity="warning",
        title="Rootless engines cannot read the CDI specifications",
        evidence=[
            *(Evidence(path, f"mode {node.mode:04o} uid {node.uid} gid {node.gid}") for path, node in closed),
            *(Evidence(f"/run/user/{uid}", "holds the state of a rootless engine") for uid in users),
        ],
        fix=[
            Fix("Let everybody read them", f"sudo chmod a+rX {' '.join(path for path, _ in closed)}"),
        ],
    )
