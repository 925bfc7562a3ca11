//! Events on their way to Python: native values become the frozen classes of `weft.model.events`.
//!
//! Owns the table of those classes, looked up once per engine. Native events come in, instances go out, rare as they
//! are. It must never be used per message. Rule: arguments by position, in the order the dataclasses declare them.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use weft_engine::event::{Access, Event, Operation, Resource, Terminus, Unused, Wire};

use crate::tables::fields;

/// The classes of `weft.model.events`.
pub(crate) struct Classes(Py<PyAny>);

pub(crate) fn access_word(access: Access) -> &'static str {
    match access {
        Access::Configure => "configure",
        Access::Write => "write",
        Access::Read => "read",
    }
}

pub(crate) fn kind_word(kind: Resource) -> &'static str {
    match kind {
        Resource::Queue => "queue",
        Resource::Exchange => "exchange",
    }
}

fn wire_word(wire: Wire) -> &'static str {
    match wire {
        Wire::Amqp091 => "0-9-1",
        Wire::Amqp10 => "1.0",
    }
}

impl Classes {
    pub(crate) fn load(py: Python<'_>) -> PyResult<Self> {
        Ok(Self(py.import("weft.model.events")?.into_any().unbind()))
    }

    fn make<'py>(
        &self,
        py: Python<'py>,
        class: &str,
        arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.0.bind(py).getattr(class)?.call1(arguments.into_pyobject(py)?)
    }

    pub(crate) fn event<'py>(&self, py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyAny>> {
        match event {
            Event::AuthRequested { request, conn, wire, mechanism, response, step } => {
                let response = PyBytes::new(py, &response);
                self.make(py, "AuthRequested", (request, conn, wire_word(wire), mechanism, response, step))
            }
            Event::OpenRequested { request, conn, wire, vhost, container, properties } => {
                let properties = fields(py, &properties)?;
                self.make(py, "OpenRequested", (request, conn, wire_word(wire), vhost, container, properties))
            }
            Event::AccessRequested { request, conn, principal, access, kind, name } => {
                let words = (access_word(access), kind_word(kind));
                self.make(py, "AccessRequested", (request, conn, principal, words.0, words.1, name))
            }
            Event::TopologyRequested { request, conn, principal, operation } => {
                let operation = self.operation(py, *operation)?;
                self.make(py, "TopologyRequested", (request, conn, principal, operation))
            }
            Event::AttachRequested { request, conn, principal, link, peer_sends, terminus, relay } => {
                let terminus = self.terminus(py, *terminus)?;
                self.make(py, "AttachRequested", (request, conn, principal, link, peer_sends, terminus, relay))
            }
            Event::AddressRequested { request, conn, principal, address } => {
                self.make(py, "AddressRequested", (request, conn, principal, address))
            }
            Event::LinkClosed { conn, vhost, queue, link, closed } => {
                self.make(py, "LinkClosed", (conn, vhost, queue, link, closed))
            }
            Event::LinkFlow { conn, vhost, queue, link, credit, drain } => {
                self.make(py, "LinkFlow", (conn, vhost, queue, link, credit, drain))
            }
            Event::Settled { vhost, queue, message_id, outcome } => {
                self.make(py, "Settled", (vhost, queue, message_id, outcome))
            }
            Event::PeerOpened { conn, container, node, properties } => {
                let properties = fields(py, &properties)?;
                self.make(py, "PeerOpened", (conn, container, node, properties))
            }
            Event::LinkAttached { conn, link, address, node } => {
                self.make(py, "LinkAttached", (conn, link, address, node))
            }
            Event::LinkDetached { conn, link, condition, text, closed } => {
                self.make(py, "LinkDetached", (conn, link, condition, text, closed))
            }
            Event::ConnectionClosed { conn, principal, cause } => {
                self.make(py, "ConnectionClosed", (conn, principal, cause))
            }
            Event::SessionChanged { conn, number, begun } => self.make(py, "SessionChanged", (conn, number, begun)),
            Event::ConsumerChanged { conn, consumer, vhost, queue, joined } => {
                self.make(py, "ConsumerChanged", (conn, consumer, vhost, queue, joined))
            }
            Event::HangUp { conn } => self.make(py, "HangUp", (conn,)),
            Event::ReadingResumed { conn } => self.make(py, "ReadingResumed", (conn,)),
            Event::QueueUnused { vhost, queue, cause } => {
                let cause = match cause {
                    Unused::AutoDelete => "auto-delete",
                    Unused::Expired => "expired",
                    Unused::Empty => "empty",
                };
                self.make(py, "QueueUnused", (vhost, queue, cause))
            }
            Event::DiskAlarm { raised, text } => self.make(py, "DiskAlarm", (raised, text)),
            Event::ReadAlarm { raised, text } => self.make(py, "ReadAlarm", (raised, text)),
            Event::DoubtEnded { vhost, queue, messages } => self.make(py, "DoubtEnded", (vhost, queue, messages)),
            Event::MemoryAlarm { raised, used_bytes, max_bytes } => {
                self.make(py, "MemoryAlarm", (raised, used_bytes, max_bytes))
            }
        }
    }

    fn operation<'py>(&self, py: Python<'py>, operation: Operation) -> PyResult<Bound<'py, PyAny>> {
        match operation {
            Operation::ExchangeDeclare { name, kind, passive, durable, auto_delete, internal, arguments } => {
                let arguments = fields(py, &arguments)?;
                let all = (name, kind, passive, durable, auto_delete, internal, arguments);
                self.make(py, "ExchangeDeclare", all)
            }
            Operation::ExchangeDelete { name, if_unused } => self.make(py, "ExchangeDelete", (name, if_unused)),
            Operation::QueueDeclare { name, passive, durable, exclusive, auto_delete, arguments } => {
                let arguments = fields(py, &arguments)?;
                self.make(py, "QueueDeclare", (name, passive, durable, exclusive, auto_delete, arguments))
            }
            Operation::QueueDelete { name, if_unused, if_empty } => {
                self.make(py, "QueueDelete", (name, if_unused, if_empty))
            }
            Operation::Binding { bind, kind, source, destination, routing_key, arguments } => {
                let action = if bind { "bind" } else { "unbind" };
                let arguments = fields(py, &arguments)?;
                let all = (action, kind_word(kind), source, destination, routing_key, arguments);
                self.make(py, "BindingChange", all)
            }
        }
    }

    fn terminus<'py>(&self, py: Python<'py>, terminus: Terminus) -> PyResult<Bound<'py, PyAny>> {
        let capabilities = PyTuple::new(py, terminus.capabilities)?;
        let filters = fields(py, &terminus.filters)?;
        let all = (
            terminus.address,
            terminus.dynamic,
            terminus.durable,
            terminus.expiry,
            terminus.timeout_s,
            terminus.distribution,
            capabilities,
            terminus.lifetime,
            filters,
        );
        self.make(py, "Terminus", all)
    }
}
