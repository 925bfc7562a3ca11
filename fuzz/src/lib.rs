//! Fuzz targets: one function per entry of the kernel that takes bytes from outside.
//!
//! Owns what must hold for any input. Bytes come in; a target returns, or panics with what is wrong. Each is a plain
//! `fn(&[u8])`, so any fuzzer can call it; `main.rs` is one that needs no nightly compiler. It must never depend on the
//! clock, the machine or an earlier input. Rules: each target's own file.
#![forbid(unsafe_code)]

mod codec091;
mod codec10;
mod engine_bytes;
mod engine_ops;
mod feature;
pub mod generate091;
pub mod generate10;
mod mutate;
mod source;

pub use feature::take_features;
pub use mutate::mutate;
use weft_sim::Random;

/// One entry of the kernel.
pub struct Target {
    pub name: &'static str,
    /// Panics if something does not hold.
    pub run: fn(&[u8]),
    /// An input of the right shape.
    pub generate: fn(&mut Random) -> Vec<u8>,
    /// Bytes that mean something to it.
    pub words: &'static [&'static [u8]],
}

/// All targets, the cheapest first.
pub const TARGETS: &[Target] = &[
    Target { name: "frame091", run: codec091::frame, generate: generate091::frames, words: generate091::WORDS },
    Target { name: "method091", run: codec091::method, generate: generate091::payload, words: generate091::WORDS },
    Target { name: "table091", run: codec091::table, generate: generate091::table, words: generate091::WORDS },
    Target { name: "frame10", run: codec10::frame, generate: generate10::frames, words: generate10::WORDS },
    Target { name: "performative10", run: codec10::performative, generate: generate10::body, words: generate10::WORDS },
    Target { name: "sections10", run: codec10::sections, generate: generate10::message, words: generate10::WORDS },
    Target {
        name: "engine_bytes",
        run: engine_bytes::run,
        generate: engine_bytes::generate,
        words: engine_bytes::WORDS,
    },
    Target { name: "engine_ops", run: engine_ops::run, generate: engine_ops::generate, words: &[] },
];
