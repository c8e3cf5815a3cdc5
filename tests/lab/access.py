# SPDX-License-Identifier: Apache-2.0
"""Whether something in a lab may open a device node: asked by opening it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.lab.errors import LabError
from tests.lab.host import SHELL_CGROUP, Lab

OPEN = """
import errno, os, sys
flags = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR}[sys.argv[2]]
try:
    os.close(os.open(sys.argv[1], flags | os.O_NONBLOCK))
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("0")
"""

# A shell's <> makes what is missing.
SHELL_OPEN = 'if [ -e "$1" ]; then : <>"$1"; else echo "No such file or directory" >&2; exit 1; fi'

# What a C library says for the answers an open of a node can have.
MESSAGES = {
    "No such device or address": "ENXIO",
    "No such device": "ENODEV",
    "Operation not permitted": "EPERM",
    "Permission denied": "EACCES",
    "No such file or directory": "ENOENT",
}


def open_in_lab(lab: Lab, node: str, access: str = "rw", *, cgroup: str = SHELL_CGROUP) -> str:
    """``0`` or the errno's name of an open from a process in ``cgroup``; ``access`` is r, w or rw."""
    return lab.python(OPEN, node, access, cgroup=cgroup).stdout.strip()


def open_in_service(lab: Lab, node: str, properties: Sequence[str] = (), access: str = "rw") -> str:
    """The same from a service with these properties (``DevicePolicy=closed``, ``DeviceAllow=/dev/nvidia0 rw``)."""
    options = [option for value in properties for option in ("--property", value)]
    command = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *options, "--"]
    return lab.run([*command, "python3", "-c", OPEN, node, access]).stdout.strip()


def open_in_container(lab: Lab, container: str, node: str, *, engine: str = "docker") -> str:
    """The same, for reading and writing, from a running container of docker, podman, runc or crun."""
    done = lab.run([engine, "exec", container, "sh", "-c", SHELL_OPEN, "sh", node], check=False)
    if done.returncode == 0:
        return "0"
    for message, name in MESSAGES.items():
        if message in done.stderr:
            return name
    raise LabError(f"{engine} exec {container}: opening {node} says {done.stderr.strip()!r}")
