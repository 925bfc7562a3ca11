//! Changes of topology that a client asks for: declare, delete, bind, unbind, purge.
//!
//! Owns the translation between methods and Python's decisions. A method becomes an event and parks the connection; the
//! answer becomes the method's reply, or the close that refuses it. It must never decide whether an exchange or a queue
//! may be made. Rules: AMQP 0-9-1 sections 1.6 and 1.7; the decisions are in `src/weft/broker/topology.py`.

use weft_wire::amqp091::table::Table;
use weft_wire::amqp091::{Method, reply};

use super::{Fault, Session, Step, Stepped, utf8, without_code};
use crate::broker::Broker;
use crate::conn::{Io, Wait};
use crate::event::{Access, Event, Fields, Operation, Resource};
use crate::message::Name;
use crate::session::Answer;

/// A request that Python is deciding on, and how its answer is written.
pub(super) struct Pending {
    channel: u16,
    reply: Reply,
    no_wait: bool,
    ids: (u16, u16),
}

#[derive(Clone, Copy)]
enum Reply {
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeBind,
    ExchangeUnbind,
    QueueDeclare,
    QueueDelete,
    QueueBind,
    QueueUnbind,
}

impl Session {
    pub(super) fn on_topology(&mut self, io: &mut Io, broker: &mut Broker, number: u16, method: Method<'_>) -> Stepped {
        let (operation, reply, no_wait) = match method {
            Method::QueuePurge { queue, no_wait } => return self.on_purge(io, broker, number, queue, no_wait),
            Method::ExchangeDeclare { .. } | Method::ExchangeDelete { .. } => exchange_operation(method)?,
            Method::ExchangeBind { .. } | Method::ExchangeUnbind { .. } => exchange_binding(method)?,
            Method::QueueDeclare { queue, passive, durable, exclusive, auto_delete, no_wait, arguments } => {
                let name = match passive && queue.is_empty() {
                    true => utf8(&self.queue_name(number, queue)?)?.to_owned(),
                    false => utf8(queue)?.to_owned(),
                };
                let arguments = fields(arguments);
                let operation = Operation::QueueDeclare { name, passive, durable, exclusive, auto_delete, arguments };
                (operation, Reply::QueueDeclare, no_wait)
            }
            Method::QueueDelete { queue, if_unused, if_empty, no_wait } => {
                let name = utf8(&self.queue_name(number, queue)?)?.to_owned();
                (Operation::QueueDelete { name, if_unused, if_empty }, Reply::QueueDelete, no_wait)
            }
            Method::QueueBind { .. } | Method::QueueUnbind { .. } => self.queue_binding(number, method)?,
            method => {
                return Err(Fault::connection(reply::COMMAND_INVALID, format!("unexpected {} method", method.name())));
            }
        };
        self.pending = Some(Pending { channel: number, reply, no_wait, ids: method.ids() });
        let request = broker.next_request();
        let (conn, principal, operation) = (io.id.raw(), io.principal, Box::new(operation));
        broker.events.push(Event::TopologyRequested { request, conn, principal, operation });
        io.parked = Some(Wait::Answer(request));
        Ok(Step::Done(0))
    }

    fn queue_binding(&mut self, number: u16, method: Method<'_>) -> Result<(Operation, Reply, bool), Fault> {
        let (bind, queue, exchange, routing_key, no_wait, arguments) = match method {
            Method::QueueBind { queue, exchange, routing_key, no_wait, arguments } => {
                (true, queue, exchange, routing_key, no_wait, arguments)
            }
            Method::QueueUnbind { queue, exchange, routing_key, arguments } => {
                (false, queue, exchange, routing_key, false, arguments)
            }
            _ => return Err(Fault::connection(reply::INTERNAL_ERROR, "not a binding")),
        };
        let name = self.queue_name(number, queue)?;
        // No queue and no key named: the last queue is bound by its own name (section 1.7.2.3.3).
        let routing_key = if bind && queue.is_empty() && routing_key.is_empty() { &*name } else { routing_key };
        let operation = Operation::Binding {
            bind,
            kind: Resource::Queue,
            source: utf8(exchange)?.to_owned(),
            destination: utf8(&name)?.to_owned(),
            routing_key: utf8(routing_key)?.to_owned(),
            arguments: fields(arguments),
        };
        Ok((operation, if bind { Reply::QueueBind } else { Reply::QueueUnbind }, no_wait))
    }

