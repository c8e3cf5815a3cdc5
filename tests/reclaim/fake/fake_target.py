# SPDX-License-Identifier: Apache-2.0
"""A process that behaves as one with a CUDA context: ``python -I -S fake_target.py DIRECTORY GPU MIB``.

It holds DIRECTORY/dev/nvidia* open, keeps the memory it uses on each GPU in DIRECTORY/PID.vram ("UUID MIB" a line),
counts in DIRECTORY/PID.work while it may work, and answers fake_cuda.c on DIRECTORY/PID.sock. ``GPU`` is an index
into DIRECTORY/uuids. Files DIRECTORY/PID.KNOB turn it into a difficult case (see the methods).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 0, 1, 2, 100, 401, 600, 801


class Context:
    """The state of the fake driver inside this process."""

    def __init__(self, directory: Path, gpu: int, mib: int) -> None:
        self.directory = directory
        self.uuids = (directory / "uuids").read_text().split()
        self.gpu = gpu
        self.mib = mib
        self.state = RUNNING
        self.files: list[int] = []
        self.copy = bytearray()
        self.acquire()

    def file(self, name: str) -> Path:
        return self.directory / f"{os.getpid()}.{name}"

    def acquire(self) -> None:
        for name in ("nvidiactl", "nvidia-uvm", f"nvidia{self.gpu}", f"nvidia{self.gpu}"):
            self.files.append(os.open(self.directory / "dev" / name, os.O_RDWR))
        self.file("vram").write_text(f"{self.uuids[self.gpu]} {self.mib}\n")

    def release(self) -> None:
        if self.file("keeps-files").exists():  # as frameworks with descriptors of their own do
            self.files = self.files[:1]
        for fd in self.files:
            os.close(fd)
        self.files = []
        if not self.file("keeps-vram").exists():
            self.file("vram").write_text("")

    def lock(self, timeout: str) -> int:
        if self.state != RUNNING:
            return ILLEGAL_STATE
        if self.file("endless-kernel").exists():
            time.sleep(int(timeout) / 1000)
            return NOT_READY
        self.state = LOCKED
        return SUCCESS

    def checkpoint(self) -> int:
        if self.state != LOCKED:
            return ILLEGAL_STATE
        if self.file("managed-memory").exists():
            return NOT_SUPPORTED
        self.copy = bytearray(b"x") * (self.mib << 10)  # a thousandth of what the real one takes
        self.release()
        self.state = CHECKPOINTED
        return SUCCESS

    def may_open(self, gpu: int) -> bool:
        """Whether the rules of the cgroup allow a GPU's node: without a driver, an allowed open gives ENXIO."""
        if any((self.directory / f"{word}.{gpu}").exists() for word in ("denied", "forbidden")):
            return False
        try:
            os.close(os.open(self.directory / "nodes" / f"nvidia{gpu}", os.O_RDWR))
        except PermissionError:
            return False
        except OSError:
            pass
        return True

    def restore(self, *pairs: str) -> int:
        if self.state != CHECKPOINTED:
            return ILLEGAL_STATE
        gpu = self.gpu
        if pairs:
            plain = ["".join(uuid.removeprefix("GPU-").split("-")) for uuid in self.uuids]
            moves = dict(zip(pairs[::2], pairs[1::2], strict=True))
            if set(moves) != set(plain):
                return INVALID_VALUE
            if not all(self.may_open(index) for index in range(len(plain))):
                return NOT_SUPPORTED
            gpu = plain.index(moves[plain[gpu]])
        if not self.may_open(gpu):
            return NO_DEVICE
        self.gpu = gpu
        self.acquire()
        self.state = LOCKED
        return SUCCESS

    def unlock(self) -> int:
        if self.state != LOCKED:
            return ILLEGAL_STATE
        self.state = RUNNING
        return SUCCESS

    def answer(self, words: list[str]) -> str:
        if words[0] == "state":
            return f"0 {self.state}\n"
        code: int = getattr(self, words[0])(*words[1:])
        return f"{code} 0\n"


def serve(context: Context, server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            line = connection.makefile().readline()
            if line:
                connection.sendall(context.answer(line.split()).encode())


def main() -> None:
    if "FAKE_COMM" in os.environ:
        Path("/proc/self/comm").write_text(os.environ["FAKE_COMM"])
    context = Context(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(context.file("sock")))
    server.listen()
    threading.Thread(target=serve, args=(context, server), daemon=True).start()
    print("ready", flush=True)
    while True:
        if context.state == RUNNING:
            with context.file("work").open("a") as work:
                work.write(".")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
