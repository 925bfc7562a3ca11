//! `weft._kernel`: the engine as Python sees it.
//!
//! Owns conversions between Python values and the engine's, and nothing else: bytes, events and changes, counters. The contract is
//! `src/weft/_kernel.pyi`. It must never hold logic, call back into Python from the engine, or let a panic pass as an exception: a
//! panic ends the process. Rule: ARCHITECTURE.md, "The boundary".

mod changes;
mod engine;
mod events;
mod tables;

use pyo3::prelude::*;
use weft_engine::signal;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The native kernel of weft.
#[pymodule]
fn _kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<engine::Engine>()?;
    module.add("OUTPUT", signal::OUTPUT)?;
    module.add("FLUSH", signal::FLUSH)?;
    module.add("PAUSE", signal::PAUSE)?;
    module.add("EVENTS", signal::EVENTS)?;
    module.add("TIMER", signal::TIMER)?;
    module.add("MORE", signal::MORE)?;
    module.add("LOCAL", signal::LOCAL)?;
    Ok(())
}
