# SPDX-License-Identifier: Apache-2.0
"""The machine, live or recorded. Every fact enters gpuiso here."""
