# SPDX-License-Identifier: Apache-2.0
"""The machine, live or recorded. Every fact enters gpuiso here."""

from __future__ import annotations

from gpuiso.host.protocol import Host

__all__ = ["Host", "open_host"]


def open_host(record: str | None = None) -> Host:
    """The running machine, or the record at ``record`` (a directory or a .tar.gz).

    :raises BadInput: not a record, broken somewhere, or of a format that this version does not read.
    :raises NotFound: no such file.
    """
    if record is None:
        from gpuiso.host.live import LiveHost

        host = LiveHost()
        host.prefetch()
        return host
    from gpuiso.host.recorded import RecordedHost

    recorded = RecordedHost(record)
    recorded.check()
    return recorded
