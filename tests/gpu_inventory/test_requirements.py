# SPDX-License-Identifier: Apache-2.0
"""What images require of a driver."""

from __future__ import annotations

import pytest

from gpuiso.gpu.requirements import satisfied

IMAGE = "cuda>=12.8 brand=unknown,driver>=470,driver<471 brand=tesla,driver>=535,driver<536"


@pytest.mark.parametrize(
    ("expression", "cuda", "driver", "answer"),
    [
        ("cuda>=12.8", "12.8", "570.86.15", True),
        ("cuda>=12.8", "13.0", "580.159.04", True),
        ("cuda>=12.8", "12.4", "550.54.15", False),
        ("cuda>=12", "12.0", "525.60.13", True),
        ("driver>=535,driver<536", "12.2", "535.183.01", True),
        ("driver>=535,driver<536", "12.4", "550.54.15", False),
        ("cuda>=12.8 driver>=550", "12.4", "550.54.15", True),
        ("!cuda<12", "12.4", "550.54.15", True),
        ("arch>=7.0", "12.4", "550.54.15", None),
        ("cuda>=13.0,arch>=7.0", "12.4", "550.54.15", False),
        (IMAGE, "12.8", "570.86.15", True),
        (IMAGE, "12.4", "550.54.15", False),
        (IMAGE, "12.2", "535.183.01", None),
        ("", "12.2", "535.183.01", True),
        ("nonsense", "12.2", "535.183.01", None),
        ("cuda>=new", "12.2", "535.183.01", None),
    ],
)
def test_requirements(expression: str, cuda: str, driver: str, answer: bool | None) -> None:
    assert satisfied(expression, cuda=cuda, driver=driver) is answer
