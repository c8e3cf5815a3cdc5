# SPDX-License-Identifier: Apache-2.0
"""A host with GPUs that are not there: a fake driver library, processes that use it, and what is seen of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.model import Gpu
from gpuiso.host.abandon import abandoned
from gpuiso.host.gpu_memory import GpuMemory
from gpuiso.host.live import LiveHost
from gpuiso.host.protocol import Node
from gpuiso.host.recorded import RecordedHost
from gpuiso.reclaim.checkpoint import CheckpointHelper
from gpuiso.reclaim.ledger import Ledger
from gpuiso.reclaim.records import Records
from gpuiso.reclaim.session import Gate, Memo, Session
from gpuiso.reclaim.target import Target
from tests.support import REPOSITORY

__all__ = ["FakeHost", "KnobGate", "World", "alive", "build_library", "comm", "make_session"]

_HERE = Path(__file__).parent / "fake"
_TOTAL_MIB = 143771
_LIVE = ("/proc/meminfo", "/proc/self", "/sys/fs/cgroup", "/sys/kernel/mm")


def build_library(directory: Path, *flags: str) -> Path:
    """fake_cuda.c, compiled."""
    library = directory / "libcuda.so.1"
    source = _HERE / "fake_cuda.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags, "-o", library, source], check=True)
    return library


class FakeHost(LiveHost):
    """The running machine with the GPUs of a recorded one; files in the world's dev count as nodes in /dev."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._dev = f"{directory}/dev/"
        self._world = directory
        self._record = RecordedHost(str(REPOSITORY / "examples/hosts/h200-x4"))

    def _is_live(self, path: str) -> bool:
        if path.startswith("/proc/"):
            first = path.split("/")[2]
            return first.isdigit() or path.startswith(_LIVE)
        return path.startswith(_LIVE)

    def read(self, path: str) -> bytes | None:
        if path == "/proc/driver/nvidia/version" and (override := self._world / "driver-version").exists():
            return override.read_bytes()
        if path in ("/proc/meminfo",) and (override := self._world / "meminfo").exists():
            return override.read_bytes()
        if not self._is_live(path):
            return self._record.read(path)
        data = super().read(path)
        return data.replace(self._dev.encode(), b"/dev/") if data is not None and path.endswith("/maps") else data

    def listdir(self, path: str) -> tuple[str, ...] | None:
        return super().listdir(path) if self._is_live(path) else self._record.listdir(path)

    def lstat(self, path: str) -> Node | None:
        return super().lstat(path) if self._is_live(path) else self._record.lstat(path)

    def stat(self, path: str) -> Node | None:
        return super().stat(path) if self._is_live(path) else self._record.stat(path)

    def readlink(self, path: str) -> str | None:
        if not self._is_live(path):
            return self._record.readlink(path)
        target = super().readlink(path)
        return target if target is None else target.replace(self._dev, "/dev/")

    def nvml(self) -> dict[str, Any] | None:
        return self._record.nvml()

    def probe(self, pid: int, node: str, access: str = "rw") -> str | None:
        return None


