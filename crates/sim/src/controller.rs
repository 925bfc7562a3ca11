//! A controller that says yes: what Python decides in a node, as far as the engine can tell.
//!
//! Owns the answers to the engine's questions. Events come in; changes go out, in order. Everybody may enter and do
//! everything, but what does not exist is still not found, so that both answers reach a peer. It must never hold a
//! decision back. Rules: `weft.model.events` and `weft.model.changes`; the real decisions are in `src/weft/broker` and
//! `src/weft/policy`.

use std::rc::Rc;

use weft_engine::Engine;
use weft_engine::barrier::{self, Key};
use weft_engine::change::{BindingSpec, Change, ExchangeKind, LinkPlan};
use weft_engine::event::{Event, Fields, Operation, Resource, Terminus};
use weft_engine::queue::{Overflow, Settings};
use weft_engine::stream::Retention;
use weft_wire::amqp091::table::{Table, Value};

/// The only virtual host.
pub const VHOST: &str = "/";
/// The only user.
pub const USER: &str = "guest";
/// What grants hang on.
pub const PRINCIPAL: u32 = 1;

/// Names that are always refused, so that refusals are seen as well.
const REFUSED: &str = "refused";

/// The controller's memory.
#[derive(Debug, Default)]
pub struct Controller {
    names_made: u64,
}

impl Controller {
    /// What a node knows when it starts.
    pub fn first_changes() -> Vec<Change> {
        let exchange = |name: &str, kind| Change::DeclareExchange {
            vhost: VHOST.to_owned(),
            name: name.to_owned(),
            kind,
            internal: false,
            delayed: false,
            alternate: None,
            tap: None,
            barrier: None,
        };
        vec![
            Change::CreateVhost { name: VHOST.to_owned() },
            Change::SetPrincipal {
                principal: PRINCIPAL,
                user: USER.to_owned(),
                vhost: VHOST.to_owned(),
                impersonate: false,
                topics: Vec::new(),
                channels_max: None,
            },
            exchange("amq.direct", ExchangeKind::Direct),
            exchange("amq.fanout", ExchangeKind::Fanout),
            exchange("amq.topic", ExchangeKind::Topic),
            exchange("amq.headers", ExchangeKind::Headers),
        ]
    }

    /// The changes an event calls for.
    pub fn decide(&mut self, engine: &Engine, event: &Event) -> Vec<Change> {
        match event {
            Event::AuthRequested { request, mechanism, .. } if mechanism == REFUSED => refuse(*request, 403),
            Event::AuthRequested { request, .. } => accept(*request, ""),
            Event::OpenRequested { request, vhost, .. } if !vhost.is_empty() && vhost != VHOST => refuse(*request, 530),
            Event::OpenRequested { request, .. } => accept(*request, ""),
            Event::AccessRequested { principal, access, kind, name, .. } => vec![Change::Grant {
                principal: *principal,
                access: *access,
                kind: *kind,
                name: name.clone(),
                allowed: name != REFUSED,
                text: "not allowed".to_owned(),
            }],
            Event::TopologyRequested { request, conn, operation, .. } => {
                self.change_topology(engine, *request, *conn, operation)
            }
            Event::AttachRequested { request, terminus, .. } => self.attach(engine, *request, terminus),
            Event::AddressRequested { principal, address, .. } => vec![Change::SetAddress {
                principal: *principal,
                address: address.clone(),
                exchange: (address != REFUSED).then(String::new),
                routing_key: Some(address.clone()),
                code: 404,
                text: "nowhere".to_owned(),
            }],
            Event::QueueUnused { queue, .. } => delete_queue(engine, queue),
            Event::ConnectionClosed { conn, .. } => {
                let queues = engine.broker.queues.iter().map(|(_, queue)| queue);
                let owned = queues.filter(|queue| queue.settings.owner == Some(*conn));
                owned.flat_map(|queue| delete_queue(engine, &String::from_utf8_lossy(&queue.name))).collect()
            }
            _ => Vec::new(),
        }
    }

    fn made_up_name(&mut self) -> String {
        self.names_made += 1;
        format!("amq.gen-{}", self.names_made)
    }

