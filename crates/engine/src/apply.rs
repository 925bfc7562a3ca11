//! Python's decisions become rows and answers.
//!
//! Owns the dispatch of changes. A list comes in from the node; each change goes to the broker's tables or to the
//! session that waits for it; then the engine works on. It must never second-guess a decision. Rule: in order; a change
//! that names something unknown ends the list with an error, and nothing after it is applied.

use std::rc::Rc;

use crate::broker::{Permit, Route, Topics, Unknown};
use crate::change::Change;
use crate::conn::{ConnId, Wait};
use crate::engine::Engine;
use crate::session::Answer;

impl Engine {
    /// Applies changes in order and works on with them.
    pub fn apply(&mut self, changes: Vec<Change>) -> Result<u32, Unknown> {
        self.broker.work_left = self.broker.limits.work_max;
        let mut result = Ok(());
        for change in changes {
            result = self.apply_one(change);
            if result.is_err() {
                break;
            }
        }
        self.work();
        let signals = self.signals();
        result.map(|()| signals)
    }

    fn apply_one(&mut self, change: Change) -> Result<(), Unknown> {
        match change {
            Change::Accept { request, principal, name, messages, consumers, proof } => {
                self.answer(request, Answer::Accept { principal, name, messages, consumers, proof });
            }
            Change::Challenge { request, data } => self.answer(request, Answer::Challenge(data)),
            Change::Refuse { request, code, text } => self.answer(request, Answer::Refuse { code, text }),
            Change::AcceptLink { request, plan } => self.answer(request, Answer::Link(plan)),
            Change::CloseConnection { conn, code, text } => self.close_by_order(ConnId::from_raw(conn), code, &text),
            Change::Quiesce { on } => {
                self.quiesced = on;
                let quiet = std::mem::take(&mut self.broker.quiet);
                self.broker.dirty.extend(quiet);
            }
            Change::SetMechanisms { names } => self.broker.mechanisms = names,
            Change::OpenLink(order) => self.open_link(&order),
            Change::CloseLink { conn, link, closed } => self.close_link(ConnId::from_raw(conn), link, closed),
            change => return self.apply_table(change),
        }
        Ok(())
    }

    fn apply_table(&mut self, change: Change) -> Result<(), Unknown> {
        let broker = &mut self.broker;
        match change {
            Change::SetPrincipal { principal, user, vhost, impersonate, topics, channels_max } => {
                broker.set_principal(principal, &user, &vhost, impersonate, Topics::new(topics), channels_max)
            }
            Change::Revoke { principal } => {
                broker.revoke(principal);
                Ok(())
            }
            Change::Grant { principal, access, kind, name, allowed, text } => {
                let permit = if allowed { Permit::Yes } else { Permit::No(Rc::from(text)) };
                broker.grant(principal, access, kind, &name, permit)
            }
            Change::SetAddress { principal, address, exchange, routing_key, code, text } => {
                let name = |text: String| Rc::from(text.into_bytes());
                let route = match exchange {
                    Some(exchange) => Route::To { exchange: name(exchange), routing_key: routing_key.map(name) },
                    None => Route::Nowhere { code, text: Rc::from(text), generation: broker.generation },
                };
                broker.set_address(principal, &address, route)
            }
            Change::CreateVhost { name } => {
                broker.create_vhost(&name);
                Ok(())
            }
            Change::DeleteVhost { name } => {
                self.delete_vhost(&name);
                Ok(())
            }
            Change::DeclareExchange { vhost, name, kind, internal, delayed, alternate, tap, barrier } => {
                let also = (alternate.as_deref(), tap.as_deref());
                broker.declare_exchange(&vhost, &name, kind, (internal, delayed), also, barrier)
            }
            Change::DeleteExchange { vhost, name } => broker.delete_exchange(&vhost, &name),
            Change::DeclareQueue { vhost, name, settings } => broker.declare_queue(&vhost, &name, *settings).map(drop),
            Change::DeleteQueue { vhost, name } => broker.delete_queue(&vhost, &name),
            Change::Bind(spec) => broker.bind(&spec),
            Change::Unbind(spec) => broker.unbind(&spec),
            other => Err(Unknown(format!("place for {other:?}"))),
        }
    }

    /// An answer to a connection that may be gone by now: then nobody needs it.
    fn answer(&mut self, request: u64, answer: Answer) {
        let Some(id) = self.requests.remove(&request) else { return };
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.io.parked != Some(Wait::Answer(request)) {
            return;
        }
        conn.session.answer(&mut conn.io, &mut self.broker, answer);
        if conn.io.parked == Some(Wait::Answer(request)) {
            conn.io.parked = None;
        }
        if conn.io.parked.is_none() {
            self.resume(id);
        }
        self.note(id);
    }

    fn close_by_order(&mut self, id: ConnId, code: u16, text: &str) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.session.close(&mut conn.io, &mut self.broker, code, text);
            self.note(id);
        }
    }

    fn delete_vhost(&mut self, name: &str) {
        let Some(vhost) = self.broker.delete_vhost(name) else { return };
        let inside = |principal| self.broker.principal(principal).is_some_and(|own| own.vhost == vhost);
        let doomed = self.conns.iter().filter(|(_, conn)| inside(conn.io.principal)).map(|(id, _)| id);
        for id in doomed.collect::<Vec<_>>() {
            self.close_by_order(id, 320, "CONNECTION_FORCED - vhost deleted");
        }
    }
}
