//! AMQP 1.0 done wrong: every mistake gets its condition, and nothing a peer sends stops the node.
//!
//! Owns the proof of the errors of connections, sessions and links, and of the node's calm under noise. A simulated
//! peer does something wrong, the answer is compared, and another peer must not notice. Rules: AMQP 1.0 sections
//! 2.8.15 to 2.8.18; bytes may come in any pieces and mean the same.

mod peer10;

use peer10::*;
use weft_engine::Limits;
use weft_sim::{Node, Random};
use weft_wire::amqp10::frame::{FrameKind, Protocol, begin_frame, end_frame};
use weft_wire::amqp10::*;

fn node() -> Node {
    Node::new(Limits::default(), 7)
}

fn raw_frame(channel: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mark = begin_frame(&mut bytes, FrameKind::Amqp, channel);
    bytes.extend_from_slice(body);
    end_frame(&mut bytes, mark);
    bytes
}

fn written<'a>(channel: u16, performative: &impl Composite<'a>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes, channel, performative);
    bytes
}

/// What a new peer, with a session and a sender on handle 0, gets for these bytes: the last frame's name and condition.
fn told(bytes: &[u8]) -> (&'static str, String) {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    node.feed(peer.conn, bytes);
    let said = peer.read(&mut node);
    let Some(last) = said.last() else { panic!("nothing was said") };
    (last.name(), condition(&said))
}

#[test]
fn every_mistake_has_its_condition() {
    let begin = Begin { incoming_window: 1, outgoing_window: 1, ..Begin::default() };
    let attach = Attach { name: "x", handle: 0, initial_delivery_count: Some(0), ..Attach::default() };
    let transfer = Transfer { delivery_id: Some(0), delivery_tag: Some(b"t"), ..Transfer::default() };
    let flow = Flow { incoming_window: 1, outgoing_window: 1, ..Flow::default() };
    let mistakes: [(&str, Vec<u8>, &str, &str); 19] = [
        ("frame type", b"\x00\x00\x00\x08\x02\x07\x00\x00".to_vec(), "close", "amqp:connection:framing-error"),
        ("frame size", b"\x7f\x00\x00\x00\x02\x00\x00\x00".to_vec(), "close", "amqp:connection:framing-error"),
        ("garbage", raw_frame(0, b"garbage"), "close", "amqp:decode-error"),
        ("missing field", raw_frame(0, b"\x00\x53\x12\x45"), "close", "amqp:invalid-field"),
        ("second open", written(0, &Open { container_id: "x", ..Open::default() }), "close", "amqp:illegal-state"),
        ("second begin", written(0, &begin), "close", "amqp:illegal-state"),
        ("high channel", written(60_000, &begin), "close", "amqp:connection:framing-error"),
        ("no session", written(9, &End::default()), "close", "amqp:not-allowed"),
        ("high handle", written(0, &Attach { handle: 5_000, ..attach }), "close", "amqp:connection:framing-error"),
        ("handle in use", written(0, &attach), "end", "amqp:session:handle-in-use"),
        ("no target", written(0, &Attach { handle: 1, ..attach }), "detach", "amqp:invalid-field"),
        (
            "unknown handle",
            written(0, &Detach { handle: 7, ..Detach::default() }),
            "end",
            "amqp:session:unattached-handle",
        ),
        (
            "transfer nowhere",
            frame_of(&Transfer { handle: 7, ..transfer }, b""),
            "end",
            "amqp:session:unattached-handle",
        ),
        ("flow nowhere", written(0, &Flow { handle: Some(7), ..flow }), "end", "amqp:session:unattached-handle"),
        ("no tag", frame_of(&Transfer { delivery_tag: None, ..transfer }, b""), "detach", "amqp:invalid-field"),
        (
            "long tag",
            frame_of(&Transfer { delivery_tag: Some(&[0; 33]), ..transfer }, b""),
            "detach",
            "amqp:invalid-field",
        ),
        (
            "odd format",
            frame_of(&Transfer { message_format: Some(0x100), ..transfer }, b""),
            "detach",
            "amqp:not-implemented",
        ),
        ("bad message", frame_of(&transfer, b"\x00\x53\x73\x45\x00\x53\x70\x45"), "detach", "amqp:decode-error"),
        ("lost window", written(0, &Flow { next_incoming_id: Some(5), ..flow }), "end", "amqp:invalid-field"),
    ];
    for (name, bytes, frame, condition) in mistakes {
        assert_eq!(told(&bytes), (frame, condition.to_owned()), "{name}");
    }
}

