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
use std::time::Instant;

use crate::direct::{Cached, DIRECT_BYTES_MIN, Direct};
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
    direct: Mutex<Direct>,
    cached: Mutex<Cached>,
}

#[derive(Debug)]
struct Handle {
    name: String,
    writable: bool,
    /// Written since the last good sync. It stays open: the system tells of a write that fails later to those who had
    /// the file open, and to a newcomer only while it remembers.
    dirty: bool,
    file: Arc<File>,
}

impl Files {
    /// Opens a folder, making it and what belongs in it where missing.
    pub fn open(root: impl AsRef<Path>) -> io::Result<Self> {
        let root = root.as_ref().to_owned();
        for folder in [SEGMENTS, DAMAGED] {
            fs::create_dir_all(root.join(folder))?;
        }
        sync_way_to(&root.canonicalize()?, |folder| File::open(folder)?.sync_all())?;
        Ok(Self::new(root, false))
    }

    /// A folder that is read and never changed, whoever else has it open.
    pub fn read_only(root: impl AsRef<Path>) -> Self {
        Self::new(root.as_ref().to_owned(), true)
    }

    fn new(root: PathBuf, read_only: bool) -> Self {
        Self { root, read_only, handles: Mutex::default(), direct: Mutex::default(), cached: Mutex::default() }
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
        lock(&self.handles)
    }

