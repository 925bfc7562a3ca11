//! Large writes past the page cache, and reads of what is not in it.
//!
//! Owns the files that are being written and read with direct I/O, a buffer that lies as the disk wants it, and how
//! much of each file went through the cache. Whole blocks go to the disk, through that buffer where they lie otherwise;
//! what is less than a block at either end is left to the caller, who goes through the cache. It must never be needed:
//! where the file system does not know direct I/O, everything is the caller's. Rule: `open(2)`, "O_DIRECT"; no block is
//! written both ways, so cache and disk agree. Why: decision 0018.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::aligned::BLOCK_BYTES;

/// Writes and reads of at least this are worth it: below, the cache saves more than it costs.
pub(crate) const DIRECT_BYTES_MIN: usize = 256 << 10;
/// What is written at a time, where it has to be copied first.
const PIECE_BYTES: usize = 1 << 20;
/// A file of which more than this was written through the cache is read from there.
const CACHED_BYTES_MAX: u64 = 8 << 20;
/// A disk that takes longer than this for a mebibyte (it gives less than about 500 MB/s) is asked once for what several
/// may read. A quicker one gives it as soon as the cache takes it in, for less.
const SLOW_NS_PER_MIB: u64 = 2_000_000;
/// One read in so many asks a slow disk all the same: it may have got quicker, or others have let go of it.
const ASK_AGAIN: u32 = 16;

/// A way past the page cache.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// The file system does not know direct I/O.
    refused: bool,
    /// The segment being written.
    file: Option<(String, File)>,
    memory: Vec<u8>,
}

/// What may be in the page cache, and the way to what is not. Apart from `Direct`: who reads waits for no write.
#[derive(Debug, Default)]
pub(crate) struct Cached {
    /// Bytes of each file that were written through the cache.
    bytes: HashMap<String, u64>,
    /// The segment being read past it.
    file: Option<(String, Arc<File>)>,
    /// How long the disk took for a mebibyte lately, and how often it was not asked since.
    ns_per_mib: u64,
    spared: u32,
}

impl Direct {
    /// Writes the whole blocks among these bytes: which those are, or none of them.
    pub(crate) fn write(&mut self, path: &Path, name: &str, offset: u64, bytes: &[u8]) -> io::Result<Range<usize>> {
        let blocks = whole_blocks(offset, bytes.len());
        if self.refused || blocks.is_empty() {
            return Ok(0..0);
        }
        match self.write_blocks(path, name, offset, bytes, blocks.clone()) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.refused = true;
                Ok(0..0)
            }
            written => written.map(|()| blocks),
        }
    }

    /// The file has another name, or is gone.
    pub(crate) fn forget(&mut self, name: &str) {
        self.file.take_if(|(known, _)| known == name);
    }

    fn write_blocks(
        &mut self,
        path: &Path,
        name: &str,
        offset: u64,
        bytes: &[u8],
        blocks: Range<usize>,
    ) -> io::Result<()> {
        let file = match self.file.take_if(|(known, _)| known == name) {
            Some((_, file)) => file,
            None => open(path, OpenOptions::new().write(true))?,
        };
        let offset = offset + blocks.start as u64;
        let bytes = &bytes[blocks];
        match bytes.as_ptr() as usize % BLOCK_BYTES {
            0 => file.write_all_at(bytes, offset)?,
            _ => self.write_copied(&file, offset, bytes)?,
        }
        self.file = Some((name.to_owned(), file));
        Ok(())
    }

    /// Writes blocks that do not lie in memory as the disk wants them.
    fn write_copied(&mut self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.memory.is_empty() {
            self.memory = vec![0; PIECE_BYTES + BLOCK_BYTES];
        }
        let start = self.memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        let memory = &mut self.memory[start..];
        for (at, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            memory[..piece.len()].copy_from_slice(piece);
            file.write_all_at(&memory[..piece.len()], offset + (at * PIECE_BYTES) as u64)?;
        }
        Ok(())
    }
}

impl Cached {
    /// So many bytes of a file went through the cache.
    pub(crate) fn add(&mut self, name: &str, count: usize) {
        match self.bytes.get_mut(name) {
            Some(bytes) => *bytes += count as u64,
            None => drop(self.bytes.insert(name.to_owned(), count as u64)),
        }
    }

    /// The file to read whole blocks from past the cache; none if they may be in there, or should be, or if that cannot
    /// be done.
    pub(crate) fn way_past(&mut self, path: &Path, name: &str, shared: bool) -> Option<Arc<File>> {
        if self.bytes.get(name).is_some_and(|bytes| *bytes > CACHED_BYTES_MAX) {
            return None;
        }
        if shared && self.ns_per_mib > SLOW_NS_PER_MIB && self.spared < ASK_AGAIN {
            self.spared += 1;
            return None;
        }
        self.spared = 0;
        if self.file.as_ref().is_none_or(|(known, _)| known != name) {
            let file = open(path, OpenOptions::new().read(true)).ok()?;
            self.file = Some((name.to_owned(), Arc::new(file)));
        }
        self.file.as_ref().map(|(_, file)| Arc::clone(file))
    }

    /// The disk gave so many bytes past the cache in this time.
    pub(crate) fn note_pace(&mut self, count: usize, took: Duration) {
        // One read that waited for somebody else's sync says little of the next.
        let now = (took.as_nanos() as u64 * (1 << 20) / count as u64).min(2 * SLOW_NS_PER_MIB);
        self.ns_per_mib = if self.ns_per_mib == 0 { now } else { (self.ns_per_mib * 3 + now) / 4 };
    }

    /// The file has another name, or is gone.
    pub(crate) fn forget(&mut self, name: &str) {
        self.file.take_if(|(known, _)| known == name);
        self.bytes.remove(name);
    }
}

#[cfg(target_os = "linux")]
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(libc::O_DIRECT).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open(_path: &Path, _options: &mut OpenOptions) -> io::Result<File> {
    Err(io::ErrorKind::InvalidInput.into())
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
    fn what_several_read_passes_the_cache_by_while_the_disk_is_quick() {
        let path = std::env::temp_dir().join(format!("weft-pace-{}", std::process::id()));
        std::fs::write(&path, [0; BLOCK_BYTES]).expect("a file");
        let mut cached = Cached::default();
        if cached.way_past(&path, "a", true).is_some() {
            cached.note_pace(1 << 20, Duration::from_micros(300));
            assert!(cached.way_past(&path, "a", true).is_some());
            cached.note_pace(1 << 20, Duration::from_millis(200));
            assert!(cached.way_past(&path, "a", true).is_some(), "once is no pace");
            (0..8).for_each(|_| cached.note_pace(1 << 20, Duration::from_millis(10)));
            assert!(cached.way_past(&path, "a", false).is_some(), "who takes it leaves nothing to share");
            assert_eq!((0..=ASK_AGAIN).filter(|_| cached.way_past(&path, "a", true).is_some()).count(), 1);
            (0..4).for_each(|_| cached.note_pace(1 << 20, Duration::from_micros(300)));
            assert!(cached.way_past(&path, "a", true).is_some());
        }
        std::fs::remove_file(&path).expect("removed");
    }

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
