# SPDX-License-Identifier: Apache-2.0
"""What this machine can do, found by trying: the tiers that tests are sorted into.

A test without a mark is of tier ``unit`` and runs everywhere. ``requires("kernel")`` marks a test (or, as
``pytestmark = requires("kernel")``, a module) that needs more; where the machine lacks it, the test is
skipped with the reason that the probe gave.

=======  ==========================================================================================
unit     nothing but Python
kernel   root, a cgroup2 mount in which a cgroup can be made, and a bpf(2) that loads a device program
lab      the ``kernel`` tier, new namespaces of every kind, and debootstrap or a built image
vm       an emulator and an image to boot
gpu      an NVIDIA device that answers
browser  Chromium
=======  ==========================================================================================

``GPUISO_REQUIRE=kernel,lab`` turns a skip of those tiers into a failure, so that a CI machine that lost an
ability does not pass by testing nothing. ``GPUISO_LAB_CACHE`` is the directory that holds lab images
(default ``~/.cache/gpuiso/lab``).
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

__all__ = ["PROBES", "browser", "cgroup2_mount", "lab_cache", "reason", "required_tiers", "requires"]

BPF_PROG_LOAD = 5
BPF_PROG_TYPE_CGROUP_DEVICE = 15
# The numbers of bpf(2) where it is not that of the generic table (280), which newer architectures share.
BPF_SYSCALL = {"x86_64": 321, "s390x": 351, "ppc64le": 361}
BPF_SYSCALL_GENERIC = 280
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def requires(*tiers: str) -> pytest.MarkDecorator:
    """The mark of a test that needs ``tiers``; names are checked here, so that a typo cannot skip a test."""
    for tier in tiers:
        if tier not in PROBES:
            raise ValueError(f"no such tier: {tier!r}; the tiers are {', '.join(PROBES)}")
    return pytest.mark.requires(*tiers)


def required_tiers(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The tiers of ``GPUISO_REQUIRE``. Raises ValueError for a name that is no tier."""
    names = frozenset(name.strip() for name in environ.get("GPUISO_REQUIRE", "").split(",") if name.strip())
    if unknown := sorted(names - PROBES.keys()):
        raise ValueError(f"GPUISO_REQUIRE: no such tier: {', '.join(unknown)} (tiers: {', '.join(PROBES)})")
    return names


@functools.cache
def reason(tier: str) -> str | None:
    """Why this machine cannot run ``tier``, or None where it can. Probed once a session."""
    return PROBES[tier]()


def cgroup2_mount() -> Path | None:
    """Where cgroup2 is mounted; on a hybrid host that is not /sys/fs/cgroup."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split(" ", 1)[0] == "cgroup2":
            return Path(fields.split(" ")[4])
    return None


def lab_cache() -> Path:
    """The directory that holds built lab and virtual machine images."""
    if override := os.environ.get("GPUISO_LAB_CACHE"):
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuiso" / "lab"


def browser() -> str | None:
    """The path of Chromium or of Chrome, which is the same with another name; None if neither is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def _unit() -> str | None:
    return None


def _kernel() -> str | None:
    if os.geteuid() != 0:
        return "not root"
    mount = cgroup2_mount()
    if mount is None:
        return "no cgroup2 mount"
    probe = mount / f"gpuiso-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return f"cannot make a cgroup in {mount}: {error.strerror}"
    return _load_device_program()


def _load_device_program() -> str | None:
    """Load "allow everything" and close it again, by the raw call: a fault in gpuiso.kernel must fail tests,
    not skip them."""
    program = struct.pack("<BBhi", 0xB7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)  # r0 = 1; exit
    insns = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attr = ctypes.create_string_buffer(
        struct.pack("=IIQQ", BPF_PROG_TYPE_CGROUP_DEVICE, 2, ctypes.addressof(insns), ctypes.addressof(licence)),
        128,
    )
    libc = ctypes.CDLL(None, use_errno=True)
    number = BPF_SYSCALL.get(platform.machine(), BPF_SYSCALL_GENERIC)
    fd = libc.syscall(ctypes.c_long(number), ctypes.c_int(BPF_PROG_LOAD), attr, ctypes.c_uint(len(attr)))
    if fd < 0:
        return f"bpf(BPF_PROG_LOAD): {os.strerror(ctypes.get_errno())}"
    os.close(fd)
    return None


def _lab() -> str | None:
    if (missing := reason("kernel")) is not None:
        return missing
    namespaces = ["--mount", "--pid", "--fork", "--cgroup", "--uts", "--ipc", "--net"]
    if (failed := _complaint(["unshare", *namespaces, "true"])) is not None:
        return failed
    return _cannot_get_image(vm=False)


def _vm() -> str | None:
    if os.geteuid() != 0:
        return "not root"
    emulator = f"qemu-system-{platform.machine()}"
    if shutil.which(emulator) is None:
        return f"no {emulator}"
    return _cannot_get_image(vm=True)


def _cannot_get_image(*, vm: bool) -> str | None:
    """Why the images of labs are neither in the cache nor can be built, or None."""
    from tests.lab.errors import LabError
    from tests.lab.image import PACKAGES, key
    from tests.lab.mirror import debian_mirror

    if all((lab_cache() / key(release, vm=vm)).is_dir() for release in PACKAGES):
        return None
    if shutil.which("debootstrap") is None:
        return f"no debootstrap, and no image in {lab_cache()}"
    try:
        debian_mirror()
    except LabError as error:
        return str(error)
    return None


def _gpu() -> str | None:
    if not Path("/dev/nvidiactl").exists():
        return "no /dev/nvidiactl"
    count = "import pynvml; pynvml.nvmlInit(); raise SystemExit(pynvml.nvmlDeviceGetCount() == 0)"
    return _complaint([sys.executable, "-c", count])


def _browser() -> str | None:
    program = browser()
    return "no Chromium" if program is None else _complaint([program, "--version"])


def _complaint(argv: list[str]) -> str | None:
    """What ``argv`` says when it fails (its last line), or None when it ends with 0 within a minute."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return f"no {argv[0]}"
    except subprocess.TimeoutExpired:
        return f"{argv[0]} gave no answer in 60 s"
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"{argv[0]}: exit {done.returncode}"


PROBES: dict[str, Callable[[], str | None]] = {
    "unit": _unit,
    "kernel": _kernel,
    "lab": _lab,
    "vm": _vm,
    "gpu": _gpu,
    "browser": _browser,
}