#[test]
fn a_transfer_to_a_receiver_and_a_foreign_user_are_refused() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.receiver(&mut node, 0, "q", 1);
    assert_eq!(condition(&peer.send(&mut node, 0, &message(b"x"), true)), "amqp:not-allowed");
    peer.sender(&mut node, 1, Some("q"));
    let mut bytes = Vec::new();
    Properties { user_id: Some(b"somebody"), ..Properties::default() }.encode(&mut bytes);
    bytes.extend(message(b"x"));
    assert_eq!(condition(&peer.send(&mut node, 1, &bytes, false)), "amqp:unauthorized-access");
    assert_eq!(node.queue("q").0, 0);
}

#[test]
fn an_opening_that_cannot_be_is_told_with_open_and_close() {
    let opens = [
        (Open { container_id: "x", max_frame_size: 100, ..Open::default() }, "amqp:frame-size-too-small"),
        (Open { container_id: "x", idle_time_out: Some(1), ..Open::default() }, "amqp:not-allowed"),
    ];
    for (open, expected) in opens {
        let mut node = node();
        let conn = node.open().expect("room");
        let mut bytes = Protocol::Amqp.header().to_vec();
        encode(&mut bytes, 0, &open);
        node.feed(conn, &bytes);
        let (said, _) = parse(&node.take_output(conn)[8..]);
        assert_eq!((names(&said), condition(&said)), (vec!["open", "close"], expected.to_owned()));
        node.advance_ms(11_000);
        assert!(node.peers[&conn].gone, "a peer that does not close is cut");
    }
}

#[test]
fn an_ended_session_and_a_closed_connection_ignore_what_still_comes() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let said = peer.call(&mut node, 0, &Detach { handle: 9, ..Detach::default() });
    assert_eq!(names(&said), ["end"]);
    assert_eq!(peer.send(&mut node, 0, &message(b"x"), false), []);
    assert_eq!(peer.call(&mut node, 0, &End::default()), []);
    peer.begin(&mut node, 0);
    let said = peer.call(&mut node, 0, &Open { container_id: "x", ..Open::default() });
    assert_eq!(names(&said), ["close"]);
    assert_eq!(peer.call(&mut node, 0, &Begin::default()), []);
    assert!(!node.peers[&peer.conn].gone);
    peer.call(&mut node, 0, &Close::default());
    assert!(node.peers[&peer.conn].gone);
}

#[test]
fn silence_is_filled_and_ends_in_time() {
    let mut node = node();
    let open = Open { container_id: "x", idle_time_out: Some(1_000), ..Open::default() };
    let mut peer = Peer::connect_with(&mut node, &open);
    let mut beats = 0;
    for _ in 0..40 {
        node.advance_ms(100);
        beats += node
            .take_output(peer.conn)
            .windows(8)
            .filter(|bytes| *bytes == b"\x00\x00\x00\x08\x02\x00\x00\x00")
            .count();
    }
    assert!((5..=10).contains(&beats), "{beats} in four seconds");
    assert_eq!(node.take_output(peer.conn), b"");
    // Its own silence is borne for twice our time-out.
    node.advance_ms(115_000);
    assert!(!node.peers[&peer.conn].gone);
    peer.take_raw(&mut node, 0);
    node.advance_ms(6_000);
    node.advance_ms(11_000);
    assert!(node.peers[&peer.conn].gone);
}

