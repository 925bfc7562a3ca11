//! The engine under load, seen by 0-9-1 clients: budgets, memory, slow readers, silent peers.
//!
//! Owns the proof that one peer cannot stop the others. Simulated peers flood, dawdle or fall silent on a virtual
//! clock; signals, bytes and memory are compared. It must never measure real time. Rules: `limits.rs`, `memory.rs`,
//! AMQP 0-9-1 section 4.2.7.

use weft_engine::broker::Store;
use weft_engine::change::Change;
use weft_engine::conn::ConnId;
use weft_engine::event::Event;
use weft_engine::queue::Settings;
use weft_engine::{Limits, signal};
use weft_journal::{Config, Operation, SimDisk, recover};
use weft_sim::client::{opening, write_publish};
use weft_sim::controller::VHOST;
use weft_sim::node::WALL_NS;
use weft_sim::{Client, Item, Node};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::frame::FRAME_END;
use weft_wire::amqp091::properties::Properties;

const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, FRAME_END];

fn messages(count: usize, exchange: &[u8], key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    (0..count).for_each(|_| write_publish(&mut bytes, 1, (exchange, key), false, &Properties::default(), body));
    bytes
}

fn deliveries(items: &[Item]) -> usize {
    items.iter().filter(|item| matches!(item.method(), Method::BasicDeliver { .. })).count()
}

/// A client that wants to know when it is held back.
fn blockable(node: &mut Node) -> Client {
    Client::connect_with(node, 0, |properties| {
        properties.table(b"capabilities", |table| table.bool(b"connection.blocked", true));
    })
}

/// Publishes until the node says stop; how many bytes of messages that took.
fn flood(node: &mut Node, client: &mut Client, queue: &str) -> usize {
    let chunk = messages(60, b"", queue.as_bytes(), &[0; 1_000]);
    for sent in 1..100_000 {
        node.feed(client.conn, &chunk);
        if node.peers[&client.conn].paused {
            return sent * 60_000;
        }
    }
    panic!("the flood was never stopped");
}

#[test]
fn a_fan_out_to_ten_thousand_queues_lets_others_work_in_between() {
    let mut node = Node::new(Limits { work_max: 1_000, ..Limits::default() }, 7);
    let (mut wide, mut other) = (Client::connect(&mut node), Client::connect(&mut node));
    for number in 0..10_000 {
        let name = format!("wide{number}");
        wide.declare(&mut node, &name, |_| ());
        wide.bind(&mut node, &name, "amq.fanout", "");
    }
    other.declare(&mut node, "own", |_| ());
    other.consume(&mut node, "own", "tag", true);
    // Ask for the permission now, so that the flood below is not parked by it.
    wide.publish(&mut node, "amq.fanout", "", b"first");
    let signals = node.receive(wide.conn, &messages(20, b"amq.fanout", b"", b"wide"));
    assert!(signals & signal::MORE != 0, "work is left over");
    let copied = node.engine.stats()["ready"];
    assert!(copied <= 10_000 + 2 * 10_000, "{copied} copies in one call");
    node.feed(other.conn, &messages(1, b"", b"own", b"quick"));
    assert_eq!(deliveries(&other.read(&mut node)), 1);
    node.settle();
    assert_eq!(node.engine.stats()["ready"], 210_000);
}

