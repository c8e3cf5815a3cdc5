# SPDX-License-Identifier: Apache-2.0
"""Open a file as the user for whom a program is started.

What is wrong with a file is told with what it says there. Root, on behalf of a user, would read out what only root may
read, and a check before the open could be deceived by a link: so it is that user who opens it.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import NoReturn

from gpuiso.errors import NotPermitted
from gpuiso.launch.account import Account, become

__all__ = ["open_as"]


def open_as(account: Account, path: str, flags: int) -> int:
    """A descriptor, as os.open gives it, of what ``account`` may open. Needs root.

    :raises OSError: that user gets this error.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            _open(theirs, account, path, flags)
        theirs.close()
        answer, found, _, _ = socket.recv_fds(ours, 16, 1)
        os.waitpid(pid, 0)
    if found:
        os.set_inheritable(found[0], not flags & os.O_CLOEXEC)
        return found[0]
    number = int(answer or errno.EACCES)
    raise OSError(number, os.strerror(number), path)


def _open(answers: socket.socket, account: Account, path: str, flags: int) -> NoReturn:
    """Runs in the child, and ends it."""
    try:
        become(account)
        socket.send_fds(answers, [b"0"], [os.open(path, flags)])
    except OSError as error:
        answers.send(str(error.errno).encode())
    except (NotPermitted, ValueError):
        answers.send(str(errno.EACCES).encode())
    finally:
        os._exit(0)
