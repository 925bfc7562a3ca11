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
    assert!(coordinator.capabilities.iter().all(|name| name.0.starts_with("amqp:")), "nothing it has not asked for");
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

/// Credit whose messages are acquired in a transaction.
fn acquire(node: &mut Node, peer: &mut Peer, handle: u32, (count, credit): (u32, u32), txn_id: &[u8]) -> Vec<Said> {
    let mut properties = MapBuf::new();
    properties.put(Value::Symbol("txn-id"), Value::Binary(txn_id));
    let flow = Flow {
        incoming_window: 1_000_000,
        outgoing_window: 10_000,
        handle: Some(handle),
        delivery_count: Some(count),
        link_credit: Some(credit),
        echo: true,
        properties: Some(properties.as_map()),
        ..Flow::default()
    };
    peer.call(node, 0, &flow)
}

/// The transaction that each transfer says it was acquired in.
fn acquirers(said: &[Said]) -> Vec<Option<Vec<u8>>> {
    let transfers = said.iter().filter_map(|said| match said.performative() {
        Performative::Transfer(transfer) => Some(transfer.state.and_then(|state| state.txn_id()).map(<[u8]>::to_vec)),
        _ => None,
    });
    transfers.collect()
}

fn settled_by_node(said: &[Said]) -> Vec<u32> {
    answers(said)
        .iter()
        .filter(|answer| answer.2 && answer.3 == "None")
        .flat_map(|answer| answer.0..=answer.1)
        .collect()
}

/// Four messages in queue `a`, a receiver without credit, and a transaction.
fn acquiring(mode: SenderSettleMode) -> (Node, Peer, Vec<u8>) {
    let mut node = Node::new(Limits::default(), 7);
    let mut peer = peer(&mut node);
    for body in ["1", "2", "3", "4"] {
        peer.send(&mut node, 0, &message(body.as_bytes()), true);
    }
    let source = Source { address: Some("a"), ..Source::default() };
    peer.receiver_with(&mut node, 2, source, mode, 0);
    let transaction = declare(&mut node, &mut peer);
    (node, peer, transaction)
}

#[test]
fn a_transaction_acquires_and_its_end_decides() {
    for fail in [false, true] {
        let (mut node, mut peer, transaction) = acquiring(SenderSettleMode::Unsettled);
        let said = acquire(&mut node, &mut peer, 2, (0, 2), &transaction);
        assert_eq!(acquirers(&said), [Some(transaction.clone()), Some(transaction.clone())]);
        let told = said.iter().find_map(|said| match said.performative() {
            Performative::Flow(flow) => Some(flow.properties.and_then(|map| map.get("txn-id")).is_some()),
            _ => None,
        });
        assert_eq!(told, Some(true), "the node says what comes next is acquired in");
        let got = deliveries(&said);
        accept_in(&mut node, &mut peer, got[0].id, &transaction, true);
        assert_eq!(node.queue("a"), (2, 2, 1));
        let said =
            request(&mut node, &mut peer, TransactionRequest::Discharge(Discharge { txn_id: &transaction, fail }));
        match fail {
            // The second is acquired for good, and still to be decided.
            false => assert_eq!((node.queue("a"), settled_by_node(&said)), ((2, 1, 1), vec![])),
            // Both are in the queue again, in their places, and the one that the peer held is over for it.
            true => assert_eq!((node.queue("a"), settled_by_node(&said)), ((4, 0, 1), vec![got[1].id])),
        }
        // The credit that is left acquires outside of any transaction.
        let said = peer.credit(&mut node, 2, 2, 4, false);
        assert_eq!(acquirers(&said), vec![None; if fail { 4 } else { 2 }]);
        let bodies = bodies(&said);
        assert_eq!(bodies, if fail { vec!["1", "2", "3", "4"] } else { vec!["3", "4"] });
        if fail {
            assert_eq!(deliveries(&said)[0].header().delivery_count, 1);
        } else {
            peer.settle(&mut node, got[1].id, got[1].id, Outcome::Accepted);
            assert_eq!(node.queue("a"), (0, 2, 1));
        }
    }
}

