# SPDX-License-Identifier: Apache-2.0
"""CDI specs of the GPUs of a host: a pure function of a :class:`gpuiso.host.protocol.Host`.

The content follows what ``nvidia-ctk cdi generate`` finds (NVIDIA/nvidia-container-toolkit, pkg/nvcdi), with
two differences: nodes carry their ``type``, which makes their numbers complete, so that an engine needs no
node on the host; and a node that is not there yet is written with the numbers its driver registered instead
of being left out. Numbers in a spec can become stale, with a type or without: no engine compares them with
the host. The lint does, and :mod:`gpuiso.cdi.refresh` writes them anew.
"""

from __future__ import annotations

from gpuiso.cdi.generate.options import Generated, Options
from gpuiso.cdi.generate.spec import generate, present_modes

__all__ = ["Generated", "Options", "generate", "present_modes"]
