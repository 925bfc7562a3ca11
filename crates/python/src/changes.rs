//! Changes on their way into the engine: the frozen classes of `weft.model.changes` become native values.
//!
//! Owns the reading of their attributes. Instances come in, native changes go out; a class that is not a change is a
//! TypeError with its name. It must never apply anything. Rule: field names are those of the dataclasses.

use std::rc::Rc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use weft_engine::barrier::{self, Key};
use weft_engine::change::{BindingSpec, Change, Direction, ExchangeKind, FilterValue, LinkOrder, LinkPlan, Refusal};
use weft_engine::durability::Durability;
use weft_engine::event::{Access, Resource};
use weft_engine::queue::{Overflow, Settings};
use weft_engine::stream::Retention;

use crate::tables;

/// A binding, from any object with the attributes of one.
pub(crate) fn binding(object: &Bound<'_, PyAny>) -> PyResult<BindingSpec> {
    Fields(object).binding()
}

struct Fields<'a, 'py>(&'a Bound<'py, PyAny>);

impl<'py> Fields<'_, 'py> {
    fn get<T>(&self, name: &str) -> PyResult<T>
    where
        T: for<'x> FromPyObject<'x, 'py, Error = PyErr>,
    {
        self.0.getattr(name)?.extract()
    }

    fn name(&self, name: &str) -> PyResult<Option<Rc<[u8]>>> {
        let text: Option<String> = self.0.getattr(name)?.extract()?;
        Ok(text.map(|text| Rc::from(text.into_bytes())))
    }

    fn access(&self) -> PyResult<Access> {
        match self.text("operation")?.as_str() {
            "configure" => Ok(Access::Configure),
            "write" => Ok(Access::Write),
            "read" => Ok(Access::Read),
            other => Err(PyValueError::new_err(format!("operation is configure, write or read, not {other:?}"))),
        }
    }

    fn kind(&self) -> PyResult<Resource> {
        match self.text("kind")?.as_str() {
            "queue" => Ok(Resource::Queue),
            "exchange" => Ok(Resource::Exchange),
            other => Err(PyValueError::new_err(format!("kind is queue or exchange, not {other:?}"))),
        }
    }

    fn text(&self, name: &str) -> PyResult<String> {
        self.0.getattr(name)?.extract()
    }

    fn maybe_text(&self, name: &str) -> PyResult<Option<String>> {
        self.0.getattr(name)?.extract()
    }

    fn binding(&self) -> PyResult<BindingSpec> {
        let arguments = self.0.getattr("arguments")?;
        let arguments = tables::encode(arguments.cast::<PyDict>().map_err(PyErr::from)?)?;
        Ok(BindingSpec {
            vhost: self.text("vhost")?,
            source: self.text("source")?,
            kind: self.kind()?,
            destination: self.text("destination")?,
            routing_key: self.text("routing_key")?,
            arguments: arguments.into_boxed_slice(),
        })
    }

    fn exchange_kind(&self) -> PyResult<ExchangeKind> {
        match self.text("type")?.as_str() {
            "direct" => Ok(ExchangeKind::Direct),
            "fanout" => Ok(ExchangeKind::Fanout),
            "topic" => Ok(ExchangeKind::Topic),
            "headers" => Ok(ExchangeKind::Headers),
            other => Err(PyValueError::new_err(format!("no exchange type {other:?}"))),
        }
    }

    fn barrier(&self) -> PyResult<Option<barrier::Settings>> {
        let value = self.0.getattr("barrier")?;
        if value.is_none() {
            return Ok(None);
        }
        let fields = Fields(&value);
        let key = fields.text("key")?;
        let key = match (key.as_str(), key.strip_prefix("header:")) {
            ("message-id", _) => Key::MessageId,
            ("body", _) => Key::Body,
            ("fabric", _) => Key::Fabric,
            (_, Some(name)) => Key::Header(name.into()),
            (other, None) => return Err(PyValueError::new_err(format!("no barrier key {other:?}"))),
        };
        Ok(Some(barrier::Settings {
            key,
            or_body: fields.get("or_body")?,
            window_ms: fields.get("window_ms")?,
            ids_max: fields.get("ids_max")?,
            number: fields.get("number")?,
        }))
    }

    fn queue_settings(&self) -> PyResult<Settings> {
        let overflow = match self.text("overflow")?.as_str() {
            "drop-head" => Overflow::DropHead,
            "reject-publish" => Overflow::RejectPublish,
            "reject-publish-dlx" => Overflow::RejectPublishDeadLetter,
            other => return Err(PyValueError::new_err(format!("no overflow behaviour {other:?}"))),
        };
        Ok(Settings {
            durable: self.get("durable")?,
            durability: self.maybe_text("durability")?.map(|word| durability(&word)).transpose()?,
            auto_delete: self.get("auto_delete")?,
            owner: self.get("owner")?,
            message_ttl_ms: self.get("message_ttl_ms")?,
            expires_ms: self.get("expires_ms")?,
            length_max: self.get("length_max")?,
            length_bytes_max: self.get("length_bytes_max")?,
            overflow,
            dead_letter_exchange: self.name("dead_letter_exchange")?,
            dead_letter_key: self.name("dead_letter_key")?,
            priority_max: self.get("priority_max")?,
            single_active: self.get("single_active")?,
            delivery_limit: self.get("delivery_limit")?,
            number: self.get("number")?,
            barrier: self.barrier()?,
            end_to_end: self.text("ack")? == "end-to-end",
            delete_when_empty: self.get("delete_when_empty")?,
            tap: self.name("tap")?,
            parts: self.get::<Vec<String>>("parts")?.into_iter().map(|name| Rc::from(name.into_bytes())).collect(),
            part: self.get("part")?,
            stream: self.retention()?,
        })
    }

    fn retention(&self) -> PyResult<Option<Retention>> {
        let stream = self.0.getattr("stream")?;
        if stream.is_none() {
            return Ok(None);
        }
        let fields = Fields(&stream);
        Ok(Some(Retention {
            age_ms_max: fields.get("age_ms_max")?,
            bytes_max: fields.get("bytes_max")?,
            count_max: fields.get("count_max")?,
        }))
    }

    fn plan(&self) -> PyResult<LinkPlan> {
        Ok(LinkPlan {
            address: self.maybe_text("address")?,
            queue: self.maybe_text("queue")?,
            exchange: self.maybe_text("exchange")?,
            routing_key: self.maybe_text("routing_key")?,
            anonymous: self.get("anonymous")?,
            browse: self.get("browse")?,
            selector: self.maybe_text("selector")?,
            subject_filter: self.maybe_text("subject_filter")?,
            no_local: self.get("no_local")?,
            discard: self.get("discard")?,
            filters: self.get("filters")?,
            capabilities: self.get("capabilities")?,
            watch: self.get("watch")?,
            report: self.get("report")?,
        })
    }
}