#[test]
fn one_full_queue_does_not_make_another_connection_wait() {
    let mut node = Node::new(Limits { work_max: 100, ..Limits::default() }, 7);
    let (mut busy, mut calm) = (Client::connect(&mut node), Client::connect(&mut node));
    busy.declare(&mut node, "busy", |_| ());
    for _ in 0..100 {
        node.feed(busy.conn, &messages(100, b"", b"busy", b"x"));
    }
    calm.declare(&mut node, "calm", |_| ());
    calm.consume(&mut node, "calm", "tag", true);
    calm.publish(&mut node, "", "calm", b"asks for the permission");
    let mut bytes = Vec::new();
    let consume = Method::BasicConsume {
        queue: b"busy",
        consumer_tag: b"tag",
        no_local: false,
        no_ack: true,
        exclusive: false,
        no_wait: false,
        arguments: weft_wire::amqp091::table::Table::EMPTY,
    };
    consume.encode_frame(1, &mut bytes);
    node.receive(busy.conn, &bytes);
    node.answer();
    node.receive(calm.conn, &messages(1, b"", b"calm", b"now"));
    node.flush();
    assert_eq!(deliveries(&calm.read(&mut node)), 1);
    assert!(deliveries(&busy.read(&mut node)) < 10_000);
    node.settle();
    assert_eq!(node.queue("busy").0, 0);
}

