//! The deterministic machine.
