"""Messages arrive whole and in order, and a dead peer is noticed."""

import os
import resource
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from dkan_core.training.communication.messages import Channel, PeerLostError, channel_pair
from dkan_core.utils.resources import allow_open_files


def pair() -> tuple[Channel, Channel]:
    left, right = channel_pair()
    return Channel(left), Channel(right)


def test_messages_arrive_in_order_in_both_directions() -> None:
    left, right = pair()
    for number in range(100):
        left.send(number=number, text="a\nb")
        right.send(back=number)
    assert [right.receive()["number"] for _ in range(100)] == list(range(100))
    assert [message["back"] for message in left.waiting()] == list(range(100))


def test_large_message_arrives_whole() -> None:
    left, right = pair()
    sender = threading.Thread(target=lambda: left.send(text="x" * 1_000_000))
    sender.start()
    assert len(right.receive()["text"]) == 1_000_000
    sender.join()


def test_closed_peer_is_noticed_after_its_last_message() -> None:
    left, right = pair()
    left.send(last=True)
    left.close()
    assert right.waiting() == [{"last": True}] and right.lost
    with pytest.raises(PeerLostError):
        right.receive()
    with pytest.raises(PeerLostError):
        right.send(nobody="there" * 1_000_000)


def test_works_with_more_open_files_than_select_can_count() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        allow_open_files(1200)
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open())
        left, right = pair()
        assert left.fileno() > 1024
        left.send(number=1)
        assert right.waiting() == [{"number": 1}]


def test_waiting_does_not_wait() -> None:
    left, right = pair()
    assert left.waiting() == [] and not left.lost
    right.close()
