"""One suite for every directory."""
