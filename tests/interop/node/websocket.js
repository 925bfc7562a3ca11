// rhea over a WebSocket, as a page in a browser uses it: prints "ok", or the reason why not.
//
// Owns one conversation: a hundred messages sent, received in order and accepted, the last one larger than any frame.
// In come the URL and the name of an empty queue; out comes one line and an exit code. Rule: rhea's documentation of
// websocket_connect.
'use strict';

const assert = require('node:assert/strict');
const rhea = require('rhea');
const WebSocket = require('ws');

const [url, queue] = process.argv.slice(2);
const COUNT = 100;
const LARGE = 'x'.repeat(1_000_000);

const container = rhea.create_container();
const connection = container.connect({
  connection_details: container.websocket_connect(WebSocket)(url, ['amqp']),
  username: 'guest',
  password: 'guest',
  reconnect: false,
});
const timer = setTimeout(() => assert.fail('nothing for 30 s'), 30_000);
const got = [];
let sent = 0;

connection.open_receiver({ source: queue, credit_window: 10 });
connection.open_sender(queue);
container.on('sendable', ({ sender }) => {
  for (; sent < COUNT && sender.sendable(); sent += 1) sender.send({ body: sent < COUNT - 1 ? sent : LARGE });
});
container.on('message', ({ message }) => {
  got.push(message.body);
  if (got.length === COUNT) connection.close();
});
container.on('connection_close', () => {
  clearTimeout(timer);
  assert.deepEqual(got.slice(0, -1), [...Array(COUNT - 1).keys()]);
  assert.equal(got.at(-1), LARGE);
  console.log('ok');
});
container.on('disconnected', ({ error }) => {
  if (got.length < COUNT) assert.fail(`cut off: ${error}`);
});
