# SPDX-License-Identifier: Apache-2.0
"""Journals, the lock, and what is remembered: also damaged, also by two at once."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path

import pytest

from gpuiso.apply import ended
from gpuiso.apply.applied import Applied, load_applied
from gpuiso.apply.calls import Calls
from gpuiso.apply.journal import Journal, read_journal
from gpuiso.apply.recover import recover
from gpuiso.apply.state import State, read_kept
from gpuiso.apply.steps import HoldShare, MakeCgroup, Step, WriteLimit, from_json
from gpuiso.errors import BadInput, NotPermitted, NotUndone, TimedOut

STEP = MakeCgroup("/sys/fs/cgroup", "/a")


@pytest.fixture
def state(tmp_path: Path) -> State:
    made = State(tmp_path / "run")
    made.prepare()
    return made


def written(state: State) -> Path:
    journal = Journal(Calls(), state.new_journal())
    journal.open({"target": "cgroup /a"})
    journal.begin(STEP, {"existed": True})
    journal.begin(WriteLimit("/sys/fs/cgroup", "/a", "io.max", ("8:0 rbps=1", "8:16 rbps=2")), {"content": None})
    journal.close()
    return journal.path


def test_what_is_written_is_read(state: State) -> None:
    read = read_journal(written(state))
    assert read.about == {"target": "cgroup /a"}
    assert read.entries[0] == (STEP, {"existed": True})
    step = read.entries[1][0]
    assert step == WriteLimit("/sys/fs/cgroup", "/a", "io.max", ("8:0 rbps=1", "8:16 rbps=2"))


def test_a_line_that_was_being_written_does_not_count(state: State) -> None:
    path = written(state)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n")
        assert len(read_journal(path).entries) == max(lines - 1, 0)


def test_a_damaged_journal_is_named_and_stays(state: State) -> None:
    path = written(state)
    path.write_bytes(path.read_bytes().replace(b"make-cgroup", b"make-trouble"))
    with pytest.raises(NotUndone, match=rf"{path.name}:\d+: not a journal: no step of kind 'make-trouble'"):
        recover(state, Calls())
    assert path.exists()
    path.write_text('{"format": "other/1"}\n')
    with pytest.raises(BadInput, match="its format is 'other/1'"):
        read_journal(path)


def test_steps_of_others_are_refused() -> None:
    with pytest.raises(ValueError, match="no step of kind None"):
        from_json({})
    with pytest.raises(ValueError, match="not a step 'make-cgroup'"):
        from_json({"kind": "make-cgroup", "nonsense": 1})


def test_a_damaged_memory_is_named(state: State) -> None:
    state.policy("cgroup /a").write_text("{")
    with pytest.raises(BadInput, match="not a record of what was applied"):
        load_applied(state, "cgroup /a")
    assert load_applied(state, "cgroup /b") is None
    # It stops nobody else: recovery, with which each change begins, leaves it alone and says so.
    (said,) = recover(state, Calls())
    assert said.startswith("left alone: ")
    assert "not a record of what was applied" in said
    assert "(move the file away: " in said
    assert state.policy("cgroup /a").read_text() == "{"


def remembered(state: State, target: str, *steps: Step) -> Path:
    Applied(target, {}, 0.0, 1, tuple((step, {"existed": True}) for step in steps)).write(Calls(), state)
    return state.policy(target)


def test_what_ended_is_forgotten(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    (tree / "there").mkdir(parents=True)
    units = tmp_path / "transient"
    monkeypatch.setattr(ended, "_TRANSIENT", str(units))
    share = tmp_path / "share.json"
    share.write_text("{}")
    held = HoldShare(str(share), "{}", "/gone", "50000 100000")
    gone = [remembered(state, "cgroup /gone", MakeCgroup(str(tree), "/gone"), MakeCgroup(str(tree), "/"), held), share]
    kept = [
        remembered(state, "cgroup /there", MakeCgroup(str(tree), "/there")),
        remembered(state, "cgroup /both", MakeCgroup(str(tree), "/both"), MakeCgroup(str(tmp_path), "/both")),
        remembered(state, "cgroup /not-mounted", MakeCgroup(str(tmp_path / "none"), "/not-mounted")),
        remembered(state, "cgroup /nothing"),
        remembered(state, "unit init.scope"),
        remembered(state, "unit a.service"),
        remembered(state, "unit loaded.scope"),
    ]
    (tmp_path / "both").mkdir()
    scope = remembered(state, "unit ended.scope")
    assert recover(state, Calls()) == []
    assert [path.exists() for path in (*gone, *kept, scope)] == [False, False, *[True] * len(kept), True]
    units.mkdir()  # without it nothing is known of scopes
    (units / "loaded.scope").touch()
    assert recover(state, Calls()) == []
    assert [path.exists() for path in (*kept, scope)] == [*[True] * len(kept), False]


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, "null"])
def test_no_content_of_a_memory_is_a_fault_of_ours(state: State, content: str) -> None:
    state.policy("cgroup /a").write_text(content)
    with pytest.raises(BadInput, match="not a record of what was applied"):
        load_applied(state, "cgroup /a")


def test_what_is_no_file_is_moved_out_of_the_way(state: State, tmp_path: Path) -> None:
    for path in (state.journals / "1.jsonl", state.policy("cgroup /a")):
        path.mkdir()
        (path / "precious").touch()
    os.mkfifo(state.journals / "2.jsonl")
    (state.journals / "3.jsonl").symlink_to(tmp_path / "nowhere")
    written(state)
    said = recover(state, Calls())
    moved = [line for line in said if line.startswith("moved ")]
    assert len(moved) == 4
    for line in moved:
        _, old, _, new, *_ = line.split()
        assert os.path.lexists(new.rstrip(":"))
        assert not os.path.lexists(old)
    assert len(list(state.directory.rglob("precious"))) == 2
    assert state.interrupted() == []
    assert load_applied(state, "cgroup /a") is None
    assert recover(state, Calls()) == []


def test_what_cannot_be_moved_out_of_the_way_is_named(state: State) -> None:
    class Stuck(Calls):
        def rename(self, path: str, new: str) -> None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    state.policy("cgroup /a").mkdir()
    (said,) = recover(state, Stuck())
    assert re.match(r"left alone: \S+: is not a regular file \(move the file away: ", said)
    (state.journals / "1.jsonl").mkdir()
    with pytest.raises(NotUndone, match=r"1\.jsonl: is not a regular file \(put what it speaks of right by hand, "):
        recover(state, Stuck())


@pytest.mark.parametrize("name", ["", "journal", "policies"])
def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path, name: str) -> None:
    (path := tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with pytest.raises(BadInput, match=f"^{path}: is not a directory") as failed:
        recover(State(tmp_path / "run"), Calls())
    assert failed.value.hint == "move it away: gpuiso makes the directory anew"


def test_what_is_kept_is_a_file_of_bounded_size(state: State) -> None:
    path = state.policy("cgroup /a")
    os.mkfifo(path)
    with pytest.raises(BadInput, match="is not a regular file"):
        read_kept(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(BadInput, match="is not a regular file"):
        read_kept(path)
    path.rmdir()
    path.symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="is not a file of gpuiso"):
        read_kept(path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(BadInput, match="is larger than 64 MiB"):
        read_kept(path)


def test_the_line_that_is_wrong_is_named(state: State) -> None:
    path = written(state)
    with path.open("a") as file:
        file.write("garbage\n")
    with pytest.raises(BadInput, match=rf"{path.name}:4: not a journal"):
        read_journal(path)


def test_one_at_a_time(state: State) -> None:
    with state.lock(), pytest.raises(TimedOut, match="another gpuiso has been changing something"), state.lock(0.05):
        pass


def test_two_recoveries_at_once(state: State) -> None:
    """Each interrupted change is recovered by exactly one of them."""
    for _ in range(20):
        written(state)
    said: list[list[str]] = []
    threads = [threading.Thread(target=lambda: said.append(recover(state, Calls()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(lines) for lines in said) == 20
    assert state.interrupted() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_without_a_journal_nothing_is_changed(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.chmod(tmp_path, 0o755)
            os.setresuid(65534, 65534, 65534)
            with pytest.raises(NotPermitted, match="without a journal nothing is changed"):
                State(tmp_path / "run").prepare()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
