# SPDX-License-Identifier: Apache-2.0
"""The command line: one module a verb. Verbs parse, call the library and render; nothing else prints or exits."""
