//! Large reads and writes past the page cache.
//!
//! Owns files opened for direct I/O and a buffer that lies as the disk wants it. Whole blocks go from or to the disk
//! through that buffer; what is less than a block at either end is left to the caller, who goes through the cache. It
//! must never be needed: where the file system does not know direct I/O, everything is the caller's. Rule: `open(2)`,
//! "O_DIRECT"; one block is never written both ways at once, so cache and disk agree. Why: decision 0018.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Reads and writes of at least this are worth it: below, the cache saves more than it costs.
pub(crate) const DIRECT_BYTES_MIN: usize = 256 << 10;
/// Direct I/O begins and ends at multiples of this, in the file and in memory.
const BLOCK_BYTES: usize = 4 << 10;
/// What is moved at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Files kept open: the segment being written, or those that readers are in.
const FILES_MAX: usize = 8;

/// One way past the page cache: for reading, or for writing.
#[derive(Debug)]
pub(crate) struct Direct {
    write: bool,
    /// The file system does not know direct I/O.
    refused: bool,
    /// Most recently used last.
    files: Vec<(String, File)>,
    memory: Vec<u8>,
}

impl Direct {
    pub(crate) fn new(write: bool) -> Self {
        Self { write, refused: false, files: Vec::new(), memory: Vec::new() }
    }

    /// Writes the whole blocks among these bytes: which those are, or none of them.
    pub(crate) fn write(&mut self, path: &Path, name: &str, offset: u64, bytes: &[u8]) -> io::Result<Range<usize>> {
        let blocks = whole_blocks(offset, bytes.len());
        let written = self.each_piece(path, name, blocks.clone(), |file, memory, piece| {
            let memory = &mut memory[..piece.len()];
            memory.copy_from_slice(&bytes[piece.clone()]);
            file.write_all_at(memory, offset + piece.start as u64).map(|()| true)
        })?;
        Ok(if written { blocks } else { 0..0 })
    }

    /// Fills the buffer from an offset; fewer bytes only where the file ends. None: it has to be read in another way.
    pub(crate) fn read(
        &mut self,
        path: &Path,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let before = offset as usize % BLOCK_BYTES;
        let end = before + buffer.len();
        let mut done = 0;
        let read = self.each_piece(path, name, 0..end.next_multiple_of(BLOCK_BYTES), |file, memory, piece| {
            let memory = &mut memory[..piece.len()];
            let count = file.read_at(memory, offset - before as u64 + piece.start as u64)?;
            let (from, until) = (piece.start.max(before), end.min(piece.start + count));
            if from < until {
                buffer[from - before..until - before].copy_from_slice(&memory[from - piece.start..until - piece.start]);
                done = until - before;
            }
            Ok(count == piece.len())
        })?;
        Ok(read.then_some(done))
    }

    /// The file has another name, or is gone.
    pub(crate) fn forget(&mut self, name: &str) {
        self.files.retain(|file| file.0 != name);
    }

    /// Does something with each piece of a range, until it says that there is no more. False if nothing can be done.
    fn each_piece(
        &mut self,
        path: &Path,
        name: &str,
        range: Range<usize>,
        mut each: impl FnMut(&File, &mut [u8], Range<usize>) -> io::Result<bool>,
    ) -> io::Result<bool> {
        if self.refused || range.is_empty() {
            return Ok(false);
        }
        let moved = self.open(path, name).and_then(|file| {
            if self.memory.is_empty() {
                self.memory = vec![0; PIECE_BYTES + BLOCK_BYTES];
            }
            let start = self.memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
            let memory = &mut self.memory[start..];
            for from in range.clone().step_by(PIECE_BYTES) {
                if !each(&file, memory, from..range.end.min(from + PIECE_BYTES))? {
                    break;
                }
            }
            self.files.push((name.to_owned(), file));
            Ok(())
        });
        match moved {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.refused = true;
                Ok(false)
            }
            moved => moved.map(|()| true),
        }
    }

    fn open(&mut self, path: &Path, name: &str) -> io::Result<File> {
        if let Some(at) = self.files.iter().rposition(|file| file.0 == name) {
            return Ok(self.files.remove(at).1);
        }
        if self.files.len() >= FILES_MAX {
            self.files.remove(0);
        }
        open_direct(path, self.write)
    }
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path, write: bool) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flag = rustix::fs::OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(!write).write(write).custom_flags(flag).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path, _write: bool) -> io::Result<File> {
    Err(io::ErrorKind::InvalidInput.into())
}

/// What of a large read is in the page cache, from its beginning on: it is copied, and nothing is waited for.
#[cfg(target_os = "linux")]
pub(crate) fn read_cached(file: &File, offset: u64, buffer: &mut [u8]) -> usize {
    use rustix::io::{ReadWriteFlags, preadv2};
    let buffers = &mut [io::IoSliceMut::new(buffer)];
    // Whatever stops it shows again when the rest is read.
    preadv2(file, buffers, offset, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read_cached(_file: &File, _offset: u64, _buffer: &mut [u8]) -> usize {
    0
}

/// The whole blocks in a stretch of a file.
fn whole_blocks(offset: u64, len: usize) -> Range<usize> {
    let start = (BLOCK_BYTES - offset as usize % BLOCK_BYTES) % BLOCK_BYTES;
    let over = (offset as usize + len) % BLOCK_BYTES;
    start.min(len)..len.saturating_sub(over).max(start.min(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_are_all_that_lie_within() {
        assert_eq!(whole_blocks(0, 8_192), 0..8_192);
        assert_eq!(whole_blocks(1, 8_192), 4_095..8_191);
        assert_eq!(whole_blocks(4_095, 4_098), 1..4_097);
        assert!(whole_blocks(10, 4_090).is_empty());
        assert!(whole_blocks(10, 100).is_empty());
        assert!(whole_blocks(4_000, 200).is_empty());
    }
}
