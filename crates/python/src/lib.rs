//! `weft._kernel`: the engine as Python sees it.
//!
//! Owns conversions between Python values and the engine's, and nothing else: bytes, events and changes, counters. The
//! contract is `src/weft/_kernel.pyi`. It must never hold logic, call back into Python from the engine, or let a panic
//! pass as an exception: a panic ends the process. Rule: ARCHITECTURE.md, "The boundary".

mod changes;
mod client;
mod delivery;
mod disk;
mod engine;
mod errors;
mod events;
mod json;
mod limits;
mod log;
mod outgoing;
mod prepared;
mod reading;
mod rows;
mod tables;
mod values;

use pyo3::prelude::*;
use pyo3::wrap_pyfunction;
use weft_engine::signal;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The allocator's own settings.
mod allocator {
    use std::ffi::{c_int, c_long};

    unsafe extern "C" {
        fn mi_option_set(option: c_int, value: c_long);
        fn mi_collect(force: bool);
    }
    /// `mi_option_purge_delay`, the same number in all releases of mimalloc since 2.0.
    const PURGE_DELAY: c_int = 15;
    /// How long freed memory is kept for the next who wants some. Its own default is a second, in which a queue that is
    /// filled or drained frees tens of megabytes that count as in use; at once would cost a busy node half its speed.
    const PURGE_DELAY_MS: c_long = 50;

    pub(crate) fn set_up() {
        // SAFETY: it takes plain numbers and may be called at any time; the allocator is linked into this library.
        unsafe { mi_option_set(PURGE_DELAY, PURGE_DELAY_MS) }
    }

    /// Returns what this thread has freed to the system: the allocator itself looks only while somebody allocates.
    pub(crate) fn give_back() {
        // SAFETY: as above; it touches free memory only.
        unsafe { mi_collect(true) }
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        super::buffers::trim();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod buffers {
    unsafe extern "C" {
        fn mallopt(parameter: i32, value: i32) -> i32;
        fn malloc_trim(pad: usize) -> i32;
    }
    const M_TRIM_THRESHOLD: i32 = -1;
    const M_MMAP_THRESHOLD: i32 = -3;
    /// Larger than any read or flush, so that their bytes objects come from the heap.
    const MMAP_BYTES: i32 = 4 << 20;
    /// Free memory the heap keeps; reads and flushes of all connections in one turn fit into it.
    const TRIM_BYTES: i32 = 8 << 20;

    pub(crate) fn keep() {
        // SAFETY: mallopt takes plain numbers and may be called at any time; unknown parameters are refused by
        // returning 0.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
            mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
        }
    }

    pub(crate) fn trim() {
        // SAFETY: it takes a plain number, may be called at any time, and touches free memory only.
        unsafe { malloc_trim(0) };
    }
}

/// Lets the C library reuse the memory of reads and writes instead of returning it to the system each time: a server's
/// process calls it once (a page fault per 4 KiB of traffic costs a fifth of the broker's time).
#[pyfunction]
fn keep_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    buffers::keep();
}

/// The native kernel of weft.
#[pymodule]
fn _kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    allocator::set_up();
    module.add_class::<engine::Engine>()?;
    module.add_class::<disk::DiskJob>()?;
    module.add_class::<disk::DiskThreads>()?;
    module.add_class::<reading::Scan>()?;
    module.add_class::<reading::Tally>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<delivery::Delivery>()?;
    module.add_class::<log::ArrowStream>()?;
    module.add_class::<log::LogReader>()?;
    module.add_class::<rows::EncodedMessages>()?;
    module.add_function(wrap_pyfunction!(rows::encode_messages, module)?)?;
    module.add_function(wrap_pyfunction!(keep_buffers, module)?)?;
    module.add_function(wrap_pyfunction!(json::encode_json, module)?)?;
    module.add_function(wrap_pyfunction!(values::encode_value, module)?)?;
    module.add_function(wrap_pyfunction!(values::decode_value, module)?)?;
    module.add("OUTPUT", signal::OUTPUT)?;
    module.add("FLUSH", signal::FLUSH)?;
    module.add("PAUSE", signal::PAUSE)?;
    module.add("DISK", signal::DISK)?;
    module.add("EVENTS", signal::EVENTS)?;
    module.add("TIMER", signal::TIMER)?;
    module.add("MORE", signal::MORE)?;
    module.add("LOCAL", signal::LOCAL)?;
    module.add("DELIVERIES", weft_client::signal::DELIVERIES)?;
    module.add("OUTCOMES", weft_client::signal::OUTCOMES)?;
    Ok(())
}
