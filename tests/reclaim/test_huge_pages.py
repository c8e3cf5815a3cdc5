# SPDX-License-Identifier: Apache-2.0
"""transparent_hugepage is what it was, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuiso.errors import GpuisoError, NotSupported
from gpuiso.host.live import LiveHost
from gpuiso.reclaim.huge_pages import HugePages
from tests.support import REPOSITORY


class Setting(HugePages):
    """A file that answers as the kernel's does."""

    def __init__(self, directory: Path) -> None:
        super().__init__(LiveHost(), directory / "enabled", directory / "run")

    def _set(self, word: str) -> None:
        words = ("always", "madvise", "never")
        self.setting.write_text(" ".join(f"[{each}]" if each == word else each for each in words))


@pytest.fixture
def pages(tmp_path: Path) -> HugePages:
    (tmp_path / "enabled").write_text("always [madvise] never")
    return Setting(tmp_path)


def test_for_the_time_of_a_block(pages: HugePages, tmp_path: Path) -> None:
    with pages.always():
        assert pages.current() == "always"
        assert json.loads((tmp_path / "run/huge-pages.json").read_text())["was"] == "madvise"
    assert pages.current() == "madvise"
    assert pages.put_back() == []


def test_after_a_failure(pages: HugePages) -> None:
    with pytest.raises(KeyboardInterrupt), pages.always():
        raise KeyboardInterrupt
    assert pages.current() == "madvise"


def test_always_already(pages: HugePages, tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text("[always] madvise never")
    with pages.always():
        assert not (tmp_path / "run/huge-pages.json").exists()
    assert pages.current() == "always"


def test_the_last_one_puts_it_back(pages: HugePages, tmp_path: Path) -> None:
    outer, inner = pages.always(), Setting(tmp_path).always()
    with outer:
        found = json.loads((tmp_path / "run/huge-pages.json").read_text())
        other = [os.getppid(), pages.host.text(f"/proc/{os.getppid()}/stat")]
        start = int(str(other[1]).rpartition(")")[2].split()[19])
        found["users"].append([os.getppid(), start])  # another gpuiso that runs
        (tmp_path / "run/huge-pages.json").write_text(json.dumps(found))
    assert pages.current() == "always"
    found["users"] = []
    (tmp_path / "run/huge-pages.json").write_text(json.dumps(found))
    with inner:
        assert pages.current() == "always"
    assert pages.current() == "madvise"


PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.reclaim.test_huge_pages import Setting
with Setting(Path(sys.argv[2])).always():
    print("ready", flush=True)
    time.sleep(60)
"""


def test_killed(pages: HugePages, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PROGRAM, str(REPOSITORY), str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert pages.put_back() == []  # it is alive
        assert pages.current() == "always"
        process.send_signal(signal.SIGKILL)
        process.wait()
    time.sleep(0)
    assert pages.put_back() == [f"set {tmp_path}/enabled back to madvise"]
    assert pages.current() == "madvise"


def test_no_such_thing(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="no transparent huge pages"):
        Setting(tmp_path).current()


def test_it_may_not_be_set(pages: HugePages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(word: str) -> None:
        raise GpuisoError("cannot be set")

    monkeypatch.setattr(pages, "_set", refused)
    with pytest.raises(GpuisoError, match="cannot be set"), pages.always():
        pass
    assert not (tmp_path / "run/huge-pages.json").exists()