impl Fields<'_, '_> {
    fn order(&self) -> PyResult<LinkOrder> {
        let direction = match self.text("direction")?.as_str() {
            "pull" => Direction::Pull,
            "push" => Direction::Push,
            other => return Err(PyValueError::new_err(format!("direction is pull or push, not {other:?}"))),
        };
        let refusal = match self.text("refusal")?.as_str() {
            "modify" => Refusal::Modify,
            "release" => Refusal::Release,
            "reject" => Refusal::Reject,
            "accept" => Refusal::Accept,
            other => return Err(PyValueError::new_err(format!("no refusal {other:?}"))),
        };
        Ok(LinkOrder {
            conn: self.get("conn")?,
            link: self.get("link")?,
            name: self.text("name")?,
            direction,
            address: self.text("address")?,
            vhost: self.text("vhost")?,
            queue: self.maybe_text("queue")?,
            exchange: self.maybe_text("exchange")?,
            routing_key: self.maybe_text("routing_key")?,
            credit: self.get("credit")?,
            backlog_max: self.get("backlog_max")?,
            bytes_per_s_max: self.get("bytes_per_s_max")?,
            filters: self.filters()?,
            capabilities: self.get("capabilities")?,
            durable: self.get("durable")?,
            priority: self.get("priority")?,
            relay: self.get("relay")?,
            circles: self.get("circles")?,
            first_hand: self.get("first_hand")?,
            discard: self.get("discard")?,
            refusal,
        })
    }

