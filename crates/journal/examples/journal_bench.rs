//! How fast the journal is, beside what the disk alone can do.
//!
//! Runs on real files in a folder (first argument, or a temporary one; the second argument is the length of the
//! backlog) and prints rates and CPU time per message: encoding alone, synced batches next to bare `fdatasync`, a
//! backlog written, opened again and drained. It must never be taken for a figure of the whole node. Rule: state the
//! machine and the method with every figure (docs/internals/segment.md, "Figures").

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use weft_journal::{Config, Done, Files, JobKind, Journal, Read, SimDisk, Storage, Target, recover};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn target(queue_no: u64, position: u64) -> Target {
    Target { queue_no, position, expires_ms: 0, transient: false }
}

/// User and system time of this process so far, in seconds.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0 / 1e6
}

fn pump(journal: &mut Journal, storage: &dyn Storage) -> Outcome<()> {
    while let Some(mut job) = journal.poll_job() {
        job.run(storage);
        if let Done::Failed(fault) = journal.job_done(job) {
            return Err(fault.into());
        }
    }
    Ok(())
}

/// Encoding, checksum and bookkeeping, with jobs that are never written.
fn encoding() -> Outcome<()> {
    const COUNT: u64 = 1_000_000;
    let (mut journal, _) = recover(&SimDisk::new(1), Config::default(), 0)?;
    let (head, body) = ([7; 60], [42; 1024]);
    let cpu = cpu_s();
    for position in 0..COUNT {
        journal.append_message(&head, std::iter::once(&body[..]), &[target(1, position)])?;
        if position % 1_000 == 999 {
            (position - 999..=position).for_each(|position| _ = journal.ack(1, position));
            while let Some(mut job) = journal.poll_job() {
                // Writes are taken as done: this measures the journal, not a disk.
                if job.kind() == JobKind::Write {
                    job.run(&Void);
                }
                journal.job_done(job);
            }
        }
    }
    let each_ns = (cpu_s() - cpu) * 1e9 / COUNT as f64;
    println!("encoding 1 KiB messages, no disk: CPU {each_ns:.0} ns for appending and acknowledging one");
    Ok(())
}

/// A disk that does nothing.
struct Void;

