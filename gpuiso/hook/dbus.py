# SPDX-License-Identifier: Apache-2.0
"""As much D-Bus as two methods of systemd need: strings, booleans, and arrays of pairs of strings.

Numbers of the message format are those of the D-Bus specification, "Message Protocol".
"""

from __future__ import annotations

import os
import struct

from gpuiso.hook.errors import HookError

__all__ = ["Bus", "Value"]

# systemd's own socket needs no bus and no introduction; the bus is there for systems that do without the former.
_PRIVATE = "/run/systemd/private"
_BUS = "/run/dbus/system_bus_socket"
_DEADLINE = 25.0

_DESTINATION = "org.freedesktop.systemd1"
_MANAGER_PATH = "/org/freedesktop/systemd1"
_CALL, _RETURN, _ERROR = 1, 2, 3
_PATH_FIELD, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _DESTINATION_FIELD, _SIGNATURE = 1, 2, 3, 4, 5, 6, 8
_LONGEST = 1 << 24

Property = tuple[str, str | list[tuple[str, str]]]


class Bus:
    """A connection to systemd. Methods raise OSError where it does not answer, HookError where it refuses."""

    def __init__(self) -> None:
        import _socket

        self._serial = 0
        self._buffer = b""
        for address in (_PRIVATE, _BUS):
            self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            self._socket.settimeout(_DEADLINE)
            try:
                self._socket.connect(address)
            except OSError as error:
                self._socket.close()
                if address == _BUS:
                    raise HookError(f"systemd cannot be reached: {address}: {error.strerror}") from None
                continue
            self._introduce(address)
            return

    def close(self) -> None:
        self._socket.close()

    def get_property(self, unit: str, kind: str, name: str) -> Value:
        """A property of a unit's interface ``org.freedesktop.systemd1.KIND``."""
        body = _Writer().string(f"org.freedesktop.systemd1.{kind}").string(name)
        return self._call(_unit_path(unit), "org.freedesktop.DBus.Properties", "Get", "ss", body)

    def set_unit_properties(self, unit: str, properties: list[Property]) -> None:
        """SetUnitProperties, at run time only: nothing is left after the unit's end."""
        body = _Writer().string(unit).boolean(True)

        with_entries = body.start_array(8)
        for name, value in properties:
            body.align(8).string(name)
            if isinstance(value, str):
                body.signature("s").string(value)
                continue
            pairs = body.signature("a(ss)").start_array(8)
            for first, second in value:
                body.align(8).string(first).string(second)
            body.end_array(pairs)
        body.end_array(with_entries)
        self._call(_MANAGER_PATH, "org.freedesktop.systemd1.Manager", "SetUnitProperties", "sba(sv)", body)

    def _introduce(self, address: str) -> None:
        uid = str(os.geteuid()).encode().hex()
        self._socket.sendall(f"\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n".encode())
        while b"\r\n" not in self._buffer:
            self._receive()
        answer, _, self._buffer = self._buffer.partition(b"\r\n")
        if not answer.startswith(b"OK "):
            raise HookError(f"{address} refuses us: {answer.decode('ascii', 'replace')}")
        if address == _BUS:
            self._call("/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", "", _Writer(), "org.freedesktop.DBus")

    def _call(
        self, path: str, interface: str, member: str, signature: str, body: _Writer, destination: str = _DESTINATION
    ) -> Value:
        self._serial += 1
        fields = [(_PATH_FIELD, "o", path), (_INTERFACE, "s", interface), (_MEMBER, "s", member)]
        fields.append((_DESTINATION_FIELD, "s", destination))
        head = _Writer()
        head.data += struct.pack("<cBBBII", b"l", _CALL, 0, 1, len(body.data), self._serial)

        array = head.start_array(8)
        for code, kind, text in fields:
            head.align(8).byte(code).signature(kind).string(text)
        if signature:
            head.align(8).byte(_SIGNATURE).signature("g").signature(signature)
        head.end_array(array)
        self._socket.sendall(bytes(head.align(8).data + body.data))
        return self._answer(member)

    def _answer(self, member: str) -> Value:
        while True:
            kind, fields, body = self._message()
            if fields.get(_REPLY_SERIAL) != self._serial:
                continue  # a signal, or the bus's greeting
            if kind == _RETURN:
                return Value(body)
            if kind == _ERROR:
                said = Value(body).string() if body else str(fields.get(_ERROR_NAME, "an error"))
                raise HookError(f"systemd refuses {member}: {said}")

    def _message(self) -> tuple[int, dict[int, object], bytes]:
        head = self._take(16)
        order = "<" if head[:1] == b"l" else ">"
        _, kind, _, _, body_size, _, fields_size = struct.unpack(f"{order}cBBBIII", head)
        if order != "<" or fields_size > _LONGEST or body_size > _LONGEST:
            raise HookError("systemd's answer is none that we can read")
        padded = (fields_size + 7) & ~7
        rest = self._take(padded + body_size)
        return kind, _fields(rest[:fields_size]), rest[padded:]

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._receive()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _receive(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise HookError("systemd closed the connection")
        self._buffer += data


class _Writer:
    """A message part under construction; values are aligned to their own size, from its start."""

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> _Writer:
        self.data += bytes(-len(self.data) % size)
        return self

    def byte(self, value: int) -> _Writer:
        self.data.append(value)
        return self

    def uint32(self, value: int) -> _Writer:
        self.align(4).data += struct.pack("<I", value)
        return self

    def boolean(self, value: bool) -> _Writer:
        return self.uint32(int(value))

    def string(self, text: str) -> _Writer:
        raw = text.encode()
        self.uint32(len(raw)).data += raw + b"\0"
        return self

    def signature(self, text: str) -> _Writer:
        self.data += bytes((len(text),)) + text.encode() + b"\0"
        return self

    def start_array(self, alignment: int) -> tuple[int, int]:
        """What follows are members with this alignment; the result is for :meth:`end_array`."""
        at = len(self.uint32(0).data) - 4
        return at, len(self.align(alignment).data)

    def end_array(self, started: tuple[int, int]) -> None:
        at, start = started
        struct.pack_into("<I", self.data, at, len(self.data) - start)


class Value:
    """The body of an answer, read from its start."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def string(self) -> str:
        size = self._uint32()
        text = self._data[self._at : self._at + size].decode("utf-8", "replace")
        self._at += size + 1
        return text

    def text(self) -> str:
        """The string in a variant. :raises HookError: it holds something else."""
        self._variant("s")
        return self.string()

    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of strings in a variant. :raises HookError: it holds something else."""
        self._variant("a(ss)")
        size = self._uint32()
        self._align(8)
        end = self._at + size
        found = []
        while self._at < end:
            self._align(8)
            found.append((self.string(), self.string()))
        return found

    def _variant(self, wanted: str) -> None:
        size = self._data[self._at] if self._data else 0
        signature = self._data[self._at + 1 : self._at + 1 + size].decode("ascii", "replace")
        self._at += size + 2
        if signature != wanted:
            raise HookError(f"systemd's answer is a {signature!r}, not the {wanted!r} that was asked for")

    def _align(self, size: int) -> None:
        self._at += -self._at % size

    def _uint32(self) -> int:
        self._align(4)
        if self._at + 4 > len(self._data):
            raise HookError("systemd's answer is cut off")
        (value,) = struct.unpack_from("<I", self._data, self._at)
        self._at += 4
        return int(value)


def _fields(data: bytes) -> dict[int, object]:
    """Header fields by their code: the serial that is answered, and the error's name."""
    found: dict[int, object] = {}
    value = Value(data)
    while value._at < len(data):
        value._align(8)
        code, size = data[value._at], data[value._at + 1]
        signature = data[value._at + 2 : value._at + 2 + size]
        value._at += size + 3
        if signature in (b"s", b"o"):
            found[code] = value.string()
        elif signature == b"u":
            found[code] = value._uint32()
        else:  # "g": a length of one byte
            value._at += data[value._at] + 2
    return found


def _unit_path(unit: str) -> str:
    """The object of a unit: what is no letter or digit is written in hexadecimal (sd_bus_path_encode(3))."""
    escaped = "".join(
        one if one.isascii() and one.isalnum() and not (index == 0 and one.isdigit()) else f"_{ord(one):02x}"
        for index, one in enumerate(unit)
    )
    return f"{_MANAGER_PATH}/unit/{escaped}"
