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
mod segment;
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
    /// The part of the time it gets: there is more to find in an engine than in a codec.
    pub share: u32,
}

/// All targets, the cheapest first.
pub const TARGETS: &[Target] = &[
    codec("frame091", codec091::frame, generate091::frames, generate091::WORDS),
    codec("method091", codec091::method, generate091::payload, generate091::WORDS),
    codec("table091", codec091::table, generate091::table, generate091::WORDS),
    codec("frame10", codec10::frame, generate10::frames, generate10::WORDS),
    codec("performative10", codec10::performative, generate10::body, generate10::WORDS),
    codec("sections10", codec10::sections, generate10::message, generate10::WORDS),
    engine("segment", segment::run, segment::generate, segment::WORDS),
    engine("engine_bytes", engine_bytes::run, engine_bytes::generate, engine_bytes::WORDS),
    engine("engine_ops", engine_ops::run, engine_ops::generate, &[]),
];

type Run = fn(&[u8]);
type Generate = fn(&mut Random) -> Vec<u8>;
type Words = &'static [&'static [u8]];

const fn codec(name: &'static str, run: Run, generate: Generate, words: Words) -> Target {
    Target { name, run, generate, words, share: 1 }
}

const fn engine(name: &'static str, run: Run, generate: Generate, words: Words) -> Target {
    Target { name, run, generate, words, share: 6 }
}
