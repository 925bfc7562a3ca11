//! A disk that fails on demand, from a seed.
//!
//! Owns files in memory, each twice: as the operating system would show it, and as it would be after the power went.
//! `crash` loses or tears what was not synced; capacity, read-only mode, planned errors and flipped bits do the rest.
//! It must never be kinder than a real disk: a failed sync forgets the bytes, as Linux does. Rule: a seed reproduces
//! everything.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::random::Random;
use crate::storage::{FileInfo, Storage};

/// A write is torn at this granularity.
const SECTOR_BYTES: usize = 512;

/// What a planned error hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Read,
    Write,
    Sync,
    Rename,
    Remove,
    SyncFolder,
}

/// A simulated disk.
#[derive(Debug)]
pub struct SimDisk {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    files: Vec<SimFile>,
    names: BTreeMap<String, usize>,
    /// The names that survive a crash, and what has changed since.
    stable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
    capacity: Option<u64>,
    read_only: bool,
    planned: Vec<(Operation, io::ErrorKind)>,
    /// Of a thousand operations, how many fail at random.
    fault_rate: u64,
}

#[derive(Debug, Default)]
struct SimFile {
    shown: Vec<u8>,
    stable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, usize),
    Move(String, String),
    Remove(String),
}

impl SimDisk {
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: Random::new(seed),
            files: Vec::new(),
            names: BTreeMap::new(),
            stable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            capacity: None,
            read_only: false,
            planned: Vec::new(),
            fault_rate: 0,
        };
        Self { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The power goes: of what was not synced, each write survives, is lost, or survives in some of its sectors.
    pub fn crash(&self) {
        let state = &mut *self.state();
        let kept = state.random.below(state.unsynced_names.len() as u64 + 1) as usize;
        for change in std::mem::take(&mut state.unsynced_names).into_iter().take(kept) {
            apply_name(&mut state.stable_names, change);
        }
        state.names = state.stable_names.clone();
        for file in &mut state.files {
            for change in std::mem::take(&mut file.unsynced) {
                tear(&mut state.random, &mut file.stable, change);
            }
            file.shown.clone_from(&file.stable);
        }
        state.planned.clear();
    }

    /// The process alone goes: the operating system keeps what it was given.
    pub fn kill(&self) {
        self.state().planned.clear();
    }

    /// Bytes of all files may not pass this.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    pub fn set_read_only(&self, yes: bool) {
        self.state().read_only = yes;
    }

    /// Of a thousand writes, syncs and reads, this many fail.
    pub fn set_fault_rate(&self, per_thousand: u64) {
        self.state().fault_rate = per_thousand;
    }

    /// The next operation of this kind fails.
    pub fn fail_next(&self, operation: Operation, kind: io::ErrorKind) {
        self.state().planned.push((operation, kind));
    }

    /// Flips one bit of a file, on the disk itself.
    pub fn flip(&self, name: &str, bit: u64) {
        self.edit(name, |bytes| {
            if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
            }
        });
    }

    /// Changes a file behind the journal's back; a name that is not there is made.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let state = &mut *self.state();
        let files = &mut state.files;
        let at = *state.names.entry(name.to_owned()).or_insert_with(|| {
            files.push(SimFile::default());
            files.len() - 1
        });
        state.stable_names.insert(name.to_owned(), at);
        let file = &mut state.files[at];
        change(&mut file.shown);
        file.stable.clone_from(&file.shown);
        file.unsynced.clear();
    }

    /// A file's bytes, if it is there.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(name).map(|at| state.files[*at].shown.clone())
    }
}

