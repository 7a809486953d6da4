import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import { Nvshare, type Status } from "nvshare";

import { scheduled } from "./harness.js";

// Reads until so many leases are active.
async function until(watch: AsyncGenerator<Status, never, void>, active: number): Promise<Status> {
  for await (const status of watchOn(watch)) {
    if (status.gpus[0]?.active_leases === active) return status;
  }
  throw new Error("the stream has ended");
}

// A loop over it that ends does not end the stream.
async function* watchOn(watch: AsyncGenerator<Status, never, void>): AsyncGenerator<Status> {
  for (;;) yield (await watch.next()).value;
}

scheduled("the status is watched while leases come and go", async (scheduler) => {
  const local = scheduler.client.watchStatus();
  const tcp = new Nvshare({ baseUrl: scheduler.baseUrl });
  try {
    const remote = tcp.watchStatus();
    for (const watch of [local, remote]) {
      await until(watch, 0);
      const lease = await scheduler.lease();
      const status = await until(watch, 1);
      assert.deepEqual(Object.keys(status), Object.keys(await scheduler.client.status()));
      await lease.release();
      await until(watch, 0);
    }
  } finally {
    tcp.close();
  }
}, { tcp: true });

scheduled("a loop that is left ends the stream", async ({ client }) => {
  // More than there may be at a time.
  for (let i = 0; i < 70; ++i) {
    for await (const status of client.watchStatus()) {
      assert.equal(status.gpus.length, 1);
      break;
    }
  }
});

scheduled("a signal ends the stream with its reason", async ({ client }) => {
  const control = new AbortController();
  const watch = client.watchStatus({ signal: control.signal });
  await watch.next();
  const next = until(watch, 7);
  control.abort(new Error("enough"));
  await assert.rejects(next, /enough/);
  const late = client.watchStatus({ signal: control.signal });
  await assert.rejects(late.next(), /enough/);
});

scheduled("closing the client ends the stream", async ({ client }) => {
  const watch = client.watchStatus();
  await watch.next();
  const next = until(watch, 7);
  client.close();
  await assert.rejects(next, { name: "NvshareError", status: 0, message: /the client was closed/ });
});

scheduled("the end of the scheduler ends the stream", async (scheduler) => {
  const watch = scheduler.client.watchStatus();
  await watch.next();
  const next = assert.rejects(until(watch, 7), { name: "NvshareError", status: 0 });
  await scheduler.stop();
  await next;
  await assert.rejects(scheduler.client.watchStatus().next(), { name: "NvshareError", status: 0 });
});

scheduled("a stream too many is refused", async ({ client }) => {
  const streams = Array.from({ length: 64 }, () => client.watchStatus());
  await Promise.all(streams.map((one) => one.next()));
  const message = "there are too many streams of the status";
  await assert.rejects(client.watchStatus().next(), { status: 429, message });
});

test("events come whole, however they are cut", async () => {
  const event = (time: string) => `event: status\ndata: {"time":"${time}"}\n\n`;
  const bytes = Buffer.from(`: a comment\n\n${event("\u20ac 1")}${event("2")}`);
  const send = async (response: ServerResponse): Promise<void> => {
    for (const byte of bytes) {
      response.write(Buffer.from([byte]));
      await new Promise(setImmediate);
    }
    response.end();
  };
  const server = createServer((_, response) => void send(response)).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const watch = new Nvshare({ baseUrl: `http://127.0.0.1:${port}` }).watchStatus();
  try {
    assert.equal((await watch.next()).value.time, "\u20ac 1");
    assert.equal((await watch.next()).value.time, "2");
    await assert.rejects(watch.next(), /the stream has ended/);
  } finally {
    server.close();
  }
});
