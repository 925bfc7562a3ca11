//! Transactions that are prepared, and nodes that die at every instant before and after: all of it happens, or nothing.
//!
//! Owns the proof of docs/decisions/0022 for one node. A peer takes a message from one queue and puts others into
//! another, in a transaction that it prepares; the node is killed, or loses its power, after each disk job. It must
//! never look inside a session. Rule: what was answered is there afterwards, and what is there can be ended.

mod peer10;

use peer10::*;
use weft_engine::Limits;
use weft_engine::broker::Store;
use weft_engine::change::Change;
use weft_engine::queue::{Overflow, Settings};
use weft_journal::{Config, SimDisk, recover};
use weft_sim::Node;
use weft_sim::node::WALL_NS;
use weft_wire::amqp10::*;

const CONTROL: u32 = 10;
const ID: &[u8] = b"everywhere-1";

/// A node with two durable queues, on what its disk has.
fn node(disk: &SimDisk, now_ns: u64) -> Node {
    let config = Config { segment_bytes: 16 << 10, spares_max: 1, prepare_bytes: 4 << 10, ..Config::default() };
    let opened = recover(disk, config, (WALL_NS + now_ns) / 1_000_000);
    let (journal, found) = opened.unwrap_or_else(|error| panic!("the store does not open: {error}"));
    let mut node = Node::at(Limits { prepared_max: 2, ..Limits::default() }, 7, now_ns);
    node.engine.broker.attach(Store::new(journal, found.queues, found.barriers));
    for (number, name) in [(1, "in"), (2, "out")] {
        let overflow = Overflow::RejectPublish;
        let settings = Settings { durable: true, number, length_max: Some(4), overflow, ..Settings::default() };
        node.apply(vec![Change::DeclareQueue {
            vhost: "/".to_owned(),
            name: name.to_owned(),
            settings: Box::new(settings),
        }]);
    }
    node
}

fn peer(node: &mut Node) -> Peer {
    let mut peer = Peer::connect(node);
    peer.sender(node, 0, Some("in"));
    peer.sender(node, 1, Some("out"));
    let asked = [Symbol("weft:two-phase")];
    let target = Some(AttachTarget::Coordinator(Coordinator { capabilities: Symbols::Slice(&asked) }));
    let attach =
        Attach { name: "control", handle: CONTROL, target, initial_delivery_count: Some(0), ..Attach::default() };
    let said = peer.call(node, 0, &attach);
    let Performative::Attach(answer) = said[0].performative() else { panic!("{said:?}") };
    let Some(AttachTarget::Coordinator(coordinator)) = answer.target else { panic!("{answer:?}") };
    assert!(coordinator.capabilities.contains(Symbol("weft:two-phase")));
    peer
}

fn ask(node: &mut Node, peer: &mut Peer, request: TransactionRequest<'_>) {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    let transfer = peer.transfer(CONTROL, &bytes, false);
    node.feed(peer.conn, &transfer);
}

fn answer(node: &mut Node, peer: &mut Peer) -> String {
    answers(&peer.read(node)).pop().map(|answer| answer.3).unwrap_or_default()
}

fn is_promised(node: &mut Node, peer: &mut Peer) -> bool {
    answers(&peer.read(node)).iter().any(|answer| answer.3 == "accepted")
}

fn resolve(node: &mut Node, disk: &SimDisk, fail: bool) -> String {
    let mut peer = peer(node);
    ask(node, &mut peer, TransactionRequest::Resolve(Resolve { global_id: ID, fail }));
    run(node, disk, usize::MAX);
    answer(node, &mut peer)
}

fn declare(node: &mut Node, peer: &mut Peer) -> Vec<u8> {
    ask(node, peer, TransactionRequest::Declare(Declare::default()));
    let said = peer.read(node);
    let declared = said.iter().find_map(|said| match said.performative() {
        Performative::Disposition(Disposition {
            state: Some(DeliveryState::Outcome(Outcome::Declared(declared))),
            ..
        }) => Some(declared.txn_id.to_vec()),
        _ => None,
    });
    declared.expect("declared")
}

