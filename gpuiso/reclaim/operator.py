# SPDX-License-Identifier: Apache-2.0
"""On whose behalf something is done."""

from __future__ import annotations

import os
import pwd
from typing import Any

from gpuiso.host.protocol import Host

__all__ = ["operator"]

_NO_LOGIN = (1 << 32) - 1  # what /proc/self/loginuid holds outside of a login


def operator(host: Host) -> dict[str, Any]:
    """``uid`` and ``user`` of this process, ``login`` (who logged in, which sudo does not change), ``sudo_user``.

    The login is the kernel's word (audit); SUDO_USER is a variable that anybody may set, and is kept as such.
    """
    found: dict[str, Any] = {"uid": os.geteuid(), "user": _name(os.geteuid()), "pid": os.getpid()}
    text = (host.text("/proc/self/loginuid") or "").strip()
    if text.isdigit() and int(text) != _NO_LOGIN:
        found["login"] = _name(int(text))
    if os.environ.get("SUDO_USER"):
        found["sudo_user"] = os.environ["SUDO_USER"]
    return found


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
