"""Which files and directories may hold code that this process will run.

An executable is code, so whoever can write the cache can run code as its user. The rules:

* every directory on the way to the cache, by name and after resolving symlinks, belongs to this
  user or to root, and nobody else may write it;
* one exception: a directory with the sticky bit, such as /tmp, may be writable by all, because
  there others cannot rename or remove what is not theirs. What lies directly in it must belong to
  this user or to root, and be no symlink; if it is the cache root itself: to this user, with
  mode 0700;
* the root is a directory of this user, not a symlink, writable by nobody else;
* an entry is a regular file of this user, not a symlink, writable by nobody else.

"Somebody else" includes the group: which users are in a group can change at any time. Access
control lists are not looked at.
"""

from __future__ import annotations

import os
import stat

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnsafeCacheError(OSError):
    """A directory or file of the cache is one that others could have written."""


def _owner(uid: int) -> str:
    return "this user" if uid == os.geteuid() else f"user {uid}"


def _sticky(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_ISVTX)


def _refuse(path: str, why: str, remedy: str) -> UnsafeCacheError:
    return UnsafeCacheError(f"{path}: {why}. {remedy}")


_ELSEWHERE = "Set TORCH_NEURONX_CACHE_DIR to a directory that only you can write."


def check_parents(root: str) -> None:
    """Refuse a root that others could replace through a directory above it.

    Directories that do not exist yet are left out; what is created there is ours.

    Raises:
        UnsafeCacheError: names the directory, its owner and its mode.
    """
    seen: set[str] = set()
    pending = [os.path.dirname(root)]
    while pending:
        path = pending.pop()
        parts = path.split(os.sep)
        for end in range(1, len(parts) + 1):
            step = os.sep.join(parts[:end]) or os.sep
            if step in seen:
                continue
            seen.add(step)
            try:
                status = os.lstat(step)
            except FileNotFoundError:
                break
            parent = os.lstat(os.path.dirname(step))
            # "/" may be nobody's in a user namespace, and its owner owns everything anyway.
            if step != os.sep and status.st_uid not in (0, os.geteuid()):
                raise _refuse(step, f"it belongs to {_owner(status.st_uid)}", _ELSEWHERE)
            if stat.S_ISLNK(status.st_mode):
                if _sticky(parent) and parent.st_mode & _OTHERS_WRITE:
                    raise _refuse(step, "it is a symlink that anybody could have made", _ELSEWHERE)
                # The rest of this path is checked behind the link.
                pending.append(os.path.join(os.path.realpath(step), *parts[end:]))
                break
            if status.st_mode & _OTHERS_WRITE and not _sticky(status):
                mode = stat.S_IMODE(status.st_mode)
                raise _refuse(
                    step, f"others can write it (mode {mode:04o})", f"chmod go-w, or: {_ELSEWHERE}"
                )


def check_directory(path: str) -> None:
    """Refuse a directory of the cache that is a symlink, another user's, or writable by others.

    Raises:
        UnsafeCacheError: names the directory and what is wrong.
        FileNotFoundError: there is none.
    """
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        kind = "a symlink" if stat.S_ISLNK(status.st_mode) else "no directory"
        raise _refuse(path, f"it is {kind}", _ELSEWHERE)
    if status.st_uid != os.geteuid():
        raise _refuse(path, f"it belongs to {_owner(status.st_uid)}", _ELSEWHERE)
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS_WRITE:
        raise _refuse(path, f"others can write it (mode {mode:04o})", "chmod 700 it.")
    parent = os.stat(os.path.dirname(path))
    if parent.st_mode & _OTHERS_WRITE and mode & 0o077:
        raise _refuse(
            path, f"its parent is writable by all and its mode is {mode:04o}", "chmod 700 it."
        )


def check_file(status: os.stat_result, path: str) -> None:
    """Refuse an opened file (its ``fstat``) that others own or can write.

    Raises:
        UnsafeCacheError: names the file and what is wrong.
    """
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise _refuse(path, "it is no regular file", "Remove it.")
    if status.st_uid != os.geteuid():
        raise _refuse(path, f"it belongs to {_owner(status.st_uid)}", "Remove it.")
    if mode & _OTHERS_WRITE:
        raise _refuse(path, f"others can write it (mode {mode:04o})", "Remove it.")


def make_root(root: str) -> None:
    """Create ``root`` (mode 0700, and so its missing parents), or check the one that is there.

    Raises:
        UnsafeCacheError: it, or a directory above it, is not ours alone.
        OSError: it cannot be created.
    """
    check_parents(root)
    try:
        os.lstat(root)
    except FileNotFoundError:
        missing = []
        path = root
        while not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            try:
                os.mkdir(directory, 0o700)
            except FileExistsError:
                pass  # another process of ours was quicker, or the checks below refuse it
        check_parents(root)
    check_directory(root)
