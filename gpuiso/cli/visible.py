# SPDX-License-Identifier: Apache-2.0
"""``gpuiso visible``: which GPUs does a process see, and why those?"""

from __future__ import annotations

import enum
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.numbers import process_id
from gpuiso.cli.render.objects import print_object
from gpuiso.errors import Unknown, UsageError
from gpuiso.gpu.visibility.names import VARIABLES

if TYPE_CHECKING:
    from rich.console import Console

    from gpuiso.gpu.model import Inventory
    from gpuiso.gpu.visibility import Visibility
    from gpuiso.host.protocol import Host

__all__ = ["Api", "visible"]


class Api(enum.StrEnum):
    """The programming interface whose view is asked for."""

    CUDA = "cuda"
    HIP = "hip"
    OPENCL = "opencl"
    LEVEL_ZERO = "level-zero"


_NAMES = {"cuda": "CUDA", "hip": "HIP", "opencl": "OpenCL on AMD", "level-zero": "Level Zero"}
_CUDA_ERRORS = {100: "CUDA_ERROR_NO_DEVICE", 101: "CUDA_ERROR_INVALID_DEVICE", 999: "CUDA_ERROR_UNKNOWN"}
_MOST_IGNORED = 20  # tokens that people are told of


def visible(
    pid: Annotated[
        int | None,
        typer.Option("--pid", metavar="N", parser=process_id, help="The process whose environment and access count."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable; may be given again. Outweighs --pid's own."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option("--deny", metavar="NODE", help="A node to take away (/dev/nvidia1 or nvidia1); may be repeated."),
    ] = None,
    record: Annotated[
        str | None, typer.Option("--from", metavar="RECORD", help="Ask a recorded host (a directory or .tar.gz).")
    ] = None,
    api: Annotated[
        Api | None,
        typer.Option("--api", help="Whose view. By default that of the first vendor found: NVIDIA, AMD, Intel."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show which GPUs a process sees, and why.

    Takes what the process may open, then the variables, as the vendor's library does; each token that shows no GPU is
    named with the reason. Without --pid and --env: what this shell's programs see; with --from, what a process
    without any variable sees.

    \b
    Examples:
      gpuiso visible --pid 4711
      gpuiso visible --env CUDA_VISIBLE_DEVICES=0,4,1
      gpuiso visible --deny nvidia1 --env CUDA_VISIBLE_DEVICES=1
      gpuiso visible --pid 4711 --env CUDA_VISIBLE_DEVICES=0     what if?

    \b
    Exit codes: 0 the answer, "nothing" included; 1 nothing is visible because nodes are denied (by --deny, or to
    the process); 2 wrong usage or a bad record; 4 no such process; 5 the process's environment cannot be read.
    """
    from gpuiso.gpu.inventory import build_inventory
    from gpuiso.gpu.visibility.nodes import node_paths
    from gpuiso.host import open_host

    given = dict(_variable(text) for text in env or ())
    _check_nodes(deny or ())
    host = open_host(record)
    inventory = build_inventory(host)
    asked = api.value if api is not None else _usual_api(inventory)
    subject = os.getpid() if host.live and pid is None and env is None else pid
    variables: Mapping[str, str] = {**_environment(host, subject), **given}
    denied, warnings = node_paths(deny or ()), _unknown_nodes(inventory, deny or ())
    through, notes = _carried(host, subject, inventory, asked)
    denied |= {node for node, carrier in through.items() if carrier is None}
    warnings += notes
    if subject is not None:
        who = f"pid {subject}" if pid is not None else "this process"
        closed, notes = _closed_to(host, subject, _needed_nodes(inventory, asked), who, through)
        denied |= closed
        warnings += notes
    warnings += _unread_names(given)
    warnings += _runtime_note(inventory, given)
    warnings += [f"not examined: {source}" for source in inventory.not_examined]
    seen = _view(asked, inventory, variables, denied)
    without_denial = _view(asked, inventory, variables, ())
    if as_json:
        print_object(_as_json(seen, warnings))
    else:
        from gpuiso.cli.render.console import make_console

        _print(make_console(), seen, warnings)
    return 1 if without_denial.gpus and not seen.gpus else 0


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise UsageError(f"--env {text!r} is not NAME=VALUE")
    return name, value


def _check_nodes(deny: Sequence[str]) -> None:
    for name in deny:
        if not name.removeprefix("/dev/").strip("/"):
            raise UsageError(f"--deny {name!r} names no node: /dev/nvidia1 or nvidia1 would")
        if "," in name:
            raise UsageError(f"--deny {name!r}: one node each", hint="give --deny again for each of them")


def _unread_names(given: Mapping[str, str]) -> list[str]:
    """What is to be said of variables that are written almost as one that selects GPUs."""
    from gpuiso.doctor.checks.variable_names import meant

    meanings = {name: meant(name) for name in given if name not in VARIABLES}
    return [
        f"--env {name}: nobody reads that name; {known} is one that is read"
        for name, known in meanings.items()
        if known is not None
    ]


def _usual_api(inventory: Inventory) -> str:
    if inventory.of("nvidia"):
        return "cuda"
    if inventory.of("amd"):
        return "hip"
    return "level-zero" if inventory.of("intel") else "cuda"


def _environment(host: Host, pid: int | None) -> Mapping[str, str]:
    from gpuiso.host.process import environ, require

    if pid is None:
        return {}
    require(host, pid)
    return environ(host, pid)


def _view(api: str, inventory: Inventory, env: Mapping[str, str], denied: Collection[str]) -> Visibility:
    if api == "cuda":
        from gpuiso.gpu.visibility.cuda import cuda_visible

        return cuda_visible(inventory.gpus, env, denied=denied, driver_version=inventory.driver_version)
    if api == "level-zero":
        from gpuiso.gpu.visibility.level_zero import level_zero_visible

        return level_zero_visible(inventory.gpus, env, denied=denied)
    from gpuiso.gpu.visibility.rocm import rocm_visible

    return rocm_visible(inventory.gpus, env, denied=denied, api="opencl" if api == "opencl" else "hip")


def _needed_nodes(inventory: Inventory, api: str) -> list[str]:
    """The nodes that decide what one interface shows, the shared ones first."""
    from gpuiso.gpu.visibility.nodes import NVIDIA_UVM, NVIDIACTL, usable_node
    from gpuiso.gpu.visibility.rocm import KFD

    vendor, shared = {
        "cuda": ("nvidia", [NVIDIACTL, NVIDIA_UVM]),
        "level-zero": ("intel", []),
    }.get(api, ("amd", [KFD]))
    gpus = [gpu for gpu in inventory.gpus if gpu.vendor == vendor and gpu.index is not None]
    if not gpus:
        return []
    own = [node for gpu in gpus if (node := usable_node(gpu)) is not None]
    return shared + own + [node.path for gpu in gpus for mig in gpu.mig_devices for node in mig.nodes]


def _carried(host: Host, pid: int | None, inventory: Inventory, api: str) -> tuple[dict[str, str | None], list[str]]:
    """For each GPU's own node the one that carries its numbers, and what to say where that is another one or none."""
    from gpuiso.gpu.carriers import carriers
    from gpuiso.gpu.visibility.nodes import usable_node

    if api != "cuda":
        return {}, []
    base = "" if pid is None else f"/proc/{pid}/root"
    found = carriers(inventory.gpus, lambda path: host.stat(f"{base}{path}"))
    through = {usable_node(each.gpu) or "": each.path for each in found}
    return through, [each.note for each in found if each.note is not None]


def _closed_to(
    host: Host, pid: int, nodes: Sequence[str], who: str, through: Mapping[str, str | None]
) -> tuple[frozenset[str], list[str]]:
    """The nodes a process cannot open, and what to say about them and about those that nobody can tell of.

    ``through`` names the node that stands for another; one for which none stands has been told of.
    """
    closed, warnings = set(), []
    unknown: dict[str, list[str]] = {}
    for node in nodes:
        carrier = through.get(node, node)
        if carrier is None:
            continue
        try:
            why = _why_closed(host, pid, carrier)
        except Unknown as error:
            unknown.setdefault(error.why, []).append(node)
            continue
        if why is not None:
            closed.add(node)
            warnings.append(f"{who} cannot open {node}: {why}")
    if unknown:
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in unknown.items())
        warnings.append(f"device access of {who} not examined ({reasons}): taken as allowed")
    return frozenset(closed), warnings


def _why_closed(host: Host, pid: int, node: str) -> str | None:
    """Why a process cannot open a node, None if it can. :raises Unknown: it cannot be known."""
    from gpuiso.doctor.gates import explain

    # A capability node is opened for reading alone.
    answer = explain(host, pid, node, "r" if "/nvidia-caps/" in node else "rw")
    if answer.denied_by is not None:
        return answer.denied_by.says
    if answer.verdict == "unknown":
        raise Unknown(node, answer.unknown_because or "one of its gates is not known")
    return None


def _unknown_nodes(inventory: Inventory, deny: Sequence[str]) -> list[str]:
    from gpuiso.gpu.visibility.nodes import node_path

    known = {node.path for node in inventory.shared_nodes}
    for gpu in inventory.gpus:
        known.update(node.path for node in gpu.nodes)
        known.update(node.path for mig in gpu.mig_devices for node in mig.nodes)
    return [f"--deny {name}: no GPU of this host has that node" for name in deny if node_path(name) not in known]


def _runtime_note(inventory: Inventory, given: Mapping[str, str]) -> list[str]:
    """What NVIDIA_VISIBLE_DEVICES on the command line means, for it is no variable of CUDA's."""
    if "NVIDIA_VISIBLE_DEVICES" not in given:
        return []
    from gpuiso.gpu.visibility.nvidia import nvidia_visible

    got = nvidia_visible(inventory.gpus, given)
    if got.fails is not None:
        outcome = f"a container would not start with it: {got.fails}"
    elif not got.gpus:
        outcome = "a container would get no GPU"
    else:
        names = ", ".join(str(gpu.physical) if gpu.mig is None else f"{gpu.physical} ({gpu.mig})" for gpu in got.gpus)
        outcome = f"a container would get {'GPU' if len(got.gpus) == 1 else 'GPUs'} {names}, counted from 0 inside"
    return [f"NVIDIA_VISIBLE_DEVICES is read by the container runtime, not by a process: {outcome}"]


def _as_json(seen: Visibility, warnings: Sequence[str]) -> dict[str, Any]:
    gpus = []
    for gpu in seen.gpus:
        entry: dict[str, Any] = {
            "index": gpu.index,
            "physical": gpu.physical,
            "uuid": gpu.uuid,
            "node": gpu.node,
        }
        if gpu.mig is not None:
            entry["mig"] = gpu.mig
        if gpu.tiles:
            entry["tiles"] = list(gpu.tiles)
        gpus.append(entry)
    return {
        "gpuiso": "visible/1",
        "cuInit": seen.cuInit,
        "gpus": gpus,
        "ignored": [{"token": token, "why": why} for token, why in seen.ignored],
        "warnings": [*seen.warnings, *warnings],
    }


def _print(console: Console, seen: Visibility, warnings: Sequence[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from gpuiso.gpu.visibility.tokens import quoted

    name = _NAMES[seen.api]
    if seen.gpus:
        count = "1 device" if len(seen.gpus) == 1 else f"{len(seen.gpus)} devices"
        console.print(Text(f"{name} shows {count}", style="bold green"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("index", "on the host", "UUID", "node"):
            table.add_column(heading, no_wrap=True)
        for gpu in seen.gpus:
            part = gpu.mig or (f"tile {', '.join(map(str, gpu.tiles))}" if gpu.tiles else "")
            place = f"GPU {gpu.physical} {part}".rstrip()
            table.add_row(str(gpu.index), place, gpu.uuid or "not known", gpu.node or "not known")
        console.print(table)
    else:
        error = _CUDA_ERRORS.get(seen.cuInit) if seen.api == "cuda" else None
        tail = f": cuInit returns {seen.cuInit} ({error})" if error else ""
        console.print(Text(f"{name} shows no device{tail}", style="bold red"))
    if seen.ignored:
        console.print(Text("Ignored", style="bold"))
        ignored = [token for token in seen.tokens if token.why is not None]
        for token in ignored[:_MOST_IGNORED]:
            console.print(Text(f"  {quoted(token.text)} in {token.variable}: {token.why}"))
        if len(ignored) > _MOST_IGNORED:
            console.print(Text(f"  and {len(ignored) - _MOST_IGNORED} more (--json lists them)"))
    for warning in (*seen.warnings, *warnings):
        console.print(Text(f"Note: {warning}", style="yellow"))
