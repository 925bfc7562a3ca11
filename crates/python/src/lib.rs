//! PyO3 binding.
