//! AMQP 1.0 transactions by the byte: declare, work, discharge.
//!
//! Owns the proof that all of a transaction happens, or nothing. A simulated peer says something, what the node
//! answers is compared, and queues are looked at from outside. It must never look inside a session. Rules: AMQP 1.0
//! part 4.

mod peer10;

use peer10::*;
use weft_engine::Limits;
use weft_sim::{Client, Node};
use weft_wire::amqp10::*;

const CONTROL: u32 = 10;

/// A peer with links to two queues and to the coordinator.
fn peer(node: &mut Node) -> Peer {
    let mut peer = Peer::connect(node);
    peer.sender(node, 0, Some("a"));
    peer.sender(node, 1, Some("b"));
    control(node, &mut peer);
    peer
}

fn control(node: &mut Node, peer: &mut Peer) {
    let target = Some(AttachTarget::Coordinator(Coordinator::default()));
    let attach =
        Attach { name: "control", handle: CONTROL, target, initial_delivery_count: Some(0), ..Attach::default() };
    let said = peer.call(node, 0, &attach);
    let Performative::Attach(answer) = said[0].performative() else { panic!("{said:?}") };
    let Some(AttachTarget::Coordinator(coordinator)) = answer.target else { panic!("{answer:?}") };
    assert!(coordinator.capabilities.contains(txn_capability::LOCAL_TRANSACTIONS));
}

fn request(node: &mut Node, peer: &mut Peer, request: TransactionRequest<'_>) -> Vec<Said> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    peer.send(node, CONTROL, &bytes, false)
}