    fn handle(&self, name: &str, write: bool) -> io::Result<Arc<File>> {
        let mut handles = self.handles();
        if let Some(at) = handles.iter().rposition(|handle| handle.name == name) {
            let mut handle = handles.remove(at);
            if handle.writable || !write {
                handle.dirty |= write;
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
            return Ok(keep(&mut handles, name, file?, false, false));
        }
        let (file, writable) = match OpenOptions::new().read(true).write(true).open(&path) {
            // On a read-only disk what is there can still be read.
            Err(error) if !write && error.kind() != io::ErrorKind::NotFound => (File::open(&path)?, false),
            opened => (opened?, true),
        };
        Ok(keep(&mut handles, name, file, writable, write))
    }

    fn forget(&self, name: &str) {
        self.handles().retain(|handle| handle.name != name);
        lock(&self.direct).forget(name);
        lock(&self.cached).forget(name);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(handles: &mut Vec<Handle>, name: &str, file: File, writable: bool, dirty: bool) -> Arc<File> {
    let file = Arc::new(file);
    if handles.len() >= HANDLES_MAX {
        handles.iter().position(|handle| !handle.dirty).map(|at| handles.remove(at));
    }
    handles.push(Handle { name: name.to_owned(), writable, dirty, file: Arc::clone(&file) });
    file
}

/// Makes the name of a folder safe, and those of the folders it is in: who made them is not known here.
fn sync_way_to(root: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    sync(root)?;
    // What cannot be opened or synced from here on was not made by us.
    root.ancestors().skip(1).take_while(|folder| sync(folder).is_ok()).for_each(drop);
    Ok(())
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
                keep(&mut self.handles(), name, file, true, false);
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

    fn read_blocks(&self, name: &str, offset: u64, buffer: &mut [u8], shared: bool) -> io::Result<usize> {
        let past = lock(&self.cached).way_past(&self.root.join(name), name, shared);
        let begun = Instant::now();
        // Where that goes wrong, or the file ends, the cache knows how to go on.
        let done = past.map_or(0, |file| file.read_at(buffer, offset).unwrap_or(0));
        if done > 0 {
            lock(&self.cached).note_pace(done, begun.elapsed());
        }
        Ok(done + self.read_at(name, offset + done as u64, &mut buffer[done..])?)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.handle(name, true)?;
        let blocks = match bytes.len() >= DIRECT_BYTES_MIN {
            true => lock(&self.direct).write(&self.root.join(name), name, offset, bytes)?,
            false => 0..0,
        };
        lock(&self.cached).add(name, bytes.len() - blocks.len());
        file.write_all_at(&bytes[..blocks.start], offset)?;
        file.write_all_at(&bytes[blocks.end..], offset + blocks.end as u64)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.handle(name, false)?.sync_data()?;
        self.handles().iter_mut().filter(|handle| handle.name == name).for_each(|handle| handle.dirty = false);
        Ok(())
    }

    fn set_len(&self, name: &str, bytes: u64) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.writable(name)?)?.set_len(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::BLOCK_BYTES;
    use crate::random::Random;

    #[test]
    fn a_file_stays_open_from_a_write_to_its_sync() {
        let root = std::env::temp_dir().join(format!("weft-handles-{}", std::process::id()));
        let files = Files::open(&root).expect("a folder");
        let name = |number: usize| format!("segments/{number}");
        for number in 0..=HANDLES_MAX {
            files.create(&name(number), 1).expect("a file");
        }
        let read_others =
            || (1..=HANDLES_MAX).for_each(|number| assert_eq!(files.read_at(&name(number), 0, &mut [0]).ok(), Some(1)));
        files.write_at(&name(0), 0, b"w").expect("written");
        let before = Arc::downgrade(&files.handle(&name(0), false).expect("open"));
        read_others();
        assert!(before.upgrade().is_some(), "a sync must hear of what went wrong since the write");
        files.sync(&name(0)).expect("synced");
        read_others();
        assert!(before.upgrade().is_none(), "no reason to keep it any more");
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn names_are_synced_all_the_way_up() {
        let root = Path::new("/a/b/c");
        let synced = Mutex::new(Vec::new());
        let up_to_a = |folder: &Path| {
            lock(&synced).push(folder.to_owned());
            if folder == Path::new("/a") { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
        };
        sync_way_to(root, up_to_a).expect("what is above may be others'");
        assert_eq!(*lock(&synced), ["/a/b/c", "/a/b", "/a"].map(PathBuf::from));
        assert!(sync_way_to(root, |_| Err(io::Error::other("broken"))).is_err(), "but not the folder itself");
    }

    #[test]
    fn what_is_written_in_any_size_at_any_place_is_read_in_any_size_from_any_place() {
        let root = std::env::temp_dir().join(format!("weft-files-{}", std::process::id()));
        let files = Files::open(&root).expect("a folder");
        let mut random = Random::new(7);
        let mut model = vec![0_u8; 6 << 20];
        files.create("segments/a.log", model.len() as u64).expect("a file");
        let sizes = [1, 4_095, 4_096, DIRECT_BYTES_MIN - 1, DIRECT_BYTES_MIN, DIRECT_BYTES_MIN + 4_097, 3 << 20];
        for round in 0..60_u32 {
            let size = sizes[random.below(sizes.len() as u64) as usize];
            let at = random.below((model.len() - size) as u64) as usize & !(if round % 3 == 0 { 4_095 } else { 7 });
            let bytes: Vec<u8> = (0..size).map(|byte| (byte as u32 * 31 + round * 7 + 1) as u8).collect();
            files.write_at("segments/a.log", at as u64, &bytes).expect("written");
            model[at..at + size].copy_from_slice(&bytes);
            if round % 4 == 0 {
                files.sync("segments/a.log").expect("synced");
            }
            let size = sizes[random.below(sizes.len() as u64) as usize];
            let from = random.below((model.len() + 4_096 - size) as u64) as usize;
            let mut back = vec![0xAA; size];
            let read = files.read_at("segments/a.log", from as u64, &mut back).expect("read");
            assert_eq!(read, size.min(model.len().saturating_sub(from)));
            assert!(back[..read] == model[from..from + read], "{size} bytes at {from} in round {round}");
            let mut memory = vec![0xAA; size.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES];
            let start = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
            let (from, room) = (from & !(BLOCK_BYTES - 1), &mut memory[start..]);
            let read = files.read_blocks("segments/a.log", from as u64, room, round % 2 == 0).expect("read");
            assert_eq!(read, room.len().min(model.len().saturating_sub(from)));
            assert!(room[..read] == model[from..from + read], "{size} bytes once at {from} in round {round}");
        }
        files.rename("segments/a.log", "segments/b.log").expect("renamed");
        files.create("segments/a.log", 1 << 20).expect("another file");
        let mut back = vec![1; 1 << 20];
        assert_eq!(files.read_at("segments/a.log", 0, &mut back).expect("read"), 1 << 20);
        assert!(back.iter().all(|byte| *byte == 0), "the handles are those of the new file");
        fs::remove_dir_all(&root).expect("removed");
    }
}
