//! From the first byte to an open connection, and its end.
//!
//! Owns the order of the two layers: SASL header, mechanisms, init, outcome, then AMQP header, open, begin, attach.
//! What is written may be sent at once; nothing waits for an answer that the protocol does not ask for. It must never
//! keep a password longer than the opening takes. Rules: AMQP 1.0 part 2, sections 2.2 and 2.4, part 5, section 5.3.

use weft_wire::amqp10::frame::Protocol;
use weft_wire::amqp10::{
    Begin, Close, Open, Reader, SaslCode, SaslFrame, SaslInit, SaslResponse, Symbol, Symbols, encode, encode_sasl,
    frame,
};

use crate::attach::Stage as LinkStage;
use crate::client::{Client, error_of};
use crate::event::{Ending, Event};
use crate::options::Login;
use crate::scram::{Exchange, Key, Step};
use crate::session::Stage;

/// How far the connection is.
pub(crate) enum Opening {
    /// No transport.
    Idle,
    /// Our SASL header is written, theirs comes next.
    SaslHeader(Hello),
    /// SASL frames come.
    Sasl(Hello),
    /// Our AMQP header and `open` are written, their header comes next.
    Header,
    /// Their `open` comes next.
    Open,
    Opened,
    /// Our `close` is written.
    Closing,
    /// All is said.
    Closed,
}

/// What is said during the opening.
pub(crate) struct Hello {
    hostname: Option<Box<str>>,
    /// In the order of preference; empty once one was taken.
    logins: Vec<Login>,
    /// The login by proof that was taken.
    exchange: Option<Exchange>,
}

