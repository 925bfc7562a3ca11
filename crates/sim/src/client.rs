//! A 0-9-1 client without a socket.
//!
//! Owns one connection of a simulated node as its peer sees it. Methods and messages go in and are written as frames;
//! what the node sends comes back as methods with their content put together. It must never check what it is told to
//! say: tests lie on purpose. Rules: AMQP 0-9-1 sections 2.2.4 (opening) and 4.2.6 (content).

use weft_engine::conn::ConnId;
use weft_wire::amqp091::frame::{self, FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD};
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, TableWriter};
use weft_wire::amqp091::{Method, PROTOCOL_HEADER};

use crate::node::Node;

/// Size of the frames a client writes: every node must take these (section 4.2.3).
const FRAME_BYTES: usize = 4_096;

/// One thing the node said: a method, and its content if it has one.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub channel: u16,
    payload: Vec<u8>,
    pub properties: Vec<u8>,
    pub body: Vec<u8>,
}

impl Item {
    pub fn method(&self) -> Method<'_> {
        Method::decode(&self.payload).expect("the node writes well-formed methods")
    }

    pub fn properties(&self) -> Properties<'_> {
        Properties::decode(&self.properties).unwrap_or_default()
    }
}

/// One connection.
pub struct Client {
    pub conn: ConnId,
    unread: Vec<u8>,
}

impl Client {
    /// A connection that is open, with its channel 1.
    pub fn connect(node: &mut Node) -> Self {
        Self::connect_with(node, 0, |_| ())
    }

