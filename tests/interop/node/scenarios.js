// Scenarios of rhea, the AMQP 1.0 client of Node.js, each one a small program that ends with "ok" or a reason.
//
// Owns what a Node.js application does with the library: events, credit, outcomes, replies. In come host, port,
// scenario and the name of an empty queue that the caller made; out comes one line and an exit code. It must not know
// which broker it talks to. Rules: rhea's documentation; AMQP 1.0 part 3 for the outcomes.
'use strict';

const assert = require('node:assert/strict');
const rhea = require('rhea');

const [host, port, scenario, queue] = process.argv.slice(2);
const TIMEOUT_MS = 20_000;

function connect(options = {}) {
  const container = rhea.create_container();
  const login = { host, port: Number(port), username: 'guest', password: 'guest' };
  const connection = container.connect({ ...login, reconnect: false, ...options });
  return { container, connection };
}

function until(emitter, event) {
  return new Promise((resolve, reject) => {
    emitter.once(event, resolve);
    emitter.once(`${event.split('_')[0]}_error`, (context) => reject(context[event.split('_')[0]].error));
  });
}

async function sender(connection, target, options = {}) {
  const link = connection.open_sender({ target, ...options });
  if (!link.sendable()) await until(link, 'sendable');
  return link;
}

// Send one message and say how the broker settled it.
function send(link, message) {
  return new Promise((resolve) => {
    const delivery = link.send(message);
    const listener = (context) => {
      if (context.delivery.id !== delivery.id) return;
      link.removeListener('settled', listener);
      resolve(context.delivery.remote_state.constructor.composite_type);
    };
    link.on('settled', listener);
  });
}

// Receive `count` messages with exactly that credit; nothing is settled unless `settle` does it.
function receive(connection, source, count, settle = (delivery) => delivery.accept(), options = {}) {
  return new Promise((resolve) => {
    const got = [];
    const link = connection.open_receiver({ source, credit_window: 0, autoaccept: false, ...options });
    link.on('message', (context) => {
      got.push(context.message);
      settle(context.delivery, got.length);
      if (got.length === count) resolve({ got, link });
    });
    link.add_credit(count);
  });
}

const scenarios = {
  async send_and_receive({ connection }) {
    const link = await sender(connection, queue);
    for (let number = 0; number < 100; number += 1) {
      const message = { body: { number }, message_id: `m-${number}`, application_properties: { number } };
      assert.equal(await send(link, message), 'accepted');
    }
    const { got } = await receive(connection, queue, 100);
    assert.deepEqual(got.map((message) => message.body.number), [...Array(100).keys()]);
    assert.equal(got[7].message_id, 'm-7');
    assert.equal(got[7].application_properties.number, 7);
  },

  async credit_is_respected({ connection }) {
    const link = await sender(connection, queue);
    for (let number = 0; number < 20; number += 1) await send(link, { body: number });
    const { got, link: receiver } = await receive(connection, queue, 10);
    const session = connection.create_session();
    session.begin();
    await until(session, 'session_open'); // a round trip: an eleventh message would have come by now
    assert.equal(got.length, 10);
    receiver.add_credit(15);
    receiver.drain_credit();
    await until(receiver, 'receiver_drained');
    assert.equal(got.length, 20);
  },

  async outcomes_decide({ connection }) {
    const link = await sender(connection, queue);
    for (const [outcome, count, details] of [['release', 0, undefined], ['modified', 1, { delivery_failed: true }]]) {
      await send(link, { body: outcome });
      const first = await receive(connection, queue, 1, (delivery) => delivery[outcome](details));
      first.link.close();
      await until(first.link, 'receiver_close');
      const { got, link: second } = await receive(connection, queue, 1);
      assert.deepEqual([got[0].body, got[0].delivery_count || 0], [outcome, count]);
      second.close();
      await until(second, 'receiver_close');
    }
  },

  async request_and_reply({ connection }) {
    const server = connect().connection;
    const requests = server.open_receiver(queue);
    const answers = server.open_sender({ target: {} });
    requests.on('message', ({ message }) => {
      answers.send({ to: message.reply_to, body: message.body.toUpperCase(), correlation_id: message.correlation_id });
    });
    const replies = connection.open_receiver({ source: { dynamic: true } });
    await until(replies, 'receiver_open');
    const link = await sender(connection, queue);
    const answer = until(replies, 'message');
    link.send({ body: 'hello', reply_to: replies.source.address, correlation_id: 'c-1' });
    const { message } = await answer;
    assert.deepEqual([message.body, message.correlation_id], ['HELLO', 'c-1']);
    server.close();
  },

  async selectors_choose({ connection }) {
    const link = await sender(connection, queue);
    for (const colour of ['red', 'blue', 'green', 'blue']) {
      await send(link, { body: colour, application_properties: { colour } });
    }
    const source = { address: queue, filter: rhea.filter.selector("colour = 'blue'") };
    const { got } = await receive(connection, source, 2);
    assert.deepEqual(got.map((message) => message.body), ['blue', 'blue']);
  },

  async large_messages_arrive({ connection }) {
    const body = 'x'.repeat(3_000_000);
    assert.equal(await send(await sender(connection, queue), { body }), 'accepted');
    const { got } = await receive(connection, queue, 1);
    assert.equal(got[0].body.length, body.length);
  },

  async presettled_messages_arrive({ connection }) {
    const link = await sender(connection, queue, { snd_settle_mode: 1 });
    for (let number = 0; number < 50; number += 1) link.send({ body: number });
    const { got } = await receive(connection, queue, 50);
    assert.deepEqual(got.map((message) => message.body), [...Array(50).keys()]);
  },

  async body_sections_arrive({ connection }) {
    const link = await sender(connection, queue);
    await send(link, { body: rhea.message.data_section(Buffer.from([0, 1, 255])) });
    await send(link, { body: rhea.message.sequence_section([1, 'two', { three: 3 }]) });
    await send(link, { body: { nested: { list: [true, null, 1.5] } }, subject: 'map' });
    const { got } = await receive(connection, queue, 3);
    assert.deepEqual([...got[0].body.content], [0, 1, 255]);
    assert.deepEqual(got[1].body.content, [1, 'two', { three: 3 }]);
    assert.deepEqual([got[2].body, got[2].subject], [{ nested: { list: [true, null, 1.5] } }, 'map']);
  },

  async unknown_queues_are_refused({ connection }) {
    const link = connection.open_receiver('/queues/never-declared');
    const context = await new Promise((resolve) => link.once('receiver_error', resolve));
    assert.equal(context.receiver.error.condition, 'amqp:not-found');
  },
};

async function main() {
  const timer = setTimeout(() => fail(new Error('no answer in time')), TIMEOUT_MS);
  const client = connect();
  await until(client.connection, 'connection_open');
  await scenarios[scenario](client);
  client.connection.close();
  await until(client.connection, 'connection_close');
  clearTimeout(timer);
  console.log('ok');
  process.exit(0);
}

function fail(error) {
  console.log(error.stack || JSON.stringify(error));
  process.exit(1);
}

main().catch(fail);