/// A conversation that uses most of what there is.
fn conversation() -> Vec<u8> {
    let mut bytes = sasl_opening();
    encode(&mut bytes, 0, &Open { container_id: "peer", max_frame_size: 600, ..Open::default() });
    encode(&mut bytes, 0, &Begin { incoming_window: 100, outgoing_window: 100, ..Begin::default() });
    let target = |address| Some(AttachTarget::Target(Target { address, ..Target::default() }));
    let sender = Attach { name: "s", target: target(Some("q")), initial_delivery_count: Some(0), ..Attach::default() };
    encode(&mut bytes, 0, &sender);
    let anonymous = Attach { name: "a", handle: 2, target: target(None), ..sender };
    encode(&mut bytes, 0, &anonymous);
    let source = Some(Source { address: Some("q"), ..Source::default() });
    let receiver = Attach { name: "r", handle: 1, role: Role::Receiver, source, ..Attach::default() };
    encode(&mut bytes, 0, &receiver);
    let control = Some(AttachTarget::Coordinator(Coordinator::default()));
    encode(&mut bytes, 0, &Attach { name: "c", handle: 3, target: control, ..sender });
    for id in 0..6_u32 {
        let tag = id.to_be_bytes();
        let transfer = Transfer { delivery_id: Some(id), delivery_tag: Some(&tag), ..Transfer::default() };
        match id {
            2 => {
                let whole = message(&[7; 2_000]);
                bytes.extend(frame_of(&Transfer { more: true, ..transfer }, &whole[..700]));
                bytes.extend(frame_of(&Transfer::default(), &whole[700..]));
            }
            3 => {
                let mut whole = Vec::new();
                Properties { to: Some("q"), ..Properties::default() }.encode(&mut whole);
                whole.extend(message(b"by address"));
                bytes.extend(frame_of(&Transfer { handle: 2, ..transfer }, &whole));
            }
            4 => {
                let mut whole = Vec::new();
                TransactionRequest::Declare(Declare::default()).encode(&mut whole);
                bytes.extend(frame_of(&Transfer { handle: 3, ..transfer }, &whole));
            }
            _ => bytes.extend(frame_of(&Transfer { settled: Some(id == 1), ..transfer }, &message(b"x"))),
        }
    }
    let flow = Flow {
        next_incoming_id: Some(0),
        incoming_window: 100,
        outgoing_window: 100,
        handle: Some(1),
        delivery_count: Some(0),
        link_credit: Some(10),
        drain: true,
        ..Flow::default()
    };
    encode(&mut bytes, 0, &flow);
    bytes
}

/// Its end. Nothing is delivered to a link that is gone by the end of a batch, so this is another batch.
fn farewell() -> Vec<u8> {
    let mut bytes = Vec::new();
    let state = Some(DeliveryState::ACCEPTED);
    encode(
        &mut bytes,
        0,
        &Disposition { role: Role::Receiver, first: 0, last: Some(2), state, ..Disposition::default() },
    );
    encode(&mut bytes, 0, &Detach { handle: 1, closed: true, error: None });
    encode(&mut bytes, 0, &End::default());
    encode(&mut bytes, 0, &Close::default());
    bytes
}

/// What a node says to a conversation fed in pieces: everything but flows and the cutting of dispositions, which
/// follow the batches.
fn heard(pieces: &[&[u8]]) -> Vec<String> {
    let mut node = node();
    let conn = node.open().expect("room");
    pieces.iter().for_each(|piece| {
        node.feed(conn, piece);
    });
    let output = node.take_output(conn);
    let at = output.windows(8).position(|part| part == Protocol::Amqp.header()).expect("a header") + 8;
    let (said, used) = parse(&output[at..]);
    assert_eq!(used, output.len() - at);
    let mut heard = Vec::new();
    for said in &said {
        match said.performative() {
            Performative::Flow(flow) if flow.drain => heard.push(format!("drained {:?}", flow.delivery_count)),
            Performative::Flow(_) => {}
            Performative::Disposition(answer) => {
                let ids = answer.first..=answer.last.unwrap_or(answer.first);
                let each = |id| format!("{:?} {id} {} {:?}", answer.role, answer.settled, answer.state);
                heard.extend(ids.map(each));
            }
            Performative::Transfer(transfer) => {
                heard.push(format!("transfer {:?} {}", transfer.delivery_id, transfer.more));
            }
            _ => heard.push(said.name().to_owned()),
        }
    }
    node.feed(conn, &farewell());
    let (said, _) = parse(&node.take_output(conn));
    heard.extend(said.iter().map(|said| said.name().to_owned()));
    heard.push(format!("{:?}", node.queue("q")));
    heard
}

