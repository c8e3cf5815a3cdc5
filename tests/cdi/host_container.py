# SPDX-License-Identifier: Apache-2.0
"""A container that has this machine's own programs and libraries, read-only, and a /dev of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuiso.oci.seccomp import merge
from tests.support import REPOSITORY

__all__ = ["base_config", "compute_profile", "needs_runtime", "run_in_container"]

_RUNTIME = next((name for name in ("runc", "crun") if shutil.which(name) is not None), None)
needs_runtime = pytest.mark.skipif(_RUNTIME is None or os.geteuid() != 0, reason="needs root, and runc or crun")

_CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_MKNOD"]


_SHARED = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/etc/ld.so.cache")


def base_config(argv: list[str]) -> dict[str, Any]:
    """An OCI config that runs ``argv`` as root with the machine's programs, and no device but what a runtime
    makes.
    """
    mount = {"type": "tmpfs", "source": "tmpfs"}
    binds = [
        {"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}
        for path in _SHARED
        if os.path.exists(path) and not os.path.islink(path)
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": argv,
            "env": [f"PATH={os.environ.get('PATH', '/usr/bin:/bin')}"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
        },
        "root": {"path": "rootfs", "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "options": ["nosuid", "mode=755", "size=65536k"], **mount},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "nodev", "noexec", "ro"]},
            {"destination": "/run", "options": ["nosuid", "nodev"], **mount},
            {"destination": "/tmp", "options": ["nosuid"], **mount},
            *binds,
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }


def compute_profile() -> dict[str, Any]:
    """A seccomp profile of the system calls that engines let through, its ioctls those of the profile ``compute``."""
    names = json.loads((REPOSITORY / "tests/data/seccomp/ordinary-syscalls.json").read_text())
    ordinary = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}],
    }
    return merge(ordinary, "compute", "the test's profile")


def run_in_container(bundle: Path, config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the process of ``config`` to its end."""
    assert _RUNTIME is not None
    rootfs = bundle / "rootfs"
    rootfs.mkdir(parents=True)
    for path in _SHARED:
        if os.path.islink(path):
            (rootfs / path.lstrip("/")).symlink_to(os.readlink(path))
    (bundle / "config.json").write_text(json.dumps(config))
    name = f"gpuiso-test-{os.getpid()}-{bundle.name}"
    command = [_RUNTIME, "--root", str(bundle / "state"), "run", "--bundle", str(bundle), name]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
