"""The outcome of a submission, as JSON for scripts and JUnit XML for CI servers."""

from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from dkan_core.utils.storage.files import write_atomic, write_json
from pipelines.submission.watch import RunOutcome, TaskRun, Watched


@dataclass(kw_only=True)
class Submission:
    """State of a submission; fields are empty until they are known."""

    pipeline: str
    version: str
    experiment: str
    run_name: str
    service_account: str = ""
    run_id: str = ""
    url: str = ""


def write_summary(path: Path, submission: Submission, watched: Watched | None) -> None:
    """Write the whole outcome as JSON; ``watched`` is None for a run that is not waited for."""
    write_json(
        path,
        asdict(submission)
        | {
            "outcome": watched.outcome.name.lower() if watched else "submitted",
            "exit_code": watched.outcome.value if watched else 0,
            "message": watched.message if watched else "",
            "tasks": [asdict(task) for task in watched.tasks] if watched else [],
        },
    )


def write_junit(path: Path, submission: Submission, watched: Watched) -> None:
    """Write a test suite with a test case for each task, and one for failures outside the tasks."""
    suite = ElementTree.Element("testsuite", name=submission.pipeline)
    for task in watched.tasks:
        _add_case(suite, submission.pipeline, task)
    if watched.outcome is not RunOutcome.SUCCEEDED and not suite.findall("*/failure"):
        case = ElementTree.SubElement(suite, "testcase", classname=submission.pipeline, name="run", time="0")
        kind = "failure" if watched.outcome is RunOutcome.FAILED else "error"
        ElementTree.SubElement(case, kind, message=f"{watched.outcome.name.lower()}: {watched.message}")
    for attribute, found in {"tests": "testcase", "failures": "*/failure", "errors": "*/error"}.items():
        suite.set(attribute, str(len(suite.findall(found))))
    suite.set("skipped", str(len(suite.findall("*/skipped"))))
    suite.set("time", f"{sum(task.seconds for task in watched.tasks):.1f}")
    if submission.url:
        properties = ElementTree.Element("properties")
        ElementTree.SubElement(properties, "property", name="url", value=submission.url)
        suite.insert(0, properties)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    write_atomic(path, ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n")


def _add_case(suite: ElementTree.Element, pipeline: str, task: TaskRun) -> None:
    time = f"{task.seconds:.1f}"
    case = ElementTree.SubElement(suite, "testcase", classname=pipeline, name=task.name, time=time)
    if task.state == "FAILED":
        first = task.error.partition("\n")[0] or "failed; its log is in the run"
        ElementTree.SubElement(case, "failure", message=first).text = task.error
    elif task.state != "SUCCEEDED":
        ElementTree.SubElement(case, "skipped", message=task.state)
