# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules show``: what holds now, as the kernel tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.cli.rules.target import CgroupOption, ContainerOption, PidOption, UnitOption, choose_one, existing_target

if TYPE_CHECKING:
    from rich.tree import Tree

    from gpuiso.apply.show import Shown

__all__ = ["show_rules"]

_MOST_LINES = 40  # of a program's rules, for people; --json has them all


def show_rules(
    cgroup: CgroupOption = None,
    unit: UnitOption = None,
    container: ContainerOption = None,
    pid: PidOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show the rules that hold for a target, as the kernel has them.

    They are read from the programs of the target and of everything above it, whoever attached them. If gpuiso applied a
    policy there, what differs from that by now is shown as drift.

    \b
    Examples:
      gpuiso rules show --cgroup /gpu/job1
      gpuiso rules show --pid 4711 --json

    \b
    Exit codes: 0 as applied, or nothing was applied; 1 drift; 3 not permitted; 4 no such target.
    """
    choose_one(cgroup=cgroup, unit=unit, container=container, pid=pid)
    from gpuiso.apply.calls import Calls
    from gpuiso.apply.show import show
    from gpuiso.apply.state import State
    from gpuiso.host import open_host

    host, calls = open_host(None), Calls()
    target = existing_target(host, calls, cgroup=cgroup, unit=unit, container=container, pid=pid, change=False)
    shown = show(target, state=State(), calls=calls)
    if as_json:
        print_object(shown.as_json())
    else:
        from gpuiso.cli.render.console import make_console

        make_console().print(_tree(shown))
    return 1 if shown.drift else 0


def _tree(shown: Shown) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(shown.target.key, style="bold"))
    for level in shown.levels:
        if level["programs"] is None:
            tree.add(Text(f"{level['path']}  not permitted to ask", style="yellow"))
        elif level["programs"]:
            branch = tree.add(Text(level["path"]))
            for program in level["programs"]:
                _add_program(branch, program)
    if not any(level["programs"] for level in shown.levels) and shown.levels:
        tree.add("no level carries a device program: every device may be opened")
    if shown.devices_list is not None:
        branch = tree.add("devices.list (cgroup v1)")
        for line in shown.devices_list:
            branch.add(Text(line))
    if shown.unit is not None:
        branch = tree.add(Text(shown.unit["name"]))
        for name, value in shown.unit.items():
            if name != "name":
                branch.add(Text(f"{name}={_words(value)}"))
    for name, content in shown.files.items():
        tree.add(Text(f"{name}  {'; '.join(content.splitlines())}"))
    if shown.applied is None:
        tree.add(Text("nothing of gpuiso's is applied here", style="dim"))
        return tree
    branch = tree.add(Text(f"applied: {shown.applied.policy.get('file') or 'a policy'}"))
    for name in ("gpu.max", "gpu.memory.max"):
        if shown.applied.policy.get(name) is not None:
            branch.add(Text(f"{name} {shown.applied.policy[name]}"))
    if narrower := shown.applied.policy.get("narrower"):
        more = f" and {len(narrower) - _MOST_LINES} more" if len(narrower) > _MOST_LINES else ""
        branch.add(Text(f"accepted, though something else denies it: {', '.join(narrower[:_MOST_LINES])}{more}"))
    for line in shown.drift or ("as it was applied",):
        branch.add(Text(f"drift: {line}" if shown.drift else line, style="bold red" if shown.drift else "green"))
    return tree


def _add_program(branch: Tree, program: dict[str, object]) -> None:
    from rich.text import Text

    name = f" ({program['name']})" if program["name"] else ""
    leaf = branch.add(Text(f"program {program['id']}{name} of {program['owner']}"))
    rules = program["rules"]
    if not isinstance(rules, list):
        leaf.add(Text("its instructions may not be read", style="yellow"))
        return
    for line in rules[:_MOST_LINES]:
        leaf.add(Text(line))
    if len(rules) > _MOST_LINES:
        leaf.add(Text(f"and {len(rules) - _MOST_LINES} more", style="dim"))


def _words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(" ".join(map(str, entry)) if isinstance(entry, list) else str(entry) for entry in value)
    return "infinity" if value == (1 << 64) - 1 else str(value)