/// One message in "in", and a transaction that takes it and puts two into "out".
fn work(node: &mut Node, disk: &SimDisk) -> (Peer, Vec<u8>) {
    let mut peer = peer(node);
    peer.send(node, 0, &durable(b"order"), false);
    run(node, disk, usize::MAX);
    let txn_id = declare(node, &mut peer);
    let got = deliveries(&peer.receiver(node, 2, "in", 1));
    let state = DeliveryState::Transactional(TransactionalState { txn_id: &txn_id, outcome: Some(Outcome::Accepted) });
    let taken = Disposition { role: Role::Receiver, first: got[0].id, state: Some(state), ..Disposition::default() };
    peer.call(node, 0, &taken);
    for body in [b"bill", b"ship"] {
        let state = DeliveryState::Transactional(TransactionalState { txn_id: &txn_id, outcome: None });
        let bytes = peer.transfer_in(1, &durable(body), false, Some(state));
        node.feed(peer.conn, &bytes);
    }
    peer.read(node);
    (peer, txn_id)
}

fn prepare(node: &mut Node, peer: &mut Peer, txn_id: &[u8]) {
    ask(node, peer, TransactionRequest::Prepare(Prepare { txn_id, global_id: ID }));
}

fn bodies_of(node: &mut Node, disk: &SimDisk, queue: &str) -> Vec<String> {
    let mut peer = Peer::connect(node);
    let mut said = peer.receiver(node, 0, queue, 100);
    while run(node, disk, 1) {
        said.extend(peer.read(node));
    }
    said.extend(peer.read(node));
    node.close(peer.conn);
    bodies(&said)
}

#[test]
fn what_is_prepared_is_seen_by_nobody_and_outlives_its_connection() {
    for fail in [false, true] {
        let disk = SimDisk::new(1);
        let mut node = node(&disk, 1);
        let (mut peer, txn_id) = work(&mut node, &disk);
        prepare(&mut node, &mut peer, &txn_id);
        assert!(!is_promised(&mut node, &mut peer), "the disk does not have it");
        run(&mut node, &disk, usize::MAX);
        assert!(is_promised(&mut node, &mut peer));
        node.close(peer.conn);
        assert_eq!((node.queue("in"), node.queue("out").0), ((0, 1, 0), 0));
        let rows: Vec<_> =
            node.engine.broker.prepared().map(|(id, row)| (id, row.posts.len(), row.holds.len())).collect();
        assert_eq!(rows, [(ID, 2, 1)]);
        assert_eq!(resolve(&mut node, &disk, fail), "accepted");
        assert_eq!(resolve(&mut node, &disk, fail), "rejected amqp:transaction:unknown-id");
        let expected = if fail { (1, 0) } else { (0, 2) };
        assert_eq!((node.queue("in").0, node.queue("out").0), expected);
    }
}

#[test]
fn a_queue_that_has_become_full_takes_what_was_promised() {
    let disk = SimDisk::new(2);
    let mut node = node(&disk, 1);
    let (mut peer, txn_id) = work(&mut node, &disk);
    prepare(&mut node, &mut peer, &txn_id);
    run(&mut node, &disk, usize::MAX);
    peer.read(&mut node);
    for _ in 0..5 {
        peer.send(&mut node, 1, &durable(b"other"), false);
    }
    run(&mut node, &disk, usize::MAX);
    assert_eq!(node.queue("out").0, 4);
    assert_eq!(resolve(&mut node, &disk, false), "accepted");
    assert_eq!(node.queue("out").0, 6);
}

#[test]
fn an_id_is_given_once_and_a_table_that_is_full_takes_no_more() {
    let disk = SimDisk::new(3);
    let mut node = node(&disk, 1);
    let mut told = Vec::new();
    for id in [&b"one"[..], b"one", b"two", b"three", b""] {
        let mut peer = peer(&mut node);
        let txn_id = declare(&mut node, &mut peer);
        ask(&mut node, &mut peer, TransactionRequest::Prepare(Prepare { txn_id: &txn_id, global_id: id }));
        run(&mut node, &disk, usize::MAX);
        told.push(answer(&mut node, &mut peer));
    }
    let refused = "rejected amqp:transaction:rollback";
    assert_eq!(told, ["accepted", refused, "accepted", refused, refused]);
}

