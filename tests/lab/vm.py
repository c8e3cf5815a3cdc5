# SPDX-License-Identifier: Apache-2.0
"""The same host as a virtual machine: for what needs a kernel of its own, with every cgroup v2 controller.

The machine is emulated, which works everywhere and is slow; ``GPUISO_VM_ACCEL=kvm`` uses the hardware.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.lab.cache import locked
from tests.lab.errors import LabError
from tests.lab.image import GUEST, Image, image, say
from tests.lab.images import busybox_rootfs
from tests.lab.wheels import site_directory
from tests.support import REPOSITORY, SHARED

DISK_SIZE = "6G"
RESULTS_SIZE = 256 << 20
MEMORY_MIB = 3072
CPUS = 2
_BOOTS = 3
ROOTFS = "/opt/busybox.tar"
"""Where a job finds a root filesystem to ``docker import``."""

# What a checkout holds that no job needs.
LEFT_OUT = {".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__", "dist"}


@dataclasses.dataclass(frozen=True)
class JobResult:
    """What came of a script in a virtual machine."""

    status: int
    """The script's exit status."""
    output: str
    """Its standard output and error, as they came."""
    files: dict[str, bytes]
    """What it left in ``$RESULTS``, by path below that."""
    seconds: float
    """From the start of the emulator to its end."""


def run_job(
    script: str | bytes, *, files: Mapping[str, bytes] | None = None, release: str = "trixie", timeout: float = 900.0
) -> JobResult:
    """Boot a virtual machine, run a script in it as root, power it off.

    The script (with a ``#!`` line) starts when Docker runs. /opt/gpuiso is a copy of the checkout, PYTHONPATH is
    set as in a lab, ``files`` are written first, by absolute path. Raises :class:`LabError` when the machine does
    not come to an end within ``timeout`` seconds or leaves no results.
    """
    source = image(release, vm=True)
    with tempfile.TemporaryDirectory(prefix="gpuiso-vm-") as directory:
        job, results, console = (Path(directory, name) for name in ("job.tar", "results", "console"))
        _write_job(job, source, script.encode() if isinstance(script, str) else script, files or {})
        with results.open("wb") as file:
            file.truncate(RESULTS_SIZE)
        argv = [
            *_machine(source, disk(source), extra="gpuiso.job quiet"),
            *["-serial", f"file:{console}", "-display", "none", "-monitor", "none"],
            *_drive(job, readonly=True),
            *_drive(results),
        ]
        for _ in range(_BOOTS):
            started = time.monotonic()
            _run(argv, timeout, console)
            if not panicked_at_boot(_text(console)):
                return _read_results(results, console, time.monotonic() - started)
            say("the kernel of the virtual machine panicked before it ran a program")
        raise LabError(f"the virtual machine does not boot\n{_tail(console)}")


def panicked_at_boot(console: str) -> bool:
    """Whether the kernel gave up in its own initialisation, as an emulated one does now and then: it patches itself.

    A panic later may be what a test brought about, and is not tried again.
    """
    return "Kernel panic - not syncing" in console and "kernel_init_freeable" in console


def interactive(release: str = "trixie") -> int:
    """A virtual machine whose console is this terminal, logged in as root; ``poweroff`` ends it."""
    source = image(release, vm=True)
    with tempfile.TemporaryDirectory(prefix="gpuiso-vm-") as directory:
        contents = Path(directory, "contents.tar")
        _write_job(contents, source, b"", {})
        say("`tar -xf /dev/vdb -C /` brings the checkout to /opt/gpuiso; `poweroff` ends the machine")
        argv = [*_machine(source, disk(source), extra=""), "-nographic", *_drive(contents, readonly=True)]
        return subprocess.run(argv, check=False).returncode


