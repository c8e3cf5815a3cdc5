# SPDX-License-Identifier: Apache-2.0
"""What Docker says of itself and its containers, asked through its socket by the docker SDK.

Nothing is started by asking: where systemd holds the socket for a daemon that does not run, there is no answer.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from gpuiso.errors import BadInput, Unknown
from gpuiso.host.record_json import Place
from gpuiso.host.shapes import check_container, check_info

if TYPE_CHECKING:
    from docker import APIClient

__all__ = ["DockerEngine"]

_T = TypeVar("_T")

SOCKET = "/run/docker.sock"
PID_FILE = "/run/docker.pid"
TIMEOUT = 3  # seconds for one answer; the daemon takes a millisecond
ALL = 8.0  # seconds for the inspect of all containers: a daemon that is this slow is not waited for
WHAT = "Docker"


class DockerEngine:
    """The daemon behind DOCKER_HOST (if that is ``unix://``) or the usual socket. Answers are remembered.

    ``unit`` gives the properties of a systemd unit, and may raise Unknown.
    """

    def __init__(
        self, unit: Callable[[str], dict[str, Any] | None], *, address: str | None = None, timeout: int = TIMEOUT
    ) -> None:
        self._unit = unit
        self._timeout = timeout
        self._path = _socket_path(os.environ.get("DOCKER_HOST") if address is None else address)
        self._client: APIClient | None = None
        self._failure: Unknown | None = None

    def info(self) -> dict[str, Any] | None:
        """Docker's info object, None if there is no daemon.

        :raises Unknown: it does not answer, or may not be asked.
        """
        return self._info

    def containers(self) -> dict[str, dict[str, Any]]:
        """Docker's inspect objects by id; none if there is no daemon. :raises Unknown: as info()."""
        return self._containers

    @cached_property
    def _info(self) -> dict[str, Any] | None:
        return None if not self._runs else self._asked(lambda client: _shaped(check_info, client.info(), "info"))

    @cached_property
    def _containers(self) -> dict[str, dict[str, Any]]:
        return {} if not self._runs else self._asked(_inspect_all)

    @cached_property
    def _runs(self) -> bool:
        """Whether a daemon listens. Where only systemd does, connecting would start one: that is not done."""
        if not os.path.exists(self._path) or self._would_be_started():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
            probe.settimeout(self._timeout)
            try:
                probe.connect(self._path)
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except PermissionError as error:
                why = f"not permitted to use {self._path}: it takes root{_or_group(self._path)}"
                raise Unknown(WHAT, why) from error
            except OSError as error:
                raise Unknown(WHAT, f"{self._path}: {error}") from error
        return True

    def _would_be_started(self) -> bool:
        if self._path not in (SOCKET, f"/var{SOCKET}") or os.path.exists(PID_FILE):
            return False
        try:
            service, listener = self._unit("docker.service"), self._unit("docker.socket")
        except Unknown:
            return False
        return (
            service is not None
            and listener is not None
            and service.get("ActiveState") in ("inactive", "failed")
            and listener.get("ActiveState") == "active"
        )

    def _asked(self, question: Callable[[APIClient], _T]) -> _T:
        """The SDK's answer. What it raises becomes Unknown, and a daemon that failed once is not waited for again."""
        if self._failure is not None:
            raise self._failure
        import docker
        import requests

        try:
            if self._client is None:
                self._client = docker.APIClient(base_url=f"unix://{self._path}", version="auto", timeout=self._timeout)
            return question(self._client)
        except (docker.errors.DockerException, requests.exceptions.RequestException, ValueError) as error:
            self._failure = Unknown(WHAT, f"the daemon at {self._path} {self._what_happened(error)}")
            raise self._failure from error

    def _what_happened(self, error: Exception) -> str:
        says = str(error)
        if "timed out" in says:
            return f"did not answer within {self._timeout} s"
        return f"could not be asked: {says.splitlines()[0][:200] if says else type(error).__name__}"


def _shaped(check: Callable[[Any, Place], dict[str, Any]], answer: Any, where: str) -> dict[str, Any]:
    try:
        return check(answer, Place(WHAT, None, where))
    except BadInput as error:
        raise Unknown(WHAT, f"the daemon's answer has not the form that Docker documents: {error.message}") from error


def _inspect_all(client: APIClient) -> dict[str, dict[str, Any]]:
    from docker.errors import NotFound

    deadline = time.monotonic() + ALL
    found: dict[str, dict[str, Any]] = {}
    for listed in client.containers(all=True):
        try:
            found[listed["Id"]] = _shaped(check_container, client.inspect_container(listed["Id"]), listed["Id"])
        except NotFound:
            continue  # removed since it was listed
        if time.monotonic() > deadline:
            raise Unknown(WHAT, f"the daemon took more than {ALL:g} s to tell of its containers")
    return found


def _socket_path(address: str | None) -> str:
    """The socket that DOCKER_HOST names; of other hosts and protocols this one learns nothing."""
    if address is not None and address.startswith("unix://"):
        return address.removeprefix("unix://") or SOCKET
    return SOCKET


def _or_group(path: str) -> str:
    import grp

    try:
        return f" or the group {grp.getgrgid(os.stat(path).st_gid).gr_name}"
    except (OSError, KeyError):
        return ""
