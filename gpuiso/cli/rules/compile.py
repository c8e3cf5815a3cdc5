# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules compile``: what do the rules of a policy become?"""

from __future__ import annotations

import enum
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.cli.rules.source import PolicyFile, Record, load_policy
from gpuiso.errors import BadInput, NotSupported

if TYPE_CHECKING:
    from gpuiso.policy.resolve import ResolvedPolicy
    from gpuiso.policy.v1 import V1Write

__all__ = ["compile_policy"]


class FormatName(enum.StrEnum):
    """What to print."""

    LISTING = "listing"
    HEX = "hex"
    DEVICES_ALLOW = "devices.allow"
    SYSTEMD = "systemd"
    JSON = "json"


def compile_policy(
    file: PolicyFile,
    form: Annotated[
        FormatName,
        typer.Option(
            "--format",
            help="listing or hex: the program for cgroup v2; devices.allow: writes for cgroup v1, from a cgroup that "
            "no process is in; systemd: settings of a unit; json: all of them.",
        ),
    ] = FormatName.LISTING,
    record: Record = None,
) -> None:
    """Print what the device rules of a policy become.

    That is a program, writes, or settings. Nothing is changed.

    \b
    Examples:
      gpuiso rules compile gpu.yaml
      gpuiso rules compile gpu.yaml --format systemd
      gpuiso rules compile gpu.yaml --format json --from host.tar.gz

    \b
    Exit codes: 0 printed; 2 the policy cannot be used; 3 not permitted; 4 no such file or record; 5 the format cannot
    hold these rules.
    """
    from gpuiso.host import open_host

    policy = load_policy(file, open_host(record))
    if not policy.restricts_devices:
        raise BadInput("it says nothing about devices", file=file, hint="the key devices holds a list of rules")
    if form is FormatName.JSON:
        print_object(_as_json(policy))
        return
    for line in _lines(policy, form):
        print(line)


def _lines(policy: ResolvedPolicy, form: FormatName) -> list[str]:
    from gpuiso.devfilter.decode import listing
    from gpuiso.devfilter.insn import pack
    from gpuiso.devfilter.program import to_program
    from gpuiso.policy.systemd import to_systemd

    if form is FormatName.LISTING:
        return listing(to_program(policy)).splitlines()
    if form is FormatName.HEX:
        return [pack(to_program(policy)).hex()]
    if form is FormatName.SYSTEMD:
        return to_systemd(policy.rules, default_allow=policy.default_allow).unit_lines()
    return [f"echo {shlex.quote(write.text)} > {write.file}" for write in _v1(policy)]


def _v1(policy: ResolvedPolicy) -> list[V1Write]:
    from gpuiso.policy.v1 import V1State, v1_state, v1_writes

    # What a cgroup holds is not known before it is asked: an a forgets it.
    return v1_writes(V1State(True, None), v1_state(policy.rules, default_allow=policy.default_allow), vacant=True)


def _as_json(policy: ResolvedPolicy) -> dict[str, Any]:
    from gpuiso.devfilter.insn import pack
    from gpuiso.devfilter.program import to_program
    from gpuiso.policy.normal import normal_form
    from gpuiso.policy.systemd import to_systemd

    default_allow, rules = normal_form(policy.rules, default_allow=policy.default_allow)
    program = to_program(policy)
    found: dict[str, Any] = {
        "gpuiso": "rules-compile/1",
        "normal_form": {"default": "allow" if default_allow else "deny", "rules": [str(rule) for rule in rules]},
        "program": {"instructions": len(program), "insns": pack(program).hex()},
        "cgroup_v1": None,
        "systemd": None,
        "not_supported": {},
    }
    try:
        found["cgroup_v1"] = [{"file": write.file, "text": write.text} for write in _v1(policy)]
    except NotSupported as error:
        found["not_supported"]["cgroup_v1"] = error.message
    try:
        settings = to_systemd(policy.rules, default_allow=policy.default_allow)
        found["systemd"] = {"DevicePolicy": settings.policy, "DeviceAllow": [list(pair) for pair in settings.allow]}
    except NotSupported as error:
        found["not_supported"]["systemd"] = error.message
    return found
