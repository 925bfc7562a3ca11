"""Federation without a kernel: controllers joined by a network that is a list."""