#[test]
fn a_node_that_dies_at_any_instant_keeps_its_promises_and_no_others() {
    let (mut promised, mut nothing) = (0, 0);
    for (fail, power, steps) in
        (0..12).flat_map(|n| [(false, true, n), (true, true, n), (false, false, n), (true, false, n)])
    {
        let disk = SimDisk::new(steps as u64);
        let mut first = node(&disk, 1);
        let (mut peer, txn_id) = work(&mut first, &disk);
        prepare(&mut first, &mut peer, &txn_id);
        let busy = run(&mut first, &disk, steps);
        let told = is_promised(&mut first, &mut peer);
        drop(first);
        if power {
            disk.crash();
        }
        let mut second = node(&disk, 1_000_000_000);
        run(&mut second, &disk, usize::MAX);
        let is_there = second.engine.broker.prepared().count() == 1;
        assert!(is_there || !told, "a promise was lost after {steps} steps");
        let ends = if is_there {
            promised += 1;
            assert_eq!((second.queue("in"), second.queue("out").0), ((0, 1, 0), 0), "after {steps} steps");
            assert_eq!(bodies_of(&mut second, &disk, "in"), [""; 0]);
            assert_eq!(resolve(&mut second, &disk, fail), "accepted");
            if fail { (1, 0) } else { (0, 2) }
        } else {
            nothing += 1;
            assert_eq!(resolve(&mut second, &disk, false), "rejected amqp:transaction:unknown-id");
            (1, 0)
        };
        assert_eq!((second.queue("in").0, second.queue("out").0), ends, "after {steps} steps, busy: {busy}");
        drop(second);
        disk.crash();
        let mut third = node(&disk, 2_000_000_000);
        run(&mut third, &disk, usize::MAX);
        assert_eq!(third.engine.broker.prepared().count(), 0);
        assert_eq!((third.queue("in").0, third.queue("out").0), ends, "after another death");
        let (left, made) = (bodies_of(&mut third, &disk, "in"), bodies_of(&mut third, &disk, "out"));
        assert_eq!((left.len(), made.len()), ends);
    }
    assert!(promised > 0 && nothing > 0, "{promised} {nothing}");
}

#[test]
fn a_node_that_dies_while_it_resolves_has_resolved_or_can_be_asked_again() {
    let (mut done, mut again) = (0, 0);
    for (fail, power, steps) in
        (0..8).flat_map(|n| [(false, true, n), (true, true, n), (false, false, n), (true, false, n)])
    {
        let disk = SimDisk::new(steps as u64);
        let mut first = node(&disk, 1);
        let (mut other, txn_id) = work(&mut first, &disk);
        prepare(&mut first, &mut other, &txn_id);
        run(&mut first, &disk, usize::MAX);
        drop(first);
        let mut second = node(&disk, 1_000_000_000);
        run(&mut second, &disk, usize::MAX);
        let mut asking = peer(&mut second);
        ask(&mut second, &mut asking, TransactionRequest::Resolve(Resolve { global_id: ID, fail }));
        run(&mut second, &disk, steps);
        let told = answer(&mut second, &mut asking) == "accepted";
        drop(second);
        if power {
            disk.crash();
        }
        let mut third = node(&disk, 2_000_000_000);
        run(&mut third, &disk, usize::MAX);
        if third.engine.broker.prepared().count() == 1 {
            again += 1;
            assert!(!told);
            assert_eq!(resolve(&mut third, &disk, fail), "accepted");
        } else {
            done += 1;
        }
        assert_eq!((third.queue("in").0, third.queue("out").0), if fail { (1, 0) } else { (0, 2) });
    }
    assert!(done > 0 && again > 0, "{done} {again}");
}
