# SPDX-License-Identifier: Apache-2.0
"""Units and scripts that follow advice which never worked on cgroup v2: devices.allow, +devices, gpu.max.

The v2 tree has no such files: what writes them fails, or writes an ordinary nothing, and limits no access.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.host.protocol import Host

__all__: list[str] = []

FALSE_ADVICE = Rule(
    "GPU-CGV2-FALSE-ADVICE",
    "warning",
    "A unit or script limits GPUs in a way that cgroup v2 does not know",
    "something writes devices.allow, devices.deny, gpu.max, or +devices or +gpu into subtree_control on a v2 host:"
    " it has no effect",
    ("https://docs.kernel.org/admin-guide/cgroup-v2.html#device-controller",),
)

_UNIT_DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system")
_SCRIPTS = ("/etc/rc.local", "/etc/rc.d/rc.local", "/etc/crontab")
_SCRIPT_DIRECTORIES = (
    "/etc/cron.d",
    "/var/spool/cron/crontabs",
    "/var/spool/cron",
    "/etc/cron.daily",
    "/etc/cron.hourly",
)
_MAX_FILES = 500
_EXEC = re.compile(
    r"^[ \t]*Exec(?:Start|StartPre|StartPost|Reload|Stop|StopPost|Condition)[ \t]*=[ \t]*[-@:+!|]*(.*)$", re.MULTILINE
)
_PROGRAM = re.compile(r"(?<![\w.])(/(?:usr/local|opt|etc|root|home|srv)/[\w./+@-]+)")
_CONTINUED = re.compile(r"\\\n\s*")

_DEVICES = re.compile(
    r"(?:>\s*|tee\s+(?:-a\s+)?)\S*\bdevices\.(?:allow|deny)\b|\bcgset\b.*-r\s*devices\.(?:allow|deny)\b"
)
_CONTROLLER = re.compile(
    r"\+(?:devices|gpu)\b(?=.*\bcgroup\.subtree_control\b)|\bcgroup\.subtree_control\b.*\+(?:devices|gpu)\b"
)
#: A script that looks whether the file is there serves hosts of both kinds.
_TESTED = re.compile(r"(?:\[|\btest)\s+!?\s*-[efrsw]\s+\S*devices\.(?:allow|deny|list)\b")
_GPU_MAX = re.compile(r"(?:>\s*|tee\s+(?:-a\s+)?)\S*/gpu\.max\b")
#: The unit whose cgroup a line writes to.
_CGROUP = re.compile(r"/([\w@.:\\-]+\.(?:service|slice|scope))/(?:devices\.|cgroup\.|gpu\.)")
_SAYS = {
    _DEVICES: "cgroup v2 has no devices.allow and no devices.deny: device access is decided by eBPF programs",
    _CONTROLLER: "cgroup v2 has no controller devices or gpu: the kernel refuses the write with EINVAL",
    _GPU_MAX: "no kernel has a gpu.max",
}


@dataclass(frozen=True, slots=True)
class _Line:
    file: str
    text: str
    says: str
    unit: str | None

    @property
    def source(self) -> str:
        """What bears the finding: a unit with all that it runs, or the file."""
        return self.unit or self.file


@machine_check(FALSE_ADVICE)
def advice(machine: Machine) -> Iterator[Finding]:
    """Looks through units of the administrator's, what they run, and scripts of boot and cron."""
    host = machine.host
    if not machine.inventory.gpus or host.cgroup_mode != "unified":
        return
    lines = list(_lines(host))
    for source in dict.fromkeys(line.source for line in lines):
        yield _finding([line for line in lines if line.source == source])


def _lines(host: Host) -> Iterator[_Line]:
    seen: set[str] = set()
    for path in _files(host):
        text = _text(host, path)
        if text is None or path in seen:
            continue
        seen.add(path)
        unit = _unit_of(path)
        yield from _match(path, text, unit)
        commands = " ".join(_EXEC.findall(_CONTINUED.sub(" ", text))) if unit is not None else text
        for program in dict.fromkeys(_PROGRAM.findall(commands)):
            if program not in seen and (script := _script(host, program)) is not None:
                seen.add(program)
                yield from _match(program, script, unit)


def _match(path: str, text: str, unit: str | None) -> Iterator[_Line]:
    if _TESTED.search(text):
        return
    for line in _CONTINUED.sub(" ", text).splitlines():
        stripped = line.strip()
        if stripped.startswith(("#", ";")):
            continue
        for pattern, says in _SAYS.items():
            if pattern.search(stripped):
                yield _Line(path, stripped, says, unit)
                break


def _unit_of(path: str) -> str | None:
    match = re.search(r"/systemd/system/([^/]+?)(?:\.d/[^/]+\.conf)?$", path)
    return None if match is None else match[1]


def _files(host: Host) -> Iterator[str]:
    """The files to look through; what cannot be read or was not recorded is left out."""
    count = 0
    for directory in _UNIT_DIRECTORIES:
        for name in _names(host, directory):
            path = f"{directory}/{name}"
            names = [path] if name.endswith((".service", ".scope", ".slice")) else []
            if name.endswith(".d"):
                names = [f"{path}/{each}" for each in _names(host, path) if each.endswith(".conf")]
            for each in names:
                count += 1
                if count > _MAX_FILES:
                    return
                yield each
    yield from _SCRIPTS
    for directory in _SCRIPT_DIRECTORIES:
        yield from (f"{directory}/{name}" for name in _names(host, directory))


def _names(host: Host, directory: str) -> tuple[str, ...]:
    try:
        return host.listdir(directory) or ()
    except Unknown:
        return ()


def _text(host: Host, path: str) -> str | None:
    try:
        return host.text(path)
    except (NotFound, Unknown):
        return None


def _script(host: Host, path: str) -> str | None:
    """The text of a small script, None for a program of another kind."""
    try:
        node = host.stat(path)
        if node is None or node.type != "f" or (node.size or 0) > 1 << 16:
            return None
        text = host.text(path)
    except (NotFound, Unknown):
        return None
    return text if text is not None and text.startswith("#!") else None


def _finding(lines: list[_Line]) -> Finding:
    first = lines[0]
    says = ". ".join(dict.fromkeys(line.says for line in lines))
    return FALSE_ADVICE.finding(
        f"{first.file} tries to limit GPUs by files that do not exist on this host: {says}. Whoever relies on it is not"
        " limited at all.",
        evidence=[Evidence(line.file, line.text) for line in lines[:3]],
        fix=_fixes(lines),
        target=Target(unit=first.unit),
    )


def _fixes(lines: list[_Line]) -> list[Fix]:
    limited = next((match[1] for line in lines if (match := _CGROUP.search(line.text))), "NAME.service")
    return [
        Fix(
            f"Take the lines out, and have systemd filter the devices of {limited}, naming those that it is to keep",
            f"sudo systemctl set-property {quote(limited)} DevicePolicy=closed 'DeviceAllow=/dev/nvidia0 rw'"
            " 'DeviceAllow=/dev/nvidiactl rw' 'DeviceAllow=/dev/nvidia-uvm rw'",
        ),
        Fix("Or start a program with the GPUs it is to have, and no others", "gpuiso run --gpus 1 -- COMMAND"),
    ]
