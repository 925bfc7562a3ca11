//! Connections and links that this node opens itself.
//!
//! Owns the calls behind them: a dial makes a connection whose first words are ours, an order of Python's goes to the
//! session it is for. It must never choose a peer or try again: that is decided in Python. Rule: an order for a
//! connection that is gone by now is reported as the end of its link, since events and orders may cross.

use crate::change::LinkOrder;
use crate::conn::{Conn, ConnId};
use crate::engine::Engine;
use crate::event::Event;
use crate::inspect::{Page, Question, Row};
use crate::session::Session;
use crate::session::amqp10::{self, Dial};

impl Engine {
    /// A connection that this node opens, over a socket that is there. None when there are as many as allowed.
    pub fn connect(&mut self, dial: Dial) -> Option<ConnId> {
        let id = self.open(dial.tls, false)?;
        let conn = self.conns.get_mut(id)?;
        let session = amqp10::Session::dial(dial, &mut conn.io, &self.broker);
        conn.session = Session::Amqp10(Box::new(session));
        self.note(id);
        Some(id)
    }

    pub(crate) fn open_link(&mut self, order: &LinkOrder) {
        let id = ConnId::from_raw(order.conn);
        match self.conns.get_mut(id) {
            Some(Conn { io, session: Session::Amqp10(session) }) => session.open_link(io, &mut self.broker, order),
            _ => {
                let (condition, text) = ("amqp:not-found".to_owned(), "no such AMQP 1.0 connection".to_owned());
                let event = Event::LinkDetached { conn: order.conn, link: order.link, condition, text, closed: true };
                self.broker.events.push(event);
            }
        }
        self.note(id);
    }

    /// Links that waited for their messages to be consumed may give credit again.
    pub(crate) fn refill_links(&mut self) {
        for id in std::mem::take(&mut self.sated) {
            if let Some(Conn { io, session: Session::Amqp10(session) }) = self.conns.get_mut(id) {
                session.refill(io, &mut self.broker);
                self.note(id);
            }
        }
    }

    /// Links between nodes: those that we attached, and those that relay. There are few, so a page is cut from all.
    pub(crate) fn link_page(&self, question: &Question) -> Page {
        let mut rows = Vec::new();
        for (id, conn) in self.conns.iter() {
            if let Session::Amqp10(session) = &conn.session {
                session.describe_links(id.raw(), &mut rows);
            }
        }
        let total = rows.len();
        let wanted = |name: &str| question.columns.as_ref().is_none_or(|names| names.iter().any(|own| own == name));
        rows.iter_mut().for_each(|row: &mut Row| row.retain(|(name, _)| wanted(name)));
        let rows = rows.into_iter().skip(question.offset).take(question.count.unwrap_or(usize::MAX)).collect();
        Page { total, matched: total, rows }
    }

    pub(crate) fn close_link(&mut self, id: ConnId, link: u64, closed: bool) {
        if let Some(Conn { io, session: Session::Amqp10(session) }) = self.conns.get_mut(id) {
            session.close_link(io, &mut self.broker, link, closed);
            self.note(id);
        }
    }
}
