# SPDX-License-Identifier: Apache-2.0
"""The lab's ordinary user, for rootless containers and user services."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.lab.host import SHELL_UNIT, Lab

USER = "user"
UID = 1000
RUNTIME_DIR = f"/run/user/{UID}"
MANAGER_CGROUP = f"/user.slice/user-{UID}.slice/user@{UID}.service"
CGROUP = f"{MANAGER_CGROUP}/app.slice/{SHELL_UNIT}"
ENVIRONMENT = [
    f"HOME=/home/{USER}",
    f"USER={USER}",
    f"XDG_RUNTIME_DIR={RUNTIME_DIR}",
    f"DBUS_SESSION_BUS_ADDRESS=unix:path={RUNTIME_DIR}/bus",
]


def start_session(lab: Lab) -> None:
    """Start the user's systemd, and a unit of it whose cgroup commands run in, if they do not run yet."""
    if lab.host_cgroup(CGROUP).is_dir():
        return
    lab.run(["loginctl", "enable-linger", USER])
    lab.wait_for(["systemctl", "is-active", f"user@{UID}.service"])
    lab.run(
        [
            *["runuser", "-u", USER, "--", "env", *ENVIRONMENT, "systemd-run", "--user", "--quiet"],
            *["--unit", SHELL_UNIT, "--property", "Delegate=yes", "--slice", "app.slice", "sleep", "infinity"],
        ]
    )


def run_rootless(
    lab: Lab,
    argv: Sequence[str],
    *,
    input: str | bytes | None = None,  # noqa: A002 (as Lab.run)
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """:meth:`Lab.run` as the ordinary user, within the user's own systemd."""
    start_session(lab)
    command = ["runuser", "-u", USER, "--", "env", "-C", f"/home/{USER}", *ENVIRONMENT, *argv]
    return lab.run(command, input=input, check=check, cgroup=CGROUP)
