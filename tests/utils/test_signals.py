"""Signals in this process and in real ones."""

import signal
import subprocess
import sys
import threading

from dkan_core.utils.signals import handle_signal, hold_signal


def test_handler_holds_for_the_block_alone() -> None:
    before, seen = signal.getsignal(signal.SIGUSR1), []
    with handle_signal(signal.SIGUSR1, lambda number, _: seen.append(number)):
        signal.raise_signal(signal.SIGUSR1)
    assert seen == [signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) == before


def test_other_threads_change_nothing() -> None:
    found = []

    def look() -> None:
        with handle_signal(signal.SIGUSR1, signal.SIG_IGN):
            found.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGUSR1)] != [signal.SIG_IGN]


def test_held_signal_is_handled_where_it_is_safe() -> None:
    seen: list[int] = []
    with handle_signal(signal.SIGUSR1, lambda number, _: seen.append(number)):
        with hold_signal(signal.SIGUSR1) as handle_held:
            handle_held()
            signal.raise_signal(signal.SIGUSR1)
            assert not seen
            handle_held()
            assert seen == [signal.SIGUSR1]
            handle_held()
            signal.raise_signal(signal.SIGUSR1)
        assert seen == 2 * [signal.SIGUSR1]
        signal.raise_signal(signal.SIGUSR1)
        assert len(seen) == 3


def test_second_signal_does_not_keep_the_first_from_cleaning_up() -> None:
    code = """
import signal
from dkan_core.utils.signals import exit_once
signal.signal(signal.SIGTERM, exit_once)
try:
    signal.raise_signal(signal.SIGTERM)
finally:
    signal.raise_signal(signal.SIGTERM)
    print("clean")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "clean\n", "")


def test_held_signal_that_ends_the_process_does_so_once() -> None:
    code = """
import signal
from dkan_core.utils.signals import exit_once, hold_signal
signal.signal(signal.SIGTERM, exit_once)
with hold_signal(signal.SIGTERM) as handle_held:
    signal.raise_signal(signal.SIGTERM)
    try:
        print("held", flush=True)
        handle_held()
    finally:
        signal.raise_signal(signal.SIGTERM)
        print("clean")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "held\nclean\n", "")
