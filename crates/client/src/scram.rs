//! SCRAM-SHA-256, the client's side: a proof that it knows the password, and the demand for one that the peer does.
//!
//! Owns one exchange from the first message to the peer's proof. Challenges come in; responses, and the wish for a key
//! that takes long to derive, go out. It must never see the password: whoever drives the machine derives the key from
//! it (PBKDF2), on a thread of its own if it likes. Rules: RFC 5802 and RFC 7677, without channel binding.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";
/// RFC 7677, section 4. Fewer would let whoever listens guess the password faster.
const ITERATIONS_MIN: u32 = 4_096;
/// Some seconds of a processor: a peer must not be able to ask for more.
const ITERATIONS_MAX: u32 = 10_000_000;
const SALT_BYTES_MAX: usize = 1_024;
/// No channel binding is asked for, and nobody else's identity.
const HEADER: &str = "n,,";
const HEADER_BASE64: &str = "biws";
const HASH_BYTES: usize = 32;

/// What is derived from a password, a salt and a number of iterations.
pub type Key = [u8; HASH_BYTES];

/// What a challenge asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The key, to be given to `prove`.
    Derive { salt: Vec<u8>, iterations: u32 },
    /// This answer.
    Respond(Vec<u8>),
}

/// One login.
pub(crate) struct Exchange {
    nonce: Box<str>,
    /// Everything said so far that proofs are about.
    spoken: String,
    stage: Stage,
}

enum Stage {
    /// The first message is said.
    First,
    /// The key is being derived; then this is said, with a proof.
    Deriving { last: String },
    /// Our proof is said; the peer's must be this one.
    Proven { expected: Hmac<Sha256> },
    /// The peer has proven itself.
    Trusted,
}

impl Exchange {
    pub(crate) fn new(user: &str, nonce: &str) -> Self {
        let name = user.replace('=', "=3D").replace(',', "=2C");
        Self { nonce: nonce.into(), spoken: format!("n={name},r={nonce}"), stage: Stage::First }
    }

    /// The first message.
    pub(crate) fn first(&self) -> Vec<u8> {
        [HEADER, &self.spoken].concat().into_bytes()
    }

    /// The peer said something. An error ends the login: the peer does not keep to the rules, or lies.
    pub(crate) fn on_challenge(&mut self, challenge: &[u8]) -> Result<Step, &'static str> {
        match &self.stage {
            Stage::First => self.on_salt(challenge),
            Stage::Proven { .. } => self.on_proof(challenge).map(|()| Step::Respond(Vec::new())),
            Stage::Deriving { .. } | Stage::Trusted => Err("the peer asks for more than SCRAM knows"),
        }
    }

    fn on_salt(&mut self, challenge: &[u8]) -> Result<Step, &'static str> {
        const MALFORMED: &str = "the peer's challenge is malformed";
        let text = std::str::from_utf8(challenge).map_err(|_| MALFORMED)?;
        let mut fields = text.split(',');
        let mut field = |name| fields.next().and_then(|field| field.strip_prefix(name)).ok_or(MALFORMED);
        let (nonce, salt, iterations) = (field("r=")?, field("s=")?, field("i=")?);
        // Ours must be its beginning, or an old exchange could be played again.
        if nonce.strip_prefix(&*self.nonce).is_none_or(str::is_empty) {
            return Err("the peer did not answer to this login");
        }
        let salt = BASE64.decode(salt).map_err(|_| MALFORMED)?;
        if !(1..=SALT_BYTES_MAX).contains(&salt.len()) {
            return Err(MALFORMED);
        }
        let iterations = iterations.parse().map_err(|_| MALFORMED)?;
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
            return Err("the peer asks for too few or too many iterations");
        }
        let last = format!("c={HEADER_BASE64},r={nonce}");
        self.spoken = format!("{},{text},{last}", self.spoken);
        self.stage = Stage::Deriving { last };
        Ok(Step::Derive { salt, iterations })
    }

    /// The key is there: our proof. None if nobody asked.
    pub(crate) fn prove(&mut self, key: &Key) -> Option<Vec<u8>> {
        let Stage::Deriving { last } = &self.stage else { return None };
        let client_key = hmac_bytes(key, b"Client Key");
        let signature = hmac_bytes(&Sha256::digest(client_key).into(), self.spoken.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(left, right)| left ^ right).collect();
        let response = format!("{last},p={}", BASE64.encode(&proof)).into_bytes();
        self.stage = Stage::Proven { expected: hmac(&hmac_bytes(key, b"Server Key"), self.spoken.as_bytes()) };
        Some(response)
    }

    fn on_proof(&mut self, proof: &[u8]) -> Result<(), &'static str> {
        let Stage::Proven { expected } = &self.stage else { return Err("the peer proves what nobody asked for") };
        if proof.starts_with(b"e=") {
            return Err("user or password are refused");
        }
        let told = std::str::from_utf8(proof).ok().and_then(|text| text.split(',').next()?.strip_prefix("v="));
        let told = told.and_then(|text| BASE64.decode(text).ok()).unwrap_or_default();
        if expected.clone().verify_slice(&told).is_err() {
            return Err("the peer does not know the password, though it says so");
        }
        self.stage = Stage::Trusted;
        Ok(())
    }

    /// The peer lets us in, and may prove itself only now.
    pub(crate) fn finish(&mut self, proof: Option<&[u8]>) -> Result<(), &'static str> {
        match (&self.stage, proof) {
            (Stage::Trusted, _) => Ok(()),
            (Stage::Proven { .. }, Some(proof)) => self.on_proof(proof),
            _ => Err("the peer lets us in without a proof that it knows the password"),
        }
    }
}

