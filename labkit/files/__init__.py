"""Files that survive: what durable writing, hashing and locking need. Lesson 05.

Read disk.py first (the one object through which everything goes to the disk), then hashing.py and locking.py.
"""

from labkit.files.disk import (
    DISK,
    OPERATIONS,
    Files,
    append_text,
    file_size_limit,
    free_bytes,
    is_regular,
    remove_tree,
    storage_error,
    storage_errors,
    write_file,
    write_text_durably,
)
from labkit.files.hashing import PIECE, HashingWriter, file_digests, file_sha256, spread
from labkit.files.locking import lock

__all__ = [
    "DISK",
    "OPERATIONS",
    "PIECE",
    "Files",
    "HashingWriter",
    "append_text",
    "file_digests",
    "file_sha256",
    "file_size_limit",
    "free_bytes",
    "is_regular",
    "lock",
    "remove_tree",
    "spread",
    "storage_error",
    "storage_errors",
    "write_file",
    "write_text_durably",
]
