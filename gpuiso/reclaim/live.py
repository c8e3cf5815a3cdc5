# SPDX-License-Identifier: Apache-2.0
"""A session on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from gpuiso.apply.calls import Calls
from gpuiso.apply.state import State
from gpuiso.errors import Unknown
from gpuiso.gpu.inventory import build_inventory
from gpuiso.host.gpu_memory import GpuMemory, GpuMemoryReader
from gpuiso.host.live import LiveHost
from gpuiso.host.protocol import Host
from gpuiso.reclaim.checkpoint import LIBRARY, CheckpointHelper
from gpuiso.reclaim.gate import PlaceGate
from gpuiso.reclaim.huge_pages import HugePages
from gpuiso.reclaim.ledger import Ledger
from gpuiso.reclaim.operator import operator
from gpuiso.reclaim.records import Records
from gpuiso.reclaim.recover import recover
from gpuiso.reclaim.session import Progress, Session

__all__ = ["open_session", "recover_here"]


def _silent(progress: Progress) -> None:
    pass


@contextmanager
def open_session(
    host: Host,
    *,
    library: str = LIBRARY,
    rules: bool = True,
    notify: Callable[[Progress], None] = _silent,
) -> Iterator[Session]:
    """For the length of a with block. Neither the driver nor NVML is started before something asks them.

    ``library`` is the CUDA driver's; ``rules`` is that of :class:`gpuiso.reclaim.gate.PlaceGate`.
    """
    with ExitStack() as undo:
        readers: list[GpuMemoryReader] = []

        def memory() -> tuple[GpuMemory, ...]:
            if not readers:
                if host.stat("/dev/nvidiactl") is None:
                    raise Unknown("NVML", "no NVIDIA driver here")
                readers.append(undo.enter_context(GpuMemoryReader()))
                session.watchers = frozenset({readers[0].pid})
            return readers[0].read()

        session = Session(
            host=host,
            inventory=build_inventory(host),
            memory=memory,
            connect=lambda: CheckpointHelper(library),
            gate=PlaceGate(host, Calls(), State(), rules=rules),
            records=Records(),
            ledger=Ledger(),
            operator=operator(host),
            notify=notify,
            fresh=LiveHost,
        )
        undo.callback(session.close)
        yield session


def recover_here(host: Host, *, library: str = LIBRARY) -> list[str]:
    """What ``gpuiso recover`` does for reclaimed processes; returns what was done, in plain words.

    :raises NotUndone: something could not be put right.
    """
    done = HugePages(host).put_back()
    if Records().all():
        with open_session(host, library=library) as session:
            done += recover(session)
    return done
