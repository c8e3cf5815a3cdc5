# SPDX-License-Identifier: Apache-2.0
"""``gpuiso run``: what it does not take, and for whom it reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuiso.launch.account import find_account
from gpuiso.launch.open_as import open_as
from tests.cli.command import run

SECRET = "root:$6$secret"
NOBODY = "65534"
NAMELESS = "4294967294"


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e3", "1_0", "", "9" * 5000])
def test_a_time_to_wait_is_a_number_of_seconds(capsys: pytest.CaptureFixture[str], text: str) -> None:
    result = run(capsys, "run", "--gpus", "1", "--print", f"--wait-for-gpu={text}", "--", "true")
    assert (result.code, result.out) == (2, "")
    assert "is not a number of 0 or more" in result.err


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file that its owner and group, root, may read, in a directory that everybody may look into."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = Path(directory, "secret")
        path.write_text(f"{SECRET}\n")
        path.chmod(0o640)
        yield path


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
@pytest.mark.parametrize("caller", [NOBODY, NAMELESS, None])
def test_a_policy_is_read_with_the_permissions_of_the_user(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, secret: Path, caller: str | None
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    options = ["run", "--gpus", "none", "--print"]
    if caller is None:
        options += ["--user", NOBODY]
    else:
        monkeypatch.setenv("SUDO_UID", caller)
    link = secret.with_name("link")
    link.symlink_to(secret)
    for path in (secret, link):
        result = run(capsys, *options, "--policy", str(path), "--", "true")
        assert (result.code, result.out) == (3, "")
        assert result.err.startswith(f"gpuiso: {path}: Permission denied\n  it is opened as ")
    secret.chmod(0o644)
    result = run(capsys, *options, "--policy", str(link), "--", "true")
    assert (result.code, SECRET in result.err) == (2, True)
    assert run(capsys, *options, "--policy", f"{secret}.not", "--", "true").code == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_root_reads_what_root_may(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, secret: Path
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    result = run(capsys, "run", "--gpus", "none", "--print", "--policy", str(secret), "--", "true")
    assert (result.code, SECRET in result.err) == (2, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_nothing_stays_behind_an_open(secret: Path) -> None:
    account = find_account(NOBODY, {})
    secret.chmod(0o644)
    fd = open_as(account, str(secret), os.O_RDONLY | os.O_CLOEXEC)
    assert os.read(fd, 100) == f"{SECRET}\n".encode()
    assert not os.get_inheritable(fd)
    os.close(fd)
    secret.chmod(0)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = os.listdir("/proc/self/fd"), children.read_text()
    with pytest.raises(PermissionError):
        open_as(account, str(secret), os.O_RDONLY)
    assert (os.listdir("/proc/self/fd"), children.read_text()) == before
