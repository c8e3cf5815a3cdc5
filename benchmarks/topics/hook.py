# SPDX-License-Identifier: Apache-2.0
"""What a container's start waits for: the hook as whole processes, beside an empty Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.process import EMPTY_PYTHON, measure
from benchmarks.registry import NotMeasurable, Row, topic
from gpuiso.hookset.files import install

PEER = "python -I -S -c pass"
RATIO = 2.2
PEAK = 16  # MiB
LIB = "/usr/lib/x86_64-linux-gnu"
LDCONFIG = "/sbin/ldconfig"
MEMORY = "/dev/shm"  # noqa: S108 - a directory of our own is made in it
# What a driver brings: links in the container, and libraries for the linker.
LINKS, LIBRARIES = 20, 60
_RESET, _LDCONFIG = "reset", "ldconfig, of the toolkit's chain of 5 hooks"


@topic("hook", "the OCI hook, start to end, for one container")
def hook(rounds: int) -> list[Row]:
    # In memory: what a disk takes to make links and files, it takes of whoever makes them.
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as base:
        place = Path(base)
        python = os.path.realpath(sys.executable)
        program = install(python, path=f"{base}/gpuiso-hook", library=f"{base}/lib", definitions=None).launcher
        commands = _commands(place, program)
        for name, argv in commands.items():
            _succeeds(name, argv)
        runs = {name: run for name, run in measure(commands, rounds).items() if name != _RESET}
    rows = [
        Row(
            name,
            "s",
            run.seconds,
            peer=None if name == PEER else PEER,
            ratio=None if name == PEER else run.median / runs[PEER].median,
            bar=None if name in (PEER, _LDCONFIG) else RATIO,
            bar_on_ratio=name not in (PEER, _LDCONFIG),
        )
        for name, run in runs.items()
    ]
    peaks = [
        Row(f"{name}: peak", "MiB", (run.peak_mib,), bar=PEAK)
        for name, run in runs.items()
        if name not in (PEER, _LDCONFIG)
    ]
    return rows + peaks


def _commands(base: Path, program: str) -> dict[str, Sequence[str]]:
    work = [part for number in range(LINKS) for part in ("--link", f"libp{number}.so.1::{LIB}/libp{number}.so")]
    names = ",".join(f"libnvidia-part{number}.so.1" for number in range(LIBRARIES))
    work += ["--library", f"{LIB}={names}", "--host-driver-version=580.126.09"]
    work += ["--application-profile", "--no-node-modification"]
    new, old = _bundle(base / "new"), _bundle(base / "old")
    fresh = f'rm -rf "{new}/rootfs"; cp -a "{base}/image" "{new}/rootfs"'
    shutil.copytree(old / "rootfs", base / "image")
    commands: dict[str, Sequence[str]] = {
        _RESET: ("/bin/sh", "-c", fresh),
        PEER: _reading(base / "old", *EMPTY_PYTHON),
        "createRuntime, nothing asked": _reading(old, program, "createRuntime"),
        "createContainer, a new container": _reading(new, program, "createContainer", *work),
        "createContainer, started again": _reading(old, program, "createContainer", *work),
        "poststop": _reading(old, program, "poststop"),
    }
    if os.access(LDCONFIG, os.X_OK):
        commands[_LDCONFIG] = (LDCONFIG, "-C", f"{base}/cache", "-X")
    return commands


def _bundle(path: Path) -> Path:
    """A bundle with the linker cache of this machine, and a config as long as an engine's."""
    (path / "rootfs/etc").mkdir(parents=True)
    if os.path.exists("/etc/ld.so.cache"):
        shutil.copy("/etc/ld.so.cache", path / "rootfs/etc")
    devices = [{"path": f"/dev/nvidia{number}", "type": "c", "major": 195, "minor": number} for number in range(8)]
    mounts = [
        {"destination": f"{LIB}/lib{number}.so", "source": f"{LIB}/lib{number}.so", "options": ["ro", "rbind"]}
        for number in range(100)
    ]
    config = {"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "linux": {"devices": devices}, "mounts": mounts}
    state = {"ociVersion": "1.0.2", "id": "bench", "status": "creating", "pid": 1, "bundle": str(path)}
    (path / "config.json").write_text(json.dumps(config))
    (path / "state.json").write_text(json.dumps(state))
    return path


def _reading(bundle: Path, *argv: str) -> Sequence[str]:
    """A command with the container's state on standard input; the shell that opens it becomes the command."""
    return ("/bin/sh", "-c", f'exec "$0" "$@" <"{bundle}/state.json"', *argv)


def _succeeds(name: str, argv: Sequence[str]) -> None:
    """:raises NotMeasurable: it does not do its work, and nobody waits for a failure."""
    done = subprocess.run(argv, capture_output=True, text=True, env={}, check=False)
    if done.returncode != 0:
        raise NotMeasurable(f"{name} ended with {done.returncode}: {done.stderr.strip()}")