impl State {
    fn check(&mut self, operation: Operation) -> io::Result<()> {
        if let Some(at) = self.planned.iter().position(|(planned, _)| *planned == operation) {
            return Err(self.planned.remove(at).1.into());
        }
        let writes = !matches!(operation, Operation::Read | Operation::Sync | Operation::SyncFolder);
        if self.read_only && writes {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if self.fault_rate > 0 && self.random.chance(self.fault_rate, 1000) {
            return Err(io::Error::other("simulated device error"));
        }
        Ok(())
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn grow(&self, more: u64) -> io::Result<()> {
        let used: u64 = self.names.values().map(|at| self.files[*at].shown.len() as u64).sum();
        match self.capacity {
            Some(capacity) if more > 0 && used + more > capacity => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn rename_all(&mut self, change: NameChange) {
        apply_name(&mut self.names, change.clone());
        self.unsynced_names.push(change);
    }
}

fn apply_name(names: &mut BTreeMap<String, usize>, change: NameChange) {
    match change {
        NameChange::Set(name, at) => {
            names.insert(name, at);
        }
        NameChange::Move(from, to) => {
            if let Some(at) = names.remove(&from) {
                names.insert(to, at);
            }
        }
        NameChange::Remove(name) => {
            names.remove(&name);
        }
    }
}

fn write(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, new) => write(bytes, *offset as usize, new),
        Change::Length(length) => bytes.resize(*length as usize, 0),
    }
}

fn tear(random: &mut Random, bytes: &mut Vec<u8>, change: Change) {
    match (random.below(3), &change) {
        (0, _) => {}
        (1, Change::Write(offset, new)) => {
            let mut at = 0;
            while at < new.len() {
                let end = new.len().min((*offset as usize + at + 1).next_multiple_of(SECTOR_BYTES) - *offset as usize);
                if random.chance(1, 2) {
                    write(bytes, *offset as usize + at, &new[at..end]);
                }
                at = end;
            }
        }
        _ => apply(bytes, &change),
    }
}

impl Storage for SimDisk {
    fn list(&self, folder: &str) -> io::Result<Vec<FileInfo>> {
        let state = self.state();
        let found = state.names.iter().filter_map(|(path, at)| {
            let (parent, name) = path.rsplit_once('/')?;
            (parent == folder).then(|| FileInfo { name: name.to_owned(), bytes: state.files[*at].shown.len() as u64 })
        });
        Ok(found.collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.names.contains_key(name) {
            return Ok(());
        }
        state.check(Operation::Create)?;
        state.grow(bytes)?;
        let change = Change::Length(bytes);
        let mut file = SimFile::default();
        apply(&mut file.shown, &change);
        file.unsynced.push(change);
        state.files.push(file);
        let at = state.files.len() - 1;
        state.rename_all(NameChange::Set(name.to_owned(), at));
        Ok(())
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state();
        state.check(Operation::Read)?;
        let at = state.find(name)?;
        let shown = &state.files[at].shown;
        let start = (offset as usize).min(shown.len());
        let end = (start + buffer.len()).min(shown.len());
        buffer[..end - start].copy_from_slice(&shown[start..end]);
        Ok(end - start)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let at = state.find(name)?;
        let more = (offset + bytes.len() as u64).saturating_sub(state.files[at].shown.len() as u64);
        let allowed = state.check(Operation::Write).and_then(|()| state.grow(more));
        // A write that fails has often written some of its bytes.
        let count = if allowed.is_ok() { bytes.len() as u64 } else { state.random.below(bytes.len() as u64 + 1) };
        let room = state.files[at].shown.len() as u64;
        let count = if allowed.is_ok() { count } else { count.min(room.saturating_sub(offset)) };
        if count > 0 && !state.read_only {
            let change = Change::Write(offset, bytes[..count as usize].to_vec());
            apply(&mut state.files[at].shown, &change);
            state.files[at].unsynced.push(change);
        }
        allowed
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        let at = state.find(name)?;
        let allowed = state.check(Operation::Sync);
        let file = &mut state.files[at];
        let changes = std::mem::take(&mut file.unsynced);
        if allowed.is_ok() {
            changes.iter().for_each(|change| apply(&mut file.stable, change));
        }
        allowed
    }

    fn set_len(&self, name: &str, bytes: u64) -> io::Result<()> {
        let mut state = self.state();
        state.check(Operation::Write)?;
        let at = state.find(name)?;
        let more = bytes.saturating_sub(state.files[at].shown.len() as u64);
        state.grow(more)?;
        let change = Change::Length(bytes);
        apply(&mut state.files[at].shown, &change);
        state.files[at].unsynced.push(change);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(Operation::Rename)?;
        state.find(from)?;
        state.rename_all(NameChange::Move(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.find(name)?;
        state.check(Operation::Remove)?;
        state.rename_all(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_folder(&self, _folder: &str) -> io::Result<()> {
        let state = &mut *self.state();
        state.check(Operation::SyncFolder)?;
        for change in std::mem::take(&mut state.unsynced_names) {
            apply_name(&mut state.stable_names, change);
        }
        // A file without a name is gone for good.
        for (at, file) in state.files.iter_mut().enumerate() {
            let named = state.names.values().chain(state.stable_names.values()).any(|known| *known == at);
            if !named && !file.shown.is_empty() {
                *file = SimFile::default();
            }
        }
        Ok(())
    }
}
