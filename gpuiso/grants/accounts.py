# SPDX-License-Identifier: Apache-2.0
"""Names of users and groups, as the host has them: /etc/passwd and /etc/group, and what NSS knows beside them."""

from __future__ import annotations

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["Accounts"]


class Accounts:
    """Each question is asked once. :raises Unknown: the host does not tell."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[str, dict[int, str]] = {}

    def user(self, uid: int) -> str:
        """A user's name; the number as text where there is none."""
        return self._name("passwd", uid)

    def group(self, gid: int) -> str:
        """A group's name; the number as text where there is none."""
        return self._name("group", gid)

    def _name(self, database: str, number: int) -> str:
        if database not in self._known:
            self._known[database] = _entries(self._host.text(f"/etc/{database}") or "")
        known = self._known[database]
        if number not in known:
            # LDAP and the like: only NSS knows how to ask (getent(1)).
            asked = self._host.command(("getent", database, str(number)))
            if asked is not None and asked.timed_out:
                raise Unknown(f"getent {database} {number}", "it gave no answer in time")
            known |= {number: str(number)} | _entries("" if asked is None else asked.stdout)
        return known[number]


def _entries(text: str) -> dict[int, str]:
    """passwd(5) and group(5): the third field is the number; of several lines for one, the first counts."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isascii() and fields[2].isdigit():
            found.setdefault(int(fields[2]), fields[0])
    return found
