//! Scenarios of fe2o3-amqp, the AMQP 1.0 client of Rust: transactions with acquisition, and SCRAM.
//!
//! Owns what no other client at hand can do: a receiver whose flow names a transaction. In come host, port and the name
//! of an empty queue that the caller made; out comes "ok", or a panic with the reason. It must not know which broker
//! it talks to. Rules: AMQP 1.0 part 4, section 4.4.3; the client's documentation.

use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslScramSha256;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::transaction::{
    Controller, Transaction, TransactionAcquisition, TransactionPosting,
};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);
/// Time in which a message that must not come would have come.
const SILENCE: Duration = Duration::from_millis(100);

type Failure = Box<dyn std::error::Error>;

/// A connection with a session, a transaction controller, a queue and its two ends.
struct Bench {
    connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
    controller: Controller,
    sender: Sender,
    receiver: Receiver,
}

impl Bench {
    async fn new(place: &str, queue: &str) -> Result<Self, Failure> {
        let mut connection = Connection::open("bench", format!("amqp://guest:guest@{place}").as_str()).await?;
        let mut session = Session::begin(&mut connection).await?;
        let controller = Controller::attach(&mut session, "controller").await?;
        let sender = Sender::attach(&mut session, "sender", queue).await?;
        let receiver = Receiver::builder().name("receiver").source(queue).credit_mode(CreditMode::Manual);
        let receiver = receiver.attach(&mut session).await?;
        Ok(Self { connection, session, controller, sender, receiver })
    }

    async fn fill(&mut self, bodies: &[&str]) -> Result<(), Failure> {
        for body in bodies {
            self.sender.send(*body).await?.accepted_or("not accepted")?;
        }
        Ok(())
    }

    /// What is in the queue, in order; it is taken out.
    async fn drain(&mut self) -> Result<Vec<String>, Failure> {
        self.receiver.set_credit(100).await?;
        let mut bodies = Vec::new();
        while let Ok(delivery) = timeout(SILENCE, self.receiver.recv::<String>()).await {
            let delivery = delivery?;
            self.receiver.accept(&delivery).await?;
            bodies.push(delivery.body().clone());
        }
        Ok(bodies)
    }

    async fn close(mut self) -> Result<(), Failure> {
        self.controller.close().await?;
        self.sender.close().await?;
        self.receiver.close().await?;
        self.session.close().await?;
        self.connection.close().await?;
        Ok(())
    }
}

/// What is acquired and accepted is gone once the transaction is committed, together with what was posted.
async fn commit(place: &str, queue: &str) -> Result<(), Failure> {
    let mut bench = Bench::new(place, queue).await?;
    bench.fill(&["one", "two", "three"]).await?;
    let transaction = Transaction::declare(&bench.controller, None).await?;
    transaction.post(&mut bench.sender, "result").await?.accepted_or("not accepted")?;
    let mut acquisition = transaction.acquire(&mut bench.receiver, 2).await?;
    for expected in ["one", "two"] {
        let delivery = acquisition.recv::<String>().await?;
        assert_eq!(delivery.body(), expected);
        acquisition.accept(&delivery).await?;
    }
    acquisition.commit().await?;
    assert_eq!(bench.drain().await?, ["three", "result"]);
    bench.close().await
}

/// What is acquired is in its place again once the transaction is rolled back, accepted or not.
async fn rollback(place: &str, queue: &str) -> Result<(), Failure> {
    let mut bench = Bench::new(place, queue).await?;
    bench.fill(&["one", "two", "three"]).await?;
    let transaction = Transaction::declare(&bench.controller, None).await?;
    transaction.post(&mut bench.sender, "result").await?.accepted_or("not accepted")?;
    let mut acquisition = transaction.acquire(&mut bench.receiver, 2).await?;
    let first = acquisition.recv::<String>().await?;
    let second = acquisition.recv::<String>().await?;
    assert_eq!((first.body().as_str(), second.body().as_str()), ("one", "two"));
    acquisition.accept(&first).await?;
    acquisition.rollback().await?;
    assert_eq!(bench.drain().await?, ["one", "two", "three"]);
    bench.close().await
}

/// The password is proven and not told, and a wrong one is refused.
async fn scram(place: &str, queue: &str) -> Result<(), Failure> {
    let url = format!("amqp://{place}");
    let profile = |password| SaslScramSha256::new("guest", password);
    let login = |password| Connection::builder().container_id("proven").sasl_profile(profile(password));
    assert!(login("wrong").open(url.as_str()).await.is_err());
    let mut connection = login("guest").open(url.as_str()).await?;
    let mut session = Session::begin(&mut connection).await?;
    let mut sender = Sender::attach(&mut session, "sender", queue).await?;
    sender.send("in").await?.accepted_or("not accepted")?;
    connection.close().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, place, scenario, queue] = arguments.as_slice() else { panic!("host:port, scenario and queue") };
    let done = timeout(PATIENCE, async {
        match scenario.as_str() {
            "commit" => commit(place, queue).await,
            "rollback" => rollback(place, queue).await,
            "scram" => scram(place, queue).await,
            other => panic!("no scenario {other}"),
        }
    });
    done.await.expect("no answer in time").expect("the client is content");
    println!("ok");
}
