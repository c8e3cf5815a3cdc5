# SPDX-License-Identifier: Apache-2.0
"""GPU jobs that can be asked what they hold, and sessions that take GPUs from them.

Run as ``python -m tests.gpu.reclaiming DIRECTORY reclaim|restore PID`` it does that once, to be killed on the way.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpuiso.apply.calls import Calls
from gpuiso.apply.state import State
from gpuiso.gpu.inventory import build_inventory
from gpuiso.host.gpu_memory import GpuMemoryReader
from gpuiso.host.live import LiveHost
from gpuiso.reclaim.checkpoint import CheckpointHelper
from gpuiso.reclaim.gate import PlaceGate
from gpuiso.reclaim.give import Given, give
from gpuiso.reclaim.ledger import Ledger
from gpuiso.reclaim.operator import operator
from gpuiso.reclaim.records import Records
from gpuiso.reclaim.session import Progress, Session
from gpuiso.reclaim.take import Options, Taken, take
from gpuiso.reclaim.target import Target

__all__ = ["Job", "cuda_job", "held_nodes", "open_session", "reclaim", "restore", "torch_job", "wait_until"]

_HERE = Path(__file__).parent
_DEADLINE = 120.0


class Job:
    """A running job; ``ask`` sends it a word and returns its line."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=os.environ
        )
        try:
            assert self._line() == "ready"
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def _line(self) -> str:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], _DEADLINE)[0], "the job does not answer"
        return self._process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._line()

    def goes_on(self) -> bool:
        """Whether it does new work."""
        first = self.ask("step").split()[0]
        return int(self.ask("step").split()[0]) > int(first)

    def kill(self) -> None:
        self._process.kill()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # a word that nobody took

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def cuda_job(mib: int, mode: str = "") -> Job:
    """A CUDA program without a framework."""
    return Job([sys.executable, "-I", "-S", str(_HERE / "cuda_job.py"), str(mib), mode])


def torch_job(gib: float) -> Job:
    """A PyTorch training loop."""
    return Job([sys.executable, str(_HERE / "torch_job.py"), str(gib)])


@contextmanager
def open_session(directory: Path, notify: Callable[[Progress], None] | None = None) -> Iterator[Session]:
    """A session on this machine that keeps its files in ``directory``."""
    host = LiveHost(nvml_deadline=60)
    with GpuMemoryReader() as memory:
        session = Session(
            host=host,
            inventory=build_inventory(host),
            memory=lambda: memory.read(30.0),
            connect=CheckpointHelper,
            gate=PlaceGate(host, Calls(), State(directory / "run")),
            records=Records(directory / "run" / "reclaimed"),
            ledger=Ledger(directory / "log" / "ledger.jsonl"),
            operator=operator(host),
            watchers=frozenset({memory.pid}),
            fresh=LiveHost,
        )
        if notify is not None:
            session.notify = notify
        try:
            yield session
        finally:
            session.close()


def reclaim(session: Session, *pids: int, options: Options | None = None) -> list[Taken]:
    with ExitStack() as stack:
        targets = [stack.enter_context(Target.open(session.host, pid)) for pid in pids]
        return take(session, targets, options or Options())


def restore(session: Session, *pids: int, moves: dict[str, str] | None = None) -> list[Given]:
    records = [record for record in session.records.all() if record.pid in pids]
    assert len(records) == len(pids)
    return give(session, records, moves)


def held_nodes(pid: int) -> set[str]:
    """The NVIDIA nodes that a process has open or mapped."""
    found = {line.split(None, 5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/nv" in line}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return {path for path in found if path.startswith("/dev/nvidia")}


def wait_until(what: Callable[[], bool], seconds: float = 60.0, pause: float = 0.001) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(pause)


def main(directory: str, verb: str, pid: str) -> None:
    with open_session(Path(directory)) as session:
        if verb == "reclaim":
            reclaim(session, int(pid))
        else:
            restore(session, int(pid))


if __name__ == "__main__":
    main(*sys.argv[1:4])
