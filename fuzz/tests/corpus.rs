//! Every input of the corpus, replayed: what once broke a target, or shows what it can do, is tried with every test
//! run.
//!
//! Owns nothing but the walk through `corpus/`. It must never skip a folder: one that no target bears the name of is
//! an error.

use std::path::Path;

use weft_fuzz::TARGETS;

fn replay(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of that name");
    let files = std::fs::read_dir(&folder).expect("a corpus for every target");
    let mut count = 0;
    for file in files.flatten() {
        println!("{}", file.path().display());
        (target.run)(&std::fs::read(file.path()).expect("a readable input"));
        count += 1;
    }
    assert!(count >= 5, "{count} inputs in {}", folder.display());
}

#[test]
fn frame091() {
    replay("frame091");
}

#[test]
fn method091() {
    replay("method091");
}

#[test]
fn table091() {
    replay("table091");
}

#[test]
fn frame10() {
    replay("frame10");
}

#[test]
fn performative10() {
    replay("performative10");
}

#[test]
fn sections10() {
    replay("sections10");
}

#[test]
fn segment() {
    replay("segment");
}

#[test]
fn engine_bytes() {
    replay("engine_bytes");
}

#[test]
fn engine_ops() {
    replay("engine_ops");
}

#[test]
fn every_target_has_its_test_and_every_folder_its_target() {
    let folders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")).expect("the corpus");
    let mut names: Vec<String> =
        folders.flatten().map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let mut targets: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    targets.sort_unstable();
    assert_eq!(names, targets);
}
