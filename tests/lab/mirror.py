# SPDX-License-Identifier: Apache-2.0
"""The Debian mirror of this machine, as apt's own configuration names it."""

from __future__ import annotations

import os
import subprocess

from tests.lab.errors import LabError

# Settings that decide whether apt can fetch from where this machine fetches from.
CARRIED = ("Acquire::Check-", "Acquire::http", "Acquire::https")


def debian_mirror() -> str:
    """URI of the archive that apt takes Debian's ``main`` from; ``$GPUISO_LAB_MIRROR`` overrides it."""
    override = os.environ.get("GPUISO_LAB_MIRROR")
    if override:
        return override
    form = "$(REPO_URI)\t$(LABEL)\t$(COMPONENT)\t$(IDENTIFIER)"
    listing = _output(["apt-get", "indextargets", "--format", form])
    for line in listing.splitlines():
        uri, label, component, identifier = line.split("\t")
        # Before the first `apt-get update` the label is not known.
        debian = label == "Debian" or (not label and "debian" in uri and "security" not in uri)
        if debian and component == "main" and identifier == "Packages":
            return uri
    raise LabError("apt on this machine uses no Debian archive: name one in GPUISO_LAB_MIRROR")


def apt_settings() -> str:
    """This machine's apt settings for fetching (proxies, date checks), and retries, as lines of an apt.conf."""
    lines = _output(["apt-config", "dump"]).splitlines()
    carried = [line for line in lines if line.startswith(CARRIED) and not line.endswith('"";')]
    return "\n".join([*carried, 'Acquire::Retries "3";'])


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is missing: lab images are built on Debian and its derivatives") from None
    except subprocess.CalledProcessError as failed:
        raise LabError(f"{' '.join(argv)} failed: {failed.stderr.strip()}") from None
