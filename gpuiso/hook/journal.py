# SPDX-License-Identifier: Apache-2.0
"""A line for systemd's journal, by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL), if there is one."""

from __future__ import annotations

import os

__all__ = ["printable", "to_journal"]

SOCKET = "/run/systemd/journal/socket"
_LONGEST = 2000
_ERROR = 3


def printable(text: str) -> str:
    """One line without what could steer a terminal or forge a field; the container chose parts of it."""
    clean = "".join(one if one.isprintable() else "\ufffd" for one in text)
    clean = clean.encode("utf-8", "replace").decode()
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}…"


def to_journal(line: str, container: str) -> None:
    """Writes ``line``; a journal that is not there, or does not take it, is no error of the hook."""
    if not os.path.exists(SOCKET):
        return
    import _socket

    fields = [f"MESSAGE=gpuiso-hook: {line}", f"PRIORITY={_ERROR}", "SYSLOG_IDENTIFIER=gpuiso-hook"]
    if container:
        fields.append(f"CONTAINER_ID_FULL={printable(container)}")
    try:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(1.0)
            connection.connect(SOCKET)
            connection.send("".join(f"{field}\n" for field in fields).encode())
        finally:
            connection.close()
    except OSError:
        pass
