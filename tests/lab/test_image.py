# SPDX-License-Identifier: Apache-2.0
"""How images are named, built and kept; with stand-ins for apt and debootstrap, so nothing is fetched."""

from __future__ import annotations

import io
import os
import platform
import tarfile
from pathlib import Path

import pytest

from tests.lab import cache, image, images, mirror, node, vm, wheels
from tests.lab.errors import LabError
from tests.tiers import requires

INDEX = "http://{host}/{path}/\t{label}\t{component}\t{identifier}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    path = tmp_path / "cache"
    monkeypatch.setenv("GPUISO_LAB_CACHE", str(path))
    monkeypatch.delenv("GPUISO_LAB_MIRROR", raising=False)
    return path


def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a shell script first on PATH under a tool's name."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}")
    (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


def test_a_directory_is_built_once(own_cache: Path) -> None:
    def build(directory: Path) -> None:
        (directory / "built").touch(exist_ok=False)

    assert cache.build_once("thing", build) == own_cache / "thing"
    assert cache.build_once("thing", build) == own_cache / "thing"
    assert sorted(path.name for path in own_cache.iterdir()) == ["locks", "thing"]


def test_a_failed_build_leaves_nothing(own_cache: Path) -> None:
    def build(directory: Path) -> None:
        (directory / "half").touch()
        raise LabError("no")

    with pytest.raises(LabError):
        cache.build_once("thing", build)
    assert [path.name for path in own_cache.iterdir()] == ["locks"]


def test_what_an_aborted_build_left_is_not_used(own_cache: Path) -> None:
    (own_cache / "thing.partial").mkdir(parents=True)
    (own_cache / "thing.partial/half").touch()
    built = cache.build_once("thing", lambda directory: (directory / "whole").touch())
    assert [path.name for path in built.iterdir()] == ["whole"]


def test_prune_keeps_what_is_named(own_cache: Path) -> None:
    for name in ("old", "new", "older.partial"):
        (own_cache / name).mkdir(parents=True)
    assert cache.prune(["new"]) == ["old", "older.partial"]
    assert sorted(path.name for path in own_cache.iterdir()) == ["locks", "new"]


def test_key_follows_what_decides_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {image.key(release, vm=vm) for release in image.PACKAGES for vm in (False, True)}
    assert len(before) == 4
    monkeypatch.setitem(image.PACKAGES, "trixie", [*image.PACKAGES["trixie"], "hello"])
    after = {image.key(release, vm=vm) for release in image.PACKAGES for vm in (False, True)}
    assert sorted(key.split("-")[0] for key in before - after) == ["trixie", "vm"]


def test_unknown_release() -> None:
    with pytest.raises(LabError, match="choose from trixie, bookworm"):
        image.image("sarge")


@requires("kernel")
@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("E: Failed getting release file somewhere/Release", "mirror apt uses here does not give trixie"),
        ("E: something else", "building the trixie image failed:\n.*E: something else"),
    ],
)
def test_a_failed_debootstrap_is_explained(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, log: str, says: str
) -> None:
    monkeypatch.setenv("GPUISO_LAB_MIRROR", "http://mirror.example/debian")
    stand_in(tmp_path / "bin", monkeypatch, "debootstrap", f'echo "$@"; echo "{log}" >&2; exit 1\n')
    with pytest.raises(LabError, match=f"(?s){says}"):
        image.image("trixie")
    assert [path.name for path in own_cache.iterdir()] == ["locks"]


def index(*entries: tuple[str, str, str, str]) -> str:
    lines = [
        INDEX.format(host="mirror.example", path=path, label=label, component=component, identifier=identifier)
        for path, label, component, identifier in entries
    ]
    return "cat <<'EOF'\n" + "\n".join(lines) + "\nEOF\n"


