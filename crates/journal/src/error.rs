//! What can go wrong, as values.
//!
//! Owns `Fault` (the disk refused something) and `Error` (the store cannot be opened). Errors of the operating system
//! come in and typed ones go out, with the file and the action. It must never decide what to do about them: the
//! caller does. Rule: a full or read-only disk is an operating condition, not an accident.

use std::fmt;
use std::io;

/// Why the disk refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No space, or over a quota: it goes on when space is back.
    Full,
    /// Read-only, or not permitted.
    ReadOnly,
    /// A file that should be there is not.
    Missing,
    /// Anything else the device or the operating system reports.
    Io,
}

/// Something the disk refused to do.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    /// What was tried: a verb.
    pub action: &'static str,
    pub file: String,
    /// The operating system's words.
    pub reason: String,
}

impl Fault {
    pub(crate) fn new(action: &'static str, file: &str, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => FaultKind::Full,
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => FaultKind::ReadOnly,
            io::ErrorKind::NotFound => FaultKind::Missing,
            _ => FaultKind::Io,
        };
        Self { kind, action, file: file.to_owned(), reason: error.to_string() }
    }

    /// A job came back that nobody ran.
    pub(crate) fn not_run() -> Self {
        let reason = "its job was not run".to_owned();
        Self { kind: FaultKind::Io, action: "write", file: String::new(), reason }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot {} {}: {}", self.action, self.file, self.reason)
    }
}

impl std::error::Error for Fault {}

/// Why a store cannot be opened.
#[derive(Clone, Debug)]
pub enum Error {
    Disk(Fault),
    /// The file was written by a newer program.
    Newer {
        file: String,
        version: u16,
        known: u16,
    },
    /// No numbers are left for files that come after this one.
    LastNumber {
        file: String,
    },
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Disk(fault)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(fault) => fault.fmt(out),
            Self::Newer { file, version, known } => {
                write!(
                    out,
                    "{file} has format {version}, and this program knows formats up to {known}: use a newer weft"
                )
            }
            Self::LastNumber { file } => {
                write!(out, "no numbers are left for files after {file}: move it away if it is not of this store")
            }
        }
    }
}

impl std::error::Error for Error {}

/// A message that cannot be stored: larger than a record, or in a transaction larger than a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl fmt::Display for TooLarge {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the message or its transaction is larger than a segment file can be")
    }
}

impl std::error::Error for TooLarge {}
