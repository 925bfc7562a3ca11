//! What an input made happen, so that the driver can keep the inputs that made something new happen.
//!
//! Owns a set of numbers per thread. Targets note what they see: which error, which method, which event. Coverage of
//! the code itself would say more, but needs instrumentation that only nightly compilers have. It must never change
//! what a target does. Rule: the same input notes the same features.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

/// Whether whoever replays an input wants to read what happens.
static TRACE: LazyLock<bool> = LazyLock::new(|| std::env::var_os("WEFT_FUZZ_TRACE").is_some());

thread_local! {
    static SEEN: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes that something was seen.
pub fn note(what: impl Hash) {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    SEEN.with_borrow_mut(|seen| seen.insert(hasher.finish()));
}

/// Everything noted since the last call.
pub fn take_features() -> BTreeSet<u64> {
    SEEN.take()
}

/// Prints a line of a replay, if somebody wants to read it.
pub fn trace(line: impl FnOnce() -> String) {
    if *TRACE {
        println!("{}", line());
    }
}
