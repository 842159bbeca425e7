"""Follow a run to its end: its state, its tasks, and the single outcome of all."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pipelines.submission.server import PipelinesServer, UnreachableError


class RunOutcome(Enum):
    """Outcome of a submission, with its exit code."""

    SUCCEEDED = 0
    FAILED = 1
    REFUSED = 2
    CANCELLED = 3
    TIMEOUT = 4
    UNREACHABLE = 5


# Final states of a run.
FINAL = {
    "SUCCEEDED": RunOutcome.SUCCEEDED,
    "FAILED": RunOutcome.FAILED,
    "SKIPPED": RunOutcome.FAILED,
    "CANCELED": RunOutcome.CANCELLED,
}


@dataclass(kw_only=True)
class TaskRun:
    """A step of the pipeline, with what the server has told."""

    name: str
    state: str = "PENDING"
    seconds: float = 0.0
    error: str = ""


@dataclass(kw_only=True)
class Watched:
    """The state of a run, as far as it is known."""

    outcome: RunOutcome
    message: str = ""
    tasks: list[TaskRun] = field(default_factory=list)


def watch(
    server: PipelinesServer, run_id: str, task_names: Iterable[str], timeout: float | None, say: Callable[[str], None]
) -> Watched:
    """Poll a run until it ends, ``timeout`` seconds are over, or the server does not answer for long.

    Raises:
        RefusedError: The server no longer lets the run be seen.
    """
    # Not the SDK's wait_for_run_completion, which treats failed runs like successful ones, and never returns for
    # cancelled ones.
    start = time.monotonic()
    end = start + timeout if timeout is not None else float("inf")
    names, delay = list(task_names), server.pace.first
    tasks = [TaskRun(name=name) for name in names]
    shown: dict[str, str] = {}
    while True:
        left = end - time.monotonic()
        try:
            run = server.get_run(run_id, min(server.pace.patience, max(left, 0.0)))
        except UnreachableError as error:
            if time.monotonic() < end:
                return Watched(outcome=RunOutcome.UNREACHABLE, message=f"{error}; the run continues", tasks=tasks)
            return Watched(outcome=RunOutcome.TIMEOUT, message=f"no end within {timeout:g} s; {error}", tasks=tasks)
        tasks = read_tasks(run, names, server.credentials.clean)
        for task in tasks:
            if shown.get(task.name, "PENDING") != task.state:
                say(f"[{time.monotonic() - start:6.0f} s] {task.name}: {task.state}")
                shown[task.name], delay = task.state, server.pace.first
        if run.state in FINAL:
            message = server.credentials.clean(_message(run.error))
            return Watched(outcome=FINAL[run.state], message=message, tasks=tasks)
        left = end - time.monotonic()
        if left <= 0:
            message = f"no end within {timeout:g} s, state {run.state}; the run continues"
            return Watched(outcome=RunOutcome.TIMEOUT, message=message, tasks=tasks)
        time.sleep(min(delay, left))
        delay = server.pace.next(delay)


def read_tasks(run: Any, names: Iterable[str], clean: Callable[[str], str]) -> list[TaskRun]:
    """Return the tasks ``names`` of a run, and its other failed parts, such as a driver.

    A task's error is that of its container, which the server has as a child of the task.
    """
    details = list(run.run_details.task_details or []) if run.run_details else []
    details.sort(key=lambda detail: detail.create_time.timestamp() if detail.create_time else 0.0)
    latest = {detail.display_name: detail for detail in details}  # for a retried task, the last attempt
    tasks, told = [], set()
    for name in names:
        detail = latest.get(name)
        if detail is None:
            tasks.append(TaskRun(name=name))
            continue
        inside = list(_inside(detail, details))
        told |= {id(child) for child in inside}
        # The innermost error is the most specific one.
        error = next(filter(None, (_message(child.error) for child in reversed(inside))), "")
        tasks.append(_task(detail, clean(error)))
    others = [detail for detail in details if detail.state == "FAILED" and id(detail) not in told]
    known = {detail.display_name for detail in details if id(detail) in told}
    return tasks + [
        _task(detail, clean(_message(detail.error)))
        for detail in others
        if detail.display_name not in known and _message(detail.error)
    ]


# The depth is limited, because an answer with a cycle of tasks would never end.
def _inside(detail: Any, details: list[Any], depth: int = 8) -> Iterator[Any]:
    """Yield a task and what runs inside it."""
    yield detail
    children = detail.child_tasks or []
    keys = {key for child in children for key in (child.task_id, child.pod_name) if key}
    for other in details if depth else []:
        if other is detail:
            continue
        if {other.task_id, other.pod_name} & keys or (detail.task_id and other.parent_task_id == detail.task_id):
            yield from _inside(other, details, depth - 1)


def _task(detail: Any, error: str) -> TaskRun:
    begin, end = detail.start_time or detail.create_time, detail.end_time
    seconds = max((end - begin).total_seconds(), 0.0) if begin and end else 0.0
    return TaskRun(name=detail.display_name, state=detail.state or "PENDING", seconds=seconds, error=error)


def _message(error: Any) -> str:
    return (error.message or "").strip() if error else ""
