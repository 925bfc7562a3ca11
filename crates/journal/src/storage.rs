//! The disk, as the journal sees it.
//!
//! Owns the `Storage` trait and the names of the journal's files. Jobs call it on a disk thread; `Files` and
//! `SimDisk` implement it. It must never know what the bytes mean. Rule: what was not synced may be lost, in part or
//! whole, and in any order; a name is safe once its folder is synced.

use std::io;

pub(crate) const SEGMENTS: &str = "segments";
pub(crate) const DAMAGED: &str = "damaged";

/// A file in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub name: String,
    pub bytes: u64,
}

/// A folder of files, by relative names such as `segments/00000001.log`.
pub trait Storage: Send + Sync {
    /// The files of a folder, in any order. A folder that does not exist is empty.
    fn list(&self, folder: &str) -> io::Result<Vec<FileInfo>>;
    /// Makes a file of this length, all zeros. A file that exists stays as it is.
    fn create(&self, name: &str, bytes: u64) -> io::Result<()>;
    /// Fills the buffer from an offset; fewer bytes only where the file ends.
    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// The same, of many whole blocks into memory that lies as they do: they need not stay in memory elsewhere. They
    /// may, if they are shared: others may read them too.
    fn read_blocks(&self, name: &str, offset: u64, buffer: &mut [u8], _shared: bool) -> io::Result<usize> {
        self.read_at(name, offset, buffer)
    }
    /// Writes into a file that exists; it grows where needed.
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns once everything written to the file is on the disk itself.
    fn sync(&self, name: &str) -> io::Result<()>;
    fn set_len(&self, name: &str, bytes: u64) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns once names made, changed and removed in the folder are on the disk itself.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;
}

pub(crate) fn log_name(segment: u32) -> String {
    format!("{SEGMENTS}/{segment:08}.log")
}

pub(crate) fn index_name(segment: u32) -> String {
    format!("{SEGMENTS}/{segment:08}.idx")
}

pub(crate) fn spare_name(spare: u32) -> String {
    format!("{SEGMENTS}/{spare:08}.spare")
}

/// A file that is being made: without meaning until it is renamed.
pub(crate) fn unfinished(name: &str) -> String {
    format!("{name}.tmp")
}

/// What a name in the segments folder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Log(u32),
    Index(u32),
    Spare(u32),
    Unfinished,
    Unknown,
}

pub(crate) fn parse_name(name: &str) -> Named {
    if name.ends_with(".idx.tmp") || name.ends_with(".spare.tmp") {
        return Named::Unfinished;
    }
    let Some((digits, kind)) = name.split_once('.') else { return Named::Unknown };
    let number =
        digits.parse().ok().filter(|number| (1..u32::MAX).contains(number) && format!("{number:08}") == digits);
    match (number, kind) {
        (Some(number), "log") => Named::Log(number),
        (Some(number), "idx") => Named::Index(number),
        (Some(number), "spare") => Named::Spare(number),
        _ => Named::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood_exactly() {
        for (name, named) in [
            ("00000001.log", Named::Log(1)),
            ("4294967294.log", Named::Log(u32::MAX - 1)),
            ("4294967295.log", Named::Unknown),
            ("00000000.idx", Named::Unknown),
            ("00000012.idx", Named::Index(12)),
            ("00000003.spare", Named::Spare(3)),
            ("00000012.idx.tmp", Named::Unfinished),
            ("1.log", Named::Unknown),
            ("000000001.log", Named::Unknown),
            ("00000001.log.bak", Named::Unknown),
            ("99999999999.log", Named::Unknown),
            ("notes", Named::Unknown),
        ] {
            assert_eq!(parse_name(name), named, "{name}");
        }
    }
}