#[test]
fn what_is_sent_settled_is_gone_only_with_the_transaction() {
    for fail in [false, true] {
        let (mut node, mut peer, transaction) = acquiring(SenderSettleMode::Settled);
        let got = deliveries(&acquire(&mut node, &mut peer, 2, (0, 3), &transaction));
        assert!(got.len() == 3 && got.iter().all(|got| got.settled));
        assert_eq!(node.queue("a"), (1, 3, 1));
        assert_eq!(discharge(&mut node, &mut peer, &transaction, fail), "accepted");
        assert_eq!(node.queue("a"), if fail { (4, 0, 1) } else { (1, 0, 1) });
    }
}

#[test]
fn an_outcome_outside_the_acquiring_transaction_ends_the_control_link() {
    for other in [false, true] {
        let (mut node, mut peer, transaction) = acquiring(SenderSettleMode::Unsettled);
        let got = deliveries(&acquire(&mut node, &mut peer, 2, (0, 1), &transaction));
        let said = match other {
            true => {
                let second = declare(&mut node, &mut peer);
                accept_in(&mut node, &mut peer, got[0].id, &second, true)
            }
            false => peer.settle(&mut node, got[0].id, got[0].id, Outcome::Accepted),
        };
        let detached = said.iter().filter(|said| said.name() == "detach").cloned().collect::<Vec<_>>();
        assert_eq!(condition(&detached), "amqp:transaction:rollback");
        assert_eq!(node.queue("a"), (4, 0, 1));
    }
}

#[test]
fn whoever_leaves_gives_back_what_was_acquired() {
    type Leave = fn(&mut Node, &mut Peer);
    let ways: [Leave; 6] = [
        |node, peer| drop(peer.call(node, 0, &Detach { handle: CONTROL, closed: true, error: None })),
        |node, peer| drop(peer.call(node, 0, &Detach { handle: 2, closed: true, error: None })),
        |node, peer| drop(peer.call(node, 0, &Detach { handle: 2, closed: false, error: None })),
        |node, peer| drop(peer.call(node, 0, &End::default())),
        |node, peer| drop(peer.call(node, 0, &Close::default())),
        |node, peer| node.close(peer.conn),
    ];
    for (number, leave) in ways.into_iter().enumerate() {
        let (mut node, mut peer, transaction) = acquiring(SenderSettleMode::Unsettled);
        acquire(&mut node, &mut peer, 2, (0, 2), &transaction);
        leave(&mut node, &mut peer);
        assert_eq!(node.queue("a").0 + node.queue("a").1, 4, "way {number}");
        assert_eq!(node.queue("a").1, 0, "way {number}");
        if number == 1 || number == 2 {
            assert_eq!(discharge(&mut node, &mut peer, &transaction, false), "accepted");
            assert_eq!(node.queue("a").0, 4);
        }
    }
}

/// A receiver of queue `a` on a session of its own, with credit for one; the control link is on channel 0.
fn on_own_session(node: &mut Node, peer: &mut Peer, properties: Option<Map<'_>>) -> Vec<Got> {
    peer.begin(node, 1);
    let source = Some(Source { address: Some("a"), ..Source::default() });
    peer.call(node, 1, &Attach { name: "r", handle: 0, role: Role::Receiver, source, ..Attach::default() });
    let flow = Flow { incoming_window: 100, outgoing_window: 100, handle: Some(0), ..Flow::default() };
    deliveries(&peer.call(node, 1, &Flow { link_credit: Some(1), properties, ..flow }))
}

#[test]
fn a_session_that_reuses_a_number_has_nothing_of_the_one_before() {
    let (mut node, mut peer, transaction) = acquiring(SenderSettleMode::Unsettled);
    let mut properties = MapBuf::new();
    properties.put(Value::Symbol("txn-id"), Value::Binary(&transaction));
    on_own_session(&mut node, &mut peer, Some(properties.as_map()));
    peer.call(&mut node, 1, &End::default());
    assert_eq!(on_own_session(&mut node, &mut peer, None).len(), 1);
    assert_eq!(discharge(&mut node, &mut peer, &transaction, true), "accepted");
    assert_eq!(node.queue("a"), (3, 1, 2));
}

