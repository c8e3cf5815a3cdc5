# SPDX-License-Identifier: Apache-2.0
"""What was compiled for the hook: policies, the nodes of the GPUs, and the programs of sets of GPUs.

All of it lies below /run/gpuiso/hook, because device numbers may change with every boot; ``gpuiso hook refresh``
writes it. JSON:

``gpus.json``
    ``{"gpuiso": "hook-gpus/1", "deny": [[MAJOR, MINOR|null]…], "drivers": {NAME: MAJOR},
    "gpus": {ID: [[MAJOR, MINOR]…]}, "own": {ID: [[MAJOR, MINOR]…]}, "names": {NAME: ID}}``: ``deny`` is what belongs to
    any GPU, a member of ``gpus`` what one of them needs, one of ``own`` what of that no other needs, and ``names`` are
    those that people give to an ID. A GPU in MIG mode cannot be used as a whole, and is not in ``own``.
``policy-NAME.json``
    ``{"gpuiso": "hook-policy/1", "program": "<hex>"|null, "systemd": [DevicePolicy, [[DEVICE, ACCESS]…]]|null,
    "gpu.max": "QUOTA PERIOD"|null}``
``programs/ID+ID``
    the instructions that leave a container these GPUs.
"""

from __future__ import annotations

import os

from gpuiso.hook.errors import HookError
from gpuiso.hook.text import decode_object, read_file

__all__ = ["DIRECTORY", "GpuTable", "HookPolicy", "gpu_table", "hook_policy", "policy_file_name", "table_document"]

DIRECTORY = "/run/gpuiso/hook"
_LIMIT = 4 << 20
_PROGRAM_LIMIT = 1 << 20
_INSTRUCTION = 8  # bytes
_LONGEST_NAME = 200
_REFRESH = "run gpuiso hook refresh"

Device = tuple[int, int | None]


class HookPolicy:
    """A compiled policy; ``program`` is None where it says nothing about devices."""

    def __init__(self, document: dict[str, object], file: str) -> None:
        try:
            program, systemd, gpu_max = (document[name] for name in ("program", "systemd", "gpu.max"))
            self.program = bytes.fromhex(program) if isinstance(program, str) else None
            self.systemd: tuple[str, list[tuple[str, str]]] | None = None
            if isinstance(systemd, list):
                policy, allow = systemd
                self.systemd = str(policy), [(str(device), str(access)) for device, access in allow]
            self.gpu_max = gpu_max if isinstance(gpu_max, str) else None
        except (KeyError, TypeError, ValueError):
            raise HookError(f"{file} is damaged; {_REFRESH}") from None


class GpuTable:
    """The GPUs of this host and their nodes."""

    def __init__(self, document: dict[str, object], file: str) -> None:
        try:
            self.deny = _devices(document["deny"])
            drivers, gpus, own, names = (_members(document[name]) for name in ("drivers", "gpus", "own", "names"))
            self.drivers = {str(name): int(str(major)) for name, major in drivers.items()}
            self.gpus = {str(name): _devices(nodes) for name, nodes in gpus.items()}
            self.own = {str(name): _numbers(nodes) for name, nodes in own.items()}
            self.names = {str(name): str(one) for name, one in names.items()}
        except (KeyError, TypeError, ValueError):
            raise HookError(f"{file} is damaged; {_REFRESH}") from None

    def select(self, text: str) -> list[str]:
        """The ids that ``0,GPU-uuid``, ``all`` or ``none`` names. :raises HookError: there is no such GPU."""
        words = [word.strip() for word in text.split(",")]
        if words == ["all"]:
            return sorted(self.gpus)
        if words == ["none"]:
            return []
        unknown = [word for word in words if word not in self.names]
        if unknown:
            known = ", ".join(sorted(self.names, key=lambda name: (len(name), name))[:8]) or "none"
            raise HookError(f"gpuiso.gpus: there is no GPU {unknown[0]!r} here; known are {known}, all, none")
        return sorted({self.names[word] for word in words})

    def nodes(self, ids: list[str]) -> list[Device]:
        """What these GPUs need, each node once."""
        return list(dict.fromkeys(device for one in ids for device in self.gpus[one]))

    def program(self, ids: list[str], directory: str = DIRECTORY) -> bytes:
        """The program that leaves these GPUs, from the cache or compiled for the first time."""
        key = "+".join(ids) or "none"
        path = f"{directory}/programs/{key}"
        if len(key) <= _LONGEST_NAME:
            try:
                kept = read_file(path, _PROGRAM_LIMIT, follow=False)
                if kept and len(kept) % _INSTRUCTION == 0:
                    return kept
            except FileNotFoundError:
                pass
        program = self.compile(ids)
        if len(key) <= _LONGEST_NAME:
            _keep(path, program)
        return program

    def compile(self, ids: list[str]) -> bytes:
        """What the program of these GPUs is. Only here the hook waits for the compiler to be imported."""
        from gpuiso.devfilter.compile import compile_rules
        from gpuiso.devfilter.insn import pack
        from gpuiso.policy.rule import Rule

        rules = [Rule(False, "c", major, minor, "rwm") for major, minor in self.deny]
        rules += [Rule(True, "c", major, minor, "rwm") for major, minor in self.nodes(ids)]
        return pack(compile_rules(rules, default_allow=True))