fn declare(node: &mut Node, peer: &mut Peer) -> Vec<u8> {
    let said = request(node, peer, TransactionRequest::Declare(Declare::default()));
    let Performative::Disposition(answer) = said[0].performative() else { panic!("{said:?}") };
    match answer.state {
        Some(DeliveryState::Outcome(Outcome::Declared(declared))) if answer.settled => declared.txn_id.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn discharge(node: &mut Node, peer: &mut Peer, txn_id: &[u8], fail: bool) -> String {
    let said = request(node, peer, TransactionRequest::Discharge(Discharge { txn_id, fail }));
    answers(&said).pop().map(|answer| answer.3).unwrap_or_default()
}

fn send_in(node: &mut Node, peer: &mut Peer, handle: u32, txn_id: &[u8], body: &[u8]) -> Vec<Said> {
    let state = Some(DeliveryState::Transactional(TransactionalState { txn_id, outcome: None }));
    let bytes = peer.transfer_in(handle, &message(body), false, state);
    node.feed(peer.conn, &bytes);
    peer.read(node)
}

fn accept_in(node: &mut Node, peer: &mut Peer, id: u32, txn_id: &[u8], settled: bool) -> Vec<Said> {
    let state = Some(DeliveryState::Transactional(TransactionalState { txn_id, outcome: Some(Outcome::Accepted) }));
    peer.call(node, 0, &Disposition { role: Role::Receiver, first: id, settled, state, ..Disposition::default() })
}

#[test]
fn commit_shows_everything_at_once_and_rollback_nothing() {
    let mut node = Node::new(Limits::default(), 7);
    let mut peer = peer(&mut node);
    let (kept, forgotten) = (declare(&mut node, &mut peer), declare(&mut node, &mut peer));
    assert_ne!(kept, forgotten);
    for (handle, transaction) in [(0, &kept), (1, &kept), (0, &forgotten)] {
        let said = send_in(&mut node, &mut peer, handle, transaction, b"x");
        assert_eq!(answers(&said).pop().map(|answer| answer.3), Some("provisional".to_owned()));
    }
    assert_eq!((node.queue("a").0, node.queue("b").0), (0, 0));
    assert_eq!(discharge(&mut node, &mut peer, &forgotten, true), "accepted");
    assert_eq!(discharge(&mut node, &mut peer, &kept, false), "accepted");
    assert_eq!((node.queue("a").0, node.queue("b").0), (1, 1));
    assert_eq!(discharge(&mut node, &mut peer, &kept, false), "rejected amqp:transaction:unknown-id");
    assert_eq!(node.engine.broker.ledger.used(), 2 * (6 + 256));
}

#[test]
fn settlements_belong_to_the_transaction() {
    let mut node = Node::new(Limits::default(), 7);
    let mut peer = peer(&mut node);
    for body in ["1", "2", "3", "4"] {
        peer.send(&mut node, 0, &message(body.as_bytes()), true);
    }
    let got = deliveries(&peer.receiver(&mut node, 2, "a", 4));
    let transaction = declare(&mut node, &mut peer);
    accept_in(&mut node, &mut peer, got[0].id, &transaction, true);
    accept_in(&mut node, &mut peer, got[1].id, &transaction, false);
    assert_eq!(node.queue("a"), (0, 4, 1));
    let said =
        request(&mut node, &mut peer, TransactionRequest::Discharge(Discharge { txn_id: &transaction, fail: false }));
    // The one that the peer has not settled is settled by the node now.
    assert!(answers(&said).iter().any(|answer| (answer.0, answer.2) == (got[1].id, true)));
    assert_eq!(node.queue("a"), (0, 2, 1));
    let transaction = declare(&mut node, &mut peer);
    accept_in(&mut node, &mut peer, got[2].id, &transaction, true);
    accept_in(&mut node, &mut peer, got[3].id, &transaction, false);
    assert_eq!(discharge(&mut node, &mut peer, &transaction, true), "accepted");
    // What the peer had let go of is back in the queue; what it still holds it may decide anew.
    assert_eq!(node.queue("a"), (1, 1, 1));
    peer.settle(&mut node, got[3].id, got[3].id, Outcome::Accepted);
    assert_eq!(node.queue("a"), (1, 0, 1));
    let again = deliveries(&peer.credit(&mut node, 2, 4, 1, false));
    assert_eq!((again[0].data(), again[0].header().delivery_count), (&b"3"[..], 1));
}

#[test]
fn a_receiver_may_close_before_its_transaction_is_committed() {
    let mut node = Node::new(Limits::default(), 7);
    let mut peer = peer(&mut node);
    peer.send(&mut node, 0, &message(b"1"), true);
    let got = deliveries(&peer.receiver(&mut node, 2, "a", 1));
    let transaction = declare(&mut node, &mut peer);
    accept_in(&mut node, &mut peer, got[0].id, &transaction, true);
    peer.call(&mut node, 0, &Detach { handle: 2, closed: true, error: None });
    assert_eq!(node.queue("a"), (0, 1, 0));
    assert_eq!(discharge(&mut node, &mut peer, &transaction, false), "accepted");
    assert_eq!(node.queue("a"), (0, 0, 0));
}

#[test]
fn whoever_leaves_rolls_back() {
    type Leave = fn(&mut Node, &mut Peer);
    let ways: [Leave; 4] = [
        |node, peer| drop(peer.call(node, 0, &Detach { handle: CONTROL, closed: true, error: None })),
        |node, peer| drop(peer.call(node, 0, &End::default())),
        |node, peer| drop(peer.call(node, 0, &Close::default())),
        |node, peer| node.close(peer.conn),
    ];
    for leave in ways {
        let mut node = Node::new(Limits::default(), 7);
        let mut peer = peer(&mut node);
        peer.send(&mut node, 0, &message(b"1"), true);
        let got = deliveries(&peer.receiver(&mut node, 2, "a", 1));
        let transaction = declare(&mut node, &mut peer);
        send_in(&mut node, &mut peer, 1, &transaction, b"x");
        accept_in(&mut node, &mut peer, got[0].id, &transaction, true);
        leave(&mut node, &mut peer);
        assert_eq!((node.queue("a").0, node.queue("b").0), (1 - node.queue("a").1, 0));
    }
}

#[test]
fn a_transaction_that_cannot_be_done_is_not_half_done() {
    let limits = Limits { transactions_max: 2, transaction_bytes_max: 2_000, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "b", |table| {
        table.i64(b"x-max-length", 1);
        table.str(b"x-overflow", b"reject-publish");
    });
    let mut peer = peer(&mut node);
    let transaction = declare(&mut node, &mut peer);
    for handle in [0, 1, 1] {
        send_in(&mut node, &mut peer, handle, &transaction, b"x");
    }
    assert_eq!(discharge(&mut node, &mut peer, &transaction, false), "rejected amqp:transaction:rollback");
    assert_eq!((node.queue("a").0, node.queue("b").0), (0, 0));
    let transaction = declare(&mut node, &mut peer);
    let said = send_in(&mut node, &mut peer, 0, &transaction, &[7; 3_000]);
    assert_eq!(answers(&said)[0].3, "rejected amqp:resource-limit-exceeded");
    assert_eq!(discharge(&mut node, &mut peer, &transaction, false), "rejected amqp:transaction:rollback");
    declare(&mut node, &mut peer);
    declare(&mut node, &mut peer);
    let said = request(&mut node, &mut peer, TransactionRequest::Declare(Declare::default()));
    assert_eq!(answers(&said)[0].3, "rejected amqp:resource-limit-exceeded");
    let global = TransactionRequest::Declare(Declare { global_id: Some(b"xid") });
    assert_eq!(answers(&request(&mut node, &mut peer, global))[0].3, "rejected amqp:not-implemented");
}

#[test]
fn unknown_transactions_and_strange_requests_are_refused() {
    let mut node = Node::new(Limits::default(), 7);
    let mut client = peer(&mut node);
    assert_eq!(condition(&send_in(&mut node, &mut client, 0, b"no such", b"x")), "amqp:transaction:unknown-id");
    assert_eq!(condition(&client.send(&mut node, CONTROL, &message(b"x"), false)), "amqp:decode-error");
    let mut client = peer(&mut node);
    assert_eq!(condition(&client.send(&mut node, CONTROL, &message(b"x"), true)), "amqp:not-allowed");
    assert_eq!(condition(&accept_in(&mut node, &mut client, 0, b"no such", true)), "amqp:transaction:unknown-id");
}
