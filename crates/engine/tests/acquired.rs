//! Transactions that acquire what they take, and nodes that die at every instant around their end.
//!
//! Owns the proof that a crash leaves all of such a transaction, or nothing: what was acquired (settled when it was
//! sent, retired in the transaction, or neither) and what was posted. The node is killed, or loses its power, after
//! each disk job. It must never look inside a session. Rules: AMQP 1.0 part 4, section 4.4.3.

mod peer10;

use peer10::*;
use weft_engine::Limits;
use weft_engine::broker::Store;
use weft_engine::change::Change;
use weft_engine::queue::Settings;
use weft_journal::{Config, SimDisk, recover};
use weft_sim::Node;
use weft_sim::node::WALL_NS;
use weft_wire::amqp10::*;

const CONTROL: u32 = 10;
const STEPS: usize = 10;

/// A node with two durable queues, on what its disk has.
fn node(disk: &SimDisk, now_ns: u64) -> Node {
    let config = Config { segment_bytes: 16 << 10, spares_max: 1, prepare_bytes: 4 << 10, ..Config::default() };
    let opened = recover(disk, config, (WALL_NS + now_ns) / 1_000_000);
    let (journal, found) = opened.unwrap_or_else(|error| panic!("the store does not open: {error}"));
    let mut node = Node::at(Limits::default(), 7, now_ns);
    node.engine.broker.attach(Store::new(journal, found.queues, found.barriers));
    for (number, name) in [(1, "in"), (2, "out")] {
        let settings = Box::new(Settings { durable: true, number, ..Settings::default() });
        node.apply(vec![Change::DeclareQueue { vhost: "/".to_owned(), name: name.to_owned(), settings }]);
    }
    node
}

fn ask(node: &mut Node, peer: &mut Peer, request: TransactionRequest<'_>) -> Vec<Said> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    let transfer = peer.transfer(CONTROL, &bytes, false);
    node.feed(peer.conn, &transfer);
    peer.read(node)
}

/// Three messages in "in"; a transaction that acquires two of them and puts two into "out".
fn work(node: &mut Node, disk: &SimDisk, mode: SenderSettleMode) -> (Peer, Vec<u8>) {
    let mut peer = Peer::connect(node);
    peer.sender(node, 0, Some("in"));
    peer.sender(node, 1, Some("out"));
    let target = Some(AttachTarget::Coordinator(Coordinator::default()));
    let name = "control";
    peer.call(node, 0, &Attach { name, handle: CONTROL, target, initial_delivery_count: Some(0), ..Attach::default() });
    for body in [b"1", b"2", b"3"] {
        peer.send(node, 0, &durable(body), false);
    }
    run(node, disk, usize::MAX);
    peer.read(node);
    let said = ask(node, &mut peer, TransactionRequest::Declare(Declare::default()));
    let txn_id = said.iter().find_map(|said| match said.performative() {
        Performative::Disposition(disposition) => match disposition.state {
            Some(DeliveryState::Outcome(Outcome::Declared(declared))) => Some(declared.txn_id.to_vec()),
            _ => None,
        },
        _ => None,
    });
    let txn_id = txn_id.expect("declared");
    peer.receiver_with(node, 2, Source { address: Some("in"), ..Source::default() }, mode, 0);
    let mut properties = MapBuf::new();
    properties.put(Value::Symbol("txn-id"), Value::Binary(&txn_id));
    let flow = Flow { incoming_window: 100, outgoing_window: 100, handle: Some(2), ..Flow::default() };
    let flow = Flow { delivery_count: Some(0), link_credit: Some(2), properties: Some(properties.as_map()), ..flow };
    let got = deliveries(&peer.call(node, 0, &flow));
    assert_eq!(got.len(), 2);
    if mode != SenderSettleMode::Settled {
        let state = TransactionalState { txn_id: &txn_id, outcome: Some(Outcome::Accepted) };
        let (role, state) = (Role::Receiver, Some(DeliveryState::Transactional(state)));
        peer.call(node, 0, &Disposition { role, first: got[0].id, settled: true, state, ..Disposition::default() });
    }
    for body in [b"a", b"b"] {
        let state = DeliveryState::Transactional(TransactionalState { txn_id: &txn_id, outcome: None });
        let bytes = peer.transfer_in(1, &durable(body), false, Some(state));
        node.feed(peer.conn, &bytes);
    }
    run(node, disk, usize::MAX);
    peer.read(node);
    (peer, txn_id)
}

fn bodies_of(node: &mut Node, disk: &SimDisk, queue: &str) -> Vec<String> {
    let mut peer = Peer::connect(node);
    let mut said = peer.receiver(node, 0, queue, 100);
    run(node, disk, usize::MAX);
    said.extend(peer.read(node));
    node.close(peer.conn);
    run(node, disk, usize::MAX);
    bodies(&said)
}

#[test]
fn a_node_that_dies_at_any_instant_has_all_of_a_transaction_or_nothing() {
    let mut ends = [0, 0];
    let modes = [SenderSettleMode::Unsettled, SenderSettleMode::Settled];
    let worlds = modes.into_iter().flat_map(|mode| (0..STEPS).map(move |steps| (mode, steps)));
    for (mode, steps, fail, power) in
        worlds.flat_map(|(mode, steps)| [(false, true), (true, true), (false, false)].map(|(f, p)| (mode, steps, f, p)))
    {
        let disk = SimDisk::new(steps as u64);
        let mut first = node(&disk, 1);
        let (mut peer, txn_id) = work(&mut first, &disk, mode);
        assert_eq!((first.queue("in").0, first.queue("out").0), (1, 0), "nobody sees it before its end");
        let said = ask(&mut first, &mut peer, TransactionRequest::Discharge(Discharge { txn_id: &txn_id, fail }));
        let early = answers(&said).iter().any(|answer| answer.3 == "accepted");
        assert!(fail || !early, "the disk does not have it");
        run(&mut first, &disk, steps);
        let told = answers(&peer.read(&mut first)).iter().any(|answer| answer.3 == "accepted");
        drop(first);
        if power {
            disk.crash();
        } else {
            disk.kill();
        }
        let mut second = node(&disk, 1_000_000_000);
        run(&mut second, &disk, usize::MAX);
        let found = (bodies_of(&mut second, &disk, "in"), bodies_of(&mut second, &disk, "out"));
        let nothing = (vec!["1".to_owned(), "2".into(), "3".into()], vec![]);
        // What was acquired and neither sent settled nor retired is its receiver's, who is gone.
        let kept = if mode == SenderSettleMode::Settled { vec!["3".to_owned()] } else { vec!["2".into(), "3".into()] };
        let all = (kept, vec!["a".to_owned(), "b".into()]);
        assert!(found == nothing || found == all, "{found:?} after {steps} steps");
        assert!(found == all || !told || fail, "an answer was false after {steps} steps");
        assert!(found == nothing || !fail, "rolled back, and there all the same");
        ends[usize::from(found == all)] += 1;
    }
    assert!(ends.iter().all(|count| *count > 10), "both ends were to be seen: {ends:?}");
}
