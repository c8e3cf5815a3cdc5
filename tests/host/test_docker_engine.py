# SPDX-License-Identifier: Apache-2.0
"""Docker's answers, from a daemon of a few lines behind a socket."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from gpuiso.errors import Unknown
from gpuiso.host import docker_engine
from gpuiso.host.docker_engine import DockerEngine

VERSION = {"ApiVersion": "1.45", "MinAPIVersion": "1.24"}
ANSWERS: dict[str, Any] = {
    "/version": VERSION,
    "/v1.45/info": {"CgroupDriver": "systemd"},
    "/v1.45/containers/json": [{"Id": "c0ffee"}, {"Id": "decade"}],
    "/v1.45/containers/c0ffee/json": {"Id": "c0ffee", "Name": "/train"},
}


class Daemon(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    answers: dict[str, Any]
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Daemon

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        answer = self.server.answers.get(path)
        if answer is None:
            self.reply(404, {"message": "No such container"})
        elif isinstance(answer, threading.Event):
            answer.wait(30)
        else:
            self.reply(200, answer)

    def reply(self, status: int, answer: Any) -> None:
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@contextmanager
def daemon(path: Path, **changes: Any) -> Iterator[Daemon]:
    with Daemon(str(path), Handler) as server:
        server.answers = ANSWERS | changes
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def engine(path: Path, **options: Any) -> DockerEngine:
    return DockerEngine(lambda _: None, address=f"unix://{path}", **options)


def test_answers(tmp_path: Path) -> None:
    with daemon(tmp_path / "sock") as server:
        docker = engine(tmp_path / "sock")
        for _ in range(2):
            assert docker.info() == {"CgroupDriver": "systemd"}
            # The other one was removed after it was listed.
            assert docker.containers() == {"c0ffee": {"Id": "c0ffee", "Name": "/train"}}
        assert server.asked.count("/v1.45/info") == 1


def test_no_daemon(tmp_path: Path) -> None:
    docker = engine(tmp_path / "sock")
    assert docker.info() is None
    assert docker.containers() == {}
    with daemon(tmp_path / "sock"):
        pass
    assert engine(tmp_path / "sock").info() is None  # the socket of a daemon that ended


def test_a_daemon_that_hangs_is_waited_for_once(tmp_path: Path) -> None:
    end = threading.Event()
    with daemon(tmp_path / "sock", **{"/version": end}) as server:
        docker = engine(tmp_path / "sock", timeout=1)
        for question in (docker.info, docker.containers):
            with pytest.raises(Unknown, match="did not answer within 1 s"):
                question()
        end.set()
        assert server.asked == ["/version"]


@pytest.mark.parametrize("answer", [b"no json", {"ApiVersion": 3}, []])
def test_what_is_no_docker_is_unknown(tmp_path: Path, answer: Any) -> None:
    with daemon(tmp_path / "sock", **{"/version": answer}), pytest.raises(Unknown, match="could not be asked"):
        engine(tmp_path / "sock").info()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every socket")
def test_a_socket_that_is_closed_to_us(tmp_path: Path) -> None:
    with daemon(tmp_path / "sock"):
        (tmp_path / "sock").chmod(0)
        with pytest.raises(Unknown, match="it takes root"):
            engine(tmp_path / "sock").info()


def test_only_local_sockets_are_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(docker_engine, "SOCKET", str(tmp_path / "none"))
    for address in ("tcp://192.0.2.1:2375", "ssh://somewhere", ""):
        assert DockerEngine(lambda _: None, address=address).info() is None


def test_a_daemon_that_systemd_would_start_is_not_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    states = {"docker.service": {"ActiveState": "inactive"}, "docker.socket": {"ActiveState": "active"}}
    with daemon(tmp_path / "sock") as server:
        monkeypatch.setattr(docker_engine, "SOCKET", str(tmp_path / "sock"))
        monkeypatch.setattr(docker_engine, "PID_FILE", str(tmp_path / "pid"))
        assert DockerEngine(states.get, address="").info() is None
        assert server.asked == []
        states["docker.service"]["ActiveState"] = "active"
        assert DockerEngine(states.get, address="").info() is not None
