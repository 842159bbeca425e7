"""Output of a local run's steps: shown or kept in a file, and searched for the cause of a failure."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# The last line of a traceback, or the message of a command.
CAUSE = re.compile(r"^(?:[\w.]*\.)?(?:\w+(?:Error|Exception)|error): (.+)$")
# Colours of a terminal.
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@contextmanager
def watched_output(log: Path | None) -> Iterator[list[str]]:
    """Yield a list of the causes of failures in the output of this process and its children meanwhile.

    Args:
        log: File for all of it. Default: shown as it comes.
    """
    causes: list[str] = []
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    reading, writing = os.pipe()
    target: BinaryIO = log.open("wb") if log else os.fdopen(os.dup(1), "wb")
    for number in (1, 2):
        os.dup2(writing, number)
    os.close(writing)
    reader = threading.Thread(target=_copy, args=(os.fdopen(reading, "rb"), target, causes))
    reader.start()
    try:
        yield causes
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        reader.join()
        target.close()


def _copy(source: BinaryIO, target: BinaryIO, causes: list[str]) -> None:
    for line in source:
        target.write(line)
        target.flush()
        text = ESCAPES.sub("", line.decode(errors="replace")).strip()
        if found := CAUSE.match(text):
            causes.append(found[1])
