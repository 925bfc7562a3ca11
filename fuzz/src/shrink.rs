//! A failing input, made short enough to read.
//!
//! Owns the search for a smaller input that still fails. A file comes in and is overwritten with each smaller one
//! found. Every trial is a process of its own, as a failing one does not come back. It must never keep an input that
//! does not fail. Rule: pieces are cut out, large ones first, then bytes are made zero.

use std::path::Path;
use std::process::{Command, Stdio};

use weft_fuzz::Target;

/// Shrinks the input in `file`; false if it does not fail at all.
pub fn shrink(target: &Target, file: &Path) -> Result<bool, String> {
    let mut input = super::read(file)?;
    let trial = file.with_extension("trial");
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let fails = |input: &[u8]| -> Result<bool, String> {
        std::fs::write(&trial, input).map_err(|error| error.to_string())?;
        let mut replay = Command::new(&me);
        replay.args(["replay", target.name]).arg(&trial).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(!replay.status().map_err(|error| error.to_string())?.success())
    };
    if !fails(&input)? {
        println!("{} holds for {}", target.name, file.display());
        return Ok(false);
    }
    let mut size = input.len().next_power_of_two() / 2;
    while size > 0 {
        let mut at = 0;
        while at < input.len() {
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            match fails(&shorter)? {
                true => input = shorter,
                false => at += size,
            }
        }
        size /= 2;
    }
    for at in 0..input.len() {
        let mut simpler = input.clone();
        simpler[at] = 0;
        if fails(&simpler)? {
            input = simpler;
        }
    }
    std::fs::write(file, &input).and_then(|()| std::fs::remove_file(&trial)).map_err(|error| error.to_string())?;
    println!("{} bytes are left: {}", input.len(), input.escape_ascii());
    Ok(true)
}
