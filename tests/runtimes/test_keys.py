# SPDX-License-Identifier: Apache-2.0
"""Every key is known with its type, and what is refused is refused in one sentence."""

from __future__ import annotations

import pytest

from gpuiso.errors import UsageError
from gpuiso.runtimes.keys import Key, parse_key
from gpuiso.runtimes.plan import ENGINES
from gpuiso.runtimes.toolkit import KEYS

# api/config/v1 of NVIDIA's container toolkit, release 1.20: every key of its structures.
TOOLKIT_KEYS = """
disable-require swarm-resource accept-nvidia-visible-devices-envvar-when-unprivileged
accept-nvidia-visible-devices-as-volume-mounts supported-driver-capabilities
nvidia-container-cli.root nvidia-container-cli.path nvidia-container-cli.environment nvidia-container-cli.debug
nvidia-container-cli.ldcache nvidia-container-cli.load-kmods nvidia-container-cli.no-pivot
nvidia-container-cli.no-cgroups nvidia-container-cli.user nvidia-container-cli.ldconfig
nvidia-container-runtime.debug nvidia-container-runtime.log-level nvidia-container-runtime.runtimes
nvidia-container-runtime.mode nvidia-container-runtime.modes.csv.mount-spec-path
nvidia-container-runtime.modes.csv.compat-container-root nvidia-container-runtime.modes.cdi.spec-dirs
nvidia-container-runtime.modes.cdi.default-kind nvidia-container-runtime.modes.cdi.annotation-prefixes
nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks
nvidia-container-runtime.modes.legacy.cuda-compat-mode nvidia-container-runtime-hook.path
nvidia-container-runtime-hook.skip-mode-detection nvidia-ctk.path
features.allow-cuda-compat-libs-from-container features.allow-ldconfig-from-container
features.allow-unknown-oci-spec-fields features.disable-cuda-compat-lib-hook features.disable-imex-channel-creation
features.ignore-imex-channel-requests features.no-additional-gids-for-device-nodes
"""


def test_the_toolkits_keys_are_all_there() -> None:
    assert sorted(".".join(key.path) for key in KEYS.keys) == sorted(TOOLKIT_KEYS.split())


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_defaults_are_allowed_and_every_key_says_what_it_is(engine: object) -> None:
    from gpuiso.runtimes.engine import Engine

    assert isinstance(engine, Engine)
    for key in engine.keys.keys:
        assert key.says
        assert key.default is None or key.wrong(key.default) is None, key
        assert engine.keys.find(key.path) is not None


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("a=1", ("a",), "1"),
        ("a.b-c=x=y", ("a", "b-c"), "x=y"),
        ('plugins."io.containerd.grpc.v1.cri".x=', ("plugins", "io.containerd.grpc.v1.cri", "x"), ""),
        ("runtimes.'a.b'.path=/x", ("runtimes", "a.b", "path"), "/x"),
        ("flag", ("flag",), None),
        ("a b.c", ("a b", "c"), None),
    ],
)
def test_settings_are_read(setting: str, path: tuple[str, ...], value: str | None) -> None:
    found, name, text = parse_key(setting)
    assert (found, text) == (path, value)
    assert setting.startswith(name)


@pytest.mark.parametrize("setting", ["", "=1", "a..b=1", ".a=1", "a.=1", 'a"b=1', '"a'])
def test_what_is_no_setting_is_refused(setting: str) -> None:
    with pytest.raises(UsageError, match="give KEY=VALUE"):
        parse_key(setting)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("nvidia-container-cli.no-cgroups", "true", True),
        ("nvidia-container-cli.environment", "A=1,B=2", ["A=1", "B=2"]),
        ("nvidia-container-cli.environment", '["A=1,2"]', ["A=1,2"]),
        ("nvidia-container-cli.environment", "", []),
        ("nvidia-container-runtime.mode", "jit-cdi", "jit-cdi"),
        ("supported-driver-capabilities", "compute,utility", "compute,utility"),
    ],
)
def test_values_are_read(name: str, text: str, value: object) -> None:
    assert key_of(name).parse(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("nvidia-container-cli.no-cgroups", "yes", 'must be true or false, not "yes"'),
        ("nvidia-container-cli.no-cgroups", None, "give a value, as nvidia-container-cli.no-cgroups=true"),
        ("nvidia-container-cli.debug", None, "give a value, as nvidia-container-cli.debug=VALUE"),
        ("nvidia-container-runtime.mode", "CDI", "must be one of 'auto', 'legacy', 'cdi', 'csv', 'jit-cdi', not 'CDI'"),
        ("nvidia-container-runtime.log-level", "loud", "must be one of 'panic'"),
        ("nvidia-container-cli.user", "root", "must be USER:GROUP, not 'root'"),
        ("nvidia-container-cli.environment", "A", "must be NAME=VALUE, not 'A'"),
        ("nvidia-container-cli.environment", '["A=1", 2]', "not a JSON list of texts"),
        ("nvidia-container-runtime.modes.cdi.spec-dirs", "etc/cdi", "must be an absolute path, not 'etc/cdi'"),
        ("nvidia-container-runtime.modes.cdi.default-kind", "gpu", "must be VENDOR/CLASS, not 'gpu'"),
        ("supported-driver-capabilities", "compute,tensor", "'tensor' is no capability"),
        ("nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags", "fast", "must be one of"),
    ],
)
def test_wrong_values_are_refused(name: str, text: str | None, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        key_of(name).parse(name, text)
    assert refused.value.message.startswith(f"--set {name}")
    assert says in refused.value.message


def key_of(name: str) -> Key:
    key = KEYS.find(parse_key(name)[0])
    assert key is not None
    return key


def test_a_misspelt_key_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as refused:
        KEYS.named(("nvidia-container-cli", "no-cgroup"), "nvidia-container-cli.no-cgroup", "the toolkit")
    assert refused.value.hint == "did you mean nvidia-container-cli.no-cgroups?"
