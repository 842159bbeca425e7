"""What training on several workers costs (exchange, side jobs, recovery), and whether it changes quality."""
