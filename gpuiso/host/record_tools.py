# SPDX-License-Identifier: Apache-2.0
"""The JSON and text files of a record that hold what tools said, reduced to what names nobody.

Docker's inspect and systemd's properties hold command lines, labels and secrets. Without ``raw`` only the members
that say something about devices are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gpuiso.host.protocol import CommandResult, DeviceProgram
from gpuiso.host.recorder import Recorder
from gpuiso.host.redact import Redactor

__all__ = ["cgroups_json", "kernel_log", "learn_from_tools", "tool_files"]

_LOG_LINE = re.compile(
    r"nvidia|NVRM|\bXid\b|nouveau|vfio|amdgpu|kfd|\bi915\b|\bxe\b|blocked for more than|hung_task|Key was rejected"
    r"|taint|\bdrm\b|fallen off the bus|AER:|pcieport|\btype=(?:1326|1423)\b",
    re.IGNORECASE,
)
_UNIT = frozenset({
    "ActiveEnterTimestamp", "ActiveState", "After", "ControlGroup", "Delegate", "DeviceAllow", "DevicePolicy",
    "DropInPaths", "Environment", "ExecMainPID", "ExecMainStartTimestamp", "FragmentPath", "Id",
    "InactiveEnterTimestamp", "LoadState", "MainPID", "NeedDaemonReload", "PrivateDevices", "Requires", "Result",
    "Slice", "SubState", "Transient", "Type", "UnitFileState", "Wants",
})  # fmt: skip
_INFO = frozenset({
    "CDISpecDirs", "CgroupDriver", "CgroupVersion", "DefaultRuntime", "DiscoveredDevices", "DockerRootDir",
    "Driver", "ID", "KernelVersion", "Name", "OSType", "OperatingSystem", "Runtimes", "SecurityOptions",
    "ServerVersion",
})  # fmt: skip
_CONTAINER = frozenset({
    "AppArmorProfile", "Config", "Created", "Driver", "HostConfig", "Id", "Mounts", "Name", "Platform", "State",
})  # fmt: skip
_CONFIG = frozenset({"Env", "Hostname", "User"})
_HOST_CONFIG = frozenset({
    "CapAdd", "CapDrop", "Cgroup", "CgroupParent", "CgroupnsMode", "DeviceCgroupRules", "DeviceRequests",
    "Devices", "IpcMode", "NetworkMode", "PidMode", "Privileged", "ReadonlyPaths", "Runtime", "SecurityOpt",
    "UsernsMode",
})  # fmt: skip
_STATE = frozenset({"Error", "ExitCode", "FinishedAt", "OOMKilled", "Pid", "Running", "StartedAt", "Status"})
_MOUNT = frozenset({"Destination", "Mode", "Propagation", "RW", "Source", "Type"})


def learn_from_tools(recorder: Recorder, redactor: Redactor) -> None:
    """The names and numbers that tools gave."""
    for gpu in (recorder.tools.get("nvml") or {}).get("gpus", ()):
        for key in ("serial", "board_serial"):
            redactor.learn_serial(str(gpu.get(key) or ""))
    redactor.learn_host(str((recorder.tools.get("docker_info") or {}).get("Name") or ""))
    for identifier, container in (recorder.tools.get("docker_containers") or {}).items():
        for word in (identifier, identifier[:12], str(container.get("Name") or identifier).lstrip("/")):
            redactor.learn_word(word)
        config = container.get("Config") or {}
        redactor.learn_host(str(config.get("Hostname") or ""))
        redactor.learn_environment(_pairs(config.get("Env")))
    for unit in recorder.units.values():
        redactor.learn_environment(_pairs((unit or {}).get("Environment")))


def tool_files(recorder: Recorder, redactor: Redactor | None) -> dict[str, Any]:
    """What belongs below tools/, by name; None as ``redactor`` leaves everything as it is."""
    files: dict[str, Any] = {}
    text = _same if redactor is None else redactor.text
    if "nvml" in recorder.tools:
        files["nvml.json"] = _each_string(recorder.tools["nvml"], text)
    if recorder.units:
        files["systemd.json"] = {text(name): _unit(unit, redactor) for name, unit in sorted(recorder.units.items())}
    docker: dict[str, Any] = {}
    if "docker_info" in recorder.tools:
        info = recorder.tools["docker_info"]
        docker["info"] = info if redactor is None or info is None else _kept(info, _INFO, redactor)
    if "docker_containers" in recorder.tools:
        docker["containers"] = {
            name: inspect if redactor is None else _container(inspect, redactor)
            for name, inspect in recorder.tools["docker_containers"].items()
        }
    if docker:
        files["docker.json"] = docker
    if recorder.commands:
        files["commands.json"] = [_command(argv, result, text) for argv, result in recorder.commands.items()]
    return files


def kernel_log(log: str, redactor: Redactor | None) -> str:
    """The lines about GPUs, their drivers and hung tasks."""
    kept = "".join(f"{line}\n" for line in log.splitlines() if _LOG_LINE.search(line))
    return kept if redactor is None else redactor.text(kept)


def cgroups_json(recorder: Recorder, text: Callable[[str], str]) -> dict[str, Any]:
    return {
        text(cgroup): {"device_programs": None if programs is None else [_program(program) for program in programs]}
        for cgroup, programs in sorted(recorder.programs.items())
    }


def _program(program: DeviceProgram) -> dict[str, Any]:
    return {
        "id": program.id,
        "name": program.name,
        "tag": program.tag,
        "attach_flags": program.attach_flags,
        "insns": None if program.insns is None else program.insns.hex(),
    }


def _command(argv: tuple[str, ...], result: CommandResult | None, text: Callable[[str], str]) -> dict[str, Any]:
    if result is None:  # not installed
        return {"argv": [text(word) for word in argv], "exit": None, "timed_out": False}
    return {
        "argv": [text(word) for word in argv],
        "exit": result.exit,
        "stdout": text(result.stdout),
        "stderr": text(result.stderr),
        "seconds": result.seconds,
        "timed_out": result.timed_out,
    }


def _unit(unit: dict[str, Any] | None, redactor: Redactor | None) -> dict[str, Any] | None:
    if unit is None or redactor is None:
        return unit
    kept = _kept(unit, _UNIT - {"Environment"}, redactor)
    if "Environment" in unit:
        kept["Environment"] = redactor.assignments(_strings(unit["Environment"]))
    return kept


def _container(inspect: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    nested = {"Config": _CONFIG - {"Env"}, "HostConfig": _HOST_CONFIG, "State": _STATE}
    kept = _kept(inspect, _CONTAINER - nested.keys() - {"Mounts"}, redactor)
    for name, members in nested.items():
        if isinstance(inspect.get(name), dict):
            kept[name] = _kept(inspect[name], members, redactor)
    if "Config" in kept and inspect["Config"].get("Env") is not None:
        kept["Config"]["Env"] = redactor.assignments(_strings(inspect["Config"]["Env"]))
    if isinstance(inspect.get("Mounts"), list):
        kept["Mounts"] = [_kept(mount, _MOUNT, redactor) for mount in inspect["Mounts"] if isinstance(mount, dict)]
    return kept


def _kept(value: Mapping[str, Any], names: frozenset[str], redactor: Redactor) -> dict[str, Any]:
    return {name: _each_string(member, redactor.text) for name, member in value.items() if name in names}


def _each_string(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_each_string(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): _each_string(member, change) for name, member in value.items()}
    return value


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []


def _pairs(value: Any) -> list[tuple[str, str]]:
    return [(name, rest) for name, _, rest in (entry.partition("=") for entry in _strings(value))]


def _same(text: str) -> str:
    return text