    fn change_topology(&mut self, engine: &Engine, request: u64, conn: u64, operation: &Operation) -> Vec<Change> {
        match operation {
            Operation::ExchangeDeclare { name, kind, passive, internal, arguments, .. } => {
                let Some((kind, delayed)) = exchange_kind(kind, arguments) else { return refuse(request, 503) };
                match (*passive, engine.exchange(VHOST, name).is_ok()) {
                    (true, false) => refuse(request, 404),
                    (false, _) if name.is_empty() || name == REFUSED => refuse(request, 403),
                    (true, true) => accept(request, name),
                    (false, _) => {
                        let alternate = text(arguments, b"alternate-exchange");
                        let (vhost, name) = (VHOST.to_owned(), name.clone());
                        let internal = *internal;
                        let (tap, barrier) = (text(arguments, b"x-tap"), barrier(arguments));
                        let declare =
                            Change::DeclareExchange { vhost, name, kind, internal, delayed, alternate, tap, barrier };
                        [vec![declare], accept(request, "")].concat()
                    }
                }
            }
            Operation::ExchangeDelete { name, .. } => match engine.exchange(VHOST, name).is_ok() && !name.is_empty() {
                true => {
                    let delete = Change::DeleteExchange { vhost: VHOST.to_owned(), name: name.clone() };
                    [vec![delete], accept(request, "")].concat()
                }
                false => accept(request, ""),
            },
            Operation::QueueDeclare { name, passive, exclusive, auto_delete, durable, arguments } => {
                let owner = exclusive.then_some(conn);
                let mut settings = settings(arguments);
                (settings.owner, settings.auto_delete, settings.durable) = (owner, *auto_delete, *durable);
                self.declare_queue(engine, request, name, *passive, settings)
            }
            Operation::QueueDelete { name, .. } => {
                let messages = engine.queue_stats(VHOST, name).map_or(0, |stats| stats.0 as u32);
                let done = accept_with(request, 0, name, messages, 0);
                [delete_queue(engine, name), vec![done]].concat()
            }
            Operation::Binding { bind, kind, source, destination, routing_key, arguments } => {
                let spec = BindingSpec {
                    vhost: VHOST.to_owned(),
                    source: source.clone(),
                    kind: *kind,
                    destination: destination.clone(),
                    routing_key: routing_key.clone(),
                    arguments: raw(arguments).into(),
                };
                change_binding(engine, request, *bind, spec)
            }
        }
    }

    fn declare_queue(
        &mut self,
        engine: &Engine,
        request: u64,
        name: &str,
        passive: bool,
        settings: Settings,
    ) -> Vec<Change> {
        if name == REFUSED {
            return refuse(request, 403);
        }
        let stats = engine.queue_stats(VHOST, name);
        if passive && stats.is_none() {
            return refuse(request, 404);
        }
        let name = if name.is_empty() { self.made_up_name() } else { name.to_owned() };
        let (messages, consumers) = stats.map_or((0, 0), |stats| (stats.0 as u32, stats.2 as u32));
        let mut changes = Vec::new();
        if stats.is_none() {
            let (vhost, name, settings) = (VHOST.to_owned(), name.clone(), Box::new(settings));
            changes.push(Change::DeclareQueue { vhost, name, settings });
        }
        changes.push(accept_with(request, 0, &name, messages, consumers));
        changes
    }

    /// An address is a queue, which is made where it is missing; `/exchanges/NAME/KEY` is an exchange; none is any
    /// address.
    fn attach(&mut self, engine: &Engine, request: u64, terminus: &Terminus) -> Vec<Change> {
        let mut plan = LinkPlan { address: terminus.address.clone(), ..LinkPlan::default() };
        plan.browse = terminus.distribution == "copy";
        let address = match (&terminus.address, terminus.dynamic) {
            (_, true) => self.made_up_name(),
            (None, false) => {
                plan.anonymous = true;
                return vec![Change::AcceptLink { request, plan: Box::new(plan) }];
            }
            (Some(address), false) if address == REFUSED => return refuse(request, 403),
            (Some(address), false) => address.clone(),
        };
        plan.address = Some(address.clone());
        if let Some(path) = address.strip_prefix("/exchanges/") {
            let (exchange, key) = path.split_once('/').map_or((path, None), |(name, key)| (name, Some(key)));
            if engine.exchange(VHOST, exchange).is_err() {
                return refuse(request, 404);
            }
            (plan.exchange, plan.routing_key) = (Some(exchange.to_owned()), key.map(str::to_owned));
            return vec![Change::AcceptLink { request, plan: Box::new(plan) }];
        }
        let queue = address.strip_prefix("/queues/").unwrap_or(&address).to_owned();
        let mut changes = Vec::new();
        if engine.queue_stats(VHOST, &queue).is_none() {
            let (vhost, name, settings) = (VHOST.to_owned(), queue.clone(), Box::default());
            changes.push(Change::DeclareQueue { vhost, name, settings });
        }
        plan.queue = Some(queue);
        changes.push(Change::AcceptLink { request, plan: Box::new(plan) });
        changes
    }
}

fn accept(request: u64, name: &str) -> Vec<Change> {
    vec![accept_with(request, PRINCIPAL, name, 0, 0)]
}

