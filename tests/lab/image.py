# SPDX-License-Identifier: Apache-2.0
"""Root filesystems to boot: Debian releases with the container engines, made by debootstrap and kept in a cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.cache import build_once
from tests.lab.errors import LabError
from tests.lab.mirror import apt_settings, debian_mirror

GUEST = Path(__file__).parent / "guest"

COMMON = [
    *["docker.io", "podman", "runc", "crun", "iptables", "nftables", "busybox-static", "iproute2", "bpftool"],
    *["python3", "python3-pystemd", "procps", "kmod", "acl"],
    # What podman only recommends: networks, and rootless containers.
    *["netavark", "aardvark-dns", "passt", "slirp4netns", "uidmap", "dbus-user-session", "libpam-systemd"],
]
PACKAGES = {"trixie": ["docker-cli", *COMMON], "bookworm": COMMON}
VM_PACKAGES = ["linux-image-cloud-amd64", "initramfs-tools", "udev", "zstd"]
PYTHON = {"trixie": "3.13", "bookworm": "3.11"}


@dataclasses.dataclass(frozen=True)
class Image:
    """A root filesystem in the cache. ``root`` is never written to: labs lay something over it."""

    release: str
    root: Path
    packages: dict[str, str]
    """Version by package name."""
    seconds: float
    """How long the build took."""
    bytes: int

    @property
    def python(self) -> str:
        """``MAJOR.MINOR`` of its python3."""
        return PYTHON[self.release]


def say(text: str) -> None:
    """Print a progress line."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def key(release: str, *, vm: bool = False) -> str:
    """Name of the image in the cache: whatever decides its content is hashed into it."""
    recipe = b"".join((GUEST / name).read_bytes() for name in ("build.sh", "job.service")[: 1 + vm])
    packages = PACKAGES[release] + (VM_PACKAGES if vm else [])
    parts = [release, *packages, hashlib.sha256(recipe).hexdigest()]
    digest = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]
    return f"{'vm-' if vm else ''}{release}-{digest}"


def image(release: str, *, vm: bool = False) -> Image:
    """The image of a release (``trixie``, ``bookworm``), built first if the cache lacks it.

    With ``vm`` it also holds a kernel and what boots one. Raises :class:`LabError`.
    """
    if release not in PACKAGES:
        raise LabError(f"no lab for release {release!r}: choose from {', '.join(PACKAGES)}")
    base = image(release) if vm else None
    packages = VM_PACKAGES if vm else PACKAGES[release]
    path = build_once(key(release, vm=vm), lambda directory: _build(directory, release, packages, base))
    about = json.loads((path / "image.json").read_text())
    return Image(release, path / "root", about["packages"], about["seconds"], about["bytes"])


def _build(directory: Path, release: str, packages: list[str], base: Image | None) -> None:
    if os.geteuid() != 0:
        raise LabError("building a lab image needs root")
    started = time.monotonic()
    _need("debootstrap")
    say(f"building {directory.name.removesuffix('.partial')} (some minutes, once)")
    root = directory / "root"
    root.mkdir()
    environment = os.environ | {
        "ROOT": str(root),
        "RELEASE": release,
        "MIRROR": debian_mirror(),
        "BASE": str(base.root) if base else "",
        "APT_CONF": apt_settings(),
    }
    log = directory / "build.log"
    namespaces = ["--mount", "--propagation", "private", "--pid", "--mount-proc"]
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "--fork", "--kill-child"]
    with log.open("wb") as stderr, log.open("rb") as tail:
        process = subprocess.Popen(
            [*command, "bash", str(GUEST / "build.sh"), *packages],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        while process.poll() is None:
            _report(tail.read(), started)
            time.sleep(0.5)
        assert process.stdout is not None
        listing = process.stdout.read().decode()
        process.stdout.close()
    if process.returncode != 0:
        raise LabError(_why(log.read_text(errors="replace"), release))
    about = {
        "packages": dict(line.split(" ", 1) for line in listing.splitlines()),
        "seconds": round(time.monotonic() - started, 1),
        "bytes": _size(root),
    }
    (directory / "image.json").write_text(json.dumps(about, indent=1))
    say(f"built in {about['seconds']} s, {_size(root) // 1_000_000} MB")


def _report(chunk: bytes, started: float) -> None:
    for line in chunk.decode(errors="replace").splitlines():
        if line.startswith(("step:", "Fetched ")):
            say(f"{time.monotonic() - started:5.0f} s  {line}")


def _why(log: str, release: str) -> str:
    """Turn a failed build's log into a sentence a person can act on."""
    signs = (
        "Failed getting release file",
        "Unable to connect",
        "Temporary failure resolving",
        "Couldn't download",
        "Failed to fetch",
    )
    last = "\n".join(log.splitlines()[-15:])
    if any(sign in log for sign in signs):
        return (
            f"the Debian mirror apt uses here does not give {release}: check the network and `apt-get update`, "
            f"or name another one in GPUISO_LAB_MIRROR\n{last}"
        )
    return f"building the {release} image failed:\n{last}"


def _need(tool: str) -> None:
    """Install a tool of the same package name by apt if it is missing."""
    if shutil.which(tool):
        return
    say(f"installing {tool}")
    done = subprocess.run(
        ["apt-get", "-q", "-y", "--no-install-recommends", "install", tool], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or not shutil.which(tool):
        raise LabError(f"{tool} is missing and apt cannot install it (run `apt-get update`?):\n{done.stderr[-800:]}")


def _size(root: Path) -> int:
    done = subprocess.run(["du", "-sxB1", str(root)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])
