# SPDX-License-Identifier: Apache-2.0
"""Compiles what the hook reads (:mod:`gpuiso.hook.tables` describes the files), so that no container waits for it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuiso.cdi.names import name_fault
from gpuiso.devfilter.insn import pack
from gpuiso.devfilter.program import to_program
from gpuiso.errors import BadInput, FailedAndUndone, GpuisoError, NotPermitted, NotSupported
from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.majors import registered
from gpuiso.gpu.model import Gpu, Inventory
from gpuiso.grants.document import is_grants
from gpuiso.grants.units import units_of
from gpuiso.hook.errors import HookError
from gpuiso.hook.runtime import GRANTS_FILE
from gpuiso.hook.tables import DIRECTORY, GpuTable, policy_file_name
from gpuiso.hook.text import read_file
from gpuiso.hookset.grants import compiled_grants
from gpuiso.hookset.known import known
from gpuiso.host.protocol import Host
from gpuiso.oci.files import replace_file
from gpuiso.policy.document import parse_policy
from gpuiso.policy.parse import parse_statements
from gpuiso.policy.resolve import ResolvedPolicy, resolve
from gpuiso.policy.systemd import to_systemd

__all__ = ["POLICIES", "Refreshed", "compiled_policy", "gpu_document", "refresh"]

POLICIES = "/etc/gpuiso/policy.d"
_GRANTS = os.path.basename(GRANTS_FILE)
_MOST_BYTES = 1 << 20
_SUFFIXES = (".yaml", ".yml", ".json", ".rules")
# A container that was given some GPUs has none of the others, those included that are plugged in later.
_NOBODY = "deny c 195:* rwm\ndeny -char-nvidia-caps rwm"


@dataclass(frozen=True)
class Refreshed:
    """``gpus`` and ``policies`` are known to the hook now; ``errors`` are files of policies that are not.

    ``grants`` is the number of those that it holds containers to, None where grants limit no container; ``problems`` is
    what keeps it from that.
    """

    gpus: tuple[str, ...]
    policies: tuple[str, ...]
    grants: int | None
    problems: tuple[str, ...]
    errors: tuple[GpuisoError, ...]


def refresh(host: Host, policies: str = POLICIES, directory: str = DIRECTORY) -> Refreshed:
    """Write all tables anew. A policy that is wrong is left out, and so are those whose files are gone.

    Grants that are wrong leave those in force that were compiled before; where there were none, nothing is granted.

    :raises NotPermitted: the directory may not be written; FailedAndUndone: it cannot be.
    """
    inventory = build_inventory(host)
    document = gpu_document(host, inventory)
    files: dict[str, dict[str, Any]] = {"gpus.json": document}
    names: list[str] = []
    errors: list[GpuisoError] = []
    for name, path in _policy_files(policies, errors):
        try:
            files[policy_file_name(name)] = compiled_policy(_resolved(path, host, inventory), path)
            names.append(name)
        except HookError as error:
            errors.append(BadInput(str(error), file=path))
        except GpuisoError as error:
            errors.append(error)
    grants, fault = compiled_grants(host, policies, units_of(inventory), document["names"])
    if fault is not None and all(error.message != fault.message for error in errors):
        errors.append(fault)
    if grants is not None and (fault is None or not os.path.exists(f"{directory}/{_GRANTS}")):
        files[_GRANTS] = grants
    try:
        _write(directory, files, document)
        if grants is None and fault is None and os.path.exists(f"{directory}/{_GRANTS}"):
            os.unlink(f"{directory}/{_GRANTS}")
    except PermissionError as error:
        raise NotPermitted(f"{directory}: not permitted to write it") from error
    except OSError as error:
        raise FailedAndUndone(f"{directory}: cannot be written: {error.strerror}") from error
    held = known(directory)
    return Refreshed(tuple(document["names"]), tuple(names), held.grants, held.problems, tuple(errors))


def gpu_document(host: Host, inventory: Inventory) -> dict[str, Any]:
    """The table of GPUs: of all that a driver holds, and of their MIG devices."""
    gpus: dict[str, list[list[int | None]]] = {}
    names: dict[str, str] = {}
    indices = [gpu.index for gpu in inventory.gpus]
    for gpu in inventory.gpus:
        if gpu.index is None or gpu.node is None:
            continue
        uid = gpu.uuid or f"{gpu.vendor}:{gpu.index}"
        gpus[uid] = _numbers(f"allow gpu {gpu.pci_address}", host, inventory)
        for name in _names(gpu, unique=indices.count(gpu.index) == 1):
            names[name] = uid
        for mig in gpu.mig_devices:
            if mig.uuid is not None and mig.nodes:
                gpus[mig.uuid] = _numbers(f"allow mig {mig.uuid}", host, inventory)
                names[mig.uuid] = mig.uuid
    deny = _numbers(f"{_NOBODY}\ndeny gpu all" if gpus else _NOBODY, host, inventory)
    drivers = {name: major for major, held in registered(host, "c").items() for name in held if "nvidia" in name}
    own = {
        names[unit.pci_address if unit.whole else unit.id]: [[major, minor] for _, major, minor in unit.nodes]
        for unit in units_of(inventory)
    }
    return {"gpuiso": "hook-gpus/1", "deny": deny, "drivers": drivers, "gpus": gpus, "own": own, "names": names}


def compiled_policy(policy: ResolvedPolicy, path: str) -> dict[str, Any]:
    """A policy as the hook reads it. :raises NotSupported: it holds what no hook can."""
    others = [*policy.files, *(["gpu.memory.max"] if policy.memory_max is not None else [])]
    if others:
        raise NotSupported(
            f"{path}: the hook holds device rules and gpu.max; {others[0]} is the engine's",
            hint="give the engine its own option for it, or use gpuiso rules apply",
        )
    program: str | None = None
    systemd: list[Any] | None = None
    if policy.restricts_devices:
        program = pack(to_program(policy)).hex()
        try:
            devices = to_systemd(policy.rules, default_allow=policy.default_allow)
            systemd = [devices.policy, [list(pair) for pair in devices.allow]]
        except NotSupported:
            systemd = None  # the program alone holds it
    share = None if policy.gpu_max is None else str(policy.gpu_max)
    return {"gpuiso": "hook-policy/1", "source": path, "program": program, "systemd": systemd, "gpu.max": share}


def _names(gpu: Gpu, *, unique: bool) -> Iterator[str]:
    if unique:
        yield str(gpu.index)
    yield f"{gpu.vendor}:{gpu.index}"
    yield gpu.pci_address
    if gpu.uuid is not None:
        yield gpu.uuid


def _numbers(rules: str, host: Host, inventory: Inventory) -> list[list[int | None]]:
    policy = resolve(parse_statements(rules), host, inventory=inventory)
    found = dict.fromkeys((rule.major, rule.minor) for rule in policy.rules if rule.type == "c")
    return [list(pair) for pair in found]


def _policy_files(directory: str, errors: list[GpuisoError]) -> Iterator[tuple[str, str]]:
    """Names and paths; a name that two files have belongs to neither."""
    found: dict[str, list[str]] = {}
    try:
        entries = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        stem, suffix = os.path.splitext(entry)
        if suffix in _SUFFIXES and not entry.startswith("."):
            found.setdefault(stem, []).append(f"{directory}/{entry}")
    for stem, paths in found.items():
        if len(paths) > 1:
            errors.append(BadInput(f"{paths[0]} has the same name", file=paths[1]))
        elif _has_grants(paths[0]):
            continue
        elif fault := name_fault(stem):
            errors.append(BadInput(f"a policy is a CDI device too: {fault}", file=paths[0]))
        else:
            yield stem, paths[0]


def _has_grants(path: str) -> bool:
    """Files of grants lie beside the policies."""
    try:
        return is_grants(read_file(path, _MOST_BYTES).decode("utf-8-sig"))
    except (HookError, OSError, UnicodeDecodeError):
        return False  # said when it is read as a policy


def _resolved(path: str, host: Host, inventory: Inventory) -> ResolvedPolicy:
    try:
        text = read_file(path, _MOST_BYTES).decode("utf-8-sig")
    except HookError as error:
        raise BadInput(str(error), file=path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", file=path) from error
    return resolve(parse_policy(text, file=path), host, inventory=inventory)


def _write(directory: str, files: dict[str, dict[str, Any]], document: dict[str, Any]) -> None:
    """The programs of other tables go first: a hook that runs meanwhile compiles its own."""
    programs = f"{directory}/programs"
    os.makedirs(directory, mode=0o755, exist_ok=True)
    shutil.rmtree(programs, ignore_errors=True)
    for name, content in files.items():
        replace_file(f"{directory}/{name}", json.dumps(content).encode())
    for name in os.listdir(directory):
        if name.startswith("policy-") and name not in files:
            os.unlink(f"{directory}/{name}")
    os.makedirs(programs, mode=0o755, exist_ok=True)
    table = GpuTable(document, f"{directory}/gpus.json")
    for ids in ([], *([one] for one in table.gpus), table.select("all")):
        table.program(ids, directory)