#[test]
fn a_flood_is_paused_while_others_flow_and_goes_on_when_there_is_room() {
    let limits = Limits { memory_bytes_max: 8 << 20, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let mut flooder = blockable(&mut node);
    let (mut calm, mut drain) = (Client::connect(&mut node), Client::connect(&mut node));
    flooder.declare(&mut node, "flood", |_| ());
    let sent = flood(&mut node, &mut flooder, "flood");
    assert!((2 << 20..6 << 20).contains(&sent), "stopped after {sent} bytes");
    assert!(node.engine.stats()["memory_bytes"] < 8 << 20);
    let said = flooder.read(&mut node);
    assert!(matches!(said.last().map(Item::method), Some(Method::ConnectionBlocked { .. })), "{said:?}");
    calm.declare(&mut node, "calm", |_| ());
    calm.consume(&mut node, "calm", "tag", true);
    for _ in 0..1_000 {
        assert_eq!(deliveries(&calm.publish(&mut node, "", "calm", &[0; 1_000])), 1);
    }
    assert!(!node.peers[&calm.conn].paused);
    drain.consume(&mut node, "flood", "tag", true);
    node.settle();
    assert!(!node.peers[&flooder.conn].paused);
    let resumed = Event::ReadingResumed { conn: flooder.conn.raw() };
    assert_eq!(node.events.iter().filter(|event| **event == resumed).count(), 1);
    assert!(matches!(flooder.read(&mut node).last().map(Item::method), Some(Method::ConnectionUnblocked)));
    assert_eq!(node.engine.stats()["memory_bytes"], 0);
}

#[test]
fn memory_is_given_back_however_messages_end() {
    let mut node = Node::new(Limits::default(), 7);
    let mut client = Client::connect(&mut node);
    for queue in ["acked", "purged", "expired", "deleted", "dropped"] {
        client.declare(&mut node, queue, |table| match queue {
            "expired" => table.i64(b"x-message-ttl", 10),
            "dropped" => table.i64(b"x-max-length", 0),
            _ => {}
        });
        client.publish(&mut node, "", queue, &[0; 100]);
    }
    client.publish(&mut node, "", "nowhere", &[0; 100]);
    client.get(&mut node, "acked", false);
    assert!(node.engine.stats()["memory_bytes"] > 0);
    client.ack(&mut node, 1, false);
    client.call(&mut node, &Method::QueuePurge { queue: b"purged", no_wait: false });
    client
        .call(&mut node, &Method::QueueDelete { queue: b"deleted", if_unused: false, if_empty: false, no_wait: false });
    node.advance_ms(11);
    assert_eq!(node.engine.stats()["memory_bytes"], 0);
}

#[test]
fn a_slow_reader_gets_what_it_can_take_and_the_rest_stays_in_the_queue() {
    let limits = Limits { output_bytes_max: 10_000, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let (mut slow, mut feeder) = (Client::connect(&mut node), Client::connect(&mut node));
    slow.declare(&mut node, "q", |_| ());
    slow.consume(&mut node, "q", "tag", true);
    node.engine.writable(slow.conn, false);
    for _ in 0..100 {
        feeder.publish(&mut node, "", "q", &[0; 1_000]);
    }
    assert!(slow.read(&mut node).is_empty());
    assert_eq!(node.queue("q").0, 100);
    // It reads again, but its driver is not asked for the output: that is bounded too.
    node.engine.writable(slow.conn, true);
    let pending = 100 - node.queue("q").0;
    assert!((9..=11).contains(&pending), "{pending} messages wait in a buffer of ten");
    node.settle();
    assert_eq!(deliveries(&slow.read(&mut node)), 100);
}

#[test]
fn a_peer_that_asks_and_never_reads_is_not_read_either() {
    let limits = Limits { output_bytes_max: 100_000, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let (mut deaf, mut other) = (Client::connect(&mut node), Client::connect(&mut node));
    deaf.declare(&mut node, "q", |_| ());
    deaf.publish(&mut node, "", "q", &[0; 50_000]);
    node.engine.writable(deaf.conn, false);
    // One message is asked for and given back again and again: 40 bytes of questions for 50,000 of answers.
    let mut bytes = Vec::new();
    for tag in 1..=1_000 {
        Method::BasicGet { queue: b"q", no_ack: false }.encode_frame(1, &mut bytes);
        Method::BasicNack { delivery_tag: tag, multiple: false, requeue: true }.encode_frame(1, &mut bytes);
    }
    node.feed(deaf.conn, &bytes);
    let waiting = node.engine.conns.get(deaf.conn).map_or(0, |conn| conn.io.output.len());
    let handed_out = node.peers[&deaf.conn].output.len();
    assert!(waiting + handed_out < 400_000, "{waiting} bytes wait, {handed_out} are with the socket");
    assert_eq!(deliveries(&other.consume(&mut node, "nothing", "tag", true)), 0, "others are served");
    node.engine.writable(deaf.conn, true);
    node.settle();
    assert_eq!(deaf.read(&mut node).len(), 1_000);
}

#[test]
fn heartbeats_are_sent_and_their_absence_ends_the_connection() {
    let mut node = Node::new(Limits::default(), 7);
    let client = Client::connect_with(&mut node, 10, |_| ());
    let talks = Client::connect_with(&mut node, 10, |_| ());
    node.take_output(client.conn);
    for _ in 0..3 {
        node.advance_ms(5_000);
        node.feed(talks.conn, &HEARTBEAT);
    }
    let beats = node.take_output(client.conn);
    assert!(beats.len() >= 2 * 8 && beats.chunks(8).all(|beat| beat == HEARTBEAT), "{beats:?}");
    assert!(!node.peers[&client.conn].gone, "15 s of silence are less than two intervals of 10");
    node.advance_ms(4_999);
    node.feed(talks.conn, &HEARTBEAT);
    assert!(!node.peers[&client.conn].gone);
    node.advance_ms(5_001);
    assert!(node.peers[&client.conn].gone);
    assert!(!node.peers[&talks.conn].gone);
}

#[test]
fn a_peer_that_opens_slowly_is_cut_wherever_it_stands() {
    let whole = opening(0, |_| ());
    for said in [0, 3, 8, 20, whole.len() - 1] {
        let mut node = Node::new(Limits { unauthenticated_s: 10, ..Limits::default() }, 7);
        let conn = node.open().expect("room");
        for byte in &whole[..said] {
            node.feed(conn, &[*byte]);
            node.advance_ms(9_000 / whole.len() as u64);
        }
        assert!(!node.peers[&conn].gone);
        node.advance_ms(10_000);
        assert!(node.peers[&conn].gone, "after {said} bytes");
        assert_eq!(node.engine.conns.len(), 0);
    }
}

#[test]
fn a_peer_that_never_answers_a_close_is_cut() {
    let mut node = Node::new(Limits::default(), 7);
    let mut client = Client::connect(&mut node);
    client.call_on(&mut node, 0, &Method::TxSelect);
    assert!(!node.peers[&client.conn].gone);
    node.advance_ms(10_000);
    assert!(node.peers[&client.conn].gone);
}

#[test]
fn ten_thousand_half_open_connections_cost_little_and_stop_nobody() {
    let mut node = Node::new(Limits { connections_max: 10_001, ..Limits::default() }, 7);
    let mut client = Client::connect(&mut node);
    let half: Vec<ConnId> = (0..10_000).filter_map(|_| node.open()).collect();
    assert_eq!((half.len(), node.open()), (10_000, None));
    for conn in &half {
        node.receive(*conn, &opening(0, |_| ())[..30]);
    }
    node.settle();
    let kept: usize =
        node.engine.conns.iter().map(|(_, conn)| conn.io.input.capacity() + conn.io.output.capacity()).sum();
    assert!(kept < 10_000 * 8_192, "{kept} bytes of buffers");
    client.declare(&mut node, "q", |_| ());
    client.consume(&mut node, "q", "tag", true);
    assert_eq!(deliveries(&client.publish(&mut node, "", "q", b"still here")), 1);
    node.advance_ms(10_000);
    assert_eq!(node.engine.conns.len(), 1);
    assert!(half.iter().all(|conn| node.peers[conn].gone));
    assert_eq!(deliveries(&client.publish(&mut node, "", "q", b"and now")), 1);
}

#[test]
fn replies_to_a_slow_asker_wait_on_the_account_of_who_replies() {
    let limits = Limits { output_bytes_max: 100_000, memory_bytes_max: 4 << 20, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let (mut asker, mut server) = (Client::connect(&mut node), Client::connect(&mut node));
    server.declare(&mut node, "work", |_| ());
    asker.consume(&mut node, "amq.rabbitmq.reply-to", "replies", true);
    let question = Properties { reply_to: Some(b"amq.rabbitmq.reply-to"), ..Properties::default() };
    asker.publish_with(&mut node, "", "work", &question, b"?");
    let got = server.get(&mut node, "work", true);
    let address = String::from_utf8_lossy(got[0].properties().reply_to.unwrap_or_default()).into_owned();
    node.engine.writable(asker.conn, false);
    let sent = flood(&mut node, &mut server, &address);
    assert!(sent < 4 << 20);
    assert!(node.take_output(asker.conn).is_empty());
    node.engine.writable(asker.conn, true);
    node.settle();
    assert_eq!(deliveries(&asker.read(&mut node)), sent / 1_000);
    assert!(!node.peers[&server.conn].paused);
}

#[test]
fn a_hundred_thousand_returned_messages_go_back_in_order_and_in_time() {
    let mut node = Node::new(Limits::default(), 7);
    let (mut holder, mut feeder) = (Client::connect(&mut node), Client::connect(&mut node));
    holder.declare(&mut node, "q", |_| ());
    for _ in 0..200 {
        node.feed(feeder.conn, &messages(1_000, b"", b"q", b"x"));
    }
    holder.qos(&mut node, 50_000, false);
    holder.consume(&mut node, "q", "one", false);
    holder.consume(&mut node, "q", "two", false);
    assert_eq!(node.queue("q"), (100_000, 100_000, 2));
    node.close(holder.conn);
    assert_eq!(node.queue("q"), (200_000, 0, 0));
    let said = feeder.get(&mut node, "q", true);
    assert!(matches!(said[0].method(), Method::BasicGetOk { redelivered: true, .. }));
}

/// A flood of transient messages behind a disk that does not answer yet.
fn flooded(disk: &SimDisk) -> (Node, Client, usize) {
    let (journal, found) = recover(disk, Config::default(), WALL_NS / 1_000_000).expect("it opens");
    let mut node = Node::new(Limits::default(), 7);
    node.engine.broker.attach(Store::new(journal, found.queues, found.barriers));
    let settings = Box::new(Settings { number: 5, ..Settings::default() });
    node.apply(vec![Change::DeclareQueue { vhost: VHOST.to_owned(), name: "q".to_owned(), settings }]);
    let mut client = blockable(&mut node);
    // The queue's window is in memory, the rest is on its way.
    let sent = flood(&mut node, &mut client, "q");
    (node, client, sent)
}

/// What a client was told about being held back.
fn told(client: &mut Client, node: &mut Node) -> Vec<&'static str> {
    client.read(node).iter().map(|item| item.method().name()).filter(|name| name.contains("blocked")).collect()
}

#[test]
fn a_flood_that_nobody_waits_for_still_waits_for_the_disk() {
    let disk = SimDisk::new(7);
    let (mut node, mut client, sent) = flooded(&disk);
    assert!((8 << 20..24 << 20).contains(&sent), "{sent}");
    node.run_disk(&disk);
    assert!(!node.peers[&client.conn].paused, "the disk has everything");
    assert!(told(&mut client, &mut node).is_empty(), "that was the pace of the disk, and no news");
}

#[test]
fn a_publisher_is_told_of_a_disk_that_is_slow_for_long_or_refuses() {
    let disk = SimDisk::new(7);
    let (mut node, mut client, _) = flooded(&disk);
    node.advance_ms(999);
    assert!(told(&mut client, &mut node).is_empty());
    node.advance_ms(1);
    assert_eq!(told(&mut client, &mut node), ["connection.blocked"]);
    let (mut node, mut client, _) = flooded(&disk);
    disk.set_read_only(true);
    for mut job in node.engine.poll_disk() {
        job.run(&disk);
        node.engine.disk_done(job);
    }
    node.settle();
    assert_eq!(told(&mut client, &mut node), ["connection.blocked"], "an alarm is told at once");
}

#[test]
fn what_the_disk_does_not_give_back_comes_once_it_does() {
    let disk = SimDisk::new(7);
    let (mut node, client, sent) = flooded(&disk);
    node.run_disk(&disk);
    node.close(client.conn);
    let mut consumer = Client::connect(&mut node);
    let window = deliveries(&consumer.consume(&mut node, "q", "c", true));
    // Each try fails, a second apart, and the alarm is told once.
    for _ in 0..3 {
        disk.fail_next(Operation::Read, std::io::ErrorKind::Other);
        node.advance_ms(1_000);
        node.run_disk(&disk);
        assert_eq!(deliveries(&consumer.read(&mut node)), 0);
    }
    let alarms = |node: &Node| -> Vec<bool> {
        let raised = |event: &Event| if let Event::ReadAlarm { raised, .. } = event { Some(*raised) } else { None };
        node.events.iter().filter_map(raised).collect()
    };
    assert_eq!(alarms(&node), [true]);
    node.advance_ms(1_000);
    node.run_disk(&disk);
    assert_eq!(window + deliveries(&consumer.read(&mut node)), sent / 1_000);
    assert_eq!(alarms(&node), [true, false]);
}

#[test]
fn messages_that_never_end_take_half_of_the_memory_and_stop_nobody() {
    let mut node = Node::new(Limits { memory_bytes_max: 8 << 20, ..Limits::default() }, 7);
    let mut calm = Client::connect(&mut node);
    calm.declare(&mut node, "q", |_| ());
    let whole = messages(1, b"", b"q", &vec![0; 1_000_000]);
    let half = &whole[..whole.len() - 9];
    let mut halves: Vec<Client> = (0..20).map(|_| Client::connect(&mut node)).collect();
    let mut refused = 0;
    for client in &mut halves {
        node.feed(client.conn, half);
        let close = |item: &Item| matches!(item.method(), Method::ChannelClose { reply_code: 311, .. });
        refused += usize::from(client.read(&mut node).iter().any(close));
    }
    assert!((14..18).contains(&refused), "{refused}");
    assert!((3 << 20..5 << 20).contains(&node.engine.stats()["memory_bytes"]));
    calm.publish(&mut node, "", "q", &[0; 1_000]);
    assert!(!node.peers[&calm.conn].paused);
    assert_eq!(node.queue("q").0, 1);
    node.feed(halves[0].conn, &whole[whole.len() - 9..]);
    assert_eq!(node.queue("q").0, 2, "who had come so far may end");
    halves.iter().for_each(|client| node.close(client.conn));
    // One that is alone may take more.
    let large = messages(1, b"", b"q", &vec![0; 5_000_000]);
    node.feed(calm.conn, &large[..large.len() - 9]);
    assert!(!node.peers[&calm.conn].paused, "it could not end");
    node.feed(calm.conn, &large[large.len() - 9..]);
    assert_eq!(node.queue("q").0, 3);
}

#[test]
fn a_message_whose_rest_does_not_come_is_given_up_and_one_that_comes_on_is_not() {
    let mut node = Node::new(Limits { unfinished_s: 10, ..Limits::default() }, 7);
    let mut slow = Client::connect(&mut node);
    slow.declare(&mut node, "q", |_| ());
    let mut silent: Vec<Client> = [0, 5].map(|beat| Client::connect_with(&mut node, beat, |_| ())).into();
    // Whole frames: what else a peer says must not end up in the middle of one.
    let mut pieces = Vec::new();
    let whole = messages(1, b"", b"q", &vec![0; 1_000_000]);
    let (mut left, mut piece) = (&whole[..], &whole[..0]);
    while let Some([_, _, _, a, b, c, d]) = left.first_chunk() {
        let size = u32::from_be_bytes([*a, *b, *c, *d]) as usize + 8;
        piece = &whole[whole.len() - left.len() - piece.len()..][..piece.len() + size];
        left = &left[size..];
        if piece.len() > 100_000 || left.is_empty() {
            pieces.push(std::mem::take(&mut piece));
        }
    }
    for conn in [slow.conn, silent[0].conn, silent[1].conn] {
        node.feed(conn, pieces[0]);
    }
    for piece in &pieces[1..] {
        for _ in 0..2 {
            node.advance_ms(4_500);
            for client in &silent {
                node.feed(client.conn, &HEARTBEAT);
            }
        }
        node.feed(slow.conn, piece);
    }
    assert_eq!(node.queue("q").0, 1, "slow, but it came");
    for client in &mut silent {
        let said = client.read(&mut node);
        let closes: Vec<Method<'_>> = said.iter().map(Item::method).collect();
        let closed = |method: &Method<'_>| {
            matches!(method, Method::ChannelClose { reply_code: 406, class_id: 60, method_id: 40, .. })
        };
        assert_eq!(closes.iter().filter(|method| closed(method)).count(), 1, "{closes:?}");
    }
    assert!(node.engine.stats()["memory_bytes"] < 1_100_000, "nothing else is held");
}

#[test]
fn the_node_gives_up_no_message_that_it_does_not_read_itself() {
    let limits = Limits { memory_bytes_max: 4 << 20, unfinished_s: 10, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    client.call_on(&mut node, 2, &Method::ChannelOpen);
    let mut bytes = Vec::new();
    write_publish(&mut bytes, 2, (b"", b"q"), false, &Properties::default(), &[0; 2_000]);
    let (part, rest) = bytes.split_at(bytes.len() - 2_008);
    node.feed(client.conn, part);
    flood(&mut node, &mut client, "q");
    (0..5).for_each(|_| node.advance_ms(9_000));
    let mut reader = Client::connect(&mut node);
    reader.consume(&mut node, "q", "tag", true);
    assert!(!node.peers[&client.conn].paused);
    let before = deliveries(&reader.read(&mut node));
    node.feed(client.conn, rest);
    assert_eq!(deliveries(&reader.read(&mut node)), 1, "after {before} others");
}
