"""Messages arrive whole and in order, and a dead peer is noticed."""

import threading

import pytest

from dkan_core.training.channel import Channel, PeerLostError, channel_pair


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


def test_waiting_does_not_wait() -> None:
    left, right = pair()
    assert left.waiting() == [] and not left.lost
    right.close()
