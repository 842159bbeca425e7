"""What training on several workers costs: exchange, side jobs and healing; and that quality does not suffer."""