    /// The same with a heartbeat and client properties.
    pub fn connect_with(node: &mut Node, heartbeat: u16, properties: impl FnOnce(&mut TableWriter<'_>)) -> Self {
        let conn = node.open().expect("the node takes one more connection");
        let mut client = Self { conn, unread: Vec::new() };
        node.feed(conn, &opening(heartbeat, properties));
        let said = client.read(node);
        assert!(matches!(said.last().map(Item::method), Some(Method::ConnectionOpenOk)), "{said:?}");
        client.call(node, &Method::ChannelOpen);
        client
    }

    /// Says something on channel 1; what the node says then comes back.
    pub fn call(&mut self, node: &mut Node, method: &Method<'_>) -> Vec<Item> {
        self.call_on(node, 1, method)
    }

    pub fn call_on(&mut self, node: &mut Node, channel: u16, method: &Method<'_>) -> Vec<Item> {
        let mut bytes = Vec::new();
        method.encode_frame(channel, &mut bytes);
        node.feed(self.conn, &bytes);
        self.read(node)
    }

    /// Publishes on channel 1.
    pub fn publish(&mut self, node: &mut Node, exchange: &str, key: &str, body: &[u8]) -> Vec<Item> {
        self.publish_with(node, exchange, key, &Properties::default(), body)
    }

    pub fn publish_with(
        &mut self,
        node: &mut Node,
        exchange: &str,
        key: &str,
        properties: &Properties<'_>,
        body: &[u8],
    ) -> Vec<Item> {
        let mut bytes = Vec::new();
        write_publish(&mut bytes, 1, (exchange.as_bytes(), key.as_bytes()), false, properties, body);
        node.feed(self.conn, &bytes);
        self.read(node)
    }

    /// A queue with arguments.
    pub fn declare(&mut self, node: &mut Node, queue: &str, fill: impl FnOnce(&mut TableWriter<'_>)) -> Vec<Item> {
        let arguments = table(fill);
        let declare = Method::QueueDeclare {
            queue: queue.as_bytes(),
            passive: false,
            durable: false,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: Table::trusted(&arguments),
        };
        self.call(node, &declare)
    }

    pub fn bind(&mut self, node: &mut Node, queue: &str, exchange: &str, key: &str) -> Vec<Item> {
        let (queue, exchange, routing_key) = (queue.as_bytes(), exchange.as_bytes(), key.as_bytes());
        let bind = Method::QueueBind { queue, exchange, routing_key, no_wait: false, arguments: Table::EMPTY };
        self.call(node, &bind)
    }

    pub fn consume(&mut self, node: &mut Node, queue: &str, tag: &str, no_ack: bool) -> Vec<Item> {
        let consume = Method::BasicConsume {
            queue: queue.as_bytes(),
            consumer_tag: tag.as_bytes(),
            no_local: false,
            no_ack,
            exclusive: false,
            no_wait: false,
            arguments: Table::EMPTY,
        };
        self.call(node, &consume)
    }

    pub fn qos(&mut self, node: &mut Node, prefetch_count: u16, global: bool) -> Vec<Item> {
        self.call(node, &Method::BasicQos { prefetch_size: 0, prefetch_count, global })
    }

    pub fn get(&mut self, node: &mut Node, queue: &str, no_ack: bool) -> Vec<Item> {
        self.call(node, &Method::BasicGet { queue: queue.as_bytes(), no_ack })
    }

    pub fn ack(&mut self, node: &mut Node, delivery_tag: u64, multiple: bool) -> Vec<Item> {
        self.call(node, &Method::BasicAck { delivery_tag, multiple })
    }

    pub fn nack(&mut self, node: &mut Node, delivery_tag: u64, multiple: bool, requeue: bool) -> Vec<Item> {
        self.call(node, &Method::BasicNack { delivery_tag, multiple, requeue })
    }

    /// What the node said since the last time.
    pub fn read(&mut self, node: &mut Node) -> Vec<Item> {
        self.unread.extend(node.take_output(self.conn));
        let (items, used) = parse(&self.unread);
        self.unread.drain(..used);
        items
    }
}

/// Everything a client says until open-ok, in one piece: a node answers each in turn.
pub fn opening(heartbeat: u16, properties: impl FnOnce(&mut TableWriter<'_>)) -> Vec<u8> {
    let properties = table(properties);
    let client_properties = Table::trusted(&properties);
    let mut bytes = PROTOCOL_HEADER.to_vec();
    let methods = [
        Method::ConnectionStartOk {
            client_properties,
            mechanism: b"PLAIN",
            response: b"\0guest\0guest",
            locale: b"en_US",
        },
        Method::ConnectionTuneOk { channel_max: 0, frame_max: 0, heartbeat },
        Method::ConnectionOpen { virtual_host: b"/" },
    ];
    methods.iter().for_each(|method| method.encode_frame(0, &mut bytes));
    bytes
}

/// The content of a table.
pub fn table(fill: impl FnOnce(&mut TableWriter<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    TableWriter::write(&mut bytes, fill);
    bytes.split_off(4)
}

/// Appends basic.publish with its header and body frames.
pub fn write_publish(
    out: &mut Vec<u8>,
    channel: u16,
    (exchange, routing_key): (&[u8], &[u8]),
    mandatory: bool,
    properties: &Properties<'_>,
    body: &[u8],
) {
    Method::BasicPublish { exchange, routing_key, mandatory, immediate: false }.encode_frame(channel, out);
    let mark = frame::begin_frame(out, FRAME_HEADER, channel);
    out.extend_from_slice(&[0, 60, 0, 0]);
    out.extend_from_slice(&(body.len() as u64).to_be_bytes());
    properties.encode(out);
    frame::end_frame(out, mark);
    for chunk in body.chunks(FRAME_BYTES - FRAME_OVERHEAD) {
        out.extend_from_slice(&frame::frame_header(FRAME_BODY, channel, chunk.len() as u32));
        out.extend_from_slice(chunk);
        out.push(FRAME_END);
    }
}

/// Reads whole items from what a node sent; also how many bytes they took. Heartbeats are left out.
pub fn parse(bytes: &[u8]) -> (Vec<Item>, usize) {
    let (mut items, mut at, mut done) = (Vec::new(), 0, 0);
    let mut open: Option<(Item, usize)> = None;
    while let Some(frame) = frame::split(&bytes[at..], usize::MAX).expect("the node writes well-formed frames") {
        at += frame.size;
        match (frame.kind, &mut open) {
            (FRAME_METHOD, None) => {
                let (channel, payload) = (frame.channel, frame.payload.to_vec());
                let item = Item { channel, payload, properties: Vec::new(), body: Vec::new() };
                match item.method().has_content() {
                    true => open = Some((item, usize::MAX)),
                    false => items.push(item),
                }
            }
            (FRAME_HEADER, Some((item, size))) if *size == usize::MAX => {
                let header = frame::content_header(frame.payload).expect("the node writes well-formed headers");
                item.properties = header.properties.to_vec();
                *size = header.body_size as usize;
            }
            (FRAME_BODY, Some((item, size))) if item.body.len() + frame.payload.len() <= *size => {
                item.body.extend_from_slice(frame.payload);
            }
            (frame::FRAME_HEARTBEAT, None) => {}
            (kind, _) => panic!("the node sent a frame of type {kind} where none belongs"),
        }
        if let Some((item, _)) = open.take_if(|(item, size)| item.body.len() == *size) {
            items.push(item);
        }
        if open.is_none() {
            done = at;
        }
    }
    (items, done)
}
