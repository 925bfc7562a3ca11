//! The disk, with real files.
//!
//! Owns a folder on a file system and a few open handles. `Storage` calls become positioned reads, writes and
//! `fdatasync`, from any thread. It must never be called from the engine's own thread: every call may wait for the
//! disk. Rule: `fsync(2)`: a file's bytes and its name are synced apart.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::storage::{DAMAGED, FileInfo, SEGMENTS, Storage};

/// Handles kept open: the segment being written, its sidecar, and those that readers of cold queues are in.
const HANDLES_MAX: usize = 64;
/// Handles kept open by someone who only reads: a file that is open takes its space even when it was removed.
const HANDLES_MAX_READ_ONLY: usize = 4;

/// A store in a folder of the file system.
#[derive(Debug)]
pub struct Files {
    root: PathBuf,
    read_only: bool,
    /// Most recently used last.
    handles: Mutex<Vec<Handle>>,
}

#[derive(Debug)]
struct Handle {
    name: String,
    writable: bool,
    file: Arc<File>,
}

impl Files {
    /// Opens a folder, making it and what belongs in it where missing.
    pub fn open(root: impl AsRef<Path>) -> io::Result<Self> {
        let root = root.as_ref().to_owned();
        for folder in [SEGMENTS, DAMAGED] {
            fs::create_dir_all(root.join(folder))?;
        }
        File::open(&root)?.sync_all()?;
        Ok(Self { root, read_only: false, handles: Mutex::new(Vec::new()) })
    }

    /// A folder that is read and never changed, whoever else has it open.
    pub fn read_only(root: impl AsRef<Path>) -> Self {
        Self { root: root.as_ref().to_owned(), read_only: true, handles: Mutex::new(Vec::new()) }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a file is that is about to be made, changed or removed.
    fn writable(&self, name: &str) -> io::Result<PathBuf> {
        if self.read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(self.root.join(name)) }
    }

    fn handles(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, name: &str, write: bool) -> io::Result<Arc<File>> {
        let mut handles = self.handles();
        if let Some(at) = handles.iter().rposition(|handle| handle.name == name) {
            let handle = handles.remove(at);
            if handle.writable || !write {
                let file = Arc::clone(&handle.file);
                handles.push(handle);
                return Ok(file);
            }
        }
        let path = self.root.join(name);
        if self.read_only {
            let file = if write { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { File::open(&path) };
            if handles.len() >= HANDLES_MAX_READ_ONLY {
                handles.remove(0);
            }
            return Ok(keep(&mut handles, name, file?, false));
        }
        let (file, writable) = match OpenOptions::new().read(true).write(true).open(&path) {
            // On a read-only disk what is there can still be read.
            Err(error) if !write && error.kind() != io::ErrorKind::NotFound => (File::open(&path)?, false),
            opened => (opened?, true),
        };
        Ok(keep(&mut handles, name, file, writable))
    }

    fn forget(&self, name: &str) {
        self.handles().retain(|handle| handle.name != name);
    }
}

fn keep(handles: &mut Vec<Handle>, name: &str, file: File, writable: bool) -> Arc<File> {
    let file = Arc::new(file);
    if handles.len() >= HANDLES_MAX {
        handles.remove(0);
    }
    handles.push(Handle { name: name.to_owned(), writable, file: Arc::clone(&file) });
    file
}

impl Storage for Files {
    fn list(&self, folder: &str) -> io::Result<Vec<FileInfo>> {
        let entries = match fs::read_dir(self.root.join(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let meta = match entry.metadata() {
                // Removed since the folder was opened.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            if meta.is_file() {
                found.push(FileInfo { name: entry.file_name().to_string_lossy().into_owned(), bytes: meta.len() });
            }
        }
        Ok(found)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<()> {
        match OpenOptions::new().read(true).write(true).create_new(true).open(self.writable(name)?) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            file => {
                let file = file?;
                file.set_len(bytes)?;
                keep(&mut self.handles(), name, file, true);
                Ok(())
            }
        }
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.handle(name, false)?;
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.handle(name, true)?.write_all_at(bytes, offset)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.handle(name, !self.read_only)?.sync_data()
    }

    fn set_len(&self, name: &str, bytes: u64) -> io::Result<()> {
        self.handle(name, true)?.set_len(bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.writable(from)?, self.root.join(to))?;
        self.forget(from);
        self.forget(to);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.forget(name);
        fs::remove_file(self.writable(name)?)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        File::open(self.root.join(folder))?.sync_all()
    }
}
