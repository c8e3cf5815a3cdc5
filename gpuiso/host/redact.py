# SPDX-License-Identifier: Apache-2.0
"""Replaces in a record what names a machine or a person, one to one, so that it still reads the same.

UUIDs are replaced digit by digit: each digit by one that depends on a random key and on the digits before it. So two
UUIDs share exactly as many leading digits after as before, and ``GPU-98b0`` still selects the GPUs it selected, or
none, or too many. Names become ``host1``, ``user1``; values outside a known list ``value1``. The same text becomes
the same text everywhere in one record, and never in two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from hashlib import blake2b

__all__ = ["KEPT_VARIABLES", "Redactor"]

#: Variables whose values say how GPUs are selected and libraries found, and name nobody.
KEPT_VARIABLES = re.compile(
    r"CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER|MPS_\w+|HOME|PATH|LAUNCH_BLOCKING|MODULE_LOADING|VERSION|CACHE_DISABLE)"
    r"|NVIDIA_(?:VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_\w+|DISABLE_REQUIRE|MIG_\w+|IMEX_CHANNELS|GDS|MOFED)"
    r"|NV_CUDA_\w+|NCCL_(?:P2P|SHM|IB)_DISABLE"
    r"|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|HSA_OVERRIDE_GFX_VERSION"
    r"|ZE_AFFINITY_MASK|ZE_FLAT_DEVICE_HIERARCHY|ZE_ENABLE_PCI_ID_DEVICE_ORDER|ONEAPI_DEVICE_SELECTOR"
    r"|RAY_EXPERIMENTAL_NOSET_\w+|SLURM_(?:JOB_ID|JOB_GPUS|STEP_GPUS|GPUS\w*|LOCALID|PROCID|NTASKS)|SLURM_JOBID"
    r"|SGE_HGR_gpu|PBS_JOBID|LSB_JOBID|OMPI_COMM_WORLD_(?:LOCAL_)?RANK|LOCAL_RANK|RANK|WORLD_SIZE"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PATH|HOME|USER|LOGNAME|SUDO_USER|HOSTNAME|SHELL|LANG|TERM|container"
)
#: Names that say nothing about who or where: those that images, distributions and this field give.
_COMMON = frozenset({
    "adm", "admin", "amd", "anaconda", "app", "azureuser", "bin", "cache", "centos", "cloud", "cloud-user",
    "conda", "config", "container", "core", "cuda", "daemon", "data", "debian", "default", "dev", "device",
    "devices", "docker", "driver", "ec2-user", "etc", "fedora", "file", "games", "gpu", "gpus", "home", "host",
    "intel", "jovyan", "kernel", "lib", "linux", "local", "localhost", "lock", "log", "main", "messagebus", "mode",
    "module", "modules", "name", "net", "nobody", "node", "none", "null", "nvidia", "opt", "path", "proc",
    "render", "rocky", "root", "run", "runtime", "server", "service", "shared", "slurm", "source", "src", "ssh",
    "sshd", "sys", "syslog", "system", "systemd", "test", "tmp", "type", "ubuntu", "user", "users", "usr", "var",
    "version", "video", "worker", "www-data",
})  # fmt: skip
_HEX = "0123456789abcdef"
_UUID = re.compile(
    r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}(?![0-9A-Za-z])"
)
# A whole UUID, AMD's sixteen digits, or the beginning of either as a variable may hold it.
_PREFIXED = re.compile(r"(?<![0-9A-Za-z])((?:GPU|MIG)-)([0-9a-fA-F][0-9a-fA-F-]{0,35})(?![0-9A-Za-z])")
_HOME = re.compile(r"(?:/home|/Users)/([^/\s:\"',;\0]+)")
_REPLACEMENT = re.compile(r"(?:host|user|value)\d+(?:\.example)?")
_CREDENTIALS = re.compile(r"(://)[^/\s@\"']+@")
_SECRET_KEY = re.compile(r"(?i)(?:key|token|secret|passw|credential|auth)")
# A key that looks like a secret's and a value on the same line, in TOML, YAML or JSON.
_SECRET_MEMBER = re.compile(
    r"(?i)((?<![\w.-])[\w.-]{0,64}(?:token|secret|passw|credential|auth|api_?key)[\w.-]{0,64}[\"']?[ \t]*[=:][ \t]*)"
    r"(?!(?:true|false|null)\b)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,\[\]{}\"']+)"
)
#: What engines' clients are told to do; it names nobody.
_SUBCOMMANDS = ("create", "exec", "run", "start")


class Redactor:
    """One record's replacements. First everything is learned, then everything is replaced.

    ``key`` decides the replacements of digits; a random one by default, so that no two records can be matched.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = os.urandom(32) if key is None else key
        self._digits: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._numbers: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._words = set(_SUBCOMMANDS)
        self._pattern: re.Pattern[str] | None = None

    # Learning

    def learn_host(self, name: str) -> None:
        """A host's name; with a domain, its first label counts as well."""
        name = name.strip()
        label = name.partition(".")[0]
        self._learn(label, "host")
        if label != name and label in self._names:
            self._learn(name, "host", f"{self._names[label]}.example")

    def learn_user(self, name: str) -> None:
        self._learn(name.strip(), "user")

    def learn_serial(self, number: str) -> None:
        """A serial number: replaced by as many other digits."""
        if len(number) >= 6 and number.strip("0") and number.isascii() and number.isalnum():
            self._numbers.setdefault(number, "")
            self._pattern = None

    def learn_homes(self, text: str) -> None:
        """The users in whose home directories something lies."""
        for name in _HOME.findall(text):
            self.learn_user(name)

    def learn_word(self, word: str) -> None:
        """A word that may stay where it is an argument of a program: the record tells it elsewhere, too."""
        self._words.add(word)

    def learn_environment(self, variables: Iterable[tuple[str, str]]) -> None:
        for name, value in variables:
            if name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME"):
                self.learn_user(value)
            elif name in ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST"):
                self.learn_host(value)

    def _learn(self, name: str, kind: str, replacement: str | None = None) -> None:
        if len(name) < 2 or name.lower() in _COMMON or name.isdigit() or name in self._names:
            return
        if _REPLACEMENT.fullmatch(name):
            replacement = name  # of an earlier record
        number = 1
        while replacement is None or (replacement != name and replacement in self._names.values()):
            replacement = f"{kind}{number}"
            number += 1
        self._names[name] = replacement
        self._pattern = None

    # Replacing

    def identifiers(self, text: str) -> str:
        """``text`` with other UUIDs and serial numbers: for what the kernel and the driver print."""
        text = _UUID.sub(lambda match: self._hexadecimal(match[0]), text)
        text = _PREFIXED.sub(self._prefixed, text)
        for number in sorted(self._numbers, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(number)}(?!\w)", lambda match: self._serial(match[0]), text)
        return text

    def text(self, text: str) -> str:
        """``text`` with other names as well, and without credentials: for what people and programs write."""
        text = _CREDENTIALS.sub(r"\1redacted@", self.identifiers(text))
        if not self._names:
            return text
        if self._pattern is None:
            names = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
            self._pattern = re.compile(rf"(?<![0-9A-Za-z])(?:{names})(?![0-9A-Za-z])")
        return self._pattern.sub(lambda match: self._names[match[0]], text)

    def config(self, text: str) -> str:
        """A configuration file: as text, with the values of keys that look like secrets replaced."""
        return self.text(_SECRET_MEMBER.sub(r'\1"redacted"', text))

    def variable(self, name: str, value: str) -> str:
        """A variable's value: kept (as text) if its name is in the known list, else replaced as a whole."""
        if value == "" or (KEPT_VARIABLES.fullmatch(name) is not None and _SECRET_KEY.search(name) is None):
            return self.text(value)
        return self.value(value)

    def environ(self, data: bytes) -> bytes:
        """/proc/PID/environ."""
        return _each(data, self._assignment)

    def assignments(self, entries: Iterable[str]) -> list[str]:
        """A list of ``NAME=VALUE``, as systemd and Docker keep it."""
        return [self._assignment(entry) for entry in entries]

    def cmdline(self, data: bytes) -> bytes:
        """/proc/PID/cmdline: the program, Python scripts, names of options and known words stay; the rest does not."""
        first, separator, rest = data.partition(b"\0")
        program = self.text(first.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        return program + separator + _each(rest, self._argument)

    def value(self, value: str) -> str:
        """A stand-in for a whole value; the same for the same value."""
        if _REPLACEMENT.fullmatch(value):
            return value
        return self._values.setdefault(value, f"value{len(self._values) + 1}")

    def leaks(self, data: bytes) -> bool:
        """Whether ``data`` holds anything that text() would replace."""
        text = data.decode("utf-8", "surrogateescape")
        return self.text(text) != text

    def amd_unique_id(self, number: int) -> int:
        """AMD's 64-bit id, which ROCm writes as ``GPU-`` and sixteen hexadecimal digits."""
        return int(self._hexadecimal(f"{number:016x}"), 16) if number else 0

    def _assignment(self, entry: str) -> str:
        name, separator, value = entry.partition("=")
        return f"{self.text(name)}{separator}{self.variable(name, value)}" if separator else self.value(entry)

    def _argument(self, word: str) -> str:
        option, separator, value = word.partition("=")
        if (word.endswith(".py") and not separator) or word in self._words:
            return self.text(word)
        if not option.startswith("-"):
            return self.value(word)
        return f"{self.text(option)}{separator}{self.value(value) if value else ''}"

    def _prefixed(self, match: re.Match[str]) -> str:
        return match[1] + (match[2] if _UUID.fullmatch(match[2]) else self._hexadecimal(match[2]))

    def _hexadecimal(self, text: str) -> str:
        lowered = text.lower()
        found = []
        before = ""
        for character in lowered:
            if character == "-":
                found.append(character)
                continue
            found.append(self._permutation(before)[_HEX.index(character)])
            before += character
        replaced = "".join(found)
        return replaced if lowered == text else replaced.upper()

    def _permutation(self, before: str) -> str:
        """The sixteen digits in the order that belongs to the digits ``before``."""
        if before not in self._digits:
            order = list(_HEX)
            random = blake2b(before.encode(), key=self._key, digest_size=32).digest()
            for place in range(15, 0, -1):  # Fisher and Yates
                other = int.from_bytes(random[2 * place : 2 * place + 2]) % (place + 1)
                order[place], order[other] = order[other], order[place]
            self._digits[before] = "".join(order)
        return self._digits[before]

    def _serial(self, number: str) -> str:
        if not self._numbers[number]:
            taken = set(self._numbers.values()) | self._numbers.keys()
            attempt = 0
            while not self._numbers[number] or self._numbers[number] in taken:
                random = blake2b(f"{number} {attempt}".encode(), key=self._key, digest_size=64).digest()
                digits = "".join(str(byte % 10) for byte in random)
                self._numbers[number] = digits[: len(number)]
                attempt += 1
        return self._numbers[number]


def _each(data: bytes, change: Callable[[str], str]) -> bytes:
    """Null-terminated words, each changed."""
    words = data.decode("utf-8", "surrogateescape").split("\0")
    return "\0".join(change(word) if word else word for word in words).encode("utf-8", "surrogateescape")