#[test]
fn bytes_in_any_pieces_mean_the_same() {
    let bytes = conversation();
    let whole = heard(&[&bytes]);
    assert!(
        whole.iter().any(|line| line.starts_with("drained")) && whole.iter().any(|line| line.starts_with("transfer"))
    );
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(heard(&single), whole);
    let mut random = Random::new(7);
    for _ in 0..50 {
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, later) = rest.split_at((1 + random.below(200)).min(rest.len()));
            pieces.push(piece);
            rest = later;
        }
        assert_eq!(heard(&pieces), whole);
    }
}

#[test]
fn noise_never_stops_the_node() {
    let bytes = [conversation(), farewell()].concat();
    let mut random = Random::new(1);
    let mut node = node();
    let mut witness = Peer::connect(&mut node);
    witness.sender(&mut node, 0, Some("witness"));
    let mut closed = 0;
    for round in 0..3_000 {
        let conn = node.open().expect("room");
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(damaged.len());
            match random.below(4) {
                0 => damaged[at] = random.byte(),
                1 => damaged[at] ^= 1 << random.below(8),
                2 => drop(damaged.drain(at..(at + 1 + random.below(9)).min(damaged.len()))),
                _ => drop(damaged.splice(at..at, random.bytes(40))),
            }
        }
        node.feed(conn, &damaged);
        closed += usize::from(node.peers[&conn].gone);
        if !node.peers[&conn].gone {
            node.close(conn);
        }
        node.peers.remove(&conn);
        if round % 100 == 0 {
            let answer = answers(&witness.send(&mut node, 0, &message(b"here"), false)).pop();
            assert_eq!(answer.map(|answer| answer.3), Some("accepted".to_owned()));
        }
        node.events.clear();
    }
    assert!(closed > 1_000, "most conversations come to an end: {closed}");
    assert_eq!(node.queue("witness").0, 30);
}

/// A session with a sender (0), a receiver (1), the coordinator (2) and a sender to any address (3).
fn set_up(node: &mut Node, peer: &mut Peer, channel: u16) {
    let mut bytes = written(channel, &Begin { incoming_window: 50, outgoing_window: 9, ..Begin::default() });
    let targets = [
        AttachTarget::Target(Target { address: Some("q"), ..Target::default() }),
        AttachTarget::Target(Target::default()),
        AttachTarget::Coordinator(Coordinator::default()),
        AttachTarget::Target(Target::default()),
    ];
    for (handle, target) in (0..).zip(targets) {
        let name = format!("{channel}-{handle}");
        let role = if handle == 1 { Role::Receiver } else { Role::Sender };
        let source = Some(Source { address: Some("q"), ..Source::default() });
        let (target, initial_delivery_count) = (Some(target), Some(0));
        let attach = Attach { name: &name, handle, role, source, target, initial_delivery_count, ..Attach::default() };
        bytes.extend(written(channel, &attach));
    }
    node.feed(peer.conn, &bytes);
    peer.read(node);
}

/// A number that is small, mostly.
fn any_number(random: &mut Random) -> u32 {
    if random.one_in(9) { random.odd_number() as u32 } else { random.below(6) as u32 }
}

fn any_address(random: &mut Random) -> Option<&'static str> {
    Some(random.pick(&["q", "q", "other", "refused", "/exchanges/amq.topic"]))
}

fn any_outcome(random: &mut Random) -> Outcome<'static> {
    match random.below(6) {
        0 => Outcome::Released,
        1 => Outcome::Rejected(Rejected::default()),
        2 => Outcome::Modified(Modified { delivery_failed: random.one_in(2), ..Modified::default() }),
        _ => Outcome::Accepted,
    }
}

