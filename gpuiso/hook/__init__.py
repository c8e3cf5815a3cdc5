# SPDX-License-Identifier: Apache-2.0
"""The OCI hook: a program of its own that a container's start waits for.

It imports the standard library and ``kernel/``, nothing that is slow to import, and runs with ``python3 -IS``.
What it needs to know of policies and GPUs was compiled before (:mod:`gpuiso.hookset`); only for a set of GPUs
that is asked for the first time, and to read a gpu.max, it imports the pure core of the compiler.
"""

from __future__ import annotations