#[test]
fn the_end_of_a_transaction_is_not_told_to_a_session_that_came_later() {
    for fail in [false, true] {
        let (mut node, mut peer, txn_id) = acquiring(SenderSettleMode::Unsettled);
        let before = on_own_session(&mut node, &mut peer, None);
        let state = TransactionalState { txn_id: &txn_id, outcome: Some(Outcome::Accepted) };
        let (role, state) = (Role::Receiver, Some(DeliveryState::Transactional(state)));
        peer.call(&mut node, 1, &Disposition { role, first: before[0].id, state, ..Disposition::default() });
        peer.call(&mut node, 1, &End::default());
        let after = on_own_session(&mut node, &mut peer, None);
        assert_eq!((after[0].id, after[0].data()), (before[0].id, &b"2"[..]), "the same id, another message");
        let ended = Discharge { txn_id: &txn_id, fail };
        let said = request(&mut node, &mut peer, TransactionRequest::Discharge(ended));
        assert_eq!(said.iter().filter(|said| said.channel == 1 && said.name() == "disposition").count(), 0);
        assert_eq!(node.queue("a"), (2 + usize::from(fail), 1, 2));
    }
}

#[test]
fn a_large_message_that_is_half_sent_is_aborted_by_a_rollback() {
    let mut node = Node::new(Limits::default(), 7);
    let mut peer = Peer::connect_with(&mut node, &Open { container_id: "p", max_frame_size: 512, ..Open::default() });
    peer.sender(&mut node, 0, Some("a"));
    control(&mut node, &mut peer);
    peer.send(&mut node, 0, &message(&[7; 5_000]), true);
    peer.receiver(&mut node, 2, "a", 0);
    let transaction = declare(&mut node, &mut peer);
    let mut properties = MapBuf::new();
    properties.put(Value::Symbol("txn-id"), Value::Binary(&transaction));
    // A window of three frames; then two more.
    let flow = Flow {
        next_incoming_id: Some(0),
        incoming_window: 3,
        outgoing_window: 100,
        handle: Some(2),
        delivery_count: Some(0),
        link_credit: Some(5),
        properties: Some(properties.as_map()),
        ..Flow::default()
    };
    let said = peer.call(&mut node, 0, &flow);
    assert_eq!(names(&said), ["transfer"; 3]);
    assert_eq!(discharge(&mut node, &mut peer, &transaction, true), "accepted");
    assert_eq!(node.queue("a"), (1, 0, 1));
    let said =
        peer.call(&mut node, 0, &Flow { next_incoming_id: Some(3), incoming_window: 2, properties: None, ..flow });
    let Performative::Transfer(first) = said[0].performative() else { panic!("{said:?}") };
    assert!(first.aborted && !first.more && said[0].payload().is_empty());
    let Performative::Transfer(second) = said[1].performative() else { panic!("{said:?}") };
    assert!(second.delivery_id.is_some() && second.state.is_none(), "it comes anew, and in no transaction");
}

#[test]
fn a_discharge_in_the_middle_of_a_message_ends_the_control_link() {
    for fail in [false, true] {
        let mut node = Node::new(Limits::default(), 7);
        let mut peer = peer(&mut node);
        let transaction = declare(&mut node, &mut peer);
        let state = Some(DeliveryState::Transactional(TransactionalState { txn_id: &transaction, outcome: None }));
        let transfer =
            Transfer { delivery_id: Some(90), delivery_tag: Some(b"t"), state, more: true, ..Transfer::default() };
        node.feed(peer.conn, &frame_of(&transfer, &message(b"half")[..3]));
        let said =
            request(&mut node, &mut peer, TransactionRequest::Discharge(Discharge { txn_id: &transaction, fail }));
        assert_eq!(condition(&said), "amqp:transaction:rollback");
        assert_eq!(node.queue("a"), (0, 0, 0));
    }
}

#[test]
fn acquiring_in_an_unknown_transaction_is_refused() {
    let (mut node, mut peer, _) = acquiring(SenderSettleMode::Unsettled);
    assert_eq!(condition(&acquire(&mut node, &mut peer, 2, (0, 1), b"no such")), "amqp:transaction:unknown-id");
    assert_eq!(node.queue("a"), (4, 0, 0));
}
