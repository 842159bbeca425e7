"""The call stack for kfp: names, without source lines.

kfp 2.17 calls ``inspect.stack`` for its caller's name whenever a task is configured. It also finds the source of
each frame, which took most of the time to compile.
"""

import inspect
import sys
from types import FrameType, SimpleNamespace

from kfp.dsl import pipeline_task


def stack_without_source() -> list[inspect.FrameInfo]:
    """Return what ``inspect.stack`` does, without lines of source."""
    found: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found


def look_at_names_alone() -> None:
    """Give only kfp's module of tasks the stack without source; ``inspect`` itself is unchanged."""
    pipeline_task.inspect = SimpleNamespace(**{**vars(inspect), "stack": stack_without_source})
