# SPDX-License-Identifier: Apache-2.0
"""Files are replaced in one step, the old ones stay beside them, and what fails leaves nothing."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gpuiso.errors import BadInput, FailedAndUndone, NotUndone
from gpuiso.host.live import LiveHost
from gpuiso.runtimes.engine import Edit, Request
from gpuiso.runtimes.plan import ENGINES, Plan, make_plan
from gpuiso.runtimes.write import restart, write, write_and_restart

TEXT = "[nvidia-container-cli]\n#no-cgroups = false\n"


def planned(file: Path, *settings: str, engine: str = "nvidia-container-runtime") -> Plan:
    asked = settings or ("nvidia-container-cli.no-cgroups=true",)
    return make_plan(ENGINES[engine], Request(LiveHost(), str(file), None, asked))


def backups(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}.gpuiso-backup-*"))


def test_mode_is_kept_and_the_old_file_too(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TEXT)
    file.chmod(0o640)
    (written,) = write(planned(file), LiveHost())
    assert file.read_text() == TEXT + "no-cgroups = true\n"
    assert [os.fspath(path) for path in backups(file)] == [written.backup]
    assert backups(file)[0].read_text() == TEXT
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}
    assert write(planned(file), LiveHost()) == ()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TEXT)
    os.chown(file, 1234, 4321)
    write(planned(file), LiveHost())
    assert {(path.stat().st_uid, path.stat().st_gid) for path in tmp_path.iterdir()} == {(1234, 4321)}


def test_two_writes_in_one_second_keep_two_backups(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TEXT)
    write(planned(file), LiveHost())
    write(planned(file, "disable-require=true"), LiveHost())
    write(planned(file, "disable-require=false"), LiveHost())
    assert len(backups(file)) == 3
    assert sorted(path.read_text().count("true") for path in backups(file)) == [0, 1, 2]


def test_a_new_file_gets_its_directory_and_no_backup(tmp_path: Path) -> None:
    file = tmp_path / "new/dir/config.toml"
    (written,) = write(planned(file), LiveHost())
    assert written.backup is None
    assert file.read_text() == "[nvidia-container-cli]\nno-cgroups = true\n"
    assert list(file.parent.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.toml", tmp_path / "config.toml"
    target.write_text(TEXT)
    link.symlink_to(target)
    write(planned(link), LiveHost())
    assert link.is_symlink()
    assert "no-cgroups = true" in target.read_text()
    assert len(backups(target)) == 1


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TEXT)
    plan = planned(file)
    file.write_text("# somebody was faster\n")
    with pytest.raises(FailedAndUndone, match="it was changed meanwhile"):
        write(plan, LiveHost())
    assert file.read_text() == "# somebody was faster\n"
    assert list(tmp_path.iterdir()) == [file]


def test_of_two_files_both_are_written_or_none(tmp_path: Path) -> None:
    file, other = tmp_path / "a.toml", tmp_path / "file/b.toml"
    file.write_text(TEXT)
    (tmp_path / "file").write_text("in the way of a directory")
    plan = planned(file)
    blocked = replace(plan.files[0], path=str(other), old=None)
    both = replace(plan, files=(plan.files[0], blocked))
    with pytest.raises(FailedAndUndone, match="its directory cannot be made"):
        write(both, LiveHost())
    assert file.read_text() == TEXT
    assert backups(file) == []


def test_a_drop_in_brings_its_import(tmp_path: Path) -> None:
    plan = planned(tmp_path / "90.toml", "enable_cdi=true", engine="containerd")
    main = tmp_path / "config.toml"
    main.write_text("version = 2 # ours\n")
    asked = Request(LiveHost(), str(tmp_path / "90.toml"), None, ("enable_cdi=true",))
    place = replace(plan.place, also=(Edit(str(main), ("imports",), [f"{tmp_path}/*.toml"]),))
    both = make_plan(replace(ENGINES["containerd"], place=lambda request: place), asked)
    write(both, LiveHost(), ask=False)
    assert main.read_text() == f'version = 2 # ours\nimports = ["{tmp_path}/*.toml"]\n'
    assert "enable_cdi = true" in (tmp_path / "90.toml").read_text()


def program(directory: Path, name: str, script: str) -> None:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_what_the_engine_refuses_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "dockerd", 'case "$1" in --version) echo "Docker version 26.1.5";; *) '
            'echo "unable to configure with file ${2#*=}: bad" >&2; exit 1;; esac')  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "etc/daemon.json"
    file.parent.mkdir()
    file.write_text("{}")
    plan = planned(file, "features.cdi=true", engine="docker")
    with pytest.raises(BadInput, match=f"dockerd refuses the new configuration: unable .* {file}: bad"):
        write(plan, LiveHost())
    assert file.read_text() == "{}"
    assert list(file.parent.iterdir()) == [file]
    write(plan, LiveHost(), ask=False)
    assert '"cdi": true' in file.read_text()


def test_a_check_that_cannot_run_is_not_taken_for_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "dockerd", 'echo "unknown flag: --validate" >&2; exit 125')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "daemon.json"
    file.write_text("{}")
    assert write(planned(file, "live-restore=true", engine="docker"), LiveHost())


def systemctl(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A systemctl that runs ``script``; what it is asked stands in the file that is returned."""
    calls = directory / "calls"
    program(directory, "systemctl", f'echo "$@" >>{calls}\n{script}')
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    return calls


def test_a_service_that_does_not_start_gets_its_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "etc/config.toml"
    file.parent.mkdir()
    file.write_text(TEXT)
    calls = systemctl(
        tmp_path, monkeypatch, f'grep -q "^no-cgroups" {file} && {{ echo "it failed" >&2; exit 1; }}; exit 0'
    )
    with pytest.raises(FailedAndUndone, match=r"x.service does not start: it failed; the files were put back and x"):
        write_and_restart(planned(file), LiveHost(), "x.service")
    assert file.read_text() == TEXT
    assert list(file.parent.iterdir()) == [file]
    assert calls.read_text() == "restart x.service\n" * 2


def test_a_service_that_starts_with_neither_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "etc/config.toml"
    file.parent.mkdir()
    file.write_text(TEXT)
    systemctl(tmp_path, monkeypatch, "exit 1")
    with pytest.raises(NotUndone, match="the files were put back, and it does not start with them either"):
        write_and_restart(planned(file), LiveHost(), "x.service")
    assert file.read_text() == TEXT


def test_nothing_written_nothing_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TEXT + "no-cgroups = true\n")
    calls = systemctl(tmp_path, monkeypatch, "exit 0")
    assert write_and_restart(planned(file), LiveHost(), "x.service") == ()
    assert not calls.exists()
    restart("x.service", user=True)
    assert calls.read_text() == "--user restart x.service\n"
