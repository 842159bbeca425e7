"""All ways to train on several workers beside each other: time, speed-up, exchange bytes and average precision."""