class World:
    """One directory in which all of it lives."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.directory = directory
        self.library = library
        self.targets: list[subprocess.Popen[bytes]] = []
        record = RecordedHost(str(REPOSITORY / "examples/hosts/h200-x4"))
        nvml = record.nvml()
        assert nvml is not None
        self.uuids: list[str] = [gpu["uuid"] for gpu in nvml["gpus"]]
        (directory / "uuids").write_text("\n".join(self.uuids))
        for part in ("dev", "nodes"):
            (directory / part).mkdir(exist_ok=True)
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(len(self.uuids)))):
            (directory / "dev" / name).touch()

    def target(self, gpu: int = 0, mib: int = 600) -> int:
        """A process with a CUDA context on one GPU; its pid."""
        argv = [sys.executable, "-I", "-S", str(_HERE / "fake_target.py"), str(self.directory), str(gpu), str(mib)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        self.targets.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    def knob(self, pid: int, name: str) -> None:
        """Makes a target difficult: see fake_target.py."""
        (self.directory / f"{pid}.{name}").touch()

    def fault(self, call: str, when: str, action: str) -> None:
        """Makes a call misbehave once: see fake_cuda.c."""
        (self.directory / f"fault.{call}.{when}").write_text(action)

    def deny(self, gpu: int, *, denied: bool = True) -> None:
        """Makes the driver find a GPU's node closed, by rules that are not our gate's."""
        path = self.directory / f"forbidden.{gpu}"
        if denied:
            path.touch()
        else:
            path.unlink()

    def host(self) -> FakeHost:
        return FakeHost(self.directory)

    def helpers(self) -> list[int]:
        """The helpers that run without a client."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
                parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if os.fsencode(self.library) in words and parent != os.getpid():
                found.append(int(path.parent.name))
        return found

    def state(self, pid: int) -> str:
        """The kernel's letter for a process: T for stopped."""
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    def work(self, pid: int) -> int:
        """How much a target has worked so far."""
        path = self.directory / f"{pid}.work"
        return path.stat().st_size if path.exists() else 0

    def memory(self) -> tuple[GpuMemory, ...]:
        """What NVML would say."""
        held: dict[str, dict[int, int | None]] = {uuid: {} for uuid in self.uuids}
        for path in self.directory.glob("*.vram"):
            pid = int(path.name.partition(".")[0])
            if not alive(pid):
                continue
            for line in path.read_text().splitlines():
                uuid, mib = line.split()
                held[uuid][pid] = int(mib) << 20
        other = dict.fromkeys(self.uuids, 0)
        if (occupied := self.directory / "occupied").exists():
            uuid, mib = occupied.read_text().split()
            other[uuid] = int(mib) << 20
        return tuple(
            GpuMemory(uuid, _TOTAL_MIB << 20, sum(used or 0 for used in held[uuid].values()) + other[uuid], held[uuid])
            for uuid in self.uuids
        )

    def close(self) -> None:
        (self.directory / "release").touch()
        for process in self.targets:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for helper in abandoned:  # it still uses the directory
            helper.wait(20)


def comm(pid: int) -> str:
    """The name of a process, which for Python is that of the link that started it."""
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class KnobGate:
    """A gate of files: closed, the fake driver does not open the GPU; frozen, the process is stopped."""

    def __init__(self, world: World) -> None:
        self.world = world

    def describe(self, target: Target, gpus: tuple[Gpu, ...]) -> list[str]:
        return [f"close GPU {gpu.index}" for gpu in gpus]

    def close(self, target: Target, gpus: tuple[Gpu, ...], remember: Callable[[Memo], None]) -> Memo:
        closed = [gpu.index for gpu in gpus if gpu.index is not None]
        memo = {"pid": target.pid, "gpus": closed}
        self._die_at("close-begun")
        remember(memo)
        for index in closed:
            (self.world.directory / f"denied.{index}").touch()
        self._die_at("close-done")
        return memo

    def open(self, memo: Memo) -> list[str]:
        if alive(memo["pid"]):
            os.kill(memo["pid"], signal.SIGCONT)
        for index in memo["gpus"]:
            (self.world.directory / f"denied.{index}").unlink(missing_ok=True)
        self._die_at("open-done")
        return ["opened it"]

    def kill(self, cgroup: str, members: frozenset[int]) -> bool:
        return False

    def _die_at(self, place: str) -> None:
        """A file "die.PLACE" makes this process die there, once, as of kill -9."""
        path = self.world.directory / f"die.{place}"
        if path.exists():
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def freeze(self, memo: Memo) -> None:
        os.kill(memo["pid"], signal.SIGSTOP)
        while self.world.state(memo["pid"]) != "T":
            time.sleep(0.01)


def make_session(world: World, gate: Gate | None = None) -> Session:
    """A session whose files lie in the world."""
    host = world.host()
    return Session(
        host=host,
        inventory=build_inventory(host),
        memory=world.memory,
        connect=lambda: CheckpointHelper(str(world.library)),
        gate=gate or KnobGate(world),
        records=Records(world.directory / "run" / "reclaimed"),
        ledger=Ledger(world.directory / "log" / "ledger.jsonl"),
        operator={"uid": os.geteuid()},
        holds=str(world.directory / "run" / "holds"),
    )
