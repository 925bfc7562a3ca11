//! The header, the library and a C compiler together: the example talks to a node over a socket.
//!
//! Owns a simulated node behind a real listener, for one peer. The program is the one that users are shown.
//! It must never look into the bytes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use weft_engine::Limits;
use weft_sim::{Client, Node};

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where cargo has put the library, beside this test.
fn library() -> PathBuf {
    std::env::current_exe().expect("a test has a file").parent().expect("in a folder").to_owned()
}

fn compile(source: &Path, program: &Path) {
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(home().join("crates/c/include")).arg(source);
    let done = command.arg("-L").arg(library()).args(["-lweft", "-o"]).arg(program).output().expect("a compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Serves one peer until it goes.
fn serve(listener: &TcpListener, node: &mut Node) {
    let (mut socket, _) = listener.accept().expect("a peer");
    let conn = node.open().expect("a free place");
    let mut data = [0; 4096];
    while let Ok(size @ 1..) = socket.read(&mut data) {
        node.feed(conn, &data[..size]);
        let output = node.take_output(conn);
        if socket.write_all(&output).is_err() || node.peers.get(&conn).is_none_or(|peer| peer.gone) {
            break;
        }
    }
}

#[test]
fn a_program_in_c_sends_and_receives() {
    let program = library().join("hello-in-c");
    compile(&home().join("examples/c/hello.c"), &program);

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    let peer = std::thread::spawn(move || {
        let mut command = Command::new(program);
        command.args(["127.0.0.1", &port, "greetings"]).env("LD_LIBRARY_PATH", library());
        command.output().expect("the program runs")
    });
    let mut node = Node::new(Limits::default(), 7);
    Client::connect(&mut node).declare(&mut node, "greetings", |_| ());
    serve(&listener, &mut node);
    let done = peer.join().expect("no panic");
    let mut said: Vec<_> = std::str::from_utf8(&done.stdout).expect("text").lines().collect();
    said.sort_unstable();
    assert_eq!((said, done.status.code()), (vec!["hello from C", "taken"], Some(0)), "{done:?}");
    assert_eq!(node.queue("greetings"), (0, 0, 0));
}
