# SPDX-License-Identifier: Apache-2.0
"""Records that a stranger made: every trick is one clear error, and nothing outside the record is read."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuiso.errors import BadInput, GpuisoError, Unknown
from gpuiso.host import archive, tar
from gpuiso.host.archive import open_archive
from gpuiso.host.recorded import RecordedHost
from tests.host.records import RECORD, answer, device, pack, record, tar_gz
from tests.support import REPOSITORY, SHARED, needs_shared

JSON = json.dumps(RECORD).encode()


def member(name: str, kind: bytes = tarfile.REGTYPE, linkname: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = linkname
    return info


BASE = (member("record.json"), JSON)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "record.tar.gz"


# Archives that are records


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("prefix", ["", "./", "my-record/"])
def test_formats_of_tar(target: Path, form: int, prefix: str) -> None:
    deep = "root/" + "/".join(f"directory-number-{n}" for n in range(9))
    with tarfile.open(target, "w:gz", format=form) as packed:
        for name in ("record.json", f"{deep}/file", "root/é"):
            info = member(prefix + name)
            info.size = len(JSON)
            info.mtime = 1.5 if form == tarfile.PAX_FORMAT else 1
            packed.addfile(info, io.BytesIO(JSON))
    found = RecordedHost(str(target))
    assert found.read(f"/{deep.removeprefix('root/')}/file") == JSON
    assert found.read("/é") == JSON
    assert sorted(open_archive(str(target)).listdir("root")) == ["directory-number-0", "é"]


@pytest.mark.parametrize("flags", [["--format=gnu"], ["--format=posix"], ["--format=ustar"], ["--format=v7"]])
def test_what_tar_itself_writes(tmp_path: Path, target: Path, flags: list[str]) -> None:
    record(tmp_path / "in/rec", {"root/proc/devices": "x" * 3000, "root/sys/class/drm": None})
    subprocess.run(["tar", *flags, "-czf", target, "-C", tmp_path / "in", "rec"], check=True)
    found = RecordedHost(str(target))
    assert found.read("/proc/devices") == b"x" * 3000
    assert found.listdir("/sys/class/drm") == ()


@needs_shared
def test_an_archive_answers_as_its_directory(target: Path) -> None:
    assert SHARED is not None
    source = SHARED / "hosts/h200-x4"
    unpacked, packed = RecordedHost(str(source)), RecordedHost(str(pack(source, target, "./")))
    paths = ["/", "/dev", "/proc/driver/nvidia/gpus", "/etc/ld.so.cache", "/usr/local/nvidia/lib/libcuda.so", "/x"]
    for path in paths:
        for question in ("lstat", "stat", "read", "listdir", "readlink"):
            assert answer(getattr(packed, question), path) == answer(getattr(unpacked, question), path)
    assert packed.nvml() == unpacked.nvml()
    assert packed.kernel_log() == unpacked.kernel_log()


def test_gzip_members_may_follow_each_other(target: Path) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as packed:
        info = member("record.json")
        info.size = len(JSON)
        packed.addfile(info, io.BytesIO(JSON))
    data = plain.getvalue()
    target.write_bytes(gzip.compress(data[:700]) + gzip.compress(data[700:]) + b"\0" * 512)
    assert RecordedHost(str(target)).kernel == RECORD["kernel"]


def test_a_large_archive_is_kept_in_a_file_without_a_name(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_IN_MEMORY", 4096)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    big = os.urandom(300_000)
    tar_gz(target, BASE, (member("root/big"), big), (member("root/small"), b"s"))
    found = RecordedHost(str(target))
    assert found.read("/big") == big
    assert found.read("/small") == b"s"
    assert list((tmp_path / "tmp").iterdir()) == []


# Archives that are not

MEMBERS: list[tuple[tuple[tarfile.TarInfo, bytes], str]] = [
    ((member("../evil"), b""), r"member '\.\./evil' leaves the record"),
    ((member("root/../../evil"), b""), r"leaves the record"),
    ((member("/etc/passwd"), b""), r"member '/etc/passwd' has an absolute path"),
    ((member("root/etc/x", tarfile.SYMTYPE, "/etc/passwd"), b""), r"member 'root/etc/x' is a symbolic link"),
    ((member("root/etc/x", tarfile.LNKTYPE, "record.json"), b""), r"is a hard link"),
    ((member("root/x", tarfile.FIFOTYPE), b""), r"is a FIFO"),
    ((member("root/x", tarfile.CHRTYPE), b""), r"is a character device"),
    ((member("root/x", tarfile.BLKTYPE), b""), r"is a block device"),
    ((member("root/x", b"S"), b""), r"is a sparse file"),
    ((member("root/x", b"z"), b""), r"is of the unknown type b'z'"),
    ((member("record.json"), b""), r"member 'record\.json' stands twice"),
    ((member("./record.json", tarfile.DIRTYPE), b""), r"member '\./record\.json/' stands twice"),
    ((member("record.json/x"), b""), r"member 'record\.json' is a file and a directory"),
    ((member("d/" * 100 + "x"), b""), r"a path of 201 characters in 101 parts"),
    ((member("d" * 2000), b""), r"a path of 2000 characters"),
    ((member(""), b""), r"stands twice"),
]  # fmt: skip


@pytest.mark.parametrize(("added", "message"), MEMBERS)
def test_hostile_member(target: Path, added: tuple[tarfile.TarInfo, bytes], message: str) -> None:
    tar_gz(target, BASE, added)
    with pytest.raises(BadInput, match=message) as caught:
        RecordedHost(str(target))
    assert str(caught.value).startswith(f"{target}: ")


def test_too_much_in_an_archive(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = target.with_name("deep.tar.gz")
    tar_gz(deep, BASE, (member("/".join("root" + "a" * 20)), b"1"))
    tar_gz(target, BASE, *((member(f"root/a{n}/x"), b"1") for n in range(20)))
    assert RecordedHost(str(target)).read("/a7/x") == b"1"
    for name, value, message in (
        ("MAX_MEMBERS", 20, "more than 20 "),
        ("MAX_TOTAL", 10_000, "larger than 0 MiB when unpacked"),
        ("MAX_FILE", 50, r"member 'record\.json': larger than 0 MiB"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(archive, name, value)
            with pytest.raises(BadInput, match=message):
                RecordedHost(str(target))
    monkeypatch.setattr(archive, "MAX_MEMBERS", 20)
    with pytest.raises(BadInput, match="more than 20 directories"):
        RecordedHost(str(deep))


def test_gzip_bomb(target: Path) -> None:
    """More zeros than a record may have, in a megabyte or two: unpacked no further than the bound."""
    packer = zlib.compressobj(1, wbits=31)
    header = member("root/x")
    header.size = 300 << 20
    with target.open("wb") as out:
        out.write(packer.compress(header.tobuf()))
        for _ in range(300):
            out.write(packer.compress(bytes(1 << 20)))
        out.write(packer.flush())
    assert target.stat().st_size < 4 << 20
    program = (
        "from gpuiso.errors import BadInput; from gpuiso.host import open_host\n"
        f"try: open_host({str(target)!r})\n"
        "except BadInput as error: print(error)\n"
        # Not getrusage: its peak counts what the process was before execve(2), which is this test run.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    said, kib = done.stdout.splitlines()
    assert said == f"{target}: larger than 256 MiB when unpacked"
    assert int(kib) < 100 << 10


def test_many_empty_gzip_members(target: Path) -> None:
    target.write_bytes(gzip.compress(b"") * 20_000)
    with pytest.raises(BadInput, match="more than 10000 gzip members"):
        RecordedHost(str(target))


def test_a_file_that_is_too_large_to_be_one(target: Path) -> None:
    with target.open("wb") as file:
        file.truncate(archive.MAX_TOTAL + 1)
    with pytest.raises(BadInput, match="larger than 256 MiB"):
        RecordedHost(str(target))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a record: an empty file"),
        (b"PK\3\4", "neither a directory nor a .tar.gz"),
        (JSON, "neither a directory nor a .tar.gz"),
        (b"\x1f\x8b\x08", "truncated: the gzip stream has no end"),
        (b"\x1f\x8b\x08" + b"\xff" * 100, "damaged: not a gzip stream"),
        (gzip.compress(b""), "truncated: the end-of-archive mark is missing"),
        (gzip.compress(b"hello" * 200), "damaged: "),
        (gzip.compress(bytes(1024)), "it has no record.json"),
        (gzip.compress(bytes(1024)) + b"trailing", "damaged: not a gzip stream"),
    ],
)
def test_not_an_archive(target: Path, content: bytes, message: str) -> None:
    target.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        RecordedHost(str(target))


def test_truncated_anywhere(target: Path) -> None:
    tar_gz(target, BASE, (member("root/proc/devices"), b"Character devices:\n"))
    whole = target.read_bytes()
    for length in range(len(whole)):
        target.write_bytes(whole[:length])
        with pytest.raises(BadInput):
            RecordedHost(str(target))
    plain = gzip.decompress(whole)
    for length in range(0, 2048 + 1, 256):  # two members of two blocks each; the rest is the end mark
        target.write_bytes(gzip.compress(plain[:length]))
        with pytest.raises(BadInput, match="truncated"):
            RecordedHost(str(target))


def _header(**fields: bytes) -> bytes:
    block = bytearray(member("root/x").tobuf(tarfile.USTAR_FORMAT))
    places = {"name": 0, "size": 124, "type": 156, "magic": 257, "prefix": 345}
    for name, value in fields.items():
        block[places[name] : places[name] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _said(key: str, value: str) -> bytes:
    """One record of a pax header: its length counts its own digits."""
    rest = f" {key}={value}\n".encode()
    digits = len(str(len(rest) + len(str(len(rest)))))
    return b"%d%b" % (len(rest) + digits, rest)


def _pax(content: bytes, kind: bytes = b"x") -> bytes:
    header = _header(type=kind, size=b"%011o\0" % len(content))
    return header + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (_header(size=b"-0000000777\0"), "is no octal number"),
        (_header(size=b"99999999999\0"), "is no octal number"),
        (_header(size=b"\x80" + b"\0" * 10 + b"\1"), "a number that no record needs"),
        (_header(size=b"77777777777\0"), "truncated: a member of 8589934591 bytes"),
        (_header()[:300], "truncated"),
        (b"x" + _header()[1:], "wrong checksum"),
        (_pax(b"12 path=../x\n"), "damaged: a pax header"),
        (_pax(b"0 a=b\n"), "damaged: a pax header"),
        (_pax(b"-9 a=b\n"), "damaged: a pax header"),
        (_pax(b"99999 a=b\n"), "damaged: a pax header"),
        (_pax(b"9 size=-\n"), "damaged: a pax header"),
        (_pax(b"7 abcd\n"), "damaged: a pax header"),
        (_pax(_said("path", "../x")), "leaves the record"),
        (_pax(_said("path", "root\0/x")), "a name with a null byte"),
        (_pax(_said("size", "-1")), "a size that is no number"),
        (_pax(_said("size", "9" * 20)), "a size that is no number"),
        (_pax(_said("size", "9" * 19)), "truncated: a member"),
        (_pax(_said("GNU.sparse.major", "1")), "a sparse file"),
        (_pax(_said("path", "evil"), b"g"), "a global header that names a file"),
        (_header(type=b"x", size=b"00000300000\0") + bytes(98304), "a header of 98304 bytes"),
        (_header(type=b"L", size=b"00000000010\0") + b"../../x\0" + bytes(504), "leaves the record"),
    ],
)  # fmt: skip
def test_crafted_headers(target: Path, blocks: bytes, message: str) -> None:
    follower = b"" if len(blocks) == 300 else _header() + bytes(1024)
    target.write_bytes(gzip.compress(blocks + follower))
    with pytest.raises(BadInput, match=message):
        RecordedHost(str(target))


def test_a_comment_in_a_global_header_is_no_harm(target: Path) -> None:
    tar_gz(target, BASE)
    plain = gzip.decompress(target.read_bytes())
    target.write_bytes(gzip.compress(_pax(_said("comment", "abc"), b"g") + plain))
    assert RecordedHost(str(target)).kernel == RECORD["kernel"]


@given(st.binary(max_size=2048), st.booleans())
def test_any_bytes_end_in_a_tar_error_or_in_members(data: bytes, checksums: bool) -> None:
    if checksums:
        blocks = [bytearray(data[at : at + 512].ljust(512, b"\0")) for at in range(0, len(data), 512)]
        for block in blocks:
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
        data = b"".join(blocks)
    ends = [0]
    with contextlib.suppress(tar.TarError):
        ends += [m.offset + m.size for m in tar.members(lambda at, size: data[at : at + size], len(data))]
    assert max(ends) <= len(data)


# Directories


def _symlink(to: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(to)


def _read_some(path: Path) -> None:
    found = RecordedHost(str(path))
    found.read("/etc/os-release")
    found.kernel_log()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_symlink("/etc/passwd"), "is reached through a symbolic link|is a symbolic link"),
        (_symlink("../record.json"), "symbolic link"),
        (_symlink("nowhere"), "symbolic link"),
        (os.mkfifo, "is a FIFO"),
    ],
)
@pytest.mark.parametrize("name", ["record.json", "nodes.jsonl", "root/etc/os-release", "root", "tools/dmesg.txt"])
def test_hostile_entry(tmp_path: Path, make: Callable[[Path], None], message: str, name: str) -> None:
    files = {"root/etc/os-release": "", "tools/dmesg.txt": ""}
    record(tmp_path, {} if name == "root" else files)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(BadInput, match=message) as caught:
        _read_some(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/{name}")


def test_a_link_to_a_directory_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("s")
    rec = record(tmp_path / "rec", {"root/x": ""})
    (rec / "root/etc").symlink_to(tmp_path / "outside")
    found = RecordedHost(str(rec))
    for question in (found.read, found.lstat, found.listdir):
        for path in ("/etc", "/etc/secret"):
            with pytest.raises(BadInput, match="symbolic link"):
                question(path)
    assert answer(found.read, "/../outside/secret") is Unknown


def test_a_recorded_link_cannot_lead_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    nodes = [{"path": "/dev/x", "type": "l", "target": "../../../secret"}, device("/dev/null", 1, 3)]
    found = RecordedHost(str(record(tmp_path / "rec", {"root/x": ""}, nodes)))
    for path in ("/dev/x", "/../../secret", "/dev/../../../secret"):
        assert answer(found.read, path) is Unknown


def test_large_files_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = RecordedHost(str(record(tmp_path, {"root/a/b": "1", "root/a/c": "2"})))
    monkeypatch.setattr(archive, "MAX_MEMBERS", 1)
    with pytest.raises(BadInput, match="root/a: more than 1 entries"):
        found.listdir("/a")
    with (tmp_path / "tools-dmesg").open("wb") as file:
        file.truncate(archive.MAX_FILE + 1)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools-dmesg").rename(tmp_path / "tools/dmesg.txt")
    with pytest.raises(BadInput, match=r"tools/dmesg\.txt: larger than 64 MiB"):
        found.kernel_log()


@pytest.mark.parametrize("path", ["/dev/null", "record.json/x", "a\0b"])
def test_paths_that_are_no_record(path: str) -> None:
    with pytest.raises(GpuisoError):
        RecordedHost(path)


UNPRIVILEGED = """
import os, sys
from gpuiso.errors import NotPermitted
from gpuiso.host.recorded import RecordedHost
os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        print(RecordedHost(path).read("/x"))
    except NotPermitted as error:
        print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot become somebody else")
def test_no_permission(tmp_path: Path) -> None:
    closed = record(tmp_path / "closed")
    partly = record(tmp_path / "partly", {"root/x": "1"})
    (partly / "root/x").chmod(0)
    closed.chmod(0)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/") and len(parent.parts) > 2:
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, closed, partly],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    closed.chmod(0o700)
    assert done.stdout.splitlines() == [
        f"{closed}: not permitted to read it",
        f"{partly}/root/x: not permitted to read it",
    ]
