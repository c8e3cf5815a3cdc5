# SPDX-License-Identifier: Apache-2.0
"""Reading files, and not being led astray by what lies below another process's root."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuiso.errors import Unknown
from gpuiso.host import files
from tests.tiers import requires


@contextmanager
def process_in(root: Path) -> Iterator[int]:
    """A child that has made ``root`` its root directory and waits."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.chroot(root)
        os.chdir("/")
        os.write(told, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(ready, 1)
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


def test_a_file_a_directory_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    assert files.read_file(str(tmp_path / "file")) == b"text"
    assert files.read_file(str(tmp_path)) is None
    assert files.read_file(str(tmp_path / "none")) is None
    assert files.list_directory(str(tmp_path)) == ("file",)
    assert files.list_directory(str(tmp_path / "file")) is None


def test_a_fifo_does_not_block_and_a_device_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert files.read_file(str(tmp_path / "fifo")) is None
    assert files.read_file("/dev/zero") is None


def test_nodes() -> None:
    node = files.stat_node("/dev/null")
    assert node is not None
    assert (node.type, node.major, node.minor) == ("c", 1, 3)
    assert files.stat_node("/nonexistent") is None


def test_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    assert files.read_link(str(tmp_path / "link")) == "target"
    assert files.read_link(str(tmp_path)) is None
    node = files.lstat_node(str(tmp_path / "link"))
    assert node is not None
    assert (node.type, node.target) == ("l", "target")
    assert files.stat_node(str(tmp_path / "link")) is None


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE", 1000)
    (tmp_path / "big").write_bytes(b"x" * 1001)
    with pytest.raises(Unknown, match="larger than"):
        files.read_file(str(tmp_path / "big"))


@requires("kernel")
def test_links_below_another_root_stay_in_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "hostname").write_text("inside")
    (root / "absolute").symlink_to("/etc/hostname")
    (root / "up").symlink_to("../../../../../../etc/hostname")
    (tmp_path / "secret").write_text("outside")
    (root / "out").symlink_to("../secret")
    with process_in(root) as pid:
        below = f"/proc/{pid}/root"
        assert files.read_file(f"{below}/absolute") == b"inside"
        assert files.read_file(f"{below}/up") == b"inside"
        assert files.read_file(f"{below}/out") is None
        assert files.list_directory(f"{below}/") == ("absolute", "etc", "out", "up")
        assert files.read_link(f"{below}/out") == "../secret"


@requires("kernel")
def test_magic_links_below_another_root_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    with process_in(root) as pid:
        (root / "escape").symlink_to(f"/proc/{os.getpid()}/root/etc/hostname")
        assert files.read_file(f"/proc/{pid}/root/escape") is None
