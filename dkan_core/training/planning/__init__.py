"""What a run would cost before it is started: exchanges and steps measured here, larger machines predicted."""
