//! The fuzzer's driver: runs targets for a bounded time, and keeps what breaks them.
//!
//! Owns the command line and the processes. Each target runs in a child that writes every input to a file before it
//! tries it, so a panic, an overflowing stack and an endless loop all leave the input behind. It must never decide
//! what is wrong: targets do. Usage: `make fuzz`, or `weft-fuzz --help`.

mod campaign;
mod shrink;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weft_fuzz::{TARGETS, Target};

const USAGE: &str = "\
usage: weft-fuzz [--seconds N] [--seed N] [TARGET...]   fuzz for N seconds in all (60), repeatably with a seed
       weft-fuzz replay TARGET FILE                     run one input; with WEFT_FUZZ_TRACE=1, tell what happens
       weft-fuzz shrink TARGET FILE                     make a failing input as short as can be, in place
       weft-fuzz grow TARGET COUNT                      add COUNT inputs that behave differently to the corpus";

/// A child that is this late has met an input that does not end.
const LATE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Where corpora and crashes are.
fn home() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn find(name: &str) -> Result<&'static Target, String> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.ok_or_else(|| format!("no target '{name}'; there are: {}", names.join(" ")))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["--help"] => {
            println!("{USAGE}");
            Ok(true)
        }
        ["replay", name, file] => find(name).and_then(|target| replay(target, Path::new(file))),
        ["shrink", name, file] => find(name).and_then(|target| shrink::shrink(target, Path::new(file))),
        ["grow", name, count] => find(name).and_then(|target| campaign::grow(target, number(count)? as usize)),
        ["child", name, seed, seconds, file] => find(name).and_then(|target| {
            campaign::run(target, number(seed)?, Duration::from_millis(number(seconds)?), Path::new(file))
        }),
        words => fuzz(words),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("'{word}' is not a number"))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn replay(target: &Target, file: &Path) -> Result<bool, String> {
    (target.run)(&read(file)?);
    println!("{} holds for {}", target.name, file.display());
    Ok(true)
}

fn fuzz(mut words: &[&str]) -> Result<bool, String> {
    let mut seconds = 60;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut seed = u64::from(now.subsec_nanos());
    let mut chosen = Vec::new();
    while let [word, rest @ ..] = words {
        words = match (*word, rest) {
            ("--seconds", [value, rest @ ..]) => {
                seconds = number(value)?;
                rest
            }
            ("--seed", [value, rest @ ..]) => {
                seed = number(value)?;
                rest
            }
            (name, rest) => {
                chosen.push(find(name)?);
                rest
            }
        };
    }
    if chosen.is_empty() {
        chosen = TARGETS.iter().collect();
    }
    println!("seed {seed}, {seconds} s for {} targets", chosen.len());
    let one = Duration::from_secs(seconds) / chosen.iter().map(|target| target.share).sum::<u32>();
    let mut all_hold = true;
    for target in chosen {
        all_hold &= watch(target, seed, one * target.share)?;
    }
    Ok(all_hold)
}

/// Runs one target in a child; false, and its last input kept, when the child did not come to a good end.
fn watch(target: &Target, seed: u64, time: Duration) -> Result<bool, String> {
    let crashes = home().join("crashes");
    std::fs::create_dir_all(&crashes).map_err(|error| format!("{}: {error}", crashes.display()))?;
    let current = crashes.join(format!(".{}.{}", target.name, std::process::id()));
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let words = ["child".to_owned(), target.name.to_owned(), seed.to_string(), time.as_millis().to_string()];
    let child = Command::new(me).args(words).arg(&current).stdin(Stdio::null()).spawn();
    let good = wait(child.map_err(|error| error.to_string())?, time + LATE)?;
    if good {
        std::fs::remove_file(&current).map_err(|error| error.to_string())?;
        return Ok(true);
    }
    let input = read(&current)?;
    let kept = crashes.join(format!("{}-{:016x}", target.name, campaign::name_of(&input)));
    std::fs::rename(&current, &kept).map_err(|error| error.to_string())?;
    let file = kept.display();
    println!("{} does not hold. Its input was kept; to see it fail again:", target.name);
    println!("  cargo run --profile fuzz -p weft-fuzz -- replay {} {file}", target.name);
    Ok(false)
}

/// Waits for a child's good end; one that is late is ended.
fn wait(mut child: Child, time: Duration) -> Result<bool, String> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status.success());
        }
        if start.elapsed() > time {
            println!("an input takes longer than {} s", LATE.as_secs());
            child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
            return Ok(false);
        }
        std::thread::sleep(POLL);
    }
}