def gpu_table(directory: str = DIRECTORY) -> GpuTable:
    """:raises HookError: there is none, it can be changed by others than root, or drivers have other numbers now."""
    path = f"{directory}/gpus.json"
    table = GpuTable(_document(directory, path, "hook-gpus/1", "the GPUs of this host are not known to the hook"), path)
    found: dict[str, int] = {}
    with open("/proc/devices") as lines:
        for line in lines:
            number, _, name = line.strip().partition(" ")
            if name in table.drivers and number.isdigit():
                found.setdefault(name, int(number))
            if line.startswith("Block"):
                break
    for name, major in table.drivers.items():
        if name in found and found[name] != major:
            raise HookError(f"{path} is out of date: {name} is {found[name]} now, not {major}; {_REFRESH}")
    return table


def hook_policy(name: str, directory: str = DIRECTORY) -> HookPolicy:
    """:raises HookError: there is none of that name."""
    path = f"{directory}/{policy_file_name(name)}"
    return HookPolicy(_document(directory, path, "hook-policy/1", f"there is no compiled policy {name!r}"), path)


def policy_file_name(name: str) -> str:
    """The file of a policy below the directory. :raises HookError: the name could be a path."""
    if not name or name[0] == "." or len(name) > _LONGEST_NAME or not name.isprintable() or "/" in name:
        raise HookError(f"{name!r} is no name of a policy")
    return f"policy-{name}.json"


def table_document(directory: str, path: str, kind: str) -> dict[str, object] | None:
    """What a file of the directory holds; None if there is none. :raises HookError: it cannot be trusted."""
    try:
        _check_owner(directory)
        document = decode_object(read_file(path, _LIMIT, follow=False), path)
    except FileNotFoundError:
        return None
    if document.get("gpuiso") != kind:
        raise HookError(f"{path} is of another version of gpuiso; {_REFRESH}")
    return document


def _document(directory: str, path: str, kind: str, missing: str) -> dict[str, object]:
    document = table_document(directory, path, kind)
    if document is None:
        raise HookError(f"{missing} (no {path}); {_REFRESH}")
    return document


def _check_owner(directory: str) -> None:
    """Whoever may write there decides what containers may use."""
    info = os.stat(directory)
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
        raise HookError(f"{directory} can be written by others than root")


def _members(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _devices(value: object) -> list[Device]:
    if not isinstance(value, list):
        raise TypeError
    return [(int(major), None if minor is None else int(minor)) for major, minor in value]


def _numbers(value: object) -> list[tuple[int, int]]:
    if not isinstance(value, list):
        raise TypeError
    return [(int(major), int(minor)) for major, minor in value]


def _keep(path: str, program: bytes) -> None:
    """Remember a program for the next container; if that cannot be, it is compiled again."""
    temporary = f"{path}.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(fd, "wb", buffering=0) as file:
            file.write(program)
        os.rename(temporary, path)
    except OSError:
        return
