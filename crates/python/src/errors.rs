//! Errors as Python raises them: the classes of `weft.model.errors`.
//!
//! Owns the way from a sentence to an exception of the right class. It must never decide what is an error. Rule:
//! `src/weft/model/errors.py`.

use pyo3::prelude::*;

fn raise(py: Python<'_>, class: &str, text: &str) -> PyErr {
    let class = py.import("weft.model.errors").and_then(|module| module.getattr(class));
    match class.and_then(|class| class.call1((text,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// Our own mistake.
pub(crate) fn local_error(py: Python<'_>, text: &str) -> PyErr {
    raise(py, "LocalProtocolError", text)
}

/// Something that is needed does not answer.
pub(crate) fn unavailable(py: Python<'_>, text: &str) -> PyErr {
    raise(py, "Unavailable", text)
}

/// Bytes are not what they should be.
pub(crate) fn corrupt(py: Python<'_>, text: &str) -> PyErr {
    raise(py, "Corrupt", text)
}