    fn filters(&self) -> PyResult<Vec<(String, FilterValue)>> {
        let mut filters = Vec::new();
        for pair in self.0.getattr("filters")?.call_method0("items")?.try_iter()? {
            let (symbol, value): (String, Bound<'_, PyAny>) = pair?.extract()?;
            let value = match value.extract::<String>() {
                Ok(text) => FilterValue::Text(text),
                Err(_) => FilterValue::Number(value.extract()?),
            };
            filters.push((symbol, value));
        }
        Ok(filters)
    }
}

/// A level of durability by its word.
pub(crate) fn durability(word: &str) -> PyResult<Durability> {
    match word {
        "sync" => Ok(Durability::Sync),
        "write" => Ok(Durability::Write),
        "memory" => Ok(Durability::Memory),
        other => Err(PyValueError::new_err(format!("no level of durability {other:?}"))),
    }
}

/// Reads one change.
pub(crate) fn change(object: &Bound<'_, PyAny>) -> PyResult<Change> {
    let class = object.get_type().name()?;
    let class = class.to_str()?;
    let fields = Fields(object);
    match class {
        "Accept" => Ok(Change::Accept {
            request: fields.get("request")?,
            principal: fields.get("principal")?,
            name: fields.text("name")?,
            messages: fields.get("messages")?,
            consumers: fields.get("consumers")?,
            proof: fields.get("proof")?,
        }),
        "Challenge" => Ok(Change::Challenge { request: fields.get("request")?, data: fields.get("data")? }),
        "Refuse" => Ok(Change::Refuse {
            request: fields.get("request")?,
            code: fields.get("code")?,
            text: fields.text("text")?,
        }),
        "AcceptLink" => Ok(Change::AcceptLink { request: fields.get("request")?, plan: Box::new(fields.plan()?) }),
        "CloseConnection" => Ok(Change::CloseConnection {
            conn: fields.get("conn")?,
            code: fields.get("code")?,
            text: fields.text("text")?,
        }),
        "OpenLink" => Ok(Change::OpenLink(Box::new(fields.order()?))),
        "CloseLink" => Ok(Change::CloseLink {
            conn: fields.get("conn")?,
            link: fields.get("link")?,
            closed: fields.get("closed")?,
        }),
        "SetMechanisms" => Ok(Change::SetMechanisms { names: fields.get("names")? }),
        "Quiesce" => Ok(Change::Quiesce { on: fields.get("on")? }),
        "SetPrincipal" | "Revoke" | "Grant" | "SetAddress" => policy_change(class, &fields),
        _ => topology_change(class, &fields),
    }
}

fn policy_change(class: &str, fields: &Fields<'_, '_>) -> PyResult<Change> {
    let principal = fields.get("principal")?;
    Ok(match class {
        "SetPrincipal" => Change::SetPrincipal {
            principal,
            user: fields.text("user")?,
            vhost: fields.text("vhost")?,
            impersonate: fields.get("impersonate")?,
            topics: fields.get("topics")?,
            channels_max: fields.get("channels_max")?,
        },
        "Revoke" => Change::Revoke { principal },
        "Grant" => Change::Grant {
            principal,
            access: fields.access()?,
            kind: fields.kind()?,
            name: fields.text("name")?,
            allowed: fields.get("allowed")?,
            text: fields.text("text")?,
        },
        _ => Change::SetAddress {
            principal,
            address: fields.text("address")?,
            exchange: fields.maybe_text("exchange")?,
            routing_key: fields.maybe_text("routing_key")?,
            code: fields.get("code")?,
            text: fields.text("text")?,
        },
    })
}

fn topology_change(class: &str, fields: &Fields<'_, '_>) -> PyResult<Change> {
    match class {
        "CreateVhost" => Ok(Change::CreateVhost { name: fields.text("name")? }),
        "DeleteVhost" => Ok(Change::DeleteVhost { name: fields.text("name")? }),
        "DeclareExchange" => Ok(Change::DeclareExchange {
            vhost: fields.text("vhost")?,
            name: fields.text("name")?,
            kind: fields.exchange_kind()?,
            internal: fields.get("internal")?,
            delayed: fields.get("delayed")?,
            alternate: fields.maybe_text("alternate")?,
            tap: fields.maybe_text("tap")?,
            barrier: fields.barrier()?,
        }),
        "DeleteExchange" => Ok(Change::DeleteExchange { vhost: fields.text("vhost")?, name: fields.text("name")? }),
        "DeclareQueue" => Ok(Change::DeclareQueue {
            vhost: fields.text("vhost")?,
            name: fields.text("name")?,
            settings: Box::new(fields.queue_settings()?),
        }),
        "DeleteQueue" => Ok(Change::DeleteQueue { vhost: fields.text("vhost")?, name: fields.text("name")? }),
        "Bind" => Ok(Change::Bind(fields.binding()?)),
        "Unbind" => Ok(Change::Unbind(fields.binding()?)),
        other => Err(PyTypeError::new_err(format!("{other} is not a change"))),
    }
}