    fn on_purge(&mut self, io: &mut Io, broker: &mut Broker, number: u16, queue: &[u8], no_wait: bool) -> Stepped {
        let name = self.queue_name(number, queue)?;
        let id = self.usable_queue(io, broker, &name)?;
        if !self.permitted(io, broker, Access::Read, Resource::Queue, &name)? {
            return Ok(Step::Retry);
        }
        self.refuse_stream(broker, id, &name, "queue.purge")?;
        let message_count = broker.purge(id) as u32;
        if !no_wait {
            Method::QueuePurgeOk { message_count }.encode_frame(number, &mut io.output);
        }
        Ok(Step::Done(0))
    }

    pub(super) fn answer_topology(&mut self, io: &mut Io, broker: &mut Broker, answer: Answer) {
        let Some(pending) = self.pending.take() else { return };
        match answer {
            Answer::Accept { name, messages, consumers, .. } => {
                self.accepted(io, broker, &pending, &name, (messages, consumers));
            }
            Answer::Refuse { code, text } => {
                let fault = Fault::by_code(code, without_code(&text));
                let text = format!("{} - {}", reply::text(code), fault.text);
                match fault.hard {
                    true => self.close_connection(io, broker, code, &text, pending.ids),
                    false => self.close_channel(io, broker, pending.channel, code, &text, pending.ids),
                }
            }
            _ => io.finish("the node gave an answer that does not fit"),
        }
    }

    fn accepted(&mut self, io: &mut Io, broker: &mut Broker, pending: &Pending, name: &str, counts: (u32, u32)) {
        if let Reply::QueueDeclare = pending.reply {
            if let Some(channel) = self.channel(pending.channel) {
                channel.last_queue = Some(Name::from(name.as_bytes()));
            }
            if let Some(queue) = broker.find_queue(self.vhost, name.as_bytes()) {
                // A declare is use: it keeps an expiring queue alive.
                let now_ns = broker.now_ns;
                broker.queues.get_mut(queue).into_iter().for_each(|queue| queue.used_ns = now_ns);
            }
        }
        if pending.no_wait {
            return;
        }
        let method = match pending.reply {
            Reply::ExchangeDeclare => Method::ExchangeDeclareOk,
            Reply::ExchangeDelete => Method::ExchangeDeleteOk,
            Reply::ExchangeBind => Method::ExchangeBindOk,
            Reply::ExchangeUnbind => Method::ExchangeUnbindOk,
            Reply::QueueDeclare => {
                Method::QueueDeclareOk { queue: name.as_bytes(), message_count: counts.0, consumer_count: counts.1 }
            }
            Reply::QueueDelete => Method::QueueDeleteOk { message_count: counts.0 },
            Reply::QueueBind => Method::QueueBindOk,
            Reply::QueueUnbind => Method::QueueUnbindOk,
        };
        method.encode_frame(pending.channel, &mut io.output);
    }
}

fn exchange_operation(method: Method<'_>) -> Result<(Operation, Reply, bool), Fault> {
    match method {
        Method::ExchangeDeclare { exchange, kind, passive, durable, auto_delete, internal, no_wait, arguments } => {
            let (name, kind) = (utf8(exchange)?.to_owned(), utf8(kind)?.to_owned());
            let arguments = fields(arguments);
            let operation =
                Operation::ExchangeDeclare { name, kind, passive, durable, auto_delete, internal, arguments };
            Ok((operation, Reply::ExchangeDeclare, no_wait))
        }
        Method::ExchangeDelete { exchange, if_unused, no_wait } => {
            let name = utf8(exchange)?.to_owned();
            Ok((Operation::ExchangeDelete { name, if_unused }, Reply::ExchangeDelete, no_wait))
        }
        _ => Err(Fault::connection(reply::INTERNAL_ERROR, "not an exchange method")),
    }
}

fn exchange_binding(method: Method<'_>) -> Result<(Operation, Reply, bool), Fault> {
    let (bind, destination, source, routing_key, no_wait, arguments) = match method {
        Method::ExchangeBind { destination, source, routing_key, no_wait, arguments } => {
            (true, destination, source, routing_key, no_wait, arguments)
        }
        Method::ExchangeUnbind { destination, source, routing_key, no_wait, arguments } => {
            (false, destination, source, routing_key, no_wait, arguments)
        }
        _ => return Err(Fault::connection(reply::INTERNAL_ERROR, "not a binding")),
    };
    let operation = Operation::Binding {
        bind,
        kind: Resource::Exchange,
        source: utf8(source)?.to_owned(),
        destination: utf8(destination)?.to_owned(),
        routing_key: utf8(routing_key)?.to_owned(),
        arguments: fields(arguments),
    };
    Ok((operation, if bind { Reply::ExchangeBind } else { Reply::ExchangeUnbind }, no_wait))
}

fn fields(arguments: Table<'_>) -> Fields {
    match arguments.is_empty() {
        true => Fields::Empty,
        false => Fields::Amqp091(arguments.raw().into()),
    }
}
