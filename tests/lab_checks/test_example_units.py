# SPDX-License-Identifier: Apache-2.0
"""The systemd units among the examples, as a real systemd reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.host import Lab
from tests.support import REPOSITORY
from tests.tiers import requires

pytestmark = requires("lab")

UNITS = sorted((REPOSITORY / "examples" / "systemd").glob("*.service"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
@pytest.mark.parametrize("release", ["lab12", "lab13"])
def test_systemd_accepts_the_unit(path: Path, release: str, request: pytest.FixtureRequest) -> None:
    lab: Lab = request.getfixturevalue(release)
    # systemd wants the program to exist; where it is installed differs.
    text = path.read_text().replace("/usr/local/bin/gpuiso", "/bin/true")
    lab.put(f"/etc/systemd/system/{path.name}", text.encode())
    try:
        done = lab.run(["systemd-analyze", "verify", "--man=no", path.name], check=False)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        lab.sh(f"rm /etc/systemd/system/{path.name}")