fn any_received(random: &mut Random) -> DeliveryState<'static> {
    let (section_number, section_offset) = (any_number(random), any_number(random).into());
    DeliveryState::Received(Received { section_number, section_offset })
}

/// What a peer says that it has not settled: tags as nodes make them, and as `any_transfer` does.
fn any_unsettled(random: &mut Random) -> MapBuf {
    let mut map = MapBuf::new();
    for _ in 0..random.below(6) {
        let tag = random.below(9) as u32;
        let tag = if random.one_in(2) { tag.to_be_bytes().to_vec() } else { vec![tag as u8] };
        match random.below(3) {
            0 => map.put(Value::Binary(&tag), Value::Null),
            1 => map.put_with(Value::Binary(&tag), |out| any_received(random).put(out)),
            _ => map.put_with(Value::Binary(&tag), |out| any_outcome(random).put(out)),
        };
    }
    map
}

/// A link on a handle that is in use, mostly, under a name that other links may have.
fn any_attach(random: &mut Random, channel: u16, handle: u32) -> Vec<u8> {
    let name = random.pick(&["a", "b", "0-1", "1-0"]);
    let address = any_address(random);
    let map = any_unsettled(random);
    let unsettled = Some(map.as_map()).filter(|_| random.one_in(2));
    let incomplete_unsettled = random.one_in(5);
    if random.one_in(2) {
        let dynamic = random.one_in(5);
        let source = Some(Source { address: address.filter(|_| !dynamic), dynamic, ..Source::default() });
        let snd_settle_mode = if random.one_in(3) { SenderSettleMode::Settled } else { SenderSettleMode::Mixed };
        let role = Role::Receiver;
        let attach = Attach { name, handle, role, source, snd_settle_mode, ..Attach::default() };
        return written(channel, &Attach { unsettled, incomplete_unsettled, ..attach });
    }
    let target = match random.below(5) {
        0 => AttachTarget::Coordinator(Coordinator::default()),
        1 => AttachTarget::Target(Target::default()),
        _ => AttachTarget::Target(Target { address, ..Target::default() }),
    };
    let second = random.one_in(3);
    let rcv_settle_mode = if second { ReceiverSettleMode::Second } else { ReceiverSettleMode::First };
    let attach = Attach { name, handle, rcv_settle_mode, target: Some(target), ..Attach::default() };
    let initial_delivery_count = Some(any_number(random));
    written(channel, &Attach { initial_delivery_count, unsettled, incomplete_unsettled, ..attach })
}

fn any_transfer(random: &mut Random, channel: u16, handle: u32) -> Vec<u8> {
    let tag = [random.below(9) as u8];
    let txn_id = (random.below(3) as u64).to_be_bytes();
    let in_transaction = DeliveryState::Transactional(TransactionalState { txn_id: &txn_id, outcome: None });
    let transfer = Transfer {
        handle,
        delivery_id: Some(any_number(random)).filter(|_| !random.one_in(9)),
        delivery_tag: Some(&tag),
        settled: Some(random.one_in(2)),
        more: random.one_in(5),
        resume: random.one_in(8),
        aborted: random.one_in(20),
        state: match random.below(16) {
            0 | 1 => Some(in_transaction),
            2 => Some(any_received(random)),
            3 => Some(DeliveryState::Outcome(any_outcome(random))),
            _ => None,
        },
        ..Transfer::default()
    };
    let mut payload = Vec::new();
    match random.below(6) {
        0 => TransactionRequest::Declare(Declare::default()).encode(&mut payload),
        1 => {
            let discharge = Discharge { txn_id: &txn_id, fail: random.one_in(2) };
            TransactionRequest::Discharge(discharge).encode(&mut payload);
        }
        2 => {
            Properties { to: any_address(random), ..Properties::default() }.encode(&mut payload);
            payload.extend(message(b"x"));
        }
        _ => payload = message(&[7; 600]),
    }
    let mut bytes = frame_of(&transfer, &payload);
    bytes[6..8].copy_from_slice(&channel.to_be_bytes());
    bytes
}