impl Client {
    /// Whether `open` went both ways, and no `close`.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.opening, Opening::Opened)
    }

    pub(crate) fn say_hello(&mut self, hostname: Option<&str>, logins: Vec<Login>) {
        if logins.is_empty() {
            self.write_open(hostname);
        } else {
            self.out.extend_from_slice(&Protocol::Sasl.header());
            self.opening = Opening::SaslHeader(Hello { hostname: hostname.map(Into::into), logins, exchange: None });
        }
    }

    fn write_open(&mut self, hostname: Option<&str>) {
        self.out.extend_from_slice(&Protocol::Amqp.header());
        let properties = Reader::new(&self.properties).read().ok().and_then(|value| value.as_map());
        let open = Open {
            container_id: &self.container,
            hostname,
            max_frame_size: self.limits.frame_bytes_max,
            channel_max: self.limits.sessions_max.saturating_sub(1),
            idle_time_out: (self.limits.idle_ms > 0).then_some(self.limits.idle_ms),
            properties,
            ..Open::default()
        };
        encode(&mut self.out, 0, &open);
        self.opening = Opening::Header;
    }

    /// Takes a protocol header; what the peer wants instead is said by its own header.
    pub(crate) fn on_header(&mut self, header: &[u8; 8]) -> Result<(), Ending> {
        let got = Protocol::from_header(header);
        let opening = std::mem::replace(&mut self.opening, Opening::Idle);
        match (opening, got) {
            (Opening::SaslHeader(hello), Some(Protocol::Sasl)) => self.opening = Opening::Sasl(hello),
            (Opening::Header, Some(Protocol::Amqp)) => self.opening = Opening::Open,
            (_, Some(Protocol::Sasl)) => return Err(refused("the peer asks for a login (SASL)")),
            (_, Some(Protocol::Tls)) => return Err(refused("the peer asks for TLS")),
            (_, Some(Protocol::Amqp)) => return Err(refused("the peer takes no login (SASL): connect without one")),
            (_, None) => return Err(refused("the peer does not speak AMQP 1.0")),
        }
        Ok(())
    }

    pub(crate) fn on_sasl(&mut self, body: &[u8]) -> Result<(), Ending> {
        let frame = SaslFrame::decode(body)
            .map_err(|error| Ending { condition: error.condition().0.into(), description: error.to_string() })?;
        let Opening::Sasl(hello) = &mut self.opening else {
            return Err(refused("a SASL frame came out of turn"));
        };
        match frame {
            SaslFrame::Mechanisms(offered) => return self.take_login(offered.sasl_server_mechanisms),
            SaslFrame::Challenge(asked) => {
                let step = hello
                    .exchange
                    .as_mut()
                    .map_or(Ok(Step::Respond(Vec::new())), |exchange| exchange.on_challenge(asked.challenge));
                match step {
                    Ok(Step::Respond(response)) => encode_sasl(&mut self.out, &SaslResponse { response: &response }),
                    Ok(Step::Derive { salt, iterations }) => {
                        self.events.push(Event::KeyRequested { salt, iterations });
                    }
                    Err(text) => return Err(self.login_failed(text.to_owned(), false)),
                }
            }
            SaslFrame::Outcome(_) if !hello.logins.is_empty() => {
                return Err(self.login_failed("the peer decides on a login that was not begun".to_owned(), false));
            }
            SaslFrame::Outcome(outcome) if outcome.code == SaslCode::Ok => {
                let proof = outcome.additional_data;
                let proven = hello.exchange.as_mut().map_or(Ok(()), |exchange| exchange.finish(proof));
                let hostname = hello.hostname.take();
                if let Err(text) = proven {
                    return Err(self.login_failed(text.to_owned(), false));
                }
                self.write_open(hostname.as_deref());
            }
            SaslFrame::Outcome(outcome) => {
                let temporary = matches!(outcome.code, SaslCode::Sys | SaslCode::SysTemp);
                let text = if temporary { "the peer cannot check logins now" } else { "user or password are refused" };
                return Err(self.login_failed(text.to_owned(), temporary));
            }
            SaslFrame::Init(_) | SaslFrame::Response(_) => {
                return Err(refused("a SASL frame came from the wrong side"));
            }
        }
        Ok(())
    }

    /// Begins the first login that the peer offers.
    fn take_login(&mut self, offered: Symbols<'_>) -> Result<(), Ending> {
        let Opening::Sasl(hello) = &mut self.opening else { return Ok(()) };
        let logins = std::mem::take(&mut hello.logins);
        let Some(login) = logins.iter().find(|login| offered.contains(Symbol(login.mechanism()))) else {
            let theirs: Vec<&str> = offered.iter().map(|name| name.0).collect();
            let ours: Vec<&str> = logins.iter().map(Login::mechanism).collect();
            let text = format!("the peer takes {}, not {}", theirs.join(", "), ours.join(" or "));
            return Err(self.login_failed(text, false));
        };
        let response = match login {
            Login::Anonymous => b"weft".to_vec(),
            Login::Plain { user, password } => [&b"\0"[..], user.as_bytes(), b"\0", password.as_bytes()].concat(),
            Login::External => Vec::new(),
            Login::Scram { user, nonce } => hello.exchange.insert(Exchange::new(user, nonce)).first(),
        };
        let init = SaslInit {
            mechanism: Symbol(login.mechanism()),
            initial_response: Some(&response),
            hostname: hello.hostname.as_deref(),
        };
        encode_sasl(&mut self.out, &init);
        Ok(())
    }

    /// What was derived from the password, after `Event::KeyRequested`; nothing happens if nobody asks (any more).
    pub fn prove(&mut self, key: &Key) -> u32 {
        if let Opening::Sasl(Hello { exchange: Some(exchange), .. }) = &mut self.opening
            && let Some(response) = exchange.prove(key)
        {
            encode_sasl(&mut self.out, &SaslResponse { response: &response });
        }
        self.signals()
    }

    fn login_failed(&mut self, text: String, temporary: bool) -> Ending {
        self.events.push(Event::LoginFailed { text: text.clone(), temporary });
        Ending { condition: "amqp:unauthorized-access".into(), description: text }
    }

    /// The peer's `open`: everything that was asked for is begun and attached.
    pub(crate) fn on_open(&mut self, open: &Open<'_>) -> Result<(), Ending> {
        if !matches!(self.opening, Opening::Open) {
            return Err(refused("an open came out of turn"));
        }
        self.opening = Opening::Opened;
        self.peer_frame_bytes_max = open.max_frame_size.max(frame::MIN_MAX_FRAME_SIZE);
        self.peer_idle_ms = open.idle_time_out.unwrap_or(0);
        self.timer_moved = true;
        let mut properties = Vec::new();
        if let Some(map) = open.properties {
            weft_wire::amqp10::writer::put_value(&mut properties, &weft_wire::amqp10::Value::Map(map));
        }
        let capabilities = open.offered_capabilities.iter().map(|name| name.0.to_owned()).collect();
        self.events.push(Event::Opened { container: open.container_id.to_owned(), capabilities, properties });
        for session in 0..self.sessions.len() as u16 {
            if self.sessions[usize::from(session)].stage == Stage::Wanted {
                self.write_begin(session);
            }
        }
        for link in 0..self.links.len() as u32 {
            if self.link_mut(link).is_some_and(|link| link.stage == LinkStage::Wanted) {
                self.write_attach(link);
            }
        }
        Ok(())
    }

    pub(crate) fn write_begin(&mut self, number: u16) {
        let Some(session) = self.sessions.get_mut(usize::from(number)) else { return };
        session.stage = Stage::Beginning;
        let begin = Begin {
            remote_channel: None,
            next_outgoing_id: session.next_outgoing_id,
            incoming_window: self.limits.session_window,
            outgoing_window: self.limits.session_window,
            handle_max: self.limits.links_max as u32,
            ..Begin::default()
        };
        encode(&mut self.out, number, &begin);
    }

    pub(crate) fn write_attach(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let Some(session) = self.sessions.get_mut(usize::from(link.session)) else { return };
        match session.take_handle(index) {
            Some(handle) => link.attach(&mut self.out, link.session, handle, self.limits.message_bytes_max),
            None => {
                let text = "the peer takes no more links on this session".to_owned();
                let ending = Ending { condition: "amqp:resource-limit-exceeded".into(), description: text };
                self.drop_link(index, ending);
            }
        }
    }

    /// Says goodbye; the peer's answer, or the end of the transport, ends it.
    pub fn close(&mut self, error: Option<&Ending>) -> u32 {
        match self.opening {
            Opening::Opened => {
                self.write_due();
                let close = Close { error: error.map(error_of) };
                encode(&mut self.out, 0, &close);
                self.opening = Opening::Closing;
            }
            Opening::Closing | Opening::Closed => {}
            _ => self.finish(Ending::default(), false),
        }
        self.signals()
    }

    /// The peer's `close`.
    pub(crate) fn on_close(&mut self, close: &Close<'_>) {
        if !matches!(self.opening, Opening::Closing) {
            encode(&mut self.out, 0, &Close::default());
        }
        self.finish(ending_of(close.error.as_ref()), true);
    }

    /// The connection is over.
    pub(crate) fn finish(&mut self, ending: Ending, by_peer: bool) {
        if !matches!(self.opening, Opening::Closed) {
            self.events.push(Event::Closed { ending, by_peer });
            self.opening = Opening::Closed;
        }
    }
}

/// A peer's reason.
pub(crate) fn ending_of(error: Option<&weft_wire::amqp10::Error<'_>>) -> Ending {
    error.map_or_else(Ending::default, |error| Ending {
        condition: error.condition.0.to_owned(),
        description: error.description.unwrap_or_default().to_owned(),
    })
}

/// A peer that broke the rules.
pub(crate) fn refused(text: &str) -> Ending {
    Ending { condition: "amqp:connection:framing-error".into(), description: text.into() }
}
