# SPDX-License-Identifier: Apache-2.0
"""On a machine with NVIDIA GPUs: what we generate is what the driver has, and a container sees exactly the
asked GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpuiso.cdi.cache import load
from gpuiso.cdi.emit import to_yaml
from gpuiso.cdi.generate import Generated, Options, generate
from gpuiso.cdi.inject import inject
from gpuiso.cdi.lint import lint_spec
from gpuiso.gpu.inventory import build_inventory
from gpuiso.host.live import LiveHost
from gpuiso.host.protocol import Host
from tests.cdi.host_container import base_config, needs_runtime, run_in_container
from tests.gpu.place import CU_INIT
from tests.tiers import requires


@pytest.fixture(scope="module")
def host() -> Host:
    return LiveHost()


@pytest.fixture(scope="module")
def generated(host: Host) -> Generated:
    return generate(host, Options())


@requires("gpu")
def test_the_spec_is_of_this_host(host: Host, generated: Generated) -> None:
    names = {device.name for device in generated.spec.devices}
    gpus = build_inventory(host).of("nvidia")
    assert gpus
    assert {gpu.uuid for gpu in gpus if not gpu.mig_enabled} <= names
    assert "all" in names
    found = [(rule, message) for rule, _, message in lint_spec(host, generated.spec)]
    assert [each for each in found if each[0] != "CDI-HOOK-MISSING"] == []


@requires("gpu")
@pytest.mark.skipif(shutil.which("nvidia-ctk") is None, reason="no nvidia-ctk to compare with")
def test_the_content_is_that_of_nvidia_ctk(generated: Generated) -> None:
    done = subprocess.run(["nvidia-ctk", "cdi", "generate"], capture_output=True, text=True, timeout=60, check=True)
    theirs = yaml.safe_load(done.stdout)
    ours = generated.spec.to_document()
    assert [device["name"] for device in ours["devices"]] == [device["name"] for device in theirs["devices"]]
    for part in ("env", "mounts"):
        assert ours["containerEdits"][part] == theirs["containerEdits"][part]


@requires("gpu")
@needs_runtime
def test_a_container_sees_exactly_the_asked_gpus(host: Host, generated: Generated, tmp_path: Path) -> None:
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("no nvidia-smi on this machine")
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/nvidia.yaml").write_text(to_yaml(generated.spec))
    cache = load(host, (str(tmp_path / "cdi"),))
    assert cache.errors == ()
    gpus = [gpu for gpu in build_inventory(host).of("nvidia") if not gpu.mig_enabled]
    wanted = {str(gpu.index): {gpu.uuid} for gpu in gpus} | {"all": {gpu.uuid for gpu in gpus}}
    for name, uuids in wanted.items():
        config = inject(host, cache, base_config([program, "-L"]), [f"nvidia.com/gpu={name}"])
        done = run_in_container(tmp_path / f"bundle-{name}", config)
        assert done.returncode == 0, done.stderr
        assert set(re.findall(r"\(UUID: (GPU-[0-9a-f-]+)\)", done.stdout)) == uuids


@requires("gpu")
@needs_runtime
@pytest.mark.parametrize("name", ["0", "all"])
def test_cuda_computes_in_a_container_on_the_asked_gpus(
    host: Host, generated: Generated, tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/nvidia.yaml").write_text(to_yaml(generated.spec))
    gpus = [str(gpu.uuid) for gpu in build_inventory(host).of("nvidia")]
    argv = [os.path.realpath(sys.executable), "-I", "-S", "-c", CU_INIT]
    config = inject(host, load(host, (str(tmp_path / "cdi"),)), base_config(argv), [f"nvidia.com/gpu={name}"])
    started = time.monotonic()
    done = run_in_container(tmp_path / "bundle", config)
    record_property("note", f"{time.monotonic() - started:.2f} s; {done.stdout.strip()[:60]}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"cuInit": 0, "uuids": gpus if name == "all" else gpus[:1]}


@requires("gpu")
@needs_runtime
def test_a_node_that_was_not_asked_for_cannot_be_made(host: Host, generated: Generated, tmp_path: Path) -> None:
    gpus = build_inventory(host).of("nvidia")
    if len(gpus) < 2:
        pytest.skip("needs two GPUs")
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/nvidia.yaml").write_text(to_yaml(generated.spec))
    other = gpus[1].nodes[0]
    script = f"mknod /tmp/other c {other.major} {other.minor} && cat </tmp/other"
    config = base_config(["/bin/sh", "-c", script])
    config = inject(host, load(host, (str(tmp_path / "cdi"),)), config, ["nvidia.com/gpu=0"])
    done = run_in_container(tmp_path / "bundle", config)
    assert done.returncode != 0
    assert "Operation not permitted" in done.stderr
