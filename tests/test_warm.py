"""Processes that are forked for others end without a word where the process that asked for them has been killed."""

import pytest

from tests import warm

CODE = """
import json, os, select, socket, sys
from dataclasses import asdict
from dkan_core.utils.prctl import adopt_orphans
from tests import warm

adopt_orphans()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
task = warm.Task(argv=["-c", "print('ran')"], env=dict(os.environ), cwd=os.getcwd())
socket.send_fds(ours, [json.dumps(asdict(task)).encode()], [1, 2])
if sys.argv[1] == "before the answer":
    ours.close()
if os.fork() == 0:
    ours.close()
    warm.run(*warm._serve(theirs))
theirs.close()
if sys.argv[1] == "before it is read":
    select.select([ours], [], [])
    ours.close()
codes = []
while True:
    try:
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
    except ChildProcessError:
        break
print(codes)
"""


@pytest.mark.parametrize(
    ("killed", "shown"), [("before the answer", "[0, 0]\n"), ("before it is read", "ran\n[0, 0]\n")]
)
def test_process_asked_for_by_a_killed_one_ends_quietly(killed: str, shown: str) -> None:
    done = warm.server().run(["-c", CODE, killed])
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")
