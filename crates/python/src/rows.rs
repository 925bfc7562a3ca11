//! Rows of Arrow on their way out as messages.
//!
//! Owns the taking of a stream from its capsule and the encoding of all its rows, without the interpreter's lock. Any
//! object with Arrow's C stream interface comes in, encoded messages go out, or one error before any is sent. It must
//! never make a Python object per row. Rule: `src/weft/_kernel.pyi`, `encode_messages`.

use std::collections::{BTreeMap, VecDeque};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use weft_columns::{ArrowStream, ImportedBatches, Mapping};

const CAPSULE: &std::ffi::CStr = c"arrow_array_stream";

/// Messages that wait to be sent.
#[pyclass(module = "weft._kernel")]
pub(crate) struct EncodedMessages(VecDeque<Vec<u8>>);

impl EncodedMessages {
    /// The next of them; they are gone from here.
    pub(crate) fn take(&mut self, count_max: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
        let count = count_max.min(self.0.len());
        self.0.drain(..count)
    }
}

#[pymethods]
impl EncodedMessages {
    /// How many are left.
    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// Every row of a table as a message.
#[pyfunction]
#[pyo3(signature = (rows, *, identity = None, first = 0, addressed = false, headers = None))]
pub(crate) fn encode_messages(
    rows: &Bound<'_, PyAny>,
    identity: Option<String>,
    first: u64,
    addressed: bool,
    headers: Option<BTreeMap<String, String>>,
) -> PyResult<EncodedMessages> {
    let headers = headers.unwrap_or_default().into_iter().collect();
    encode(rows, Mapping { identity, first, addressed, headers }).map(EncodedMessages)
}

fn encode(rows: &Bound<'_, PyAny>, mut mapping: Mapping) -> PyResult<VecDeque<Vec<u8>>> {
    let stream = rows
        .getattr("__arrow_c_stream__")
        .map_err(|_| PyTypeError::new_err("rows must have Arrow's C stream interface, as pyarrow's tables do"))?;
    let capsule = stream.call0()?;
    let pointer = capsule.cast::<PyCapsule>().map_err(PyErr::from)?.pointer_checked(Some(CAPSULE))?;
    // SAFETY: a capsule of this name holds a valid stream (Arrow's PyCapsule interface); taking it leaves an empty one
    // behind, which is what the capsule's owner expects.
    let stream = unsafe { ArrowStream::from_raw(pointer.cast().as_ptr()) };
    let encoded = rows.py().detach(move || {
        let mut messages = VecDeque::new();
        for batch in ImportedBatches::try_new(stream).map_err(|error| error.to_string())? {
            let batch = batch.map_err(|error| error.to_string())?;
            messages.extend(weft_columns::encode_messages(&batch, &mapping).map_err(|error| error.to_string())?);
            // Beyond the last number a row is refused, if there is another.
            mapping.first = mapping.first.saturating_add(batch.num_rows() as u64);
        }
        Ok(messages)
    });
    encoded.map_err(|text: String| PyValueError::new_err(text))
}
