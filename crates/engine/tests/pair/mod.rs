//! Two simulated nodes, a wire between them, and a look at both ends; for the tests of links.
//!
//! Owns orders with sensible fields and the reading of queues and events. It must never decide what is right.
//! Rule: node b dials node a.
#![allow(dead_code)] // each test file uses its own part of it

use std::rc::Rc;

use weft_engine::Limits;
use weft_engine::change::{Change, Direction, LinkOrder};
use weft_engine::event::Event;
use weft_engine::session::amqp10::Dial;
use weft_sim::{Client, Item, Node, Wire};
use weft_wire::amqp091::Method;

pub fn node(name: &str) -> Node {
    let mut node = Node::new(Limits::default(), 7);
    node.engine.broker.node = Rc::from(name);
    node
}

pub fn anonymous() -> Dial {
    Dial { mechanism: "ANONYMOUS".to_owned(), frame_bytes_max: 131_072, idle_ms: 60_000, ..Dial::default() }
}

/// Node a, node b that dialled it, and the wire between them.
pub fn two() -> (Node, Node, Wire) {
    let (mut a, mut b) = (node("a"), node("b"));
    let wire = Wire::dial(&mut b, &mut a, anonymous());
    wire.carry(&mut b, &mut a);
    assert!(matches!(b.events.first(), Some(Event::PeerOpened { node, .. }) if node == "a"), "{:?}", b.events);
    (a, b, wire)
}

pub fn order(conn: u64, link: u64, direction: Direction, address: &str, queue: &str) -> LinkOrder {
    let queue = Some(queue.to_owned()).filter(|queue| !queue.is_empty());
    let (name, address, vhost) = (format!("link-{link}"), address.to_owned(), "/".to_owned());
    LinkOrder { conn, link, name, direction, address, vhost, queue, credit: 100, ..LinkOrder::default() }
}

pub fn open(order: LinkOrder) -> Vec<Change> {
    vec![Change::OpenLink(Box::new(order))]
}

pub fn detached(node: &Node) -> Vec<(u64, String, String)> {
    let found = node.events.iter().filter_map(|event| match event {
        Event::LinkDetached { link, condition, text, .. } => Some((*link, condition.clone(), text.clone())),
        _ => None,
    });
    found.collect()
}

pub fn attached(node: &Node) -> Vec<u64> {
    let found = node.events.iter().filter_map(|event| match event {
        Event::LinkAttached { link, .. } => Some(*link),
        _ => None,
    });
    found.collect()
}

/// Everything ready in a queue, taken by basic.get.
pub fn drain(node: &mut Node, queue: &str) -> Vec<Item> {
    let (mut client, mut all) = (Client::connect(node), Vec::new());
    loop {
        let said = client.get(node, queue, true);
        match said.last().map(Item::method) {
            Some(Method::BasicGetOk { .. }) => all.extend(said),
            _ => break,
        }
    }
    node.close(client.conn);
    all
}

pub fn texts(items: &[Item]) -> Vec<String> {
    items.iter().map(|item| String::from_utf8_lossy(&item.body).into_owned()).collect()
}

pub fn got(item: &Item) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match item.method() {
        Method::BasicGetOk { exchange, routing_key, .. } => (text(exchange), text(routing_key)),
        other => panic!("{other:?}"),
    }
}

pub fn fill(node: &mut Node, queue: &str, count: usize) {
    let mut client = Client::connect(node);
    client.declare(node, queue, |_| ());
    for number in 0..count {
        client.publish(node, "", queue, format!("{number}").as_bytes());
    }
    node.close(client.conn);
}

pub fn relay(conn: u64, link: u64, direction: Direction, address: &str, queue: &str) -> LinkOrder {
    LinkOrder { relay: true, ..order(conn, link, direction, address, queue) }
}