fn accept_with(request: u64, principal: u32, name: &str, messages: u32, consumers: u32) -> Change {
    Change::Accept { request, principal, name: name.to_owned(), messages, consumers, proof: Vec::new() }
}

fn refuse(request: u64, code: u16) -> Vec<Change> {
    vec![Change::Refuse { request, code, text: "no".to_owned() }]
}

fn delete_queue(engine: &Engine, name: &str) -> Vec<Change> {
    match engine.queue_stats(VHOST, name) {
        Some(_) => vec![Change::DeleteQueue { vhost: VHOST.to_owned(), name: name.to_owned() }],
        None => Vec::new(),
    }
}

fn change_binding(engine: &Engine, request: u64, bind: bool, spec: BindingSpec) -> Vec<Change> {
    let destination = match spec.kind {
        Resource::Queue => engine.queue_stats(VHOST, &spec.destination).is_some(),
        Resource::Exchange => !spec.destination.is_empty() && engine.exchange(VHOST, &spec.destination).is_ok(),
    };
    if spec.source.is_empty() {
        return refuse(request, 403);
    }
    if !destination || engine.exchange(VHOST, &spec.source).is_err() {
        return refuse(request, 404);
    }
    let change = if bind { Change::Bind(spec) } else { Change::Unbind(spec) };
    [vec![change], accept(request, "")].concat()
}

fn exchange_kind(kind: &str, arguments: &Fields) -> Option<(ExchangeKind, bool)> {
    let delayed = kind == "x-delayed-message";
    let wanted = if delayed { text(arguments, b"x-delayed-type")? } else { kind.to_owned() };
    let kind = match wanted.as_str() {
        "direct" => ExchangeKind::Direct,
        "fanout" => ExchangeKind::Fanout,
        "topic" => ExchangeKind::Topic,
        "headers" => ExchangeKind::Headers,
        _ => return None,
    };
    Some((kind, delayed))
}

fn raw(arguments: &Fields) -> &[u8] {
    match arguments {
        Fields::Amqp091(raw) => raw,
        _ => &[],
    }
}

fn text(arguments: &Fields, key: &[u8]) -> Option<String> {
    let value = Table::trusted(raw(arguments)).get(key)?;
    Some(String::from_utf8_lossy(value.as_bytes()?).into_owned())
}

/// The barrier that `x-barrier` asks for, with a window of a minute and room for a thousand ids.
fn barrier(arguments: &Fields) -> Option<barrier::Settings> {
    let key = match text(arguments, b"x-barrier")?.as_str() {
        "message-id" => Key::MessageId,
        "body" => Key::Body,
        name => Key::Header(name.into()),
    };
    Some(barrier::Settings { key, or_body: false, window_ms: 60_000, ids_max: 1_000, number: 0 })
}

/// The queue arguments that the engine knows.
fn settings(arguments: &Fields) -> Settings {
    let table = Table::trusted(raw(arguments));
    let number =
        |key: &[u8]| table.get(key).and_then(|value| value.as_i64()).and_then(|value| u64::try_from(value).ok());
    let name = |key: &[u8]| table.get(key).and_then(|value| value.as_bytes()).map(Rc::from);
    let flag = |key: &[u8]| table.get(key).and_then(|value| value.as_bool()).unwrap_or(false);
    let is_queue = |value: Value<'_>| matches!(value.as_bytes(), Some(b"classic" | b"quorum"));
    if table.get(b"x-queue-type").is_some_and(|value| !is_queue(value)) {
        let (bytes_max, count_max) = (number(b"x-max-length-bytes"), number(b"x-max-length"));
        let retention = Retention { age_ms_max: number(b"x-expires"), bytes_max, count_max };
        return Settings { stream: Some(retention), tap: name(b"x-tap"), ..Settings::default() };
    }
    Settings {
        message_ttl_ms: number(b"x-message-ttl"),
        expires_ms: number(b"x-expires"),
        length_max: number(b"x-max-length"),
        length_bytes_max: number(b"x-max-length-bytes"),
        overflow: match table.get(b"x-overflow").and_then(|value| value.as_bytes()) {
            Some(b"reject-publish") => Overflow::RejectPublish,
            Some(b"reject-publish-dlx") => Overflow::RejectPublishDeadLetter,
            _ => Overflow::DropHead,
        },
        dead_letter_exchange: name(b"x-dead-letter-exchange"),
        dead_letter_key: name(b"x-dead-letter-routing-key"),
        priority_max: number(b"x-max-priority").map_or(0, |most| most.min(255) as u8),
        single_active: flag(b"x-single-active-consumer"),
        delivery_limit: number(b"x-delivery-limit").map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
        barrier: barrier(arguments),
        end_to_end: table.get(b"x-ack").is_some(),
        tap: name(b"x-tap"),
        ..Settings::default()
    }
}
