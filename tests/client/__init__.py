"""The client library against real nodes."""
