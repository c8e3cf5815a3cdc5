# SPDX-License-Identifier: Apache-2.0
"""A tree of YAML nodes to a :class:`Spec`, as strictly as the reference decodes.

The reference turns YAML into JSON and decodes that into Go structs with unknown fields disallowed. What
follows from it: field names match in any case; null is "not given" anywhere; a number or a boolean in a text
field becomes text; a whole float in an integer field is an integer; a key given twice fails. The same key in
two spellings, where the reference lets one of them win, fails here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuiso.cdi.document import Node, Problem, Scalar, compose, is_merge_key, scalar
from gpuiso.cdi.spec import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

__all__ = ["decode", "locate"]

# A few kilobytes of aliases to aliases can stand for more values than a machine holds.
MOST_VALUES = 1_000_000

_SCALAR, _SEQUENCE, _MAPPING = "scalar", "sequence", "mapping"


class _Refused(Exception):
    """Ends the decoding of one value; the problem has been noted."""


@dataclass(slots=True)
class _Decoder:
    problems: list[Problem]
    path: list[str | int]
    values: int = 0

    def fail(self, node: Node, message: str) -> _Refused:
        mark = node.start_mark
        self.problems.append(Problem(join_path(self.path), message, mark.line + 1, mark.column + 1))
        return _Refused()

    def scalar(self, node: Node, wanted: str) -> Scalar:
        self.values += 1
        if self.values > MOST_VALUES:
            raise self.fail(node, f"the document stands for more than {MOST_VALUES} values")
        if node.id != _SCALAR:
            raise self.fail(node, f"must be {wanted}, not a {node.id}")
        try:
            return scalar(node)
        except ValueError as error:
            raise self.fail(node, str(error)) from None

    def text(self, node: Node) -> str:
        value = self.scalar(node, "text")
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if isinstance(value, int) else _go_float(value)

    def integer(self, node: Node, low: int, high: int) -> int | None:
        value = self.scalar(node, "an integer")
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(node, f"must be an integer, not {node.value!r}")
        if not low <= value <= high:
            raise self.fail(node, f"{value} is not between {low} and {high}")
        return value

    def int64(self, node: Node) -> int:
        return self.integer(node, -(2**63), 2**63 - 1) or 0

    def optional_int64(self, node: Node) -> int | None:
        return self.integer(node, -(2**63), 2**63 - 1)

    def optional_uint32(self, node: Node) -> int | None:
        return self.integer(node, 0, 2**32 - 1)

    def uint32(self, node: Node) -> int:
        return self.integer(node, 0, 2**32 - 1) or 0

    def boolean(self, node: Node) -> bool:
        value = self.scalar(node, "true or false")
        if value is not None and not isinstance(value, bool):
            raise self.fail(node, f"must be true or false, not {node.value!r}")
        return bool(value)

    def is_null(self, node: Node) -> bool:
        return node.id == _SCALAR and self.scalar(node, "") is None

    def items(self, node: Node, decode_one: Callable[[Node], Any]) -> tuple[Any, ...]:
        if self.is_null(node):
            return ()
        if node.id != _SEQUENCE:
            raise self.fail(node, f"must be a list, not a {_kind_of(node)}")
        values = []
        for index, child in enumerate(node.value):
            self.path.append(index)
            try:
                values.append(decode_one(child))
            except _Refused:
                if self.values > MOST_VALUES:
                    raise
            finally:
                self.path.pop()
        return tuple(values)

    def pairs(self, node: Node) -> Iterator[tuple[Node, str, Node]]:
        """The entries of a mapping with merge keys resolved; notes a key that is there twice."""
        seen: set[str] = set()
        for key_node, value_node in self._merged(node, ()):
            if key_node.id != _SCALAR:
                raise self.fail(key_node, "a key must be text")
            key = self.text(key_node)
            if key in seen:
                raise self.fail(key_node, f"key {key!r} is given twice")
            seen.add(key)
            yield key_node, key, value_node

    def _merged(self, node: Node, inside: tuple[Node, ...]) -> Iterator[tuple[Node, Node]]:
        if node.id != _MAPPING or any(node is outer for outer in inside):
            raise self.fail(node, "<< must merge mappings that do not hold themselves")
        for key_node, value_node in node.value:
            if not is_merge_key(key_node):
                yield key_node, value_node
                continue
            sources = value_node.value if value_node.id == _SEQUENCE else [value_node]
            for source in sources:
                yield from self._merged(source, (*inside, node))

    def record(self, node: Node, make: Callable[..., Any], fields: _Fields) -> Any:
        if self.is_null(node):
            return make()
        if node.id != _MAPPING:
            raise self.fail(node, f"must be a mapping, not a {_kind_of(node)}")
        given: dict[str, Any] = {}
        for key_node, key, value_node in self.pairs(node):
            field = fields.get(key) or fields.get(_fold(key))
            if field is None:
                self.fail(key_node, f"unknown field {key!r}")
                continue
            attribute, decode_value = field
            if attribute in given:
                raise self.fail(key_node, f"field {key!r} is given twice, in two spellings")
            self.path.append(key)
            try:
                given[attribute] = decode_value(self, value_node)
            except _Refused:
                given[attribute] = None
                if self.values > MOST_VALUES:
                    raise
            finally:
                self.path.pop()
        return None if self.problems else make(**given)


_Field = tuple[str, Callable[[_Decoder, Node], Any]]
_Fields = dict[str, _Field]


def _fields(**declared: _Field) -> _Fields:
    """The fields of a struct under their own names, and again under what case folding makes of them."""
    return declared | {_fold(name): field for name, field in declared.items()}


def _fold(name: str) -> str:
    # encoding/json folds these two besides ASCII: LONG S and KELVIN SIGN.
    return name.replace("\u017f", "s").replace("\u212a", "k").lower()


def _texts(decoder: _Decoder, node: Node) -> tuple[str, ...]:
    return decoder.items(node, decoder.text)


def _optional_texts(decoder: _Decoder, node: Node) -> tuple[str, ...] | None:
    return None if decoder.is_null(node) else decoder.items(node, decoder.text)


def _uint32s(decoder: _Decoder, node: Node) -> tuple[int, ...]:
    return decoder.items(node, decoder.uint32)


def _annotations(decoder: _Decoder, node: Node) -> dict[str, str]:
    if decoder.is_null(node):
        return {}
    if node.id != _MAPPING:
        raise decoder.fail(node, f"must be a mapping, not a {_kind_of(node)}")
    return {key: decoder.text(value_node) for _, key, value_node in decoder.pairs(node)}


def _list_of(make: Callable[..., Any], fields: _Fields) -> Callable[[_Decoder, Node], Any]:
    return lambda decoder, node: decoder.items(node, lambda child: decoder.record(child, make, fields))


_NODE = _fields(
    path=("path", _Decoder.text),
    hostPath=("host_path", _Decoder.text),
    type=("type", _Decoder.text),
    major=("major", _Decoder.int64),
    minor=("minor", _Decoder.int64),
    fileMode=("file_mode", _Decoder.optional_uint32),
    permissions=("permissions", _Decoder.text),
    uid=("uid", _Decoder.optional_uint32),
    gid=("gid", _Decoder.optional_uint32),
)
_NET_DEVICE = _fields(
    hostInterfaceName=("host_interface_name", _Decoder.text),
    name=("name", _Decoder.text),
)
_MOUNT = _fields(
    hostPath=("host_path", _Decoder.text),
    containerPath=("container_path", _Decoder.text),
    options=("options", _texts),
    type=("type", _Decoder.text),
)
_HOOK = _fields(
    hookName=("hook_name", _Decoder.text),
    path=("path", _Decoder.text),
    args=("args", _texts),
    env=("env", _texts),
    timeout=("timeout", _Decoder.optional_int64),
)
_RDT = _fields(
    closID=("clos_id", _Decoder.text),
    l3CacheSchema=("l3_cache_schema", _Decoder.text),
    memBwSchema=("mem_bw_schema", _Decoder.text),
    schemata=("schemata", _optional_texts),
    enableMonitoring=("enable_monitoring", _Decoder.boolean),
)


def _optional_rdt(decoder: _Decoder, node: Node) -> Any:
    return None if decoder.is_null(node) else decoder.record(node, IntelRdt, _RDT)


_EDITS = _fields(
    env=("env", _texts),
    deviceNodes=("device_nodes", _list_of(DeviceNode, _NODE)),
    netDevices=("net_devices", _list_of(NetDevice, _NET_DEVICE)),
    hooks=("hooks", _list_of(Hook, _HOOK)),
    mounts=("mounts", _list_of(Mount, _MOUNT)),
    intelRdt=("intel_rdt", _optional_rdt),
    additionalGids=("additional_gids", _uint32s),
)


def _edits(decoder: _Decoder, node: Node) -> Any:
    return decoder.record(node, ContainerEdits, _EDITS)


_DEVICE = _fields(
    name=("name", _Decoder.text),
    annotations=("annotations", _annotations),
    containerEdits=("container_edits", _edits),
)
_SPEC = _fields(
    cdiVersion=("version", _Decoder.text),
    kind=("kind", _Decoder.text),
    annotations=("annotations", _annotations),
    devices=("devices", _list_of(Device, _DEVICE)),
    containerEdits=("container_edits", _edits),
)


def decode(data: bytes) -> tuple[Spec | None, Node | None, list[Problem]]:
    """The spec in ``data``, the tree it came from (for :func:`locate`), and why it is no spec.

    A spec comes with no problem, and no spec with at least one. Whether the values make sense is for
    :mod:`gpuiso.cdi.rules` to say.
    """
    root = compose(data)
    if isinstance(root, Problem):
        return None, None, [root]
    decoder = _Decoder([], [])
    if root is None or decoder.is_null(root):
        return None, None, [*decoder.problems, Problem("", "the file holds no spec")]
    try:
        spec = decoder.record(root, Spec, _SPEC)
    except _Refused:
        spec = None
    return (None if decoder.problems else spec), root, decoder.problems


def locate(root: Node, path: tuple[str | int, ...]) -> tuple[int, int] | None:
    """Line and column, from 1, of the value at ``path``, or of the nearest one around it that the document
    has.
    """
    node = root
    for step in path:
        found: Node | None = None
        if node.id == _SEQUENCE and isinstance(step, int) and step < len(node.value):
            found = node.value[step]
        elif node.id == _MAPPING and isinstance(step, str):
            found = next((value for key, value in node.value if _fold(str(key.value)) == _fold(step)), None)
        if found is None:
            break
        node = found
    return node.start_mark.line + 1, node.start_mark.column + 1


def join_path(path: tuple[str | int, ...] | list[str | int]) -> str:
    """A path as people write it: ``devices[0].containerEdits.env[1]``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _kind_of(node: Node) -> str:
    return "single value" if node.id == _SCALAR else str(node.id)


def _go_float(value: float) -> str:
    """A float as strconv.FormatFloat(value, 'g', -1, 32) prints it: the shortest text that is the same
    float32.
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    try:
        single = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return f"{'+' if value > 0 else '-'}Inf"
    precision = next(p for p in range(9) if p == 8 or _as_single(f"{value:.{p}e}") == single)
    mantissa, _, exponent = f"{value:.{precision}e}".partition("e")
    if -4 <= int(exponent) < 6:
        return f"{float(f'{value:.{precision}e}'):.{max(0, precision - int(exponent))}f}"
    return f"{mantissa}e{exponent}"


def _as_single(text: str) -> float | None:
    try:
        return float(struct.unpack("f", struct.pack("f", float(text)))[0])
    except OverflowError:
        return None