fn hmac(key: &Key, text: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are taken").chain_update(text)
}

fn hmac_bytes(key: &Key, text: &[u8]) -> Key {
    hmac(key, text).finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7677, section 3, with the key of "pencil".
    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const CHALLENGE: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const PROOF: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                         p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const ANSWER: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn key() -> Key {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("a salt");
        pbkdf2(b"pencil", &salt, 4_096)
    }

    /// RFC 8018, section 5.2, for one block.
    fn pbkdf2(password: &[u8], salt: &[u8], iterations: u32) -> Key {
        let mut padded = [0; HASH_BYTES];
        padded[..password.len()].copy_from_slice(password);
        let mut last = hmac_bytes(&padded, &[salt, &1u32.to_be_bytes()].concat());
        let mut key = last;
        for _ in 1..iterations {
            last = hmac_bytes(&padded, &last);
            key.iter_mut().zip(last).for_each(|(key, last)| *key ^= last);
        }
        key
    }

    fn proven() -> Exchange {
        let mut exchange = Exchange::new("user", NONCE);
        assert_eq!(exchange.first(), b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let asked = exchange.on_challenge(CHALLENGE.as_bytes());
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("a salt");
        assert_eq!(asked, Ok(Step::Derive { salt, iterations: 4_096 }));
        let proof = exchange.prove(&key()).expect("the key was asked for");
        assert_eq!(String::from_utf8_lossy(&proof), PROOF);
        exchange
    }

    #[test]
    fn the_exchange_in_the_rfc() {
        let mut exchange = proven();
        assert_eq!(exchange.on_challenge(ANSWER.as_bytes()), Ok(Step::Respond(Vec::new())));
        assert_eq!(exchange.finish(None), Ok(()));
        let mut exchange = proven();
        assert_eq!(exchange.finish(Some(ANSWER.as_bytes())), Ok(()), "with the outcome");
    }

    #[test]
    fn a_peer_that_lies_is_not_believed() {
        let forged = ANSWER.replace('6', "7");
        for lie in [&forged[..], "v=", "v=AAAA", "", "e=other-error", "\u{ff}"] {
            assert!(proven().on_challenge(lie.as_bytes()).is_err(), "{lie}");
            assert!(proven().finish(Some(lie.as_bytes())).is_err(), "{lie}");
        }
        assert!(proven().finish(None).is_err(), "no proof at all");
        assert!(Exchange::new("user", NONCE).finish(Some(ANSWER.as_bytes())).is_err(), "before it asked for ours");
    }

    #[test]
    fn a_challenge_out_of_order_or_malformed_is_refused() {
        for (from, to) in [
            ("rOprNGfwEbeRWgbNEkqO%", "someone-else's%"),
            ("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ""),
            ("i=4096", "i=4095"),
            ("i=4096", "i=99999999999"),
            ("i=4096", "i=10000001"),
            ("i=4096", "i=-1"),
            ("s=W22ZaJ0SNY7soEsUEjb6gQ==", "s="),
            ("s=W22ZaJ0SNY7soEsUEjb6gQ==", "s=W22Z!"),
            ("r=", "m=mandatory,r="),
            (",i=4096", ""),
        ] {
            let challenge = CHALLENGE.replace(from, to);
            assert!(Exchange::new("user", NONCE).on_challenge(challenge.as_bytes()).is_err(), "{challenge}");
        }
        assert!(Exchange::new("user", NONCE).on_challenge(b"\xff").is_err());
        let mut early = Exchange::new("user", NONCE);
        assert!(early.prove(&key()).is_none(), "nobody asked");
        early.on_challenge(CHALLENGE.as_bytes()).expect("a challenge");
        assert!(early.on_challenge(CHALLENGE.as_bytes()).is_err(), "two challenges in a row");
    }

    #[test]
    fn names_are_written_so_that_they_can_be_read() {
        assert_eq!(Exchange::new("a,b=c", "x").first(), b"n,,n=a=2Cb=3Dc,r=x");
    }
}