@pytest.mark.parametrize(
    "listing",
    [
        index(
            ("debian-security", "Debian-Security", "main", "Packages"),
            ("third", "Third party", "main", "Packages"),
            ("debian", "Debian", "contrib", "Packages"),
            ("debian", "Debian", "main", "Translations"),
            ("debian", "Debian", "main", "Packages"),
        ),
        index(("debian-security", "", "main", "Packages"), ("debian", "", "main", "Packages")),
    ],
    ids=["labelled", "before the first update"],
)
def test_mirror_is_the_one_apt_takes_main_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str) -> None:
    stand_in(tmp_path / "bin", monkeypatch, "apt-get", listing)
    assert mirror.debian_mirror() == "http://mirror.example/debian/"


def test_mirror_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUISO_LAB_MIRROR", "http://mirror.example/debian")
    assert mirror.debian_mirror() == "http://mirror.example/debian"


def test_no_mirror_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin", monkeypatch, "apt-get", index(("ubuntu", "Ubuntu", "main", "Packages")))
    with pytest.raises(LabError, match="name one in GPUISO_LAB_MIRROR"):
        mirror.debian_mirror()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="apt-get is missing"):
        mirror.debian_mirror()


def test_apt_settings_carry_what_fetching_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = """cat <<'EOF'
APT::Architecture "amd64";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example:3128/";
Acquire::Check-Date "false";
Acquire::Languages "none";
EOF
"""
    stand_in(tmp_path / "bin", monkeypatch, "apt-config", dump)
    assert mirror.apt_settings().splitlines() == [
        'Acquire::http::Proxy "http://proxy.example:3128/";',
        'Acquire::Check-Date "false";',
        'Acquire::Retries "3";',
    ]


def test_nodes_of_a_driver() -> None:
    nodes = {made.path: (made.major, made.minor) for made in node.gpu_nodes(3)}
    uvm = node.unused_major()
    assert nodes == {
        "/dev/nvidia0": (195, 0),
        "/dev/nvidia1": (195, 1),
        "/dev/nvidia2": (195, 2),
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-uvm": (uvm, 0),
        "/dev/nvidia-uvm-tools": (uvm, 1),
    }
    assert f"\n{uvm} " not in Path("/proc/devices").read_text().split("Block devices:")[0]


def test_wheels_are_those_the_project_names() -> None:
    assert wheels.scripts()["gpuiso"] == "gpuiso.cli.main:main"
    assert wheels.key("3.11") != wheels.key("3.13")


def test_busybox_rootfs(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_text("#!/bin/sh\nprintf '%s\\n' busybox cat sh\n")
    busybox.chmod(0o755)
    with tarfile.open(fileobj=io.BytesIO(images.busybox_rootfs(busybox))) as tar:
        entries = {entry.name: entry for entry in tar}
        program = tar.extractfile("bin/busybox")
        assert program is not None
        assert program.read() == busybox.read_bytes()
    assert {name for name, entry in entries.items() if entry.issym()} == {"bin/cat", "bin/sh"}
    assert entries["bin/sh"].linkname == "busybox"
    assert entries["tmp"].mode == 0o1777


def test_a_virtual_machine_without_results_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "image/root"
    for name in ("boot/vmlinuz-6.12", "boot/initrd.img-6.12"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (tmp_path / "image/disk.ext4").touch()
    busybox = root / "usr/bin/busybox"
    busybox.parent.mkdir(parents=True)
    busybox.write_text("#!/bin/sh\n")
    busybox.chmod(0o755)
    stand_in(tmp_path / "bin", monkeypatch, f"qemu-system-{platform.machine()}", "exit 0\n")
    monkeypatch.setattr(vm, "image", lambda release, vm: image.Image("trixie", root, {}, 0.0, 0))
    monkeypatch.setattr(vm, "site_directory", lambda python: root)
    with pytest.raises(LabError, match="left no results"):
        vm.run_job("#!/bin/sh\n")
    stand_in(tmp_path / "bin", monkeypatch, f"qemu-system-{platform.machine()}", "echo no kvm >&2; exit 1\n")
    with pytest.raises(LabError, match="exit 1\nno kvm"):
        vm.run_job("#!/bin/sh\n")
    stand_in(tmp_path / "bin", monkeypatch, f"qemu-system-{platform.machine()}", "exec sleep 60\n")
    with pytest.raises(LabError, match="does not end within 0 s"):
        vm.run_job("#!/bin/sh\n", timeout=0.3)
