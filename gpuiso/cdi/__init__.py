# SPDX-License-Identifier: Apache-2.0
"""The Container Device Interface, specification 1.1.0: read, check, list, inject and generate.

``document`` turns text into a tree as the reference library's parser does, ``decode`` the tree into the
values of ``spec``, ``rules`` and ``version`` judge them, ``cache`` merges directories, ``inject`` edits an
OCI config. The specification and the reference library:
https://github.com/cncf-tags/container-device-interface.
"""
