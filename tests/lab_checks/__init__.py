# SPDX-License-Identifier: Apache-2.0
"""Faults made for real in a lab, found by their rule, and mended by the command that the finding gives."""
