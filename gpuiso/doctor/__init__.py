# SPDX-License-Identifier: Apache-2.0
"""Checks that find why GPUs are missing, denied, or visible when they should not be."""
