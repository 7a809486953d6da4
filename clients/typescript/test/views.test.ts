import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import { type Config, type Counts, Nvshare, type Status } from "nvshare";

import { eventually, scheduled } from "./harness.js";

const text = "string";
const number = "number";

// What typeof says of each value, as deep as objects go.
function types(value: unknown): unknown {
  if (value === null) return "null";
  if (Array.isArray(value)) return value.map(types);
  if (typeof value !== "object") return typeof value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, types(one)]));
}

const counts: Record<keyof Counts, string> = {
  acquired: number,
  timedOut: number,
  skipped: number,
  fellBack: number,
  queueFull: number,
  revoked: number,
  released: number,
  queueWaitMsTotal: number,
};

scheduled("the status is what its type says", async (scheduler) => {
  const { client } = scheduler;
  const hint = { estimatedAudioMs: 9000, estimatedGpuHoldMs: 3000 };
  await scheduler.lease({ taskType: "ASR", hint });
  await eventually(async () => (await client.status()).gpus[0]?.gpu_usage !== null);
  const status: Status = await client.status();
  assert.deepEqual(types(status), {
    time: text,
    gpus: [
      {
        gpu: number,
        gpuKey: text,
        gpu_admission_state: text,
        gpu_usage: number,
        gpu_usage_cache_age_ms: number,
        gpu_queue_len: number,
        active_leases: number,
        lease_slots: number,
        high_water: number,
        low_water: number,
        raised_until: text,
      },
    ],
    classes: { ASR: counts },
    status_push: "null",
  });
  assert.equal(status.gpus[0]?.active_leases, 1);
  assert.equal(status.gpus[0]?.high_water, 92);
});

scheduled("classes and leases are what their types say", async (scheduler) => {
  const { client } = scheduler;
  await scheduler.lease({ taskType: "NMT", trace: "call 7" });
  const wait = client.acquire({ taskType: "ASR", maxWaitMs: 20_000 });
  await scheduler.waiting(1);

  const [active, waiting, ...more] = await client.leases();
  const both = { leaseId: text, taskType: text, priority: number, gpu: number, gpuKey: text };
  const owned = { askedAt: text, uid: number, pid: number };
  assert.equal(active?.state, "ACTIVE");
  assert.equal(active.pid, process.pid);
  assert.deepEqual(types(active), {
    ...both,
    ...owned,
    state: text,
    acquiredAt: text,
    expiresAt: text,
    expectedEndAt: text,
    trace: text,
  });
  assert.equal(waiting?.state, "WAITING");
  assert.deepEqual(types(waiting), { ...both, ...owned, state: text, givesUpAt: text });
  assert.deepEqual(more, []);

  const classes = await client.classes();
  assert.deepEqual(classes.map((one) => one.taskType), ["ASR", "NMT", "TTS", "SEMANTIC_REPAIR"]);
  assert.deepEqual(types(classes[0]), {
    taskType: text,
    priority: number,
    tenantPriority: number,
    maxWaitMs: number,
    holdMaxMs: number,
    busy: text,
    pressure: text,
    slots: "null",
    counts,
  });
  client.close();
  await assert.rejects(wait, { status: 0, message: /the client was closed/ });
  await scheduler.waiting(0);
});

scheduled("the configuration is read and changed", async ({ client }) => {
  const before: Config = await client.config();
  const { gpuUsage } = before;
  assert.deepEqual(before, {
    gpuUsage: {
      sampleIntervalMs: 800,
      cacheTtlMs: 2000,
      baseHighWater: 85,
      baseLowWater: 78,
      dynamicAdjustment: {
        enabled: true,
        longAudioThresholdMs: 8000,
        highWaterBoost: 7,
        lowWaterBoost: 7,
        adjustmentTtlMs: 15000,
      },
    },
    leases: { slots: 1, queue: 1024 },
  });
  const after = await client.patchConfig({ gpuUsage: { baseHighWater: 90 }, leases: { slots: 2 } });
  assert.deepEqual(after, {
    gpuUsage: { ...gpuUsage, baseHighWater: 90 },
    leases: { slots: 2, queue: 1024 },
  });
  const wrong = client.patchConfig({ gpuUsage: { baseHighWater: 95, baseLowWater: 99 } });
  await assert.rejects(wrong, { name: "NvshareError", status: 400 });
  assert.deepEqual(await client.config(), after);
});

scheduled("kept connections outlast a restart of the scheduler", async (scheduler) => {
  await Promise.all([scheduler.client.status(), scheduler.client.status()]);
  await scheduler.stop();
  await assert.rejects(scheduler.client.status(), { status: 0 });
  await scheduler.start();
  assert.equal((await scheduler.client.status()).gpus.length, 1);
});

// The server closes the second request's connection, as a scheduler does that is idle or ends.
test("a request that meets the end of a kept connection is sent again, once", async () => {
  let requests = 0;
  const server = createServer((request, response) => {
    if (++requests === 2 || requests > 3) request.socket.destroy();
    else response.end("{}");
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const client = new Nvshare({ baseUrl: `http://127.0.0.1:${port}` });
  try {
    await client.status();
    await client.status();
    assert.equal(requests, 3);
    await assert.rejects(client.status(), { status: 0 });
    assert.equal(requests, 5);
  } finally {
    client.close();
    server.close();
  }
});

scheduled("a program with a client may end, and its lease with it", async (scheduler) => {
  const program = `
    import { Nvshare } from "nvshare";
    const answer = await new Nvshare().acquire({ taskType: "TTS" });
    console.log(answer.result);`;
  const words = ["--input-type=module", "-e", program];
  const environment = { ...process.env, NVSHARE_RUN_DIR: scheduler.folder };
  const begun = performance.now();
  const child = spawn(process.execPath, words, {
    env: environment,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [said] = await once(child.stdout, "data");
  assert.equal(String(said), "ACQUIRED\n");
  await once(child, "exit");
  assert.ok(performance.now() - begun < 4_500, "idle connections keep it running");
  await eventually(async () => (await scheduler.client.leases()).length === 0);
});

test("without a scheduler, the error names its socket", async () => {
  const client = new Nvshare({ socketPath: "/nowhere/api.sock" });
  const message = /^\/nowhere\/api\.sock: .*ENOENT/;
  await assert.rejects(client.status(), { name: "NvshareError", status: 0, message });
});

test("a client has one place", () => {
  const both = { socketPath: "/a", baseUrl: "http://localhost:9402" };
  assert.throws(() => new Nvshare(both), TypeError);
  assert.throws(() => new Nvshare({ baseUrl: "https://localhost:9402" }), TypeError);
});
