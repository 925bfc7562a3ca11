//! `load SIZE CALLS`: messages of one size through an engine, as its driver hands it what a socket holds.
//!
//! Owns the load whose instructions benchmarks/managed.py has counted: 0-9-1 publishes to one queue, with a consumer
//! that acknowledges nothing, 64 KiB at a time. It must never look at a clock, so that each run does exactly the same.
//! Rule: prints how many messages went through.

use std::process::ExitCode;

use weft_engine::Limits;
use weft_sim::client::write_publish;
use weft_sim::{Client, Node};
use weft_wire::amqp091::properties::Properties;

const READ_BYTES: usize = 1 << 16;
/// From one call to the next, in virtual time.
const PAUSE_NS: u64 = 20_000;

fn main() -> ExitCode {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [size, calls] = numbers[..] else {
        eprintln!("load: SIZE and CALLS are numbers");
        return ExitCode::from(2);
    };
    let mut node = Node::new(Limits::default(), 1);
    let (mut sender, mut receiver) = (Client::connect(&mut node), Client::connect(&mut node));
    receiver.declare(&mut node, "load", |_| ());
    receiver.consume(&mut node, "load", "tag", true);
    sender.publish(&mut node, "", "load", b"asks for the permission");
    let properties = Properties { delivery_mode: Some(1), ..Properties::default() };
    let mut one = Vec::new();
    write_publish(&mut one, 1, (b"", b"load"), false, &properties, &vec![0; size]);
    let stream = one.repeat((calls * READ_BYTES).div_ceil(one.len()));
    for bytes in stream.chunks(READ_BYTES) {
        node.now_ns += PAUSE_NS;
        node.receive(sender.conn, bytes);
        node.engine.poll_transmit(usize::MAX, |_, _| ());
    }
    println!("{}", node.engine.stats()["delivered"]);
    ExitCode::SUCCESS
}