/// One performative of any kind, its fields mostly plausible.
fn any_frame(random: &mut Random) -> Vec<u8> {
    let channel = random.below(2) as u16;
    let kind = random.below(40);
    let handle = match kind {
        _ if random.one_in(12) => random.below(5) as u32,
        4..=19 => 1,
        26.. => *random.pick(&[&0, &0, &2, &3]),
        _ => random.below(4) as u32,
    };
    match kind {
        0 if random.one_in(4) => written(channel, &Begin::default()),
        0 => written(channel, &End::default()),
        1 => written(channel, &Detach { handle, closed: random.one_in(3), error: None }),
        2 | 3 => any_attach(random, channel, handle),
        4..=19 => {
            let flow = Flow { incoming_window: 50, outgoing_window: 9, drain: random.one_in(3), ..Flow::default() };
            let (link_credit, echo) = (Some(any_number(random)), random.one_in(4));
            let delivery_count = Some(any_number(random)).filter(|_| random.one_in(3));
            let handle = Some(handle).filter(|_| !random.one_in(5));
            let (mut map, txn_id) = (MapBuf::new(), (random.below(3) as u64).to_be_bytes());
            map.put(Value::Symbol("txn-id"), Value::Binary(&txn_id));
            let properties = Some(map.as_map()).filter(|_| random.one_in(4));
            written(channel, &Flow { handle, delivery_count, link_credit, echo, properties, ..flow })
        }
        20..=25 => {
            let txn_id = (random.below(3) as u64).to_be_bytes();
            let outcome = any_outcome(random);
            let state = match random.below(8) {
                0 => None,
                1 => Some(DeliveryState::Received(Received::default())),
                2 => {
                    let outcome = Some(outcome);
                    Some(DeliveryState::Transactional(TransactionalState { txn_id: &txn_id, outcome }))
                }
                _ => Some(DeliveryState::Outcome(outcome)),
            };
            let (role, settled) = (if random.one_in(5) { Role::Sender } else { Role::Receiver }, random.one_in(2));
            let first = any_number(random);
            let last = Some(first.wrapping_add(random.below(4) as u32));
            written(channel, &Disposition { role, first, last, settled, state, batchable: false })
        }
        _ => any_transfer(random, channel, handle),
    }
}

#[test]
fn any_order_of_performatives_leaves_nothing_behind() {
    let limits = Limits { link_credit: 5, session_window: 40, transactions_max: 2, ..Limits::default() };
    let mut random = Random::new(3);
    let (mut delivered, mut answered) = (0, 0);
    for _ in 0..400 {
        let mut node = Node::new(limits.clone(), 7);
        let open = Open { container_id: "x", max_frame_size: 512, ..Open::default() };
        let mut peer = Peer::connect_with(&mut node, &open);
        peer.call(&mut node, 0, &End::default());
        (0..2).for_each(|channel| set_up(&mut node, &mut peer, channel));
        for _ in 0..80 {
            let mut bytes = any_frame(&mut random);
            if random.one_in(3) {
                bytes.extend(any_frame(&mut random));
            }
            node.feed(peer.conn, &bytes);
            if random.one_in(10) {
                node.advance_ms(10);
            }
            let said = peer.read(&mut node);
            delivered += said.iter().filter(|said| said.name() == "transfer").count();
            answered += said.iter().filter(|said| said.name() == "disposition").count();
            for said in &said {
                let Performative::End(end) = said.performative() else { continue };
                if end.error.is_some() {
                    peer.call(&mut node, said.channel, &End::default());
                }
                set_up(&mut node, &mut peer, said.channel);
            }
        }
        node.close(peer.conn);
        for queue in ["q", "other"] {
            let (_, unsettled, consumers) = node.queue(queue);
            assert_eq!((unsettled, consumers), (0, 0), "{queue}");
        }
        let queues: Vec<_> = node.engine.broker.queues.iter().map(|(id, _)| id).collect();
        for id in queues {
            node.engine.broker.purge(id);
        }
        assert_eq!(node.engine.broker.ledger.used(), 0, "no message is held by anybody");
    }
    assert!(delivered > 1_000 && answered > 1_000, "{delivered} deliveries, {answered} answers");
}
