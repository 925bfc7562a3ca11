//! A connection as a cable: bytes on their way, in both directions.
//!
//! Owns what one side has said and the other has not got yet. The world moves as much of it as it likes, when it likes.
//! It must never change the order of bytes, and loses all of them at once or none. Rule: that is TCP.

use weft_engine::conn::ConnId;

/// One end of a connection.
#[derive(Default)]
pub struct Wire {
    /// The node's name for it; none while it is cut.
    pub conn: Option<ConnId>,
    /// On the way to the node.
    pub out: Vec<u8>,
    /// Arrived, and not yet understood.
    pub unread: Vec<u8>,
}

impl Wire {
    /// The cable is cut: whatever was on its way is gone.
    pub fn cut(&mut self) -> Option<ConnId> {
        self.out.clear();
        self.unread.clear();
        self.conn.take()
    }
}
