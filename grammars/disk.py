"""Byte strings by key in a folder that several processes share: bounded, written atomically, and never believed unchecked.

One file for each entry, named by the hash of its key. A file holds a magic number, the length of the value and a checksum over key
and value, so a file that is cut short, damaged, or holds another key's value reads as "not there" and is removed. Nothing here is
unpickled. Entries that have not been read for longest go first once the folder passes its bound. A folder that cannot be read or
written, or a full disk, is the same as an empty cache: no method raises OSError. The folder is as trusted as the compiled kernels
beside it. This module knows nothing of what the values mean.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["DiskCache"]

_MAGIC = b"agentkit cache\x00\x01"
_HEAD = struct.Struct("<16sQ32s")  # magic, bytes of the value, checksum
_NAME = re.compile(r"[0-9a-f]{40}\.bin")
_UNFINISHED = ".unfinished-"
_ABANDONED_S = 3600.0  # an unfinished file this old belongs to a process that died
_SHARE = 16  # one value may take 1/4 of the bound; the folder is looked through each time 1/16 of it has been written


class DiskCache:
    """A folder of values.

    Args:
        folder: made at the first write, for this user only.
        max_bytes: bound on all entries together. Processes that write at the same time may pass it by 1/16 each for a while.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._unseen = max_bytes  # bytes written since the folder was last looked through; the first write looks

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, or None. What turns out to be damaged is removed."""
        path = self._path(key)
        try:
            value = self._read(path, key)
        except OSError:
            return None
        with suppress(OSError):
            if value is None:
                path.unlink()
            else:
                os.utime(path)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Keep `value`, if there is room for it and the folder can be written."""
        size = _HEAD.size + len(value)
        if size > self.max_bytes // 4:
            return
        with suppress(OSError):
            self._make_room(size)
            self._write(self._path(key), _HEAD.pack(_MAGIC, len(value), _checksum(key, value)), value)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries now."""
        try:
            return sum(size for _, size, _ in self._entries())
        except OSError:
            return 0

    def _path(self, key: bytes) -> Path:
        return self.folder / f"{hashlib.blake2b(key, digest_size=20).hexdigest()}.bin"

    def _read(self, path: Path, key: bytes) -> bytes | None:
        """The value, or None if the file is not what was written for `key`."""
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _HEAD.size <= status.st_size <= self.max_bytes:
                return None
            data = file.read(status.st_size)
        if len(data) < _HEAD.size:
            return None
        magic, length, checksum = _HEAD.unpack_from(data)
        value = data[_HEAD.size :]
        return value if magic == _MAGIC and length == len(value) and checksum == _checksum(key, value) else None

    def _write(self, path: Path, *parts: bytes) -> None:
        """A reader sees the whole file or none: it is written under another name first."""
        handle, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, dir=self.folder)
        try:
            with open(handle, "wb") as file:
                for part in parts:
                    file.write(part)
            os.replace(unfinished, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise

    def _make_room(self, size: int) -> None:
        """Keep the entries below the bound once `size` more bytes have been written."""
        with self._lock:
            self._unseen += size
            if self._unseen <= self.max_bytes // _SHARE:
                return
            self._unseen = size
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        entries = sorted(self._entries())
        excess = sum(taken for _, taken, _ in entries) + size + self.max_bytes // _SHARE - self.max_bytes
        for _, taken, path in entries:
            if excess <= 0:
                break
            with suppress(OSError):
                os.unlink(path)
                excess -= taken

    def _entries(self) -> list[tuple[int, int, str]]:
        """(when last read in ns, bytes, path) of each entry. Other files are not ours, but for what dead processes left unfinished."""
        found = []
        with os.scandir(self.folder) as files:
            for file in files:
                ours, unfinished = _NAME.fullmatch(file.name) is not None, file.name.startswith(_UNFINISHED)
                if not ours and not unfinished:
                    continue
                with suppress(OSError):  # removed meanwhile by another process
                    status = file.stat(follow_symlinks=False)
                    if ours:
                        found.append((status.st_mtime_ns, status.st_size, file.path))
                    elif time.time() - status.st_mtime > _ABANDONED_S:
                        os.unlink(file.path)
        return found


def _checksum(key: bytes, value: bytes) -> bytes:
    """Over the key as well: a file copied to another entry's name is no entry. The key's length keeps the two apart."""
    h = hashlib.blake2b(len(key).to_bytes(8, "little"), digest_size=32)
    h.update(key)
    h.update(value)
    return h.digest()
