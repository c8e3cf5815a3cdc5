# SPDX-License-Identifier: Apache-2.0
"""Files are replaced, and nothing else ever is."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from gpuiso.errors import BadInput, FailedAndUndone
from gpuiso.oci.files import replace_file, write_output


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def make_dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def make_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/null")


def make_loop(path: Path) -> None:
    path.symlink_to(path)


MAKERS = [make_fifo, make_socket, make_dangling, make_link_to_a_device, make_loop, Path.mkdir]


def state(directory: Path) -> dict[str, tuple[int, int]]:
    return {entry.name: (entry.lstat().st_ino, entry.lstat().st_mode) for entry in directory.iterdir()}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path, make: object) -> None:
    assert callable(make)
    target = tmp_path / "target"
    make(target)
    before = state(tmp_path)
    with pytest.raises(BadInput) as refused:
        replace_file(str(target), b"new")
    assert refused.value.message.startswith(f"{target}: ")
    assert state(tmp_path) == before


def test_a_device_node_is_never_replaced() -> None:
    before = os.stat("/dev/null")
    with pytest.raises(BadInput, match="is not a regular file, and is not replaced"):
        replace_file("/dev/null", b"new")
    assert os.stat("/dev/null").st_rdev == before.st_rdev


@pytest.mark.parametrize("path", ["", "nothing/", "nothing/file", "a\0b", "x" * 300])
def test_names_that_are_no_place(tmp_path: Path, path: str) -> None:
    with pytest.raises((BadInput, FailedAndUndone)):
        replace_file(f"{tmp_path}/{path}" if path else "", b"new")
    assert state(tmp_path) == {}


def test_links_to_files_stay_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    for write in (replace_file, write_output):
        write(str(tmp_path / "link"), write.__name__.encode())
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_text() == write.__name__
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_output_into_a_device_and_a_fifo(tmp_path: Path) -> None:
    write_output("/dev/null", b"new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(FailedAndUndone, match="No space left on device"):
        write_output("/dev/full", b"new")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    write_output(str(fifo), b"new")
    reader.join()
    assert got == [b"new"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_output_to_what_is_standard_output_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    with log.open("wb", buffering=0) as stream:
        stream.write(b"before\n")
        monkeypatch.setattr("gpuiso.oci.files._STANDARD_OUTPUTS", (stream.fileno(),))
        write_output(f"/dev/fd/{stream.fileno()}", b"new\n")
        stream.write(b"after\n")
    assert log.read_bytes() == b"before\nnew\nafter\n"


def test_what_is_no_place_for_output_either(tmp_path: Path) -> None:
    for make in (make_socket, make_dangling, Path.mkdir):
        target = tmp_path / make.__name__
        make(target)
        with pytest.raises(BadInput):
            write_output(str(target), b"new")
