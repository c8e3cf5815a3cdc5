# SPDX-License-Identifier: Apache-2.0
"""Container images and bundles without a registry: a root filesystem of a static busybox."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.lab.host import Lab
from tests.lab.rootless import run_rootless

IMAGE = "busybox"
"""The name :func:`docker_image` and :func:`podman_image` give the image."""

DIRECTORIES = ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "var")
FILES = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "etc/group": b"root:x:0:\n"}


@functools.cache
def busybox_rootfs(busybox: Path) -> bytes:
    """A tar of a root filesystem: the busybox at that path, a link for each of its applets, empty directories."""
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in DIRECTORIES:
            tar.addfile(_entry(name, tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755))
        for name, data in FILES.items():
            _file(tar, name, data, 0o644)
        _file(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in applets:
            if applet == "busybox":
                continue
            link = _entry(f"bin/{applet}", tarfile.SYMTYPE, 0o777)
            link.linkname = "busybox"
            tar.addfile(link)
    return content.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.mode = mode
    return entry


def _file(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = _entry(name, tarfile.REGTYPE, mode)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def rootfs(lab: Lab) -> bytes:
    """:func:`busybox_rootfs` of the lab's own busybox."""
    return busybox_rootfs(lab.image.root / "usr/bin/busybox")


def docker_image(lab: Lab) -> str:
    """Make sure that Docker has the image; returns its name."""
    if lab.run(["docker", "image", "inspect", IMAGE], check=False).returncode != 0:
        lab.run(["docker", "import", "--change", 'CMD ["sleep", "infinity"]', "-", IMAGE], input=rootfs(lab))
    return IMAGE


def podman_image(lab: Lab, *, rootless: bool = False) -> str:
    """Make sure that podman has the image, root's or the ordinary user's; returns its name."""
    run = functools.partial(run_rootless, lab) if rootless else lab.run
    if run(["podman", "image", "exists", IMAGE], check=False).returncode != 0:
        run(["podman", "import", "--change", 'CMD ["sleep", "infinity"]', "-", IMAGE], input=rootfs(lab))
    return f"localhost/{IMAGE}"


def bundle(
    lab: Lab,
    path: str,
    arguments: Sequence[str],
    edit: Callable[[dict[str, Any]], None] = lambda config: None,
) -> str:
    """Make an OCI bundle for runc and crun: the busybox root filesystem and ``runc spec``'s config; returns its path.

    The process has no terminal; ``edit`` may change config.json (decoded) before it is written.
    """
    lab.sh('rm -rf "$1"; mkdir -p "$1/rootfs"; cd "$1"; runc spec', path)
    lab.run(["tar", "-C", f"{path}/rootfs", "-xf", "-"], input=rootfs(lab))
    config = json.loads(lab.get(f"{path}/config.json"))
    config["process"] |= {"terminal": False, "args": list(arguments)}
    edit(config)
    lab.put(f"{path}/config.json", json.dumps(config).encode())
    return path
