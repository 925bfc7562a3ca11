// amqplib, the AMQP 0-9-1 client of Node.js: one program that ends with "ok" or a reason.
//
// Owns what a Node.js application does with the library: declare, bind, publish with confirms, consume, acknowledge,
// give back, get. In come a url and a name that nobody uses; out comes one line and an exit code. It must not know which
// broker it talks to. Rule: the library's own documentation.
'use strict';

const assert = require('node:assert/strict');
const amqplib = require('amqplib');

const [url, name] = process.argv.slice(2);

async function main() {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue(name, { exclusive: true });
  await channel.assertExchange(name, 'topic', { autoDelete: true });
  await channel.bindQueue(queue, name, 'orders.*');
  for (const key of ['orders.1', 'other', 'orders.2']) {
    channel.publish(name, key, Buffer.from(key), { headers: { key }, messageId: key });
  }
  await channel.waitForConfirms();
  await channel.prefetch(1);
  const got = [];
  await new Promise((resolve) => {
    channel.consume(queue, (message) => {
      got.push([message.content.toString(), message.properties.headers.key, message.fields.redelivered]);
      if (got.length === 1) return channel.nack(message);
      channel.ack(message);
      if (got.length === 3) resolve();
    });
  });
  const expected = [['orders.1', false], ['orders.1', true], ['orders.2', false]];
  assert.deepEqual(got, expected.map(([key, again]) => [key, key, again]));
  assert.equal(await channel.get(queue), false);
  const second = await connection.createChannel();
  second.on('error', () => {});
  await assert.rejects(second.checkQueue(`${name}.missing`), /404/);
  await connection.close();
}

main().then(
  () => console.log('ok'),
  (error) => {
    console.log(error.stack);
    process.exit(1);
  },
);
