//! How many channels (0-9-1) and sessions (1.0) a user may have, over all its connections and virtual hosts.
//!
//! Owns the count of one user. Its bound comes in with the rows of its principals; a channel that opens gets a ticket,
//! which gives its place back when the channel goes, however it goes. It must never end what is open. Rule: RabbitMQ's
//! user limit `max-channels`.

use std::cell::Cell;
use std::rc::Rc;

use super::Broker;

/// The count of one user, shared by its principals.
#[derive(Debug, Default)]
pub struct Quota {
    used: Cell<u32>,
    most: Cell<Option<u32>>,
}

/// One place, for as long as it is kept.
#[derive(Debug)]
pub struct Ticket(Rc<Quota>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.used.set(self.0.used.get() - 1);
    }
}

impl Quota {
    /// From now on there are this many places.
    pub fn bound(&self, most: Option<u32>) {
        self.most.set(most);
    }

    fn take(self: &Rc<Self>) -> Result<Ticket, u32> {
        match self.most.get() {
            Some(most) if self.used.get() >= most => Err(most),
            _ => {
                self.used.set(self.used.get() + 1);
                Ok(Ticket(Rc::clone(self)))
            }
        }
    }
}

impl Broker {
    /// A place for one more channel of this principal's user, or why there is none. Whoever has no principal has no
    /// bound.
    pub fn take_channel(&self, principal: u32) -> Result<Option<Ticket>, String> {
        let Some(principal) = self.principals.get(&principal) else { return Ok(None) };
        principal.quota.take().map(Some).map_err(|most| {
            let user = String::from_utf8_lossy(&principal.user);
            format!(
                "number of channels opened for user '{user}' has reached the maximum allowed user limit of ({most})"
            )
        })
    }

    /// The count of a user, whichever of its principals has it already.
    pub(super) fn quota_of(&self, user: &str) -> Rc<Quota> {
        let known = self.principals.values().find(|principal| *principal.user == *user.as_bytes());
        known.map(|principal| Rc::clone(&principal.quota)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_with_its_ticket() {
        let quota = Rc::new(Quota::default());
        let first = quota.take();
        quota.bound(Some(2));
        let second = quota.take();
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(quota.take().err(), Some(2));
        drop(first);
        assert!(quota.take().is_ok());
        quota.bound(Some(0));
        assert_eq!(quota.take().err(), Some(0));
    }
}
