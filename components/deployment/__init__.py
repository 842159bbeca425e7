"""Components that bring an approved model to its users."""