impl Storage for Void {
    fn list(&self, _: &str) -> std::io::Result<Vec<weft_journal::FileInfo>> {
        Ok(Vec::new())
    }
    fn create(&self, _: &str, _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn read_at(&self, _: &str, _: u64, _: &mut [u8]) -> std::io::Result<usize> {
        Ok(0)
    }
    fn write_at(&self, _: &str, _: u64, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
    fn sync(&self, _: &str) -> std::io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _: &str, _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn rename(&self, _: &str, _: &str) -> std::io::Result<()> {
        Ok(())
    }
    fn remove(&self, _: &str) -> std::io::Result<()> {
        Ok(())
    }
    fn sync_folder(&self, _: &str) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes of a size, each synced: into a file that grows, and into one whose blocks are there already.
fn bare(folder: &Path, bytes: usize, count: u64) -> Outcome<()> {
    for filled in [false, true] {
        let path = folder.join("bare");
        let file = File::create(&path)?;
        if filled {
            file.write_all_at(&vec![0; bytes * count as usize], 0)?;
        }
        file.sync_all()?;
        let block = vec![42; bytes];
        let (started, cpu) = (Instant::now(), cpu_s());
        for at in 0..count {
            file.write_all_at(&block, at * bytes as u64)?;
            file.sync_data()?;
        }
        let (took, cpu) = (started.elapsed().as_secs_f64(), cpu_s() - cpu);
        println!(
            "  bare {:>7} B, {}: {:>6.0} syncs/s {:>7.1} MB/s, CPU {:>6.1} µs/sync",
            bytes,
            if filled { "blocks there" } else { "growing     " },
            count as f64 / took,
            count as f64 * bytes as f64 / took / 1e6,
            cpu * 1e6 / count as f64
        );
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

/// Batches of 1 KiB messages through the journal, each synced, consumed a little later.
fn batches(folder: &Path, per_batch: u64, count: u64) -> Outcome<()> {
    let root = folder.join("batches");
    let files = Files::open(&root)?;
    let (mut journal, _) = recover(&files, Config::default(), 0)?;
    let (head, body) = ([7; 60], [42; 1024]);
    let (mut writes, mut position) = (0_u64, 0);
    // The first segments are made of new blocks, as after an installation; measured is the steady state after them.
    let warm = if per_batch * count > 400_000 { count / 2 } else { 0 };
    let (mut started, mut cpu) = (Instant::now(), cpu_s());
    for batch in 0..count {
        if batch == warm {
            (started, cpu, writes) = (Instant::now(), cpu_s(), 0);
        }
        for _ in 0..per_batch {
            journal.append_message(&head, std::iter::once(&body[..]), &[target(1, position)])?;
            if position >= 2_000 {
                journal.ack(1, position - 2_000);
            }
            position += 1;
        }
        journal.sync();
        pump(&mut journal, &files)?;
        writes += 1;
    }
    let (took, cpu, messages) = (started.elapsed().as_secs_f64(), cpu_s() - cpu, (writes * per_batch) as f64);
    println!(
        "  journal {per_batch:>5} per batch: {:>6.0} syncs/s {:>8.0} messages/s {:>6.1} MB/s, CPU {:>5.2} µs/message",
        writes as f64 / took,
        messages / took,
        messages * 1084.0 / took / 1e6,
        cpu * 1e6 / messages
    );
    drop(journal);
    std::fs::remove_dir_all(&root)?;
    Ok(())
}

/// A backlog nobody consumes: written, opened again, drained.
fn backlog(folder: &Path, messages: u64) -> Outcome<()> {
    let root = folder.join("backlog");
    let files = Files::open(&root)?;
    let (mut journal, _) = recover(&files, Config::default(), 0)?;
    let (head, body) = ([7; 60], [42; 1024]);
    let (before, started, cpu) = (resident_mb(), Instant::now(), cpu_s());
    for position in 0..messages {
        journal.append_message(&head, std::iter::once(&body[..]), &[target(1, position)])?;
        if position % 1_000 == 999 {
            journal.sync();
            pump(&mut journal, &files)?;
        }
    }
    let took = started.elapsed().as_secs_f64();
    println!(
        "backlog of {messages} x 1 KiB: {:.0} messages/s, CPU {:.2} µs/message, memory +{:.1} MB",
        messages as f64 / took,
        (cpu_s() - cpu) * 1e6 / messages as f64,
        resident_mb() - before
    );
    drop(journal);
    let (before, started) = (resident_mb(), Instant::now());
    let (mut journal, report) = recover(&files, Config::default(), 0)?;
    println!(
        "  opened in {:.3} s: {} segments, {} scanned, {} messages, memory +{:.1} MB",
        started.elapsed().as_secs_f64(),
        report.segments,
        report.scanned,
        report.queues.iter().map(|queue| queue.messages).sum::<u64>(),
        resident_mb() - before
    );
    let (started, cpu) = (Instant::now(), cpu_s());
    let (mut next, mut bytes) = (0, 0);
    while next < messages {
        let taken = match journal.read(1, next, 256, 1 << 20) {
            Read::Empty => break,
            Read::Ready(ready) => ready,
            Read::Waits(token) => loop {
                let Some(mut job) = journal.poll_job() else { return Err("the read is a job".into()) };
                job.run(&files);
                match journal.job_done(job) {
                    Done::Read(read) if read.token == token => break read.messages,
                    _ => {}
                }
            },
        };
        for message in taken.iter() {
            bytes += message.body.len();
            journal.ack(1, message.position);
            next = message.position + 1;
        }
        pump(&mut journal, &files)?;
    }
    let took = started.elapsed().as_secs_f64();
    println!(
        "  drained: {:.0} messages/s ({:.0} MB/s), CPU {:.2} µs/message, {:?}",
        next as f64 / took,
        bytes as f64 / took / 1e6,
        (cpu_s() - cpu) * 1e6 / next.max(1) as f64,
        journal.status()
    );
    drop(journal);
    std::fs::remove_dir_all(&root)?;
    Ok(())
}

fn main() -> Outcome<()> {
    let chosen = std::env::args().nth(1).map(PathBuf::from);
    let folder =
        chosen.unwrap_or_else(|| std::env::temp_dir().join(format!("weft-journal-bench-{}", std::process::id())));
    std::fs::create_dir_all(&folder)?;
    encoding()?;
    println!("synced writes:");
    for (per_batch, count) in [(1, 4_000), (10, 3_000), (100, 2_000), (1_000, 1_000)] {
        bare(&folder, per_batch as usize * 1_112, count)?;
        batches(&folder, per_batch, count)?;
    }
    let messages = std::env::args().nth(2).and_then(|count| count.parse().ok());
    backlog(&folder, messages.unwrap_or(1_000_000))?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
