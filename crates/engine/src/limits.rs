//! The bounds of one engine.
//!
//! Owns `Limits`, the kernel's view of `weft.model.limits.Limits`, where each number is explained. It comes in once, at
//! the engine's birth, and everything that grows is measured against it. It must never be read from a file or changed
//! by a peer. Rule: every queue, buffer, table and loop has a limit with a name.

/// Bounds of one engine; `weft/model/limits.py` says why each number.
#[derive(Clone, Debug)]
pub struct Limits {
    pub frame_bytes_max: u32,
    pub channels_max: u16,
    pub links_max: u32,
    pub consumers_max: usize,
    pub heartbeat_s: u16,
    pub message_bytes_max: u64,
    pub memory_bytes_max: u64,
    pub output_bytes_max: usize,
    pub flush_bytes: usize,
    pub work_max: u32,
    pub link_credit: u32,
    pub session_window: u32,
    pub unauthenticated_s: u16,
    pub unfinished_s: u16,
    pub connections_max: usize,
    pub addresses_max: usize,
    pub transactions_max: usize,
    pub transaction_bytes_max: u64,
    pub prepared_max: usize,
    pub prepared_bytes_max: u64,
    pub relay_window_s: u32,
    pub relay_ids_max: usize,
    pub doubt_s: u32,
    pub end_to_end_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes_max: 131_072,
            channels_max: 2_047,
            links_max: 1_024,
            consumers_max: 10_000,
            heartbeat_s: 60,
            message_bytes_max: 128 << 20,
            memory_bytes_max: 1 << 30,
            output_bytes_max: 256 << 10,
            flush_bytes: 256 << 10,
            work_max: 20_000,
            link_credit: 1_000,
            session_window: 5_000,
            unauthenticated_s: 10,
            unfinished_s: 120,
            connections_max: 65_536,
            addresses_max: 4_096,
            transactions_max: 64,
            transaction_bytes_max: 64 << 20,
            prepared_max: 1_000,
            prepared_bytes_max: 256 << 20,
            relay_window_s: 600,
            relay_ids_max: 1_000_000,
            doubt_s: 60,
            end_to_end_max: 8_192,
        }
    }
}
