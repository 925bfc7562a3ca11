//! A store's files as a stream of record batches.
//!
//! Owns the loop from a cursor over a queue to batches of columns, and the search for a time. A view and options come
//! in; an Arrow stream goes out, whose batches are built by whoever pulls it. It must never start a thread or keep more
//! than one batch. Rule: docs/reference/columns.md.

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, SchemaRef};
use weft_journal::{Cursor, ReadError, Stored, View};

use crate::Batches;
use crate::builder::{Builder, Constants};
use crate::row::Row;
use crate::schema::Column;

/// No batch is made larger than this, but for a single message: offsets into columns have 31 bits, and text may grow
/// sixfold when it is spelled as JSON.
pub const BATCH_BYTES_MAX: usize = 128 << 20;

/// How a range is read.
#[derive(Clone, Debug)]
pub struct Options {
    pub columns: Vec<Column>,
    pub constants: Constants,
    /// Rows of a batch, at most.
    pub batch_rows: usize,
    /// Bytes of a batch, about; at least one row.
    pub batch_bytes: usize,
}

/// How a cursor is made when the first batch is pulled.
type Open = Box<dyn FnOnce() -> Result<Cursor, ReadError> + Send>;

/// Reads batches from a cursor.
pub struct LogStream {
    open: Option<Open>,
    cursor: Option<Cursor>,
    builder: Builder,
    batch_rows: usize,
    batch_bytes: usize,
    /// Why the rest cannot be read: told when what could be is.
    failed: Option<ArrowError>,
}

impl LogStream {
    /// Batches of what a cursor finds; `open` runs when the first is pulled.
    pub fn new(options: Options, open: impl FnOnce() -> Result<Cursor, ReadError> + Send + 'static) -> Self {
        Self {
            open: Some(Box::new(open)),
            cursor: None,
            builder: Builder::new(&options.columns, options.constants),
            batch_rows: options.batch_rows.max(1),
            batch_bytes: options.batch_bytes.clamp(1, BATCH_BYTES_MAX),
            failed: None,
        }
    }

    /// Reads rows until the batch is full; false if no more can come.
    fn fill(&mut self) -> Result<bool, ArrowError> {
        if let Some(open) = self.open.take() {
            self.cursor = Some(open().map_err(external)?);
        }
        let Some(cursor) = &mut self.cursor else { return Ok(false) };
        while self.builder.rows() < self.batch_rows && self.builder.bytes() < self.batch_bytes {
            let Some(stored) = cursor.next_message().map_err(external)? else { return Ok(false) };
            let position = stored.position;
            if !self.builder.push_stored(&stored) {
                return Err(external(ReadError::Foreign { position }));
            }
        }
        Ok(true)
    }
}

impl Iterator for LogStream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.fill() {
            Ok(true) => {}
            Ok(false) => self.cursor = None,
            // After an error nothing more comes.
            Err(error) => (self.cursor, self.failed) = (None, Some(error)),
        }
        if self.builder.rows() > 0 { Some(self.builder.finish()) } else { self.failed.take().map(Err) }
    }
}

impl RecordBatchReader for LogStream {
    fn schema(&self) -> SchemaRef {
        self.builder.schema()
    }
}

fn external(error: ReadError) -> ArrowError {
    ArrowError::ExternalError(Box::new(error))
}

/// The first batch as an Arrow IPC stream, for readers elsewhere; empty if there is none. One batch only, so that what
/// is made here stays within the bounds of a batch.
pub fn first_as_ipc(mut stream: Batches) -> Result<Vec<u8>, ArrowError> {
    let Some(batch) = stream.next().transpose()? else { return Ok(Vec::new()) };
    let mut writer = StreamWriter::try_new(Vec::with_capacity(batch.get_array_memory_size()), &batch.schema())?;
    writer.write(&batch)?;
    writer.into_inner()
}

/// The first offset whose message arrived at or after a time; the one after the last if none did. Clocks may be set
/// back: then it is one of the places where the time was passed.
pub fn find(view: &View, arrived_us: u64) -> Result<u64, ReadError> {
    let (mut low, mut high) = view.offsets();
    while low < high {
        let middle = low + (high - low) / 2;
        let mut cursor = Cursor::new(view.clone(), middle, high).one_by_one();
        match cursor.next_message()?.map(arrival).transpose()? {
            Some((position, arrived)) if arrived < arrived_us => low = position + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The offset of a message, and when it arrived.
fn arrival(stored: Stored<'_>) -> Result<(u64, u64), ReadError> {
    let position = stored.position;
    Row::stored(&stored).map(|row| (position, row.arrived_us)).ok_or(ReadError::Foreign { position })
}

/// When the first and the last message that are kept arrived, in microseconds since 1970.
pub fn times(view: &View) -> Result<Option<(u64, u64)>, ReadError> {
    let arrived_us = |position: u64| {
        let mut cursor = Cursor::new(view.clone(), position, u64::MAX).one_by_one();
        let found = cursor.next_message()?.map(arrival).transpose()?;
        Ok::<_, ReadError>(found.map(|(_, arrived_us)| arrived_us))
    };
    let Some(last) = view.last() else { return Ok(None) };
    Ok(arrived_us(view.offsets().0)?.zip(arrived_us(last)?))
}
