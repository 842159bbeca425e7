"""The documentation: pages, and the generator of the reference pages among them."""