def disk(source: Image) -> Path:
    """The image as an ext4 disk, made if the cache lacks it. It is only ever opened with snapshot=on."""
    path = source.root.parent / "disk.ext4"
    with locked(f"{source.root.parent.name}-disk"):
        if not path.exists():
            say("making a disk of the image")
            partial = path.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            options = ["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d", str(source.root)]
            done = subprocess.run(
                ["mkfs.ext4", *options, str(partial), DISK_SIZE], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise LabError(f"mkfs.ext4 failed: {done.stderr.strip()}")
            partial.rename(path)
    return path


def _machine(source: Image, system_disk: Path, *, extra: str) -> list[str]:
    emulator = f"qemu-system-{platform.machine()}"
    if shutil.which(emulator) is None:
        raise LabError(f"{emulator} is missing: install it (Debian: qemu-system-x86)")
    accelerator = os.environ.get("GPUISO_VM_ACCEL", "tcg")
    kernel, initrd = (_one(source.root, f"boot/{name}-*") for name in ("vmlinuz", "initrd.img"))
    command_line = f"root=/dev/vda rw init=/lib/systemd/systemd console=ttyS0 panic=-1 {extra}".strip()
    return [
        *[emulator, "-accel", "tcg,thread=multi" if accelerator == "tcg" else accelerator],
        *["-cpu", "max" if accelerator == "tcg" else "host", "-m", str(MEMORY_MIB), "-smp", str(CPUS)],
        *["-no-reboot", "-net", "none", "-kernel", str(kernel), "-initrd", str(initrd), "-append", command_line],
        *_drive(system_disk, snapshot=True),
    ]


def _drive(path: Path, *, snapshot: bool = False, readonly: bool = False) -> list[str]:
    options = [f"file={path}", "format=raw", "if=virtio", "cache=unsafe"]
    if snapshot:
        options.append("snapshot=on")
    if readonly:
        options.append("readonly=on")
    return ["-drive", ",".join(options)]


def _one(root: Path, pattern: str) -> Path:
    found = sorted(root.glob(pattern))
    if not found:
        raise LabError(f"the image has no {pattern}")
    return found[-1]


def _write_job(job: Path, source: Image, script: bytes, files: Mapping[str, bytes]) -> None:
    """Everything the job needs, as a tar that the machine reads from a disk."""

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(entry.name).name in LEFT_OUT else entry

    contents = {
        "/job/run": (GUEST / "job.sh").read_bytes(),
        "/job/script": script,
        ROOTFS: busybox_rootfs(source.root / "usr/bin/busybox"),
        **files,
    }
    with tarfile.open(job, "w") as tar:
        tar.add(REPOSITORY, "opt/gpuiso", filter=wanted)
        tar.add(site_directory(source.python), "opt/site")
        if SHARED is not None:
            tar.add(SHARED, "opt/shared", filter=wanted)
        for name, data in contents.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size = len(data)
            entry.mode = 0o755
            tar.addfile(entry, io.BytesIO(data))


def _run(argv: list[str], timeout: float, console: Path) -> None:
    with _dies_with_us(argv) as process:
        try:
            _, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise LabError(f"the virtual machine does not end within {timeout:.0f} s\n{_tail(console)}") from None
    if process.returncode != 0:
        raise LabError(f"{argv[0]}: exit {process.returncode}\n{stderr.decode(errors='replace')}\n{_tail(console)}")


@contextlib.contextmanager
def _dies_with_us(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _text(console: Path) -> str:
    return console.read_text(errors="replace") if console.exists() else ""


def _tail(console: Path) -> str:
    return _text(console)[-3000:]


def _read_results(results: Path, console: Path, seconds: float) -> JobResult:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(results, "r:") as tar:
            for entry in tar:
                content = tar.extractfile(entry) if entry.isfile() else None
                if content is not None:
                    files[entry.name] = content.read()
        status, output = int(files.pop("job/status")), files.pop("job/output").decode(errors="replace")
    except (tarfile.TarError, KeyError):
        raise LabError(f"the virtual machine left no results\n{_tail(console)}") from None
    return JobResult(
        status, output, {name.removeprefix("job/results/"): data for name, data in files.items()}, round(seconds, 1)
    )
