# SPDX-License-Identifier: Apache-2.0
"""Commands in unit files that write to cgroup files which do not exist in cgroup v2.

Pages about GPUs and cgroups recommend ``ExecStartPre=sh -c 'echo "c 195:0 rwm" > /sys/fs/cgroup/.../devices.allow'``.
cgroup v2 has neither devices.allow nor devices.deny, no devices or gpu controller to enable, and no gpu.max; and what
systemd holds for the unit would overrule such a write on v1 too. What was meant can be said with settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuiso.errors import BadInput
from gpuiso.policy.parse import parse_device
from gpuiso.policy.rule import Rule
from gpuiso.systemd.unit_files import Setting

__all__ = ["Recipe", "find_recipes"]

_COMMANDS = frozenset({"ExecStartPre", "ExecStart", "ExecStartPost", "ExecCondition"})
_FILE = r"(?P<path>[^\s;&|\"']*/)?(?P<file>devices\.allow|devices\.deny|gpu\.max|cgroup\.subtree_control)"
_TEXT = r"(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<plain>[^\"'>|;&]+?))"
_INTO = r"(?:>>?|\|\s*tee\s+(?:-a\s+)?)"
_ECHO = re.compile(rf"(?:/(?:usr/)?bin/)?(?:echo|printf)\s+(?:-[ne]+\s+)?{_TEXT}\s*{_INTO}\s*[\"']?{_FILE}[\"']?")
_HARMLESS = re.compile(r"(?:/(?:usr/)?bin/)?mkdir\s+(?:-p\s+)?[\"']?/sys/fs/cgroup[^\s;&\"']*[\"']?|>\s*/dev/null|2>&1")
_SHELL = re.compile(r"^[-+!@:]*(?:/(?:usr/)?bin/)?(?:ba|da)?sh\s+-\w*c\s+")


@dataclass(frozen=True)
class Recipe:
    """``rules`` is what its writes were meant to do, ``notes`` what of it has no equivalent.

    ``whole`` tells whether the command does nothing else, so that it can go.
    """

    setting: Setting
    rules: tuple[Rule, ...]
    notes: tuple[str, ...]
    whole: bool


def find_recipes(settings: Iterable[Setting]) -> list[Recipe]:
    """The commands among the settings of a unit that write to such files. :raises BadInput: a rule in one is wrong."""
    return [recipe for setting in settings if setting.name in _COMMANDS and (recipe := _recipe(setting)) is not None]


def _recipe(setting: Setting) -> Recipe | None:
    # systemd unquotes the argument of sh -c first; inner quotes are then those of the shell.
    command = setting.value.replace('\\"', '"').replace("\\'", "'")
    shell = _SHELL.match(command)
    body = command[shell.end() :].strip() if shell else command
    if shell and body[:1] in "\"'" and body[-1:] == body[:1]:
        body = body[1:-1]
    rules: list[Rule] = []
    notes: list[str] = []
    found = list(_ECHO.finditer(body))
    for match in found:
        _translate(setting, match, rules, notes)
    if not rules and not notes:
        return None
    rest = _HARMLESS.sub("", _ECHO.sub("", body))
    return Recipe(setting, tuple(rules), tuple(notes), whole=not re.sub(r"[\s;&|\"']|\btrue\b", "", rest))


def _translate(setting: Setting, match: re.Match[str], rules: list[Rule], notes: list[str]) -> None:
    text = (match["double"] or match["single"] or match["plain"] or "").strip()
    where = f"{setting.file}:{setting.line}"
    if match["file"] in ("devices.allow", "devices.deny"):
        allow = match["file"] == "devices.allow"
        try:
            rules.append(parse_device(text, allow=allow, file=setting.file, line=setting.line))
        except BadInput as error:
            raise BadInput(f"{where}: {text!r} for {match['file']}: {error.message}") from error
    elif match["file"] == "gpu.max":
        notes.append(f"{where}: no kernel has gpu.max; put it into a policy (gpu.max: {text})")
    else:
        names = [word[1:] for word in text.split() if word in ("+devices", "+gpu")]
        if names:
            notes.append(f"{where}: cgroup v2 has no {' or '.join(names)} controller to enable")
